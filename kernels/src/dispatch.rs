//! Which instruction set the operations use. The rule: a set is used only where the processor really has it,
//! whatever a caller or the environment asks for.

#[cfg(target_arch = "x86_64")]
use std::sync::OnceLock;

/// The environment variable that narrows the choice to one of [`Isa`]'s names.
pub const ISA_VARIABLE: &str = "PONS_ISA";

/// An instruction set that the operations are written for.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum Isa {
    /// Plain Rust, right on every machine.
    Portable,
    /// The same source compiled for AVX2 and FMA.
    Avx2,
    /// AVX-512 with the F, BW, VL and DQ parts.
    Avx512,
    /// AVX-512 with its 8-bit dot products (VNNI).
    Avx512Vnni,
    /// The same, and the tiles of AMX for products of many rows with quantised weights. A process has it only after
    /// [`crate::amx::trust`].
    Amx,
}

/// Why a requested instruction set cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum IsaError {
    /// The name is none that we know.
    #[error(
        "PONS_ISA is '{0}', which is no instruction set known here; use 'portable', 'avx2', 'avx512', \
         'avx512-vnni' or 'amx', or unset it"
    )]
    Unknown(String),
    /// The processor lacks it.
    #[error("PONS_ISA asks for '{0}', which this processor lacks; use 'portable', or unset it")]
    Missing(&'static str),
    /// Tiles are absent.
    #[error("PONS_ISA asks for 'amx': {0}; use 'avx512-vnni', or unset it")]
    NoTiles(#[from] crate::amx::Absent),
    /// Tiles are there, but nobody has vouched for them in this process.
    #[error("PONS_ISA asks for 'amx', whose check did not pass here; use 'avx512-vnni', or unset it")]
    Untrusted,
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
        let Some(name) = setting.filter(|name| !name.is_empty()) else { return Ok(Isa::best()) };
        let Some(isa) = Isa::ALL.into_iter().find(|isa| isa.name() == name) else {
            return Err(IsaError::Unknown(name.to_owned()));
        };
        if isa.is_there() {
            return Ok(isa);
        }
        if isa == Isa::Amx && Isa::Avx512Vnni.is_there() {
            crate::amx::present()?;
            return Err(IsaError::Untrusted);
        }
        Err(IsaError::Missing(isa.name()))
    }

    /// Its name, as `PONS_ISA` spells it.
    pub fn name(self) -> &'static str {
        match self {
            Isa::Portable => "portable",
            Isa::Avx2 => "avx2",
            Isa::Avx512 => "avx512",
            Isa::Avx512Vnni => "avx512-vnni",
            Isa::Amx => "amx",
        }
    }

    /// Names the arithmetic: two processes give the same bits if this is the same in both. Tiles give the bits of
    /// AVX-512's dot products; attention's depend on whether the processor multiplies bfloat16.
    pub fn arithmetic(self) -> &'static str {
        match (self, self.runs_bf16()) {
            (Isa::Avx512, true) => "avx512-bf16",
            (Isa::Avx512Vnni | Isa::Amx, true) => "avx512-vnni-bf16",
            (Isa::Amx, false) => Isa::Avx512Vnni.name(),
            _ => self.name(),
        }
    }

    /// Every set that this machine can run, the best last; for tests and benches too.
    pub fn usable() -> Vec<Isa> {
        Isa::ALL.into_iter().filter(|isa| isa.is_there()).collect()
    }

    const ALL: [Isa; 5] = [Isa::Portable, Isa::Avx2, Isa::Avx512, Isa::Avx512Vnni, Isa::Amx];

    fn best() -> Isa {
        Isa::usable().pop().unwrap_or(Isa::Portable)
    }

    fn is_there(self) -> bool {
        match self {
            Isa::Portable => true,
            Isa::Avx2 => found().avx2,
            Isa::Avx512 => found().avx512,
            Isa::Avx512Vnni => found().avx512 && found().vnni,
            Isa::Amx => found().avx512 && found().vnni && crate::amx::usable(),
        }
    }

    // Variants are public, so anyone can name one on any machine; these checks keep the safe functions sound.

    /// Whether AVX2 code may run in place of portable code: asked for, and really there.
    pub(crate) fn runs_avx2(self) -> bool {
        self == Isa::Avx2 && found().avx2
    }

    /// Whether AVX-512 code may run.
    pub(crate) fn runs_avx512(self) -> bool {
        matches!(self, Isa::Avx512 | Isa::Avx512Vnni | Isa::Amx) && found().avx512
    }

    /// Whether AVX-512 code with 8-bit dot products may run.
    pub(crate) fn runs_vnni(self) -> bool {
        matches!(self, Isa::Avx512Vnni | Isa::Amx) && found().avx512 && found().vnni
    }

    /// Whether AVX-512 code that multiplies pairs of bfloat16 may run.
    pub(crate) fn runs_bf16(self) -> bool {
        self.runs_avx512() && found().bf16
    }

    /// Whether products may use tiles.
    #[cfg(target_arch = "x86_64")]
    pub(crate) fn runs_amx(self) -> bool {
        self == Isa::Amx && self.is_there()
    }
}

/// What the processor has.
#[derive(Clone, Copy)]
struct Found {
    avx2: bool,
    avx512: bool,
    vnni: bool,
    bf16: bool,
}

#[cfg(target_arch = "x86_64")]
fn found() -> Found {
    static FOUND: OnceLock<Found> = OnceLock::new();
    *FOUND.get_or_init(|| {
        let avx2 = is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma");
        let avx512 = avx2
            && is_x86_feature_detected!("avx512f")
            && is_x86_feature_detected!("avx512bw")
            && is_x86_feature_detected!("avx512vl")
            && is_x86_feature_detected!("avx512dq");
        let (vnni, bf16) = (is_x86_feature_detected!("avx512vnni"), is_x86_feature_detected!("avx512bf16"));
        Found { avx2, avx512, vnni, bf16 }
    })
}

#[cfg(not(target_arch = "x86_64"))]
fn found() -> Found {
    Found { avx2: false, avx512: false, vnni: false, bf16: false }
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
    fn a_set_is_given_exactly_where_the_processor_has_it() {
        for isa in Isa::ALL {
            assert_eq!(Isa::from_setting(Some(isa.name())).is_ok(), isa.is_there(), "{isa:?}");
        }
        assert_eq!(Isa::Avx512.runs_avx512(), found().avx512);
        assert!(!Isa::Portable.runs_avx512() && !Isa::Portable.runs_avx2() && !Isa::Avx512.runs_vnni());
        assert_eq!(Isa::usable()[0], Isa::Portable);
        assert_eq!(Isa::Amx.arithmetic(), Isa::Avx512Vnni.arithmetic());
    }

    #[test]
    fn names_are_what_the_setting_accepts() {
        for isa in Isa::usable() {
            assert_eq!(Isa::from_setting(Some(isa.name())), Ok(isa));
        }
    }
}
