//! Tiles as a program meets them: checked, trusted, and then a set like the others, or refused with a reason.

use pons_kernels::amx::{self, CheckError};
use pons_kernels::dispatch::IsaError;
use pons_kernels::{Isa, Pool, Precision, ops};

use crate::numbers::{FORMATS, Numbers, matrix};

#[test]
fn tiles_are_a_set_where_they_pass_their_check_and_refused_with_the_reason_elsewhere() {
    let vnni = Isa::usable().contains(&Isa::Avx512Vnni);
    if let Err(error) = amx::self_check() {
        assert_eq!(error, CheckError::Absent(amx::present().unwrap_err()), "tiles that are there are right");
        amx::trust();
        assert!(!Isa::usable().contains(&Isa::Amx), "trust makes no tiles");
        let refused = Isa::from_setting(Some("amx")).unwrap_err();
        let reason =
            if vnni { IsaError::NoTiles(amx::present().unwrap_err()) } else { IsaError::Missing("amx") };
        assert_eq!(refused, reason);
        assert!(
            refused.to_string().contains("'amx'") && refused.to_string().contains("unset it"),
            "{refused}"
        );
        return;
    }
    assert_eq!(Isa::from_setting(Some("amx")), Err(IsaError::Untrusted));
    amx::trust();
    assert_eq!(Isa::from_setting(Some("amx")), Ok(Isa::Amx));
}

#[test]
fn asking_for_tiles_gives_the_bits_of_the_vector_form_whether_they_are_there_or_not() {
    if !Isa::usable().contains(&Isa::Avx512Vnni) {
        return;
    }
    for format in FORMATS {
        for precision in [Precision::Eight, Precision::Fifteen] {
            let w = matrix(format, 70, 320, 3).with_precision(precision);
            let x = Numbers(4).units(130 * 320);
            let product = |isa| {
                let mut out = vec![0.0; 130 * 70];
                ops::matmul(&Pool::new(3), isa, &x, 130, &w, &mut out);
                out
            };
            assert_eq!(product(Isa::Amx), product(Isa::Avx512Vnni), "{format:?} {precision:?}");
        }
    }
}
