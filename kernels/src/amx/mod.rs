//! The operations for processors with matrix units (AMX). The rule: a product has the bits it has on AVX-512, and tiles
//! are used only in a process that was told that they passed their check elsewhere.
//!
//! The code was written where no such processor was at hand: it is tested bit for bit over emulated tiles. So a
//! program first runs [`self_check`] in a child process, which may crash, and calls [`trust`] only when it has passed.

#[cfg(target_arch = "x86_64")]
pub(crate) mod emulated;
#[cfg(target_arch = "x86_64")]
pub(crate) mod hardware;
#[cfg(target_arch = "x86_64")]
mod permission;
#[cfg(target_arch = "x86_64")]
pub(crate) mod tiles;

use std::sync::atomic::{AtomicBool, Ordering};

/// Why there are no tiles to use.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Absent {
    /// `CPUID` names none.
    #[error("the processor has no matrix units for 8-bit numbers (amx-tile, amx-int8)")]
    Processor,
    /// They are not those that the code is written for.
    #[error(
        "the processor's tiles differ from palette 1: bytes of a tile, of a row, tiles, rows and the multiplier's \
         limits are {0:?}"
    )]
    Sizes([u32; 6]),
    /// The system does not save them.
    #[error("the operating system does not enable tiles; Linux does from 5.16 on")]
    NotSaved,
    /// The system grants them to no process in a way known here.
    #[error("tiles are used under Linux only")]
    System,
    /// The system refused them to this process.
    #[error("the operating system refused tiles to this process (error {0} of arch_prctl)")]
    Refused(i64),
}

/// Whether this process may use tiles; asks the system for them, once.
///
/// # Errors
/// Why it may not.
pub fn present() -> Result<(), Absent> {
    #[cfg(target_arch = "x86_64")]
    return permission::ask();
    #[cfg(not(target_arch = "x86_64"))]
    Err(Absent::Processor)
}

static TRUSTED: AtomicBool = AtomicBool::new(false);

/// Lets this process use tiles where they are present: [`crate::Isa::Amx`] then is a set like the others.
pub fn trust() {
    TRUSTED.store(true, Ordering::Release);
}

/// Whether tiles are present and trusted.
pub(crate) fn usable() -> bool {
    TRUSTED.load(Ordering::Acquire) && present().is_ok()
}
