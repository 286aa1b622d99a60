//! The processor's own tiles. The rule: only [`Hardware::here`] makes one, after the processor and the system have
//! granted tiles, and operands are checked before every instruction; so using it is safe.
//!
//! Tile registers belong to a thread, and the compiler neither uses them nor knows what they hold: what one statement
//! leaves in them the next one finds, since between the two there is no call that uses tiles. No `asm!` here says
//! `nomem`, `readonly` or `pure`, so that what was written to memory before it has really been written, and what it
//! writes is really read.
#![allow(unsafe_code)]

use std::arch::asm;
use std::cell::Cell;
use std::marker::PhantomData;

use super::permission;
use super::tiles::{Config, Tiles};

// The instructions, once: here they are run, in the tests their bytes are compared with the manual's.

macro_rules! configure {
    () => {
        "ldtilecfg [rsi]"
    };
}
macro_rules! release {
    () => {
        "tilerelease"
    };
}
macro_rules! zero {
    () => {
        "tilezero tmm{tile}"
    };
}
macro_rules! load {
    () => {
        "tileloadd tmm{tile}, [rsi + rdx*1]"
    };
}
macro_rules! store {
    () => {
        "tilestored [rsi + rdx*1], tmm{tile}"
    };
}
/// Signed bytes of the second operand by unsigned ones of the third.
macro_rules! dot {
    () => {
        "tdpbsud tmm{sums}, tmm{left}, tmm{right}"
    };
}
macro_rules! dot_bf16 {
    () => {
        "tdpbf16ps tmm{sums}, tmm{left}, tmm{right}"
    };
}

thread_local! {
    /// Whether there is a [`Hardware`] on this thread.
    static TAKEN: Cell<bool> = const { Cell::new(false) };
}

/// The tiles of this thread. They are released on drop, so that the system need not keep them for the thread.
pub(crate) struct Hardware {
    config: Option<Config>,
    /// Tiles must stay on their thread.
    _thread: PhantomData<*const ()>,
}

impl Hardware {
    /// The tiles of this thread, where there are any.
    ///
    /// # Panics
    /// When the thread has them already: a second user would change the shapes that the first one has checked.
    pub(crate) fn here() -> Option<Hardware> {
        permission::ask().ok()?;
        assert!(!TAKEN.replace(true), "this thread's tiles are in use");
        Some(Hardware { config: None, _thread: PhantomData })
    }

    #[inline]
    fn config(&self) -> &Config {
        self.config.as_ref().expect("tiles are used before they are configured")
    }

    /// As [`Tiles::dot`] for pairs of bfloat16 and single-precision sums. For measuring only.
    pub(crate) fn dot_bf16<const SUMS: u8, const LEFT: u8, const RIGHT: u8>(&mut self) {
        self.config().check_dot(SUMS, LEFT, RIGHT);
        assert!(permission::has_bf16(), "the processor's tiles have no bfloat16");
        // SAFETY: tiles are granted, these are configured and their shapes fit.
        unsafe {
            asm!(
                dot_bf16!(),
                sums = const SUMS, left = const LEFT, right = const RIGHT,
                options(nostack, preserves_flags),
            );
        }
    }
}

impl Drop for Hardware {
    fn drop(&mut self) {
        if self.config.is_some() {
            // SAFETY: tiles are granted, or there would be no `self`.
            unsafe { asm!(release!(), options(nostack, preserves_flags)) };
        }
        TAKEN.set(false);
    }
}

impl Tiles for Hardware {
    #[inline]
    fn configure(&mut self, config: &Config) {
        // SAFETY: tiles are granted; the configuration is 64 bytes and, being a `Config`, one that is valid.
        unsafe { asm!(configure!(), in("rsi") config.bytes().as_ptr(), options(nostack, preserves_flags)) };
        self.config = Some(*config);
    }

    #[inline]
    fn zero<const TILE: u8>(&mut self) {
        assert!(self.config().shape(TILE).rows > 0, "tile {TILE} has no shape");
        // SAFETY: tiles are granted, and this one is configured.
        unsafe { asm!(zero!(), tile = const TILE, options(nostack, preserves_flags)) };
    }

    #[inline]
    fn load<const TILE: u8>(&mut self, from: &[u8], stride: usize) {
        self.config().check_memory(TILE, from.len(), stride);
        // SAFETY: tiles are granted, this one is configured, and its rows lie inside `from`.
        unsafe {
            asm!(
                load!(),
                in("rsi") from.as_ptr(), in("rdx") stride, tile = const TILE,
                options(nostack, preserves_flags),
            );
        }
    }

    #[inline]
    fn dot<const SUMS: u8, const LEFT: u8, const RIGHT: u8>(&mut self) {
        self.config().check_dot(SUMS, LEFT, RIGHT);
        // SAFETY: tiles are granted, these are configured and their shapes fit.
        unsafe {
            asm!(
                dot!(),
                sums = const SUMS, left = const LEFT, right = const RIGHT,
                options(nostack, preserves_flags),
            );
        }
    }

    #[inline]
    fn store<const TILE: u8>(&mut self, to: &mut [i32], stride: usize) {
        let stride_bytes = stride.saturating_mul(4);
        self.config().check_memory(TILE, size_of_val(to), stride_bytes);
        // SAFETY: tiles are granted, this one is configured, and its rows lie inside `to`.
        unsafe {
            asm!(
                store!(),
                in("rsi") to.as_mut_ptr(), in("rdx") stride_bytes, tile = const TILE,
                options(nostack, preserves_flags),
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use std::arch::naked_asm;

    use super::*;

    /// The instructions of this file one after another. Nobody calls it.
    #[unsafe(naked)]
    unsafe extern "C" fn instructions() {
        naked_asm!(
            configure!(),
            load!(),
            dot!(),
            dot_bf16!(),
            store!(),
            zero!(),
            release!(),
            tile = const 6,
            sums = const 1,
            left = const 2,
            right = const 3,
        )
    }

    #[test]
    fn instructions_are_encoded_as_the_manual_says() {
        // From the opcode tables: VEX.128.NP.0F38.W0 49 /0 and so on. The second VEX byte holds the inverted
        // register bits and the map (E2), the third the inverted third operand and the prefix.
        let wanted: &[&[u8]] = &[
            &[0xc4, 0xe2, 0x78, 0x49, 0x06],       // ldtilecfg [rsi]
            &[0xc4, 0xe2, 0x7b, 0x4b, 0x34, 0x16], // tileloadd tmm6, [rsi + rdx]
            &[0xc4, 0xe2, 0x62, 0x5e, 0xca],       // tdpbsud tmm1, tmm2, tmm3: F3 prefix, 3 in vvvv
            &[0xc4, 0xe2, 0x62, 0x5c, 0xca],       // tdpbf16ps tmm1, tmm2, tmm3
            &[0xc4, 0xe2, 0x7a, 0x4b, 0x34, 0x16], // tilestored [rsi + rdx], tmm6
            &[0xc4, 0xe2, 0x7b, 0x49, 0xf0],       // tilezero tmm6
            &[0xc4, 0xe2, 0x78, 0x49, 0xc0],       // tilerelease
        ];
        let wanted = wanted.concat();
        // SAFETY: the function consists of at least as many bytes, which nobody writes.
        let found = unsafe { std::slice::from_raw_parts(instructions as *const u8, wanted.len()) };
        assert_eq!(found, wanted);
    }

    #[test]
    fn tiles_are_there_exactly_where_they_are_granted() {
        assert_eq!(Hardware::here().is_some(), permission::ask().is_ok());
    }
}
