//! Which instruction set the operations use. The rule: a set is used only where the processor really has it,
//! whatever a caller or the environment asks for.

use std::sync::OnceLock;

/// The environment variable that narrows the choice: `portable` or `avx512`.
pub const ISA_VARIABLE: &str = "PONS_ISA";

/// An instruction set that the operations are written for.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum Isa {
    /// Plain Rust, right on every machine.
    Portable,
    /// AVX-512 with the F, BW, VL and DQ parts.
    Avx512,
}

/// Why a requested instruction set cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum IsaError {
    /// The name is none that we know.
    #[error(
        "PONS_ISA is '{0}', which is no instruction set known here; use 'portable' or 'avx512', or unset it"
    )]
    Unknown(String),
    /// The processor lacks it.
    #[error("PONS_ISA asks for 'avx512', which this processor lacks; use 'portable', or unset it")]
    Missing,
}

impl Isa {
    /// The best set of this machine, narrowed by `PONS_ISA` where that names a usable one. A value that names
    /// none is passed over here; a program that wants to report it at start calls [`Isa::configured`].
    pub fn detect() -> Isa {
        Isa::configured().unwrap_or_else(|_| Isa::best())
    }

    /// As [`Isa::detect`], but a `PONS_ISA` that cannot be honoured is an error.
    pub fn configured() -> Result<Isa, IsaError> {
        match std::env::var(ISA_VARIABLE) {
            Ok(value) => Isa::from_setting(Some(&value)),
            Err(std::env::VarError::NotPresent) => Isa::from_setting(None),
            Err(std::env::VarError::NotUnicode(raw)) => {
                Err(IsaError::Unknown(raw.to_string_lossy().into_owned()))
            }
        }
    }

    /// What a setting means on this machine; `None` and the empty string mean no wish.
    pub fn from_setting(setting: Option<&str>) -> Result<Isa, IsaError> {
        match setting {
            None | Some("") => Ok(Isa::best()),
            Some("portable") => Ok(Isa::Portable),
            Some("avx512") if has_avx512() => Ok(Isa::Avx512),
            Some("avx512") => Err(IsaError::Missing),
            Some(other) => Err(IsaError::Unknown(other.to_owned())),
        }
    }

    /// Its name, as `PONS_ISA` spells it.
    pub fn name(self) -> &'static str {
        match self {
            Isa::Portable => "portable",
            Isa::Avx512 => "avx512",
        }
    }

    /// Every set that this machine can run, for tests and benches.
    pub fn usable() -> Vec<Isa> {
        let mut all = vec![Isa::Portable];
        if has_avx512() {
            all.push(Isa::Avx512);
        }
        all
    }

    fn best() -> Isa {
        if has_avx512() { Isa::Avx512 } else { Isa::Portable }
    }

    /// Whether AVX-512 code may run: asked for, and really there. The variant is public, so anyone can name it on
    /// any machine; this check is what keeps the safe functions sound.
    pub(crate) fn runs_avx512(self) -> bool {
        self == Isa::Avx512 && has_avx512()
    }
}

#[cfg(target_arch = "x86_64")]
fn has_avx512() -> bool {
    static FOUND: OnceLock<bool> = OnceLock::new();
    *FOUND.get_or_init(|| {
        is_x86_feature_detected!("avx512f")
            && is_x86_feature_detected!("avx512bw")
            && is_x86_feature_detected!("avx512vl")
            && is_x86_feature_detected!("avx512dq")
            && is_x86_feature_detected!("fma")
            && is_x86_feature_detected!("avx2")
    })
}

#[cfg(not(target_arch = "x86_64"))]
fn has_avx512() -> bool {
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_setting_is_honoured_or_refused_by_name() {
        assert_eq!(Isa::from_setting(Some("portable")), Ok(Isa::Portable));
        assert_eq!(Isa::from_setting(None), Ok(Isa::best()));
        assert_eq!(Isa::from_setting(Some("")), Ok(Isa::best()));
        let refused = Isa::from_setting(Some("sse9")).unwrap_err();
        assert!(refused.to_string().contains("'sse9'"), "{refused}");
    }

    #[test]
    fn avx512_is_given_exactly_where_the_processor_has_it() {
        let asked = Isa::from_setting(Some("avx512"));
        assert_eq!(asked.is_ok(), has_avx512());
        assert_eq!(Isa::Avx512.runs_avx512(), has_avx512());
        assert!(!Isa::Portable.runs_avx512());
        assert_eq!(Isa::usable().len(), 1 + usize::from(has_avx512()));
    }

    #[test]
    fn names_are_what_the_setting_accepts() {
        for isa in Isa::usable() {
            assert_eq!(Isa::from_setting(Some(isa.name())), Ok(isa));
        }
    }
}
