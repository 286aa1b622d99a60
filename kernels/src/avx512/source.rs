//! Where a product's float weights come from: one reader for each stored format. The rule: a reader yields the
//! weights of sixteen outputs for one input after the other, already as `f32`.
//!
//! A *tile* is sixteen outputs, half a strip.

use std::arch::x86_64::*;

use crate::layout::matrix::{Matrix, STRIP};

/// Inputs read between two calls of [`Source::cursor`].
pub(super) const STEP: usize = 8;

/// How far ahead of its use a weight is fetched: what a memory latency of some hundred nanoseconds lets through.
const AHEAD_BYTES: usize = 4096;

/// Asks for the cache lines of `bytes` bytes from `at` on.
#[inline(always)]
pub(super) fn fetch_lines<T>(at: *const T, bytes: usize) {
    for line in 0..bytes / 64 {
        // SAFETY: a prefetch of any address, past the end of a store too, is harmless.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(at.cast::<i8>().wrapping_add(line * 64)) };
    }
}

/// Reads packed weights.
pub(super) trait Source: Copy {
    /// A place between two inputs of one tile.
    type Cursor: Copy;

    /// How many inputs ahead weights should be fetched; 0 where they are in the cache anyway.
    const AHEAD: usize;

    /// Asks for the [`STEP`] inputs from `k` on of a strip; neither need exist.
    fn fetch(self, strip: usize, k: usize);

    /// A cursor before input `k`, a multiple of [`STEP`]. It yields at most [`STEP`] inputs.
    ///
    /// # Safety
    /// The processor has AVX-512 F, BW, VL and DQ; the tile and the input exist.
    unsafe fn cursor(self, tile: usize, k: usize) -> Self::Cursor;

    /// The weights of the next input.
    ///
    /// # Safety
    /// The processor has AVX-512 F, BW, VL and DQ; the input exists and is within the cursor's [`STEP`].
    unsafe fn next(cursor: &mut Self::Cursor) -> __m512;
}

/// Where the weights of a tile start, with one element a weight.
fn dense_at(cols: usize, tile: usize, k: usize) -> usize {
    Matrix::dense_at(cols, tile / 2, k) + tile % 2 * (STRIP / 2)
}

/// Where the weights of a tile start in an unpacked panel.
fn panel_at(start: usize, tile: usize, k: usize) -> usize {
    (k - start) * STRIP + tile % 2 * (STRIP / 2)
}

/// Full-width weights, in a matrix or in an unpacked panel.
#[derive(Clone, Copy)]
pub(super) struct Floats {
    pub(super) data: *const f32,
    pub(super) cols: usize,
}

/// An unpacked panel: one strip's inputs from `start` on.
#[derive(Clone, Copy)]
pub(super) struct Panel {
    pub(super) data: *const f32,
    pub(super) start: usize,
}

/// bfloat16 weights.
#[derive(Clone, Copy)]
pub(super) struct Bf16s {
    pub(super) data: *const u16,
    pub(super) cols: usize,
}

/// Half-precision weights.
#[derive(Clone, Copy)]
pub(super) struct Halves {
    pub(super) data: *const u16,
    pub(super) cols: usize,
}

/// A format with one element a weight.
macro_rules! dense {
    ($name:ident, $element:ty, $ahead:expr, |$fetcher:ident, $strip:ident, $from:ident| $fetched:expr, |$self:ident, $tile:ident, $k:ident| $at:expr, |$pointer:ident| $load:expr) => {
        impl Source for $name {
            type Cursor = *const $element;

            const AHEAD: usize = $ahead / (STRIP * size_of::<$element>());

            #[inline(always)]
            fn fetch(self, $strip: usize, $from: usize) {
                let $fetcher = self;
                fetch_lines($fetched, STEP * STRIP * size_of::<$element>());
            }

            #[inline]
            #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq")]
            unsafe fn cursor(self, $tile: usize, $k: usize) -> Self::Cursor {
                let $self = self;
                // SAFETY: the tile and the input exist, so that the place is inside the store.
                unsafe { $self.data.add($at) }
            }

            #[inline]
            #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq")]
            unsafe fn next(cursor: &mut Self::Cursor) -> __m512 {
                let $pointer = *cursor;
                *cursor = cursor.wrapping_add(STRIP);
                // SAFETY: the input exists, and a tile's sixteen weights lie side by side.
                unsafe { $load }
            }
        }
    };
}

dense!(
    Floats,
    f32,
    AHEAD_BYTES,
    |this, strip, k| this.data.wrapping_add(Matrix::dense_at(this.cols, strip, k)),
    |this, tile, k| dense_at(this.cols, tile, k),
    |at| _mm512_loadu_ps(at)
);
dense!(Panel, f32, 0, |this, _strip, _k| this.data, |this, tile, k| panel_at(this.start, tile, k), |at| {
    _mm512_loadu_ps(at)
});
dense!(
    Bf16s,
    u16,
    AHEAD_BYTES,
    |this, strip, k| this.data.wrapping_add(Matrix::dense_at(this.cols, strip, k)),
    |this, tile, k| dense_at(this.cols, tile, k),
    |at| widen_bf16(at)
);
dense!(
    Halves,
    u16,
    AHEAD_BYTES,
    |this, strip, k| this.data.wrapping_add(Matrix::dense_at(this.cols, strip, k)),
    |this, tile, k| dense_at(this.cols, tile, k),
    |at| widen_half(at)
);

/// Sixteen bfloat16 numbers as `f32`.
///
/// # Safety
/// Sixteen numbers can be read at `at`.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq")]
pub(super) unsafe fn widen_bf16(at: *const u16) -> __m512 {
    // SAFETY: the caller's duty.
    let bits = unsafe { _mm256_loadu_si256(at.cast()) };
    _mm512_castsi512_ps(_mm512_slli_epi32::<16>(_mm512_cvtepu16_epi32(bits)))
}

/// Sixteen half-precision numbers as `f32`.
///
/// # Safety
/// The processor has AVX-512 F; sixteen numbers can be read at `at`.
#[inline]
#[target_feature(enable = "avx512f")]
pub(super) unsafe fn widen_half(at: *const u16) -> __m512 {
    // SAFETY: the caller's duty.
    _mm512_cvtph_ps(unsafe { _mm256_loadu_si256(at.cast()) })
}
