//! One output buffer written by many parts at once. The rule: each part takes only slices that no other part takes.
#![allow(unsafe_code)]

use std::marker::PhantomData;

/// A mutable slice of `f32` that parts of one job cut pieces from.
#[derive(Clone, Copy)]
pub(crate) struct Share<'a> {
    start: *mut f32,
    len: usize,
    _borrow: PhantomData<&'a mut [f32]>,
}

// SAFETY: a `Share` is only a pointer and a length; the duty to keep pieces apart is on `slice` and `pointer`.
unsafe impl Send for Share<'_> {}
// SAFETY: as for `Send`.
unsafe impl Sync for Share<'_> {}

impl<'a> Share<'a> {
    pub(crate) fn new(slice: &'a mut [f32]) -> Share<'a> {
        Share { start: slice.as_mut_ptr(), len: slice.len(), _borrow: PhantomData }
    }

    /// The piece `start..start + len`.
    ///
    /// # Safety
    /// While the piece lives, no other piece that overlaps it may exist, on this or another thread.
    pub(crate) unsafe fn slice(&self, start: usize, len: usize) -> &'a mut [f32] {
        assert!(start <= self.len && len <= self.len - start, "piece {start}+{len} of {}", self.len);
        // SAFETY: in bounds by the assertion; unaliased by the caller's duty; the borrow outlives `'a`.
        unsafe { std::slice::from_raw_parts_mut(self.start.add(start), len) }
    }

    /// The start of the buffer, for code that writes scattered elements. Whoever writes through it has the duty of
    /// [`Share::slice`], and keeps within [`Share::len`].
    #[cfg(target_arch = "x86_64")]
    pub(crate) fn pointer(&self) -> *mut f32 {
        self.start
    }

    /// Elements in the buffer.
    #[cfg(target_arch = "x86_64")]
    pub(crate) fn len(&self) -> usize {
        self.len
    }
}
