//! Products against the oracle.

use pons_kernels::{Isa, Matrix, Pool, ops, scalar};
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
    scalar::matmul_bias(&x, m, &w, bias, &mut expected);
    let pool = Pool::new(3);
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
        }
    }
}

#[test]
fn packed_weights_give_what_their_dequantised_copy_gives() {
    for format in FORMATS {
        let (rows, cols, m) = (70, 320, 5);
        let packed = matrix(format, rows, cols, 3);
        let mut data = vec![0.0; rows * cols];
        for (row, data) in data.chunks_exact_mut(cols).enumerate() {
            packed.row_to_f32(row, data);
        }
        let plain = Matrix::from_f32(rows, cols, &data);
        let x = Numbers(4).units(m * cols);
        let pool = Pool::new(2);
        for isa in Isa::usable() {
            let (mut a, mut b) = (vec![0.0; m * rows], vec![0.0; m * rows]);
            ops::matmul(&pool, isa, &x, m, &packed, &mut a);
            ops::matmul(&pool, isa, &x, m, &plain, &mut b);
            if isa == Isa::Avx512 {
                assert_eq!(a, b, "{format:?}: both decode to the same numbers and add in the same order");
            }
            assert!(a.iter().zip(&b).all(|(a, b)| (a - b).abs() <= tolerance(cols)), "{isa:?} {format:?}");
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
