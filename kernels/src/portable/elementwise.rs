//! Operations on rows, written over arrays of sixteen. The rule: always inlined, because the AVX-512 forms are this
//! same source compiled for more features.

use crate::rope::{Rope, RopeLayout};

/// Partial results kept side by side in a reduction.
pub(crate) const LANES: usize = 16;

/// Above this, [`exp`] is infinite.
const EXP_MOST: f32 = 88.37;

/// Below this, [`exp`] is zero: the result would be subnormal.
const EXP_LEAST: f32 = -87.33;

/// `exp(x)` within two units in the last place; exactly 1 at 0; the same bits wherever it is used.
#[inline(always)]
pub(crate) fn exp(x: f32) -> f32 {
    // Adding 1.5 · 2^23 rounds to a whole number, which is then in the low bits.
    const ROUND: f32 = 12_582_912.0;
    // ln 2 in two pieces; the first has so few bits that its multiples are exact.
    const LN2_HIGH: f32 = 355.0 / 512.0;
    const LN2_LOW: f32 = -2.121_944_4e-4;
    let shifted = x * std::f32::consts::LOG2_E + ROUND;
    let whole = shifted - ROUND;
    let rest = x - whole * LN2_HIGH - whole * LN2_LOW;
    let mut sum = 1.987_569_1e-4;
    sum = sum * rest + 1.398_199_9e-3;
    sum = sum * rest + 8.333_452e-3;
    sum = sum * rest + 4.166_579_6e-2;
    sum = sum * rest + 1.666_666_5e-1;
    sum = sum * rest + 0.5;
    let mantissa = sum * (rest * rest) + rest + 1.0;
    let power = f32::from_bits((shifted.to_bits().wrapping_sub(ROUND.to_bits()).wrapping_add(127)) << 23);
    let result = mantissa * power;
    let result = if x > EXP_MOST { f32::INFINITY } else { result };
    if x < EXP_LEAST { 0.0 } else { result }
}

/// The sum of sixteen partial sums, pair by pair.
#[inline(always)]
pub(crate) fn tree_sum(mut lanes: [f32; LANES]) -> f32 {
    for width in [8, 4, 2, 1] {
        for lane in 0..width {
            lanes[lane] += lanes[lane + width];
        }
    }
    lanes[0]
}

#[inline(always)]
pub(crate) fn rms_norm(x: &[f32], weight: &[f32], eps: f32, out: &mut [f32]) {
    let width = weight.len();
    for (x, out) in x.chunks_exact(width).zip(out.chunks_exact_mut(width)) {
        let mut sums = [0.0_f32; LANES];
        let chunks = x.chunks_exact(LANES);
        let rest = chunks.remainder();
        for chunk in chunks {
            for lane in 0..LANES {
                sums[lane] += chunk[lane] * chunk[lane];
            }
        }
        for (sum, &value) in sums.iter_mut().zip(rest) {
            *sum += value * value;
        }
        let scale = 1.0 / (tree_sum(sums) / width as f32 + eps).sqrt();
        for ((out, &x), &weight) in out.iter_mut().zip(x).zip(weight) {
            *out = x * scale * weight;
        }
    }
}

/// `up *= silu(gate)`.
#[inline(always)]
pub(crate) fn silu_mul(gate: &[f32], up: &mut [f32]) {
    for (up, &gate) in up.iter_mut().zip(gate) {
        *up *= gate / (1.0 + exp(-gate));
    }
}

#[inline(always)]
pub(crate) fn rope(x: &mut [f32], heads: usize, rope: &Rope, positions: &[u32]) {
    let (dim, rotary) = (rope.head_dim(), rope.rotary_dim());
    for (row, &position) in x.chunks_exact_mut(heads * dim).zip(positions) {
        let (cos, sin) = rope.at(position);
        for head in row.chunks_exact_mut(dim) {
            let turning = &mut head[..rotary];
            match rope.layout() {
                RopeLayout::Half => {
                    let (low, high) = turning.split_at_mut(rotary / 2);
                    for ((a, b), (&cos, &sin)) in low.iter_mut().zip(high).zip(cos.iter().zip(sin)) {
                        let (real, imaginary) = (*a, *b);
                        *a = real * cos - imaginary * sin;
                        *b = real * sin + imaginary * cos;
                    }
                }
                RopeLayout::Interleaved => {
                    for (pair, (&cos, &sin)) in turning.chunks_exact_mut(2).zip(cos.iter().zip(sin)) {
                        let (real, imaginary) = (pair[0], pair[1]);
                        pair[0] = real * cos - imaginary * sin;
                        pair[1] = real * sin + imaginary * cos;
                    }
                }
            }
        }
    }
}

#[inline(always)]
pub(crate) fn max(x: &[f32]) -> f32 {
    let larger = |a: f32, b: f32| if b > a { b } else { a };
    let mut most = [f32::NEG_INFINITY; LANES];
    let chunks = x.chunks_exact(LANES);
    let rest = chunks.remainder();
    for chunk in chunks {
        for lane in 0..LANES {
            most[lane] = larger(most[lane], chunk[lane]);
        }
    }
    let most = most.into_iter().fold(f32::NEG_INFINITY, larger);
    rest.iter().copied().fold(most, larger)
}

/// `Σ exp(x - most)`.
#[inline(always)]
pub(crate) fn sum_exp(x: &[f32], most: f32) -> f64 {
    let mut sums = [0.0_f64; LANES];
    let chunks = x.chunks_exact(LANES);
    let rest = chunks.remainder();
    for chunk in chunks {
        for lane in 0..LANES {
            sums[lane] += f64::from(exp(chunk[lane] - most));
        }
    }
    for (sum, &value) in sums.iter_mut().zip(rest) {
        *sum += f64::from(exp(value - most));
    }
    sums.iter().sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exp_is_within_two_units_in_the_last_place_over_its_range() {
        let mut worst = 0.0_f64;
        for step in 0..=2_000_000 {
            let x = -87.3 + step as f32 * (175.6 / 2_000_000.0);
            let exact = f64::from(x).exp();
            worst = worst.max((f64::from(exp(x)) - exact).abs() / exact);
        }
        assert!(worst <= 2.0 * f64::from(f32::EPSILON), "{worst}");
    }

    #[test]
    fn exp_keeps_its_promises_at_the_edges() {
        assert_eq!(exp(0.0), 1.0);
        assert_eq!(exp(-0.0), 1.0);
        assert_eq!(exp(f32::NEG_INFINITY), 0.0);
        assert_eq!(exp(-1e30), 0.0);
        assert_eq!(exp(f32::INFINITY), f32::INFINITY);
        assert_eq!(exp(1e30), f32::INFINITY);
        assert!(exp(f32::NAN).is_nan());
    }
}
