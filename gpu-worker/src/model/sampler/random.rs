//! The counter-based generator behind sampling. The rule: a draw is a pure function of (seed, choice, output
//! position, token), so it is the same on any machine, in any batch, after any restart.

/// Odd constant of the golden-ratio sequence; it spreads neighbouring counters over all bits.
const GOLDEN: u64 = 0x9e37_79b9_7f4a_7c15;
const LN_2: f64 = std::f64::consts::LN_2;

/// Finaliser of 64-bit mixing (Stafford's variant 13, the one of splitmix64).
fn mix(mut x: u64) -> u64 {
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

/// The noise of one output position: one draw for each token.
#[derive(Clone, Copy, Debug)]
pub(super) struct Noise {
    key: u64,
}

impl Noise {
    /// Noise for one output position of one choice.
    pub(super) fn new(seed: u64, choice: u32, position: u32) -> Self {
        let place = (u64::from(choice) << 32) | u64::from(position);
        Self { key: mix(mix(seed.wrapping_add(GOLDEN)) ^ mix(place.wrapping_mul(GOLDEN).wrapping_add(1))) }
    }

    /// Uniform bits of a token.
    pub(super) fn bits(self, token: u32) -> u64 {
        mix(self.key.wrapping_add(u64::from(token).wrapping_add(1).wrapping_mul(GOLDEN)))
    }

    /// A standard Gumbel draw from a token's bits.
    pub(super) fn gumbel(bits: u64) -> f64 {
        // 52 bits and a half step are exact in an f64, so the uniform is strictly inside (0, 1).
        let uniform = ((bits >> 12) as f64 + 0.5) * (1.0 / (1u64 << 52) as f64);
        -(-uniform.ln()).ln()
    }

    /// Bits below these give a draw below `value`; none if all do. It costs no logarithm: with u the uniform,
    /// −ln(−ln u) ≤ −ln(1 − u), and 1 − u is at least 2^−(leading ones + 1).
    pub(super) fn least_bits(value: f64) -> Option<u64> {
        let leading_ones = ((value - 1e-6) / LN_2 - 1.0).ceil();
        if leading_ones > 64.0 {
            return None;
        }
        // What is negative, or no number, becomes zero: nothing is ruled out.
        Some(!u64::MAX.checked_shr(leading_ones as u32).unwrap_or(0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_bound_is_never_below_the_draw() {
        let noise = Noise::new(7, 0, 3);
        let edges = [0, 1, u64::MAX, u64::MAX << 11, u64::MAX << 12, 1 << 63, (1 << 63) - 1, !(1 << 62)];
        for bits in (0..200_000).map(|token| noise.bits(token)).chain(edges) {
            let value = Noise::gumbel(bits);
            assert!(value.is_finite());
            let least = Noise::least_bits(value).expect("a draw that exists is not ruled out");
            assert!(least <= bits, "bits {bits:x}, least {least:x}");
        }
        assert_eq!(Noise::least_bits(f64::INFINITY), None);
        assert_eq!(Noise::least_bits(f64::NEG_INFINITY), Some(0));
        assert_eq!(Noise::least_bits(-1.0), Some(0));
    }

    #[test]
    fn draws_have_the_mean_and_variance_of_a_gumbel() {
        let noise = Noise::new(1, 2, 3);
        let n = 100_000;
        let draws: Vec<f64> = (0..n).map(|t| Noise::gumbel(noise.bits(t))).collect();
        let mean = draws.iter().sum::<f64>() / f64::from(n);
        let variance = draws.iter().map(|d| (d - mean).powi(2)).sum::<f64>() / f64::from(n);
        // Standard errors: 1.283 / sqrt(n) = 0.004 and about 0.011.
        assert!((mean - 0.577_216).abs() < 0.02, "mean {mean}");
        assert!((variance - std::f64::consts::PI.powi(2) / 6.0).abs() < 0.06, "variance {variance}");
    }

    #[test]
    fn seed_choice_position_and_token_all_change_the_draw() {
        let base = Noise::new(1, 0, 0).bits(5);
        for other in [Noise::new(2, 0, 0), Noise::new(1, 1, 0), Noise::new(1, 0, 1)] {
            assert_ne!(base, other.bits(5));
        }
        assert_ne!(base, Noise::new(1, 0, 0).bits(6));
    }
}
