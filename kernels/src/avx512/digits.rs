//! How packed numbers and scales are read for AVX-512. The rule: one reader a width and one a scaling, and nothing
//! about rows or sums in them.

use std::arch::x86_64::*;

use super::source::widen_half;
use crate::layout::quant::{GROUP, LANES, NEST, NEST_WORDS};

/// Reads the numbers of a unit as unsigned bytes: four inputs of each of sixteen outputs.
pub(crate) trait Digits: Copy {
    /// Bytes of a unit.
    const UNIT: usize;
    /// Whether the numbers stay below 128, so that sums of two products fit sixteen bits.
    const SMALL: bool;

    /// Quad `quad` (0..8).
    ///
    /// # Safety
    /// The processor has AVX-512 F and BW; a unit starts at `unit`.
    unsafe fn quad(unit: *const u8, quad: usize) -> __m512i;
}

/// Four bits.
#[derive(Clone, Copy)]
pub(crate) struct Fours;

/// Six bits.
#[derive(Clone, Copy)]
pub(crate) struct Sixes;

/// Eight bits.
#[derive(Clone, Copy)]
pub(crate) struct Eights;

/// # Safety
/// The processor has AVX-512 F and BW; 64 bytes may be read.
#[inline]
#[target_feature(enable = "avx512f,avx512bw")]
unsafe fn nibbles(vector: *const u8, high: bool) -> __m512i {
    // SAFETY: the caller's duty.
    let both = unsafe { _mm512_loadu_si512(vector.cast()) };
    let mask = _mm512_set1_epi8(15);
    _mm512_and_si512(if high { _mm512_srli_epi16::<4>(both) } else { both }, mask)
}

impl Digits for Fours {
    const UNIT: usize = LANES * GROUP / 2;
    const SMALL: bool = true;

    #[inline]
    #[target_feature(enable = "avx512f,avx512bw")]
    unsafe fn quad(unit: *const u8, quad: usize) -> __m512i {
        // SAFETY: the caller's duty.
        unsafe { nibbles(unit.add(quad % 4 * 64), quad >= 4) }
    }
}

impl Digits for Sixes {
    const UNIT: usize = LANES * GROUP * 3 / 4;
    const SMALL: bool = true;

    #[inline]
    #[target_feature(enable = "avx512f,avx512bw")]
    unsafe fn quad(unit: *const u8, quad: usize) -> __m512i {
        // SAFETY: the caller's duty.
        let (low, upper) = unsafe {
            let upper = unit.add(LANES * GROUP / 2 + quad / 4 * 64);
            (nibbles(unit.add(quad % 4 * 64), quad >= 4), _mm512_loadu_si512(upper.cast()))
        };
        // The two bits of this quad go to where bits 4 and 5 are.
        let moved = match quad % 4 {
            0 => _mm512_slli_epi16::<4>(upper),
            1 => _mm512_slli_epi16::<2>(upper),
            2 => upper,
            _ => _mm512_srli_epi16::<2>(upper),
        };
        // low | (moved & 0x30)
        _mm512_ternarylogic_epi32::<0xf8>(low, moved, _mm512_set1_epi8(0x30))
    }
}

impl Digits for Eights {
    const UNIT: usize = LANES * GROUP;
    const SMALL: bool = false;

    #[inline]
    #[target_feature(enable = "avx512f,avx512bw")]
    unsafe fn quad(unit: *const u8, quad: usize) -> __m512i {
        // SAFETY: the caller's duty.
        unsafe { _mm512_loadu_si512(unit.add(quad * 64).cast()) }
    }
}

/// Reads the scales of units.
pub(crate) trait Scaler: Copy {
    /// Groups that share an outer scale.
    const NEST: usize;
    /// Whether the halves of a group have scales of their own.
    const HALVES: bool;
    /// Whether weights have minima.
    const MINIMA: bool;
    /// What the units of a nest have in common.
    type Nest: Copy;

    /// The power of two whose power is the number that stands for zero.
    fn zero_shift(self) -> u32;

    /// Opens nest `nest`, counted as units are.
    ///
    /// # Safety
    /// The processor has AVX-512 F, BW and VL; the nest exists.
    unsafe fn open(self, nest: usize) -> Self::Nest;

    /// The scales of group `group` of the nest; `part` names its half where halves differ.
    ///
    /// # Safety
    /// The processor has AVX-512 F, BW and VL; the nest exists, and the group in it.
    unsafe fn scale(self, nest: Self::Nest, group: usize, part: usize) -> __m512;

    /// The minima of a group.
    ///
    /// # Safety
    /// As [`Scaler::scale`].
    unsafe fn minimum(self, nest: Self::Nest, group: usize) -> __m512;
}

/// `w = d · (q − zero)`.
#[derive(Clone, Copy)]
pub(crate) struct Centred {
    pub(crate) d: *const u16,
    pub(crate) zero_shift: u32,
}

impl Scaler for Centred {
    const NEST: usize = 1;
    const HALVES: bool = false;
    const MINIMA: bool = false;
    type Nest = __m512;

    #[inline(always)]
    fn zero_shift(self) -> u32 {
        self.zero_shift
    }

    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512vl")]
    unsafe fn open(self, nest: usize) -> __m512 {
        // SAFETY: the caller's duty.
        unsafe { widen_half(self.d.add(nest * LANES)) }
    }

    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512vl")]
    unsafe fn scale(self, nest: __m512, _: usize, _: usize) -> __m512 {
        nest
    }

    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512vl")]
    unsafe fn minimum(self, _: __m512, _: usize) -> __m512 {
        _mm512_setzero_ps()
    }
}

/// `w = d · q + m`.
#[derive(Clone, Copy)]
pub(crate) struct Affine {
    pub(crate) dm: *const u16,
}

impl Scaler for Affine {
    const NEST: usize = 1;
    const HALVES: bool = false;
    const MINIMA: bool = true;
    type Nest = (__m512, __m512);

    #[inline(always)]
    fn zero_shift(self) -> u32 {
        0
    }

    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512vl")]
    unsafe fn open(self, nest: usize) -> Self::Nest {
        // SAFETY: the caller's duty.
        unsafe {
            let at = self.dm.add(nest * 2 * LANES);
            (widen_half(at), widen_half(at.add(LANES)))
        }
    }

    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512vl")]
    unsafe fn scale(self, (d, _): Self::Nest, _: usize, _: usize) -> __m512 {
        d
    }

    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512vl")]
    unsafe fn minimum(self, (_, m): Self::Nest, _: usize) -> __m512 {
        m
    }
}

/// `w = (d · s) · q − m · t`.
#[derive(Clone, Copy)]
pub(crate) struct NestedAffine {
    pub(crate) dm: *const u16,
    pub(crate) st: *const u32,
}

/// Outer scales, minima (negated) and the words of one nest.
#[derive(Clone, Copy)]
pub(crate) struct AffineNest {
    d: __m512,
    m: __m512,
    words: [__m512i; NEST_WORDS],
}

impl AffineNest {
    /// The six-bit numbers `index`, as [`crate::layout::quant::six_bits`] reads them.
    #[inline]
    #[target_feature(enable = "avx512f")]
    fn six_bits(&self, index: usize) -> __m512 {
        let [a, b, c] = self.words;
        let number = if index < 15 {
            let word = match index / 5 {
                0 => a,
                1 => b,
                _ => c,
            };
            let shift = _mm_cvtsi32_si128(6 * (index % 5) as i32);
            _mm512_and_si512(_mm512_srl_epi32(word, shift), _mm512_set1_epi32(63))
        } else {
            let (b, c) = (_mm512_srli_epi32::<30>(b), _mm512_slli_epi32::<4>(_mm512_srli_epi32::<30>(c)));
            let low = _mm512_or_si512(_mm512_srli_epi32::<30>(a), _mm512_slli_epi32::<2>(b));
            _mm512_or_si512(low, c)
        };
        _mm512_cvtepi32_ps(number)
    }
}

impl Scaler for NestedAffine {
    const NEST: usize = NEST;
    const HALVES: bool = false;
    const MINIMA: bool = true;
    type Nest = AffineNest;

    #[inline(always)]
    fn zero_shift(self) -> u32 {
        0
    }

    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512vl")]
    unsafe fn open(self, nest: usize) -> AffineNest {
        // SAFETY: the caller's duty.
        unsafe {
            let (dm, st) = (self.dm.add(nest * 2 * LANES), self.st.add(nest * NEST_WORDS * LANES));
            let word = |index: usize| _mm512_loadu_si512(st.add(index * LANES).cast());
            let m = _mm512_sub_ps(_mm512_setzero_ps(), widen_half(dm.add(LANES)));
            AffineNest { d: widen_half(dm), m, words: [word(0), word(1), word(2)] }
        }
    }

    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512vl")]
    unsafe fn scale(self, nest: AffineNest, group: usize, _: usize) -> __m512 {
        _mm512_mul_ps(nest.d, nest.six_bits(group))
    }

    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512vl")]
    unsafe fn minimum(self, nest: AffineNest, group: usize) -> __m512 {
        _mm512_mul_ps(nest.m, nest.six_bits(NEST + group))
    }
}

/// `w = (d · s) · (q − zero)`.
#[derive(Clone, Copy)]
pub(crate) struct NestedCentred {
    pub(crate) d: *const u16,
    pub(crate) s: *const u8,
    pub(crate) zero_shift: u32,
}

impl Scaler for NestedCentred {
    const NEST: usize = NEST;
    const HALVES: bool = true;
    const MINIMA: bool = false;
    type Nest = (__m512, *const u8);

    #[inline(always)]
    fn zero_shift(self) -> u32 {
        self.zero_shift
    }

    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512vl")]
    unsafe fn open(self, nest: usize) -> Self::Nest {
        // SAFETY: the caller's duty.
        unsafe { (widen_half(self.d.add(nest * LANES)), self.s.add(nest * 2 * NEST * LANES)) }
    }

    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512vl")]
    unsafe fn scale(self, (d, s): Self::Nest, group: usize, part: usize) -> __m512 {
        // SAFETY: the caller's duty.
        let s = unsafe { _mm_loadu_si128(s.add((group * 2 + part) * LANES).cast()) };
        _mm512_mul_ps(d, _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(s)))
    }

    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512vl")]
    unsafe fn minimum(self, _: Self::Nest, _: usize) -> __m512 {
        _mm512_setzero_ps()
    }
}
