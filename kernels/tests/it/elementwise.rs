//! Row operations and reductions against the oracle, and between instruction sets.

use pons_kernels::{Isa, Pool, Rope, RopeLayout, RopeScaling, ops, scalar};
use proptest::prelude::*;

use crate::numbers::Numbers;

/// What one operation gives on every instruction set; they run the same source and must agree to the bit.
fn agreed(compute: impl Fn(Isa) -> Vec<f32>) -> Vec<f32> {
    let results: Vec<Vec<f32>> = Isa::usable().into_iter().map(compute).collect();
    for other in &results[1..] {
        assert!(results[0].iter().zip(other).all(|(a, b)| a.to_bits() == b.to_bits()));
    }
    results[0].clone()
}

/// Relative to the larger of the two and one.
fn close(got: &[f32], want: &[f32], tolerance: f32) {
    for (index, (got, want)) in got.iter().zip(want).enumerate() {
        assert!((got - want).abs() <= tolerance * want.abs().max(1.0), "at {index}: {got} for {want}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn rms_norm_agrees_with_the_oracle(width in 1_usize..700, rows in 1_usize..40, seed: u64) {
        let mut numbers = Numbers(seed);
        let (x, weight) = (numbers.units(rows * width), numbers.units(width));
        let mut want = vec![0.0; x.len()];
        scalar::rms_norm(&x, &weight, 1e-5, rows, &mut want);
        let got = agreed(|isa| {
            let mut out = vec![0.0; x.len()];
            ops::rms_norm(&Pool::new(2), isa, &x, &weight, 1e-5, rows, &mut out);
            out
        });
        // A sum of at most 700 squares in 16 partial sums: 44 additions of rounding 6e-8 each.
        close(&got, &want, 5e-6);
    }

    #[test]
    fn rope_is_the_oracle_to_the_bit(
        half in 1_usize..40, still in 0_usize..9, rows in 1_usize..20, heads in 1_usize..6,
        interleaved: bool, seed: u64,
    ) {
        let layout = if interleaved { RopeLayout::Interleaved } else { RopeLayout::Half };
        let dim = 2 * half + still;
        let rope = Rope::new(dim, 2 * half, 3000, 1e4, RopeScaling::None, layout);
        let mut numbers = Numbers(seed);
        let x = numbers.units(rows * heads * dim);
        let positions: Vec<u32> = (0..rows).map(|_| (numbers.next_u64() % 3000) as u32).collect();
        let mut want = x.clone();
        scalar::rope(&mut want, rows, heads, &rope, &positions);
        let got = agreed(|isa| {
            let mut x = x.clone();
            ops::rope(&Pool::new(2), isa, &mut x, rows, heads, &rope, &positions);
            x
        });
        prop_assert_eq!(got, want);
    }

    #[test]
    fn argmax_max_and_log_sum_exp_agree_with_the_oracle(len in 1_usize..2000, spread in 0.0_f32..200.0, seed: u64) {
        let mut numbers = Numbers(seed);
        // Steps of 1/8, so that there are ties.
        let x: Vec<f32> = (0..len).map(|_| (numbers.unit() * spread * 8.0).round() / 8.0).collect();
        for isa in Isa::usable() {
            prop_assert_eq!(ops::argmax(isa, &x), scalar::argmax(&x));
            prop_assert_eq!(ops::max(isa, &x), scalar::max(&x));
            let (got, want) = (ops::log_sum_exp(isa, &x), scalar::log_sum_exp(&x));
            prop_assert!((got - want).abs() <= 1e-6, "{got} for {want}");
        }
    }
}

#[test]
fn a_rotation_keeps_the_length_of_each_pair() {
    let rope = Rope::new(64, 64, 100, 1e4, RopeScaling::None, RopeLayout::Half);
    let before = Numbers(1).units(64);
    let mut after = before.clone();
    ops::rope(&Pool::new(1), Isa::detect(), &mut after, 1, 1, &rope, &[77]);
    assert_ne!(before, after);
    for pair in 0..32 {
        let length = |x: &[f32]| x[pair].hypot(x[pair + 32]);
        assert!((length(&before) - length(&after)).abs() < 1e-5);
    }
}

#[test]
fn the_lowest_of_equals_wins_and_a_nan_never_does() {
    let nan = f32::NAN;
    let low = f32::NEG_INFINITY;
    let cases: [(&[f32], usize); 7] = [
        (&[1.0, 3.0, 3.0], 1),
        (&[nan, 1.0, nan], 1),
        (&[nan, low, low], 1),
        (&[nan, nan], 0),
        (&[low, low], 0),
        (&[-0.0, 0.0], 0),
        (&[5.0, f32::INFINITY, nan], 1),
    ];
    for isa in Isa::usable() {
        for (x, want) in cases {
            assert_eq!(ops::argmax(isa, x), want, "{x:?}");
        }
        let mut long = vec![0.5; 1000];
        long[3] = nan;
        long[517] = 2.0;
        long[900] = 2.0;
        assert_eq!(ops::argmax(isa, &long), 517);
    }
}

#[test]
fn log_sum_exp_keeps_its_promises_at_the_edges() {
    for isa in Isa::usable() {
        assert_eq!(ops::log_sum_exp(isa, &[f32::NEG_INFINITY; 40]), f64::NEG_INFINITY);
        assert_eq!(ops::log_sum_exp(isa, &[0.0, f32::INFINITY]), f64::INFINITY);
        assert!(ops::log_sum_exp(isa, &[0.0, f32::NAN, 1.0]).is_nan());
        assert!(ops::log_sum_exp(isa, &[f32::NAN]).is_nan());
        let got = ops::log_sum_exp(isa, &[f32::NEG_INFINITY, 3.0]);
        assert_eq!(got, 3.0);
    }
}
