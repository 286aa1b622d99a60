//! The inner loops of attention. The rule: the chain of additions of each result is the same however many queries,
//! blocks or vectors are in registers together.
//!
//! Always inlined, into a caller that is compiled for the processor's features.

use std::arch::x86_64::*;

use crate::ops::{SEGMENT, SEGMENT_BLOCKS};

/// Queries in registers together.
pub(super) const ABREAST: usize = 6;

/// Blocks of keys, or vectors of values, in registers together.
pub(super) const BROAD: usize = 4;

/// Elements of one vector.
pub(super) const LANES: usize = 16;

/// Bytes of one vector, and of a cache line.
const LINE: usize = 64;

/// How bfloat16 pairs are multiplied and made.
pub(super) trait Dot: Copy {
    /// Adds, lane by lane, the products of both elements of a pair.
    ///
    /// # Safety
    /// The processor has AVX-512 F and BW, and what the implementation names.
    unsafe fn dot(sum: __m512, a: __m512i, b: __m512i) -> __m512;

    /// Thirty-two numbers as bfloat16, those of `low` first.
    ///
    /// # Safety
    /// As for [`Dot::dot`].
    unsafe fn round(low: __m512, high: __m512) -> __m512i;
}

/// With AVX-512 BF16.
#[derive(Clone, Copy)]
pub(super) struct Native;

impl Dot for Native {
    #[inline(always)]
    unsafe fn dot(sum: __m512, a: __m512i, b: __m512i) -> __m512 {
        // SAFETY: the features are the caller's duty; both types are 512 plain bits.
        unsafe {
            let a = std::mem::transmute::<__m512i, __m512bh>(a);
            let b = std::mem::transmute::<__m512i, __m512bh>(b);
            _mm512_dpbf16_ps(sum, a, b)
        }
    }

    #[inline(always)]
    unsafe fn round(low: __m512, high: __m512) -> __m512i {
        // SAFETY: the features are the caller's duty; both types are 512 plain bits.
        unsafe { std::mem::transmute::<__m512bh, __m512i>(_mm512_cvtne2ps_pbh(high, low)) }
    }
}

/// Without it: products of `f32`.
#[derive(Clone, Copy)]
pub(super) struct Widened;

impl Dot for Widened {
    #[inline(always)]
    unsafe fn dot(sum: __m512, a: __m512i, b: __m512i) -> __m512 {
        // SAFETY: the features are the caller's duty.
        unsafe {
            let high = _mm512_set1_epi32(-65_536);
            let (even_a, even_b) = (_mm512_slli_epi32::<16>(a), _mm512_slli_epi32::<16>(b));
            let (odd_a, odd_b) = (_mm512_and_si512(a, high), _mm512_and_si512(b, high));
            let sum = _mm512_fmadd_ps(_mm512_castsi512_ps(odd_a), _mm512_castsi512_ps(odd_b), sum);
            _mm512_fmadd_ps(_mm512_castsi512_ps(even_a), _mm512_castsi512_ps(even_b), sum)
        }
    }

    #[inline(always)]
    unsafe fn round(low: __m512, high: __m512) -> __m512i {
        // SAFETY: the features are the caller's duty.
        unsafe { _mm512_inserti64x4::<1>(_mm512_castsi256_si512(round_half(low)), round_half(high)) }
    }
}

/// The scores of `N` queries with the keys of `B` blocks. `q` is `[pair][ABREAST]`, `out` is `[query][SEGMENT]`
/// from the first block's place on; `ahead` will be needed soon.
///
/// # Safety
/// What `q`, `keys` and `out` point to exists for so many queries, pairs and blocks.
#[inline(always)]
pub(super) unsafe fn scores<D: Dot, const N: usize, const B: usize, const FETCH: bool>(
    q: *const u32,
    keys: &[*const u16; BROAD],
    ahead: &[*const u8; BROAD],
    pairs: usize,
    factors: &[__m512; BROAD],
    out: *mut f32,
) {
    // SAFETY: the caller's duty; a prefetch of any address is harmless.
    unsafe {
        let mut sums = [[_mm512_setzero_ps(); B]; N];
        let mut q = q;
        for pair in 0..pairs {
            let mut key = [_mm512_setzero_si512(); B];
            for b in 0..B {
                key[b] = _mm512_loadu_si512(keys[b].add(pair * 2 * LANES).cast());
                if FETCH {
                    _mm_prefetch::<_MM_HINT_T0>(ahead[b].wrapping_add(pair * LINE).cast());
                }
            }
            for n in 0..N {
                let q = _mm512_set1_epi32((*q.add(n)).cast_signed());
                for b in 0..B {
                    sums[n][b] = D::dot(sums[n][b], q, key[b]);
                }
            }
            q = q.wrapping_add(ABREAST);
        }
        for n in 0..N {
            for b in 0..B {
                let scores = _mm512_mul_ps(sums[n][b], factors[b]);
                _mm512_storeu_ps(out.add(n * SEGMENT + b * LANES), scores);
            }
        }
    }
}

/// Replaces a query's scores by weights as bfloat16, times `value_scales` where given. Returns the largest score
/// and the sum of the weights.
///
/// # Safety
/// `row` holds a segment's scores, of which `seen`, at least one, count.
#[inline(always)]
pub(super) unsafe fn weigh<D: Dot>(row: *mut f32, seen: usize, value_scales: Option<&[f32]>) -> (f32, f32) {
    // SAFETY: the caller's duty; a segment is whole pairs of vectors, and weights take the place of scores that
    // have been read.
    unsafe {
        let vectors = seen.div_ceil(2 * LANES) * 2;
        for vector in seen / LANES..vectors {
            let at = row.add(vector * LANES);
            let nothing = _mm512_set1_ps(f32::NEG_INFINITY);
            _mm512_storeu_ps(at, _mm512_mask_mov_ps(nothing, kept(seen, vector), _mm512_loadu_ps(at)));
        }
        let mut even = _mm512_set1_ps(f32::NEG_INFINITY);
        let mut odd = even;
        for vector in (0..vectors).step_by(2) {
            even = _mm512_max_ps(even, _mm512_loadu_ps(row.add(vector * LANES)));
            odd = _mm512_max_ps(odd, _mm512_loadu_ps(row.add((vector + 1) * LANES)));
        }
        let most = _mm512_reduce_max_ps(_mm512_max_ps(even, odd));
        let mut totals = _mm512_setzero_ps();
        let ones = _mm512_set1_epi32(0x3f80_3f80);
        for vector in (0..vectors).step_by(2) {
            let largest = _mm512_set1_ps(most);
            let mut low = exp2(_mm512_sub_ps(_mm512_loadu_ps(row.add(vector * LANES)), largest));
            let mut high = exp2(_mm512_sub_ps(_mm512_loadu_ps(row.add((vector + 1) * LANES)), largest));
            if let Some(scales) = value_scales {
                totals = _mm512_add_ps(totals, _mm512_add_ps(low, high));
                let scales = scales.as_ptr().add(vector * LANES);
                // What is not seen weighs nothing, whatever scale was left there.
                low = _mm512_maskz_mul_ps(kept(seen, vector), low, _mm512_loadu_ps(scales));
                high = _mm512_maskz_mul_ps(kept(seen, vector + 1), high, _mm512_loadu_ps(scales.add(LANES)));
            }
            let weights = D::round(low, high);
            if value_scales.is_none() {
                // The rounded weights, so that they are divided by what they really sum to.
                totals = D::dot(totals, weights, ones);
            }
            _mm512_storeu_si512(row.add(vector * LANES / 2).cast(), weights);
        }
        let mut lanes = [0.0; LANES];
        _mm512_storeu_ps(lanes.as_mut_ptr(), totals);
        (most, crate::portable::elementwise::tree_sum(lanes))
    }
}

/// Which of a vector's keys are among the first `seen`.
#[inline(always)]
fn kept(seen: usize, vector: usize) -> __mmask16 {
    ((1_u32 << seen.saturating_sub(vector * LANES).min(LANES)) - 1) as __mmask16
}

/// A segment's values, for [`mix`].
pub(super) struct Values<'a> {
    /// The blocks' values, and what will be needed soon.
    pub(super) blocks: &'a [*const u16; SEGMENT_BLOCKS],
    pub(super) ahead: &'a [*const u8; SEGMENT_BLOCKS],
    /// Elements of one token's value.
    pub(super) width: usize,
}

/// The sums of values of `N` queries in `V` vectors from element `first` on; `seen` keys of each count.
///
/// # Safety
/// `weights` holds a segment's weights a query at the distance of its scores, `out` is `[query][width]`, and the
/// blocks exist up to the most seen.
#[inline(always)]
pub(super) unsafe fn mix<D: Dot, const N: usize, const V: usize, const FETCH: bool>(
    weights: *const u32,
    values: &Values<'_>,
    first: usize,
    seen: &[usize; ABREAST],
    out: *mut f32,
) {
    // SAFETY: the caller's duty; a prefetch of any address is harmless.
    unsafe {
        let stride = 2 * values.width;
        let least = seen[..N].iter().fold(SEGMENT, |least, &seen| least.min(seen)) / 2;
        let most = seen[..N].iter().fold(0, |most, &seen| most.max(seen)).div_ceil(2);
        let mut sums = [[_mm512_setzero_ps(); V]; N];
        let mut weights = weights;
        let mut done = 0;
        while done < least {
            let mut at = values.blocks[done / 8].add(2 * first);
            let mut ahead = values.ahead[done / 8].wrapping_add(4 * first);
            for _ in done..least.min(done / 8 * 8 + 8) {
                let mut value = [_mm512_setzero_si512(); V];
                for v in 0..V {
                    value[v] = _mm512_loadu_si512(at.add(v * 2 * LANES).cast());
                    if FETCH {
                        _mm_prefetch::<_MM_HINT_T0>(ahead.wrapping_add(v * LINE).cast());
                    }
                }
                for n in 0..N {
                    let weight = _mm512_set1_epi32((*weights.add(n * SEGMENT)).cast_signed());
                    for v in 0..V {
                        sums[n][v] = D::dot(sums[n][v], weight, value[v]);
                    }
                }
                (at, ahead) = (at.wrapping_add(stride), ahead.wrapping_add(2 * stride));
                weights = weights.wrapping_add(1);
            }
            done = least.min(done / 8 * 8 + 8);
        }
        // At the end of what some see: nothing is read for those that do not.
        for pair in least..most {
            let at = values.blocks[pair / 8].add(pair % 8 * stride + 2 * first);
            for n in 0..N {
                if seen[n] <= 2 * pair {
                    continue;
                }
                let kept = if seen[n] == 2 * pair + 1 { 0x5555_5555 } else { u32::MAX };
                let weight = _mm512_set1_epi32((*weights.add(n * SEGMENT)).cast_signed());
                for v in 0..V {
                    let value = _mm512_maskz_loadu_epi16(kept, at.add(v * 2 * LANES).cast());
                    sums[n][v] = D::dot(sums[n][v], weight, value);
                }
            }
            weights = weights.wrapping_add(1);
        }
        for n in 0..N {
            for v in 0..V {
                _mm512_storeu_ps(out.add(n * values.width + first + v * LANES), sums[n][v]);
            }
        }
    }
}

/// `2^x` of numbers that are at most zero (or NaN): within 3e-7 of it, exactly 1 at 0, and 0 where the result would
/// be subnormal. Lanes do not know of each other.
///
/// # Safety
/// The processor has AVX-512 F.
#[inline(always)]
pub(super) unsafe fn exp2(x: __m512) -> __m512 {
    // SAFETY: the caller's duty.
    unsafe {
        let whole = _mm512_roundscale_ps::<{ _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC }>(x);
        let rest = _mm512_sub_ps(x, whole);
        let mut sum = _mm512_set1_ps(1.338_130_3e-3);
        for factor in [9.666_368e-3, 5.550_381e-2, 2.402_235e-1, std::f32::consts::LN_2, 1.0] {
            sum = _mm512_fmadd_ps(sum, rest, _mm512_set1_ps(factor));
        }
        // An unordered comparison keeps NaN.
        let kept = _mm512_cmp_ps_mask::<_CMP_NLT_UQ>(x, _mm512_set1_ps(-126.0));
        _mm512_maskz_scalef_ps(kept, sum, whole)
    }
}

/// Eight-bit integers as bfloat16, which holds them exactly. `len` is a multiple of 32.
///
/// # Safety
/// So many can be read and written.
#[inline(always)]
pub(super) unsafe fn unpack(from: *const u8, to: *mut u16, len: usize) {
    // SAFETY: the caller's duty.
    unsafe {
        for at in (0..len).step_by(2 * LANES) {
            let low = narrow(_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(from.add(at).cast()))));
            let bytes = _mm_loadu_si128(from.add(at + LANES).cast());
            let high = narrow(_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(bytes)));
            _mm256_storeu_si256(to.add(at).cast(), low);
            _mm256_storeu_si256(to.add(at + LANES).cast(), high);
        }
    }
}

/// The upper halves of sixteen numbers.
///
/// # Safety
/// The processor has AVX-512 F.
#[inline(always)]
unsafe fn narrow(x: __m512) -> __m256i {
    // SAFETY: the caller's duty.
    unsafe { _mm512_cvtepi32_epi16(_mm512_srli_epi32::<16>(_mm512_castps_si512(x))) }
}

/// Sixteen numbers rounded to bfloat16, to nearest even; a NaN stays one.
///
/// # Safety
/// The processor has AVX-512 F.
#[inline(always)]
unsafe fn round_half(x: __m512) -> __m256i {
    // SAFETY: the caller's duty.
    unsafe {
        let bits = _mm512_castps_si512(x);
        let tie = _mm512_and_si512(_mm512_srli_epi32::<16>(bits), _mm512_set1_epi32(1));
        let rounded = _mm512_add_epi32(bits, _mm512_add_epi32(tie, _mm512_set1_epi32(0x7fff)));
        let broken = _mm512_cmp_ps_mask::<_CMP_UNORD_Q>(x, x);
        let quiet = _mm512_or_si512(bits, _mm512_set1_epi32(0x40_0000));
        narrow(_mm512_castsi512_ps(_mm512_mask_mov_epi32(rounded, broken, quiet)))
    }
}
