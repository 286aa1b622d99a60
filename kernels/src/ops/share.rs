//! One output buffer written by many parts at once. The rule: each part takes only slices that no other part takes.
#![allow(unsafe_code)]

use std::marker::PhantomData;

/// A mutable slice that parts of one job cut pieces from.
pub(crate) struct Share<'a, T = f32> {
    start: *mut T,
    len: usize,
    _borrow: PhantomData<&'a mut [T]>,
}

// SAFETY: a `Share` is only a pointer and a length; the duty to keep pieces apart is on `slice` and `pointer`.
unsafe impl<T: Send> Send for Share<'_, T> {}
// SAFETY: as for `Send`.
unsafe impl<T: Send> Sync for Share<'_, T> {}

impl<T> Clone for Share<'_, T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for Share<'_, T> {}

impl<'a, T> Share<'a, T> {
    pub(crate) fn new(slice: &'a mut [T]) -> Share<'a, T> {
        Share { start: slice.as_mut_ptr(), len: slice.len(), _borrow: PhantomData }
    }

    /// The piece `start..start + len`.
    ///
    /// # Safety
    /// While the piece lives, no other piece that overlaps it may exist, on this or another thread.
    pub(crate) unsafe fn slice(&self, start: usize, len: usize) -> &'a mut [T] {
        assert!(start <= self.len && len <= self.len - start, "piece {start}+{len} of {}", self.len);
        // SAFETY: in bounds by the assertion; unaliased by the caller's duty; the borrow outlives `'a`.
        unsafe { std::slice::from_raw_parts_mut(self.start.add(start), len) }
    }

    /// The start of the buffer, for code that writes scattered elements. Whoever writes through it has the duty of
    /// [`Share::slice`], and keeps within [`Share::len`].
    #[cfg(target_arch = "x86_64")]
    pub(crate) fn pointer(&self) -> *mut T {
        self.start
    }

    /// Elements in the buffer.
    #[cfg(target_arch = "x86_64")]
    pub(crate) fn len(&self) -> usize {
        self.len
    }
}
