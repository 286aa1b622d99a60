//! Where a product's weights come from: one reader for each stored format. The rule: a reader yields the weights of
//! sixteen outputs for one input after the other, already as `f32`, and grouped weights rounded once.
//!
//! A *tile* is sixteen outputs, half a strip.

use std::arch::x86_64::*;

use crate::layout::matrix::{Groups, Matrix, OCTET, STRIP};

/// Inputs read between two calls of [`Source::cursor`].
pub(super) const STEP: usize = OCTET;

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
    /// What the weights of one tile and group have in common.
    type Scale: Copy;
    /// A place between two inputs of one tile.
    type Cursor: Copy;

    /// How many inputs ahead weights should be fetched; 0 where they are in the cache anyway.
    const AHEAD: usize;

    /// Inputs that share a [`Source::Scale`]; a multiple of [`STEP`].
    fn group(self) -> usize;

    /// Asks for the [`STEP`] inputs from `k` on of a strip; neither need exist.
    fn fetch(self, strip: usize, k: usize);

    /// # Safety
    /// The processor has AVX-512 F, BW, VL and DQ; the tile and the group exist.
    unsafe fn scale(self, tile: usize, group: usize) -> Self::Scale;

    /// A cursor before input `k`, a multiple of [`STEP`]. It yields at most [`STEP`] inputs.
    ///
    /// # Safety
    /// The processor has AVX-512 F, BW, VL and DQ; the tile and the input exist.
    unsafe fn cursor(self, tile: usize, k: usize) -> Self::Cursor;

    /// The weights of the next input.
    ///
    /// # Safety
    /// The processor has AVX-512 F, BW, VL and DQ; the input exists and is within the cursor's [`STEP`].
    unsafe fn next(cursor: &mut Self::Cursor, scale: Self::Scale) -> __m512;
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

/// A width at which scales and minima are stored.
pub(super) trait GroupNumber: Copy {
    /// Sixteen of them as `f32`.
    ///
    /// # Safety
    /// The processor has AVX-512 F, BW, VL and DQ; sixteen numbers can be read at `at`.
    unsafe fn sixteen(at: *const Self) -> __m512;
}

impl GroupNumber for f32 {
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq")]
    unsafe fn sixteen(at: *const f32) -> __m512 {
        // SAFETY: the caller's duty.
        unsafe { _mm512_loadu_ps(at) }
    }
}

impl GroupNumber for u16 {
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq")]
    unsafe fn sixteen(at: *const u16) -> __m512 {
        // SAFETY: the caller's duty.
        unsafe { widen_half(at) }
    }
}

/// Four-bit weights in groups.
#[derive(Clone, Copy)]
pub(super) struct Nibbles<G> {
    pub(super) data: *const u32,
    pub(super) cols: usize,
    pub(super) groups: *const G,
    pub(super) size: usize,
}

/// Eight-bit weights in groups.
#[derive(Clone, Copy)]
pub(super) struct Bytes<G> {
    pub(super) data: *const u8,
    pub(super) cols: usize,
    pub(super) groups: *const G,
    pub(super) size: usize,
}

/// A format with one element a weight and no groups.
macro_rules! dense {
    ($name:ident, $element:ty, $ahead:expr, |$fetcher:ident, $strip:ident, $from:ident| $fetched:expr, |$self:ident, $tile:ident, $k:ident| $at:expr, |$pointer:ident| $load:expr) => {
        impl Source for $name {
            type Scale = ();
            type Cursor = *const $element;

            const AHEAD: usize = $ahead / (STRIP * size_of::<$element>());

            #[inline(always)]
            fn fetch(self, $strip: usize, $from: usize) {
                let $fetcher = self;
                fetch_lines($fetched, STEP * STRIP * size_of::<$element>());
            }

            fn group(self) -> usize {
                // Any multiple of a step will do where there is no scale to fetch.
                1 << 20
            }

            #[inline]
            #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq")]
            unsafe fn scale(self, _tile: usize, _group: usize) {}

            #[inline]
            #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq")]
            unsafe fn cursor(self, $tile: usize, $k: usize) -> Self::Cursor {
                let $self = self;
                // SAFETY: the tile and the input exist, so that the place is inside the store.
                unsafe { $self.data.add($at) }
            }

            #[inline]
            #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq")]
            unsafe fn next(cursor: &mut Self::Cursor, (): ()) -> __m512 {
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
/// Sixteen numbers can be read at `at`.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq")]
unsafe fn widen_half(at: *const u16) -> __m512 {
    // SAFETY: the caller's duty.
    _mm512_cvtph_ps(unsafe { _mm256_loadu_si256(at.cast()) })
}

/// The scales and the minima of a tile's group.
///
/// # Safety
/// The tile and the group exist.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq")]
unsafe fn scale_and_min<G: GroupNumber>(
    groups: *const G,
    size: usize,
    cols: usize,
    tile: usize,
    group: usize,
) -> (__m512, __m512) {
    // SAFETY: inside the store by the caller's duty; the minima follow a strip's scales.
    unsafe {
        let at = groups.add(Groups::at(size, cols, tile / 2, group) + tile % 2 * (STRIP / 2));
        (G::sixteen(at), G::sixteen(at.add(STRIP)))
    }
}

/// Asks for the scales and minima that input `k` of a strip has.
#[inline(always)]
fn fetch_group<G>(groups: *const G, size: usize, cols: usize, strip: usize, k: usize) {
    let at = groups.wrapping_add(Groups::at(size, cols, strip, k / size));
    fetch_lines(at, 2 * STRIP * size_of::<G>());
}

impl<G: GroupNumber> Source for Nibbles<G> {
    type Scale = (__m512, __m512);
    type Cursor = __m512i;

    const AHEAD: usize = AHEAD_BYTES / (STRIP / 2);

    #[inline(always)]
    fn fetch(self, strip: usize, k: usize) {
        fetch_lines(self.data.wrapping_add(Matrix::octet_at(self.cols, strip, k)), STEP * STRIP / 2);
        if k.is_multiple_of(self.size) {
            fetch_group(self.groups, self.size, self.cols, strip, k);
        }
    }

    fn group(self) -> usize {
        self.size
    }

    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq")]
    unsafe fn scale(self, tile: usize, group: usize) -> Self::Scale {
        // SAFETY: the caller's duty.
        unsafe { scale_and_min(self.groups, self.size, self.cols, tile, group) }
    }

    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq")]
    unsafe fn cursor(self, tile: usize, k: usize) -> __m512i {
        let at = Matrix::octet_at(self.cols, tile / 2, k) + tile % 2 * (STRIP / 2);
        // SAFETY: the tile and the input exist, and octets are stored whole.
        unsafe {
            let at = self.data.add(at);
            _mm512_loadu_si512(at.cast())
        }
    }

    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq")]
    unsafe fn next(cursor: &mut __m512i, (scale, min): Self::Scale) -> __m512 {
        // A permutation looks at the low four bits of each index only: it is mask and conversion in one.
        let numbers = _mm512_setr_ps(
            0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0, 10.0, 11.0, 12.0, 13.0, 14.0, 15.0,
        );
        let q = _mm512_permutexvar_ps(*cursor, numbers);
        *cursor = _mm512_srli_epi32::<4>(*cursor);
        _mm512_fmadd_ps(scale, q, min)
    }
}

impl<G: GroupNumber> Source for Bytes<G> {
    type Scale = (__m512, __m512);
    type Cursor = *const u8;

    const AHEAD: usize = AHEAD_BYTES / STRIP;

    #[inline(always)]
    fn fetch(self, strip: usize, k: usize) {
        fetch_lines(self.data.wrapping_add(Matrix::dense_at(self.cols, strip, k)), STEP * STRIP);
        if k.is_multiple_of(self.size) {
            fetch_group(self.groups, self.size, self.cols, strip, k);
        }
    }

    fn group(self) -> usize {
        self.size
    }

    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq")]
    unsafe fn scale(self, tile: usize, group: usize) -> Self::Scale {
        // SAFETY: the caller's duty.
        unsafe { scale_and_min(self.groups, self.size, self.cols, tile, group) }
    }

    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq")]
    unsafe fn cursor(self, tile: usize, k: usize) -> *const u8 {
        // SAFETY: the tile and the input exist.
        unsafe { self.data.add(dense_at(self.cols, tile, k)) }
    }

    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq")]
    unsafe fn next(cursor: &mut *const u8, (scale, min): Self::Scale) -> __m512 {
        // SAFETY: the input exists, and a tile's sixteen weights lie side by side.
        let bytes = unsafe { _mm_loadu_si128(cursor.cast()) };
        *cursor = cursor.wrapping_add(STRIP);
        _mm512_fmadd_ps(scale, _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(bytes)), min)
    }
}
