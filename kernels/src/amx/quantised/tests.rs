use proptest::prelude::*;

use super::super::CheckError;
use super::super::check::{self, Case, Numbers, forms};
use super::super::emulated::Emulated;
use super::*;
use crate::Isa;
use crate::layout::quant::Form;

const PRECISIONS: [Precision; 2] = [Precision::Eight, Precision::Fifteen];

/// Products over tiles are scaled by AVX-512, so that without it there is nothing to compare.
fn comparable() -> bool {
    Isa::usable().contains(&Isa::Avx512)
}

fn case(form: Form, precision: Precision, m: usize, outputs: usize, cols: usize, seed: u64) -> Case {
    let x = Numbers(seed ^ 0xabc).units(m * cols);
    Case {
        form,
        precision,
        outputs,
        cols,
        x,
        bias: seed.is_multiple_of(2),
        add: seed.is_multiple_of(3),
        seed,
    }
}

#[test]
fn every_number_of_rows_has_the_bits_of_avx512() {
    if !comparable() {
        return;
    }
    for form in forms() {
        for precision in PRECISIONS {
            for m in 1..=70 {
                let case = case(form, precision, m, 33, 32 + m, m as u64);
                assert_eq!(case.compare(&mut Emulated::new(), 0..m), Ok(()), "{form:?}");
            }
        }
    }
}

#[test]
fn odd_shapes_have_the_bits_of_avx512() {
    if !comparable() {
        return;
    }
    for form in forms() {
        for precision in PRECISIONS {
            for (m, outputs, cols) in
                [(17, 1, 1), (33, 15, 31), (16, 64, 256), (48, 65, 257), (9, 31, 520), (300, 40, 64)]
            {
                let case = case(form, precision, m, outputs, cols, 7 + m as u64);
                assert_eq!(case.compare(&mut Emulated::new(), 0..m), Ok(()), "{form:?} {outputs} x {cols}");
            }
        }
    }
}

#[test]
fn rows_in_the_middle_are_computed_and_no_others() {
    if !comparable() {
        return;
    }
    for form in forms() {
        let case = case(form, Precision::Fifteen, 60, 70, 96, 5);
        assert_eq!(case.compare(&mut Emulated::new(), 13..44), Ok(()), "{form:?}");
    }
}

#[test]
fn inputs_that_are_no_numbers_show_as_with_avx512() {
    if !comparable() {
        return;
    }
    for form in forms() {
        for precision in PRECISIONS {
            for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY, f32::MAX, f32::MIN_POSITIVE / 4.0] {
                let mut case = case(form, precision, 21, 40, 300, 1);
                case.x[300 * 3 + 40] = bad;
                case.x[300 * 20 + 299] = bad;
                assert_eq!(case.compare(&mut Emulated::new(), 0..21), Ok(()), "{form:?} {bad}");
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(if cfg!(miri) { 1 } else { 96 }))]

    #[test]
    fn any_product_has_the_bits_of_avx512(
        form in 0_usize..12,
        fifteen: bool,
        m in 1_usize..220,
        outputs in 1_usize..100,
        cols in 1_usize..600,
        seed: u64,
    ) {
        let case = case(forms()[form], PRECISIONS[usize::from(fifteen)], m, outputs, cols, seed);
        if comparable() {
            prop_assert_eq!(case.compare(&mut Emulated::new(), 0..m), Ok(()));
        }
    }
}

#[test]
fn whole_blocks_and_rests_have_tiles_of_their_own() {
    for (rows, whole, rest) in [(1, 0, 1), (15, 0, 15), (16, 16, 0), (17, 16, 1), (192, 16, 0), (191, 16, 15)]
    {
        let config = config(rows, 32);
        assert_eq!(config.shape(ROWS).rows, whole, "{rows}");
        assert_eq!(config.shape(REST_ROWS).rows, rest, "{rows}");
        assert_eq!(config.shape(WEIGHTS[1]), Shape { rows: 8, row_bytes: 64 });
    }
}

/// Tiles that do one thing wrong.
struct Wrong<const HOW: u8>(Emulated);

/// Both factors' bytes are taken for signed.
const SIGNED: u8 = 0;
/// A tile that is made zero keeps what it had.
const KEPT: u8 = 1;
/// Rows are stored as if the tile were smaller.
const SHORT: u8 = 2;

impl<const HOW: u8> Tiles for Wrong<HOW> {
    fn configure(&mut self, config: &Config) {
        self.0.configure(config);
    }

    fn zero<const TILE: u8>(&mut self) {
        if HOW != KEPT {
            self.0.zero::<TILE>();
        }
    }

    fn load<const TILE: u8>(&mut self, from: &[u8], stride: usize) {
        if HOW == SIGNED && WEIGHTS.contains(&TILE) {
            let clipped: Vec<u8> = from.iter().map(|byte| byte & 0x7f).collect();
            self.0.load::<TILE>(&clipped, stride);
        } else {
            self.0.load::<TILE>(from, stride);
        }
    }

    fn dot<const SUMS: u8, const LEFT: u8, const RIGHT: u8>(&mut self) {
        self.0.dot::<SUMS, LEFT, RIGHT>();
    }

    fn store<const TILE: u8>(&mut self, to: &mut [i32], stride: usize) {
        if HOW == SHORT && TILE == REST_SUMS[0] {
            return;
        }
        self.0.store::<TILE>(to, stride);
    }
}

#[test]
fn the_check_passes_over_right_tiles_and_fails_over_wrong_ones() {
    assert_eq!(check::tiles(&mut Emulated::new()), Ok(()));
    let tiles_differ = |result| assert!(matches!(result, Err(CheckError::Tiles { .. })), "{result:?}");
    tiles_differ(check::tiles(&mut Wrong::<SIGNED>(Emulated::new())));
    tiles_differ(check::tiles(&mut Wrong::<SHORT>(Emulated::new())));
    if !comparable() {
        return;
    }
    assert_eq!(check::products(&mut Emulated::new()), Ok(()));
    let products_differ = |result| assert!(matches!(result, Err(CheckError::Product { .. })), "{result:?}");
    products_differ(check::products(&mut Wrong::<SIGNED>(Emulated::new())));
    products_differ(check::products(&mut Wrong::<KEPT>(Emulated::new())));
    products_differ(check::products(&mut Wrong::<SHORT>(Emulated::new())));
}

#[test]
fn the_processors_tiles_pass_the_check_or_are_absent() {
    let result = super::super::self_check();
    match super::super::present() {
        Ok(()) => assert_eq!(result, Ok(())),
        Err(absent) => assert_eq!(result, Err(CheckError::Absent(absent))),
    }
}

#[test]
fn tiles_are_not_used_before_they_are_trusted() {
    assert!(!Isa::Amx.runs_amx() && !Isa::usable().contains(&Isa::Amx));
}
