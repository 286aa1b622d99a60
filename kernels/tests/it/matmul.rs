//! Products against the oracle.

use pons_kernels::{Isa, Pool, Precision, ops, scalar};
use proptest::prelude::*;

use crate::numbers::{FORMATS, Format, Numbers, matrix};

/// A chain of `k` additions of products of at most 1.5 errs by at most about `k² / 2 · 1.5` half-units in the last
/// place in the worst case, and by its root in practice; this is between the two, far below any real mistake.
fn tolerance(k: usize) -> f32 {
    4e-7 * (k as f32).sqrt() * (k as f32).sqrt().max(4.0)
}

fn check(format: Format, rows: usize, cols: usize, m: usize, biased: bool, seed: u64) {
    let w = matrix(format, rows, cols, seed);
    let mut numbers = Numbers(seed ^ 1);
    let x = numbers.units(m * cols);
    let bias = numbers.units(rows);
    let bias = biased.then_some(&bias[..]);
    let mut expected = vec![0.0; m * rows];
    let pool = Pool::new(3);
    // Every other seed sees activations in fifteen bits.
    let (precision, most) = [(Precision::Eight, 127.0), (Precision::Fifteen, 16_319.0)][(seed % 2) as usize];
    let w = w.with_precision(precision);
    let seen = if format.is_quantised() { scalar::to_whole_numbers(&x, cols, most) } else { x.clone() };
    scalar::matmul_bias(&seen, m, &w, bias, &mut expected);
    for isa in Isa::usable() {
        let mut out = vec![f32::NAN; m * rows];
        ops::matmul_bias(&pool, isa, &x, m, &w, bias, &mut out);
        for (index, (got, want)) in out.iter().zip(&expected).enumerate() {
            assert!(
                (got - want).abs() <= tolerance(cols),
                "{isa:?} {format:?} {rows}x{cols} m={m} at {index}: {got} for {want}"
            );
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]

    #[test]
    fn any_shape_and_format_agrees_with_the_oracle(
        format in 0..FORMATS.len(),
        rows in 1_usize..150,
        cols in 1_usize..600,
        m in 1_usize..41,
        biased: bool,
        seed: u64,
    ) {
        check(FORMATS[format], rows, cols, m, biased, seed);
    }
}

#[test]
fn shapes_at_the_edges_of_tiles_and_panels_agree_with_the_oracle() {
    for format in FORMATS {
        for (rows, cols, m) in [
            (1, 1, 1),
            (16, 8, 1),
            (17, 255, 2),
            (31, 256, 8),
            (32, 257, 9),
            (33, 512, 12),
            (64, 513, 13),
            (96, 33, 24),
            (40, 64, 25),
            (20, 40, 200),
            (300, 520, 200),
        ] {
            check(format, rows, cols, m, rows % 2 == 0, 7);
            check(format, rows, cols, m, rows % 2 == 1, 8);
        }
    }
}

#[test]
fn activations_in_eight_bits_cost_little_accuracy_and_in_fifteen_next_to_none() {
    for format in FORMATS.into_iter().filter(|format| format.is_quantised()) {
        let (rows, cols, m) = (70, 512, 5);
        let w = matrix(format, rows, cols, 3);
        let x = Numbers(4).units(m * cols);
        let (mut exact, mut got) = (vec![0.0; m * rows], vec![0.0; m * rows]);
        scalar::matmul(&x, m, &w, &mut exact);
        ops::matmul(&Pool::new(2), Isa::detect(), &x, m, &w, &mut got);
        let power = |values: &[f32]| values.iter().map(|v| f64::from(v * v)).sum::<f64>();
        let errors: Vec<f32> = exact.iter().zip(&got).map(|(a, b)| a - b).collect();
        // A step of 1/127 of the largest errs by its root of 1/12: 0.23 %, of values whose root mean square is 0.58.
        let relative = (power(&errors) / power(&exact)).sqrt();
        assert!(relative < 0.01, "{format:?}: {relative}");
        assert!(relative > 1e-4, "{format:?}: {relative} is less than eight bits can give");
        let w = w.with_precision(Precision::Fifteen);
        ops::matmul(&Pool::new(2), Isa::detect(), &x, m, &w, &mut got);
        let errors: Vec<f32> = exact.iter().zip(&got).map(|(a, b)| a - b).collect();
        let fine = (power(&errors) / power(&exact)).sqrt();
        assert!(fine < relative / 100.0, "{format:?}: {fine} with fifteen bits, {relative} with eight");
    }
}

#[test]
fn products_of_one_call_are_those_of_single_calls() {
    let (cols, m) = (320, 9);
    let x = Numbers(5).units(m * cols);
    let pool = Pool::new(3);
    let weights = [70, 33, 64].map(|rows| matrix(FORMATS[rows % FORMATS.len()], rows, cols, rows as u64));
    for isa in Isa::usable() {
        let mut alone = weights.each_ref().map(|w| Numbers(6).units(m * w.rows()));
        let mut together = alone.clone();
        for (w, out) in weights.iter().zip(&mut alone) {
            let mut sum = vec![0.0; out.len()];
            ops::matmul(&pool, isa, &x, m, w, &mut sum);
            out.iter_mut().zip(&sum).for_each(|(out, sum)| *out += sum);
        }
        let [a, b, c] = &mut together;
        let projection = |weight, out| ops::Projection { weight, bias: None, add: true, out };
        let projections =
            [projection(&weights[0], a), projection(&weights[1], b), projection(&weights[2], c)];
        ops::project(&pool, isa, &mut ops::Activations::from(x.clone()), m, projections);
        assert_eq!(alone, together, "{isa:?}");
    }
}

#[test]
fn a_gated_product_is_silu_of_one_times_the_other() {
    let (rows, cols) = (100, 320);
    for format in FORMATS {
        let (gate, up) = (matrix(format, rows, cols, 8), matrix(format, rows, cols, 9));
        for (isa, m) in Isa::usable().into_iter().flat_map(|isa| [(isa, 1), (isa, 7), (isa, 60)]) {
            let pool = Pool::new(3);
            let x = Numbers(10).units(m * cols);
            let (mut a, mut b) = (vec![0.0; m * rows], vec![0.0; m * rows]);
            ops::matmul(&pool, isa, &x, m, &gate, &mut a);
            ops::matmul(&pool, isa, &x, m, &up, &mut b);
            let (mut room, mut out) = (vec![0.0; m * rows], vec![0.0; m * rows]);
            ops::project_gated(
                &pool,
                isa,
                &mut ops::Activations::from(x),
                m,
                &gate,
                &up,
                &mut room,
                &mut out,
            );
            let mut expected = vec![0.0; m * rows];
            scalar::silu_mul(&a, &b, &mut expected);
            for (got, want) in out.iter().zip(&expected) {
                assert!(
                    (got - want).abs() <= 4e-6 * want.abs().max(1.0),
                    "{format:?} {isa:?} {m}: {got} for {want}"
                );
            }
        }
    }
}

#[test]
fn a_nan_or_an_infinity_among_the_inputs_shows_in_every_output() {
    for format in FORMATS {
        let w = matrix(format, 40, 96, 12);
        for isa in Isa::usable() {
            for bad in [f32::NAN, f32::INFINITY] {
                let mut x = Numbers(13).units(2 * 96);
                x[40] = bad;
                let mut out = vec![0.0; 80];
                ops::matmul(&Pool::new(1), isa, &x, 2, &w, &mut out);
                assert!(
                    out[..40].iter().all(|value| !value.is_finite()),
                    "{format:?} {isa:?}: {bad} is lost"
                );
                assert!(out[40..].iter().all(|value| value.is_finite()), "{format:?} {isa:?}: rows mix");
            }
        }
    }
}

#[test]
fn no_rows_are_no_work() {
    let w = matrix(Format::F32, 4, 4, 1);
    ops::matmul(&Pool::new(2), Isa::detect(), &[], 0, &w, &mut []);
}

#[test]
#[should_panic(expected = "x holds 7 numbers")]
fn a_wrong_shape_is_refused() {
    let w = matrix(Format::F32, 4, 4, 1);
    ops::matmul(&Pool::new(1), Isa::detect(), &[0.0; 7], 2, &w, &mut [0.0; 8]);
}
