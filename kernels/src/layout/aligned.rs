//! A zeroed buffer of fixed length that starts on a cache line. The rule: it never grows, so that its start, found
//! once, stays right.

use std::ops::{Deref, DerefMut};

use super::large;

/// The size of a cache line, and of one vector register.
pub(crate) const LINE_BYTES: usize = 64;

/// A fixed-length zeroed buffer whose first element is on a cache line. Its pages are touched only when written.
pub(crate) struct Aligned<T> {
    buffer: Vec<T>,
    start: usize,
    len: usize,
}

impl<T: Copy + Default> Aligned<T>
where
    Vec<T>: Zeroed<T>,
{
    /// A zeroed buffer of `len` elements, or `None` where that many bytes cannot exist.
    pub(crate) fn zeroed(len: usize) -> Option<Aligned<T>> {
        let slack = LINE_BYTES / size_of::<T>();
        let padded = len.checked_add(slack)?;
        let bytes = padded.checked_mul(size_of::<T>())?;
        if bytes > isize::MAX as usize {
            return None;
        }
        let mut buffer = Vec::<T>::zeroed(padded);
        large::ask_for_large(&mut buffer);
        let start = buffer.as_ptr().align_offset(LINE_BYTES);
        // `align_offset` may decline only where it cannot be computed; the buffer is then merely slower.
        let start = if start <= slack { start } else { 0 };
        Some(Aligned { buffer, start, len })
    }
}

/// Element types for which `vec![0; n]` asks the system for zeroed pages instead of writing them.
pub(crate) trait Zeroed<T> {
    /// A vector of `len` zeros.
    fn zeroed(len: usize) -> Vec<T>;
}

macro_rules! zeroed {
    ($($type:ty: $zero:expr),*) => {$(
        impl Zeroed<$type> for Vec<$type> {
            fn zeroed(len: usize) -> Vec<$type> {
                vec![$zero; len]
            }
        }
    )*};
}

zeroed!(u8: 0, i8: 0, u16: 0, u32: 0, i32: 0, f32: 0.0);

impl<T> Deref for Aligned<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        &self.buffer[self.start..self.start + self.len]
    }
}

impl<T> DerefMut for Aligned<T> {
    fn deref_mut(&mut self) -> &mut [T] {
        &mut self.buffer[self.start..self.start + self.len]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_buffer_starts_on_a_cache_line_and_is_zero() {
        for len in [0, 1, 15, 64, 1000] {
            let buffer = Aligned::<u16>::zeroed(len).unwrap();
            assert_eq!(buffer.len(), len);
            assert_eq!(buffer.as_ptr() as usize % LINE_BYTES, 0);
            assert!(buffer.iter().all(|&value| value == 0));
        }
    }

    #[test]
    fn a_size_that_cannot_exist_is_refused() {
        assert!(Aligned::<f32>::zeroed(usize::MAX).is_none());
        assert!(Aligned::<f32>::zeroed(usize::MAX / 4).is_none());
    }
}
