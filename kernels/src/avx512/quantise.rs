//! Activations to whole numbers for AVX-512. The rule: number for number what the plain form gives, NaN and
//! infinities included.
#![allow(unsafe_code)]

use std::arch::x86_64::*;

use crate::layout::quant::{GROUP, LANES};
use crate::layout::rows::Precision;
use crate::ops::{self, Quantiser, Run};
use crate::portable::quantise::{Group, ROUNDER};

/// Quantises rows of `cols` values.
///
/// # Safety
/// The processor has the features.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq")]
pub(crate) unsafe fn quantise_rows(x: &[f32], cols: usize, run: Run<'_>) {
    ops::quantise_rows_by::<Vectors>(x, cols, run);
}

/// A group as two vectors.
struct Vectors;

impl Quantiser for Vectors {
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq")]
    unsafe fn group(x: &[f32], precision: Precision, to: Group<'_>) {
        let given = u32::MAX >> (GROUP - x.len().min(GROUP));
        let (low, high) = (given as __mmask16, (given >> LANES) as __mmask16);
        // SAFETY: the masks keep the loads inside `x`.
        let values = unsafe {
            let at = x.as_ptr();
            [_mm512_maskz_loadu_ps(low, at), _mm512_maskz_loadu_ps(high, at.wrapping_add(LANES))]
        };
        let magnitude = _mm512_set1_epi32(0x7fff_ffff);
        let most = _mm512_max_epu32(
            _mm512_and_si512(_mm512_castps_si512(values[0]), magnitude),
            _mm512_and_si512(_mm512_castps_si512(values[1]), magnitude),
        );
        let most = f32::from_bits(_mm512_reduce_max_epu32(most));
        let inverse = if most > 0.0 { precision.most() / most } else { 0.0 };
        *to.scale = most / precision.most();
        let numbers = [whole(values[0], inverse, precision), whole(values[1], inverse, precision)];
        for (half, number) in numbers.into_iter().enumerate() {
            let bytes = half * LANES..(half + 1) * LANES;
            if precision == Precision::Eight {
                // SAFETY: the slice has sixteen bytes.
                unsafe { put(&mut to.upper[bytes], number) };
                continue;
            }
            let upper = _mm512_srai_epi32::<7>(_mm512_add_epi32(number, _mm512_set1_epi32(64)));
            let lower = _mm512_sub_epi32(number, _mm512_slli_epi32::<7>(upper));
            // SAFETY: the slices have sixteen bytes.
            unsafe {
                put(&mut to.upper[bytes.clone()], upper);
                put(&mut to.lower[bytes], lower);
            }
        }
        let (first, second) = (_mm512_reduce_add_epi32(numbers[0]), _mm512_reduce_add_epi32(numbers[1]));
        to.less.copy_from_slice(&[-first, -second]);
        *to.less_group = -(first + second);
        *to.sum = *to.scale * (first + second) as f32;
    }
}

/// Sixteen values as whole numbers.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq")]
fn whole(values: __m512, inverse: f32, precision: Precision) -> __m512i {
    let scaled = _mm512_mul_ps(values, _mm512_set1_ps(inverse));
    let rounded = _mm512_castps_si512(_mm512_add_ps(scaled, _mm512_set1_ps(ROUNDER)));
    let number = _mm512_sub_epi32(rounded, _mm512_set1_epi32(ROUNDER.to_bits().cast_signed()));
    if precision == Precision::Eight {
        _mm512_srai_epi32::<24>(_mm512_slli_epi32::<24>(number))
    } else {
        let most = precision.most() as i32;
        _mm512_max_epi32(_mm512_min_epi32(number, _mm512_set1_epi32(most)), _mm512_set1_epi32(-most))
    }
}

/// Stores numbers that fit a byte each.
///
/// # Safety
/// The processor has the features.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq")]
unsafe fn put(to: &mut [i8], numbers: __m512i) {
    assert!(to.len() == LANES, "{} bytes for {LANES} numbers", to.len());
    // SAFETY: the assertion.
    unsafe { _mm_storeu_si128(to.as_mut_ptr().cast(), _mm512_cvtepi32_epi8(numbers)) };
}

#[cfg(test)]
mod tests {
    use crate::Isa;
    use crate::layout::rows::Precision;
    use crate::ops::Activations;
    use crate::pool::Pool;

    #[test]
    fn numbers_scales_and_sums_are_those_of_the_plain_form() {
        let mut seed = 1_u32;
        let mut next = move || {
            seed = seed.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            seed
        };
        for (rows, cols) in [(1, 1), (3, 31), (2, 32), (5, 33), (4, 100), (2, 576)] {
            for kind in 0..4 {
                let values: Vec<f32> = (0..rows * cols)
                    .map(|_| match kind {
                        0 => next() as f32 / u32::MAX as f32 - 0.5,
                        1 => 0.0,
                        // Any bits: NaN, infinities and denormal numbers among them.
                        2 => f32::from_bits(next()),
                        _ => [f32::NAN, f32::INFINITY, -1.0, 1e-40, -0.0, 3.5][next() as usize % 6],
                    })
                    .collect();
                for precision in [Precision::Eight, Precision::Fifteen] {
                    let all = [Isa::Portable, Isa::detect()].map(|isa| {
                        let mut rows = Activations::from(values.clone());
                        rows.quantise(&Pool::new(1), isa, cols, precision);
                        let q = rows.quantised();
                        let bits =
                            |values: &[f32]| values.iter().map(|value| value.to_bits()).collect::<Vec<_>>();
                        let scales = (bits(&q.scale), bits(&q.sum));
                        (q.q.to_vec(), scales, q.less.clone(), q.less_group.clone())
                    });
                    assert_eq!(all[0], all[1], "{rows} rows of {cols}, kind {kind}, {precision:?}");
                }
            }
        }
    }
}
