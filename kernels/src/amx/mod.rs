//! The operations for processors with matrix units (AMX). The rule: a product has the bits it has on AVX-512, and tiles
//! are used only in a process that was told that they passed their check elsewhere.
//!
//! The code was written where no such processor was at hand: it is tested bit for bit over emulated tiles. So a
//! program first runs [`self_check`] in a child process, which may crash, and calls [`trust`] only when it has passed.
#![allow(unsafe_code)]

#[cfg(target_arch = "x86_64")]
mod check;
#[cfg(target_arch = "x86_64")]
pub(crate) mod emulated;
#[cfg(target_arch = "x86_64")]
pub(crate) mod hardware;
#[cfg(target_arch = "x86_64")]
pub(crate) mod peak;
#[cfg(target_arch = "x86_64")]
mod permission;
#[cfg(target_arch = "x86_64")]
pub(crate) mod quantised;
#[cfg(target_arch = "x86_64")]
pub(crate) mod tiles;

use std::sync::atomic::{AtomicBool, Ordering};

#[cfg(target_arch = "x86_64")]
use crate::layout::quant::Quants;
#[cfg(target_arch = "x86_64")]
use crate::ops::{Product, ProductTile, Share};

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

/// What a check found wrong.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum CheckError {
    /// There are no tiles to check.
    #[error(transparent)]
    Absent(#[from] Absent),
    /// Nothing to compare with.
    #[error("the processor has tiles but no AVX-512, which products over tiles need as well")]
    NoAvx512,
    /// A thread could not be started, or panicked.
    #[error("the check did not come to its end on a thread of its own")]
    Thread,
    /// Tiles and their emulation differ.
    #[error("sum {at} of {rows} rows and {inputs} inputs is {found} by tiles; {wanted} is right")]
    Tiles {
        /// Rows of the product.
        rows: usize,
        /// Inputs of the dot product.
        inputs: usize,
        /// The place of the sum.
        at: usize,
        /// What tiles gave.
        found: i32,
        /// What the emulation gave.
        wanted: i32,
    },
    /// Tiles are right but no faster.
    #[error("tiles take {tiles_us:.0} us where AVX-512 takes {avx512_us:.0} ({precision:?} bits)")]
    Slow {
        /// The activations' precision.
        precision: crate::Precision,
        /// By tiles.
        tiles_us: f64,
        /// By AVX-512.
        avx512_us: f64,
    },
    /// A product over tiles and the one by AVX-512 differ.
    #[error(
        "output {output} of row {row} of {rows} is {found} by tiles and {wanted} by AVX-512 ({form} weights, \
         {precision:?} bits)"
    )]
    Product {
        /// The weights' form.
        form: &'static str,
        /// The activations' precision.
        precision: crate::Precision,
        /// Rows of the product.
        rows: usize,
        /// The first row that differs.
        row: usize,
        /// Its first output that differs.
        output: usize,
        /// By tiles.
        found: f32,
        /// By AVX-512.
        wanted: f32,
    },
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

/// Compares this machine's tiles with their emulation, and products over them with those by AVX-512. The process may
/// crash here where a processor or system does not keep what it promises, so this is for a child process.
///
/// # Errors
/// What differs first, or why there is nothing to check.
pub fn self_check() -> Result<(), CheckError> {
    #[cfg(target_arch = "x86_64")]
    return check::hardware();
    #[cfg(not(target_arch = "x86_64"))]
    Err(CheckError::Absent(Absent::Processor))
}

static TRUSTED: AtomicBool = AtomicBool::new(false);

/// Lets this process use tiles where they are present: [`crate::Isa::Amx`] then is a set like the others.
pub fn trust() {
    TRUSTED.store(true, Ordering::Release);
}

/// Checks tiles in this very process and trusts them if they pass: for benchmarks, which may crash.
///
/// # Errors
/// As [`self_check`].
pub fn check_and_trust() -> Result<(), CheckError> {
    self_check()?;
    trust();
    Ok(())
}

/// Whether tiles are present and trusted.
pub(crate) fn usable() -> bool {
    TRUSTED.load(Ordering::Acquire) && present().is_ok()
}

/// Computes the outputs of one part by this thread's tiles, if it has enough rows for them; says whether it did.
#[cfg(target_arch = "x86_64")]
pub(crate) fn quantised_tile(product: &Product<'_>, w: &Quants, tile: &ProductTile, out: Share<'_>) -> bool {
    if tile.rows.len() < quantised::LEAST_ROWS {
        return false;
    }
    let Some(mut tiles) = hardware::Hardware::here() else { return false };
    // SAFETY: `Isa::Amx` is there only with AVX-512, and parts of one product differ in rows or strips.
    unsafe { quantised::quantised_tile(&mut tiles, product, w, tile, out) };
    true
}
