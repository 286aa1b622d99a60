//! Loops that do nothing but one thing, for measuring what the machine can do at most. The rule: a loop runs only
//! where the processor has its instructions and the system grants them, and says how much work it did; whoever calls it
//! holds the watch.
#![allow(unsafe_code)]

use std::hint::black_box;

/// An arithmetic unit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unit {
    /// Multiplication and addition of single-precision numbers in vector registers.
    F32Fma,
    /// Dot products of bfloat16 pairs, added up in single precision (`vdpbf16ps`).
    Bf16Dot,
    /// Dot products of four 8-bit numbers, added up in 32 bits (`vpdpbusd`).
    Int8Dot,
    /// The same by tiles, sixteen rows by sixteen columns at once (AMX, `tdpbsud`).
    TileInt8,
    /// Products of bfloat16 by tiles (`tdpbf16ps`).
    TileBf16,
}

impl Unit {
    /// All of them.
    pub const ALL: [Unit; 5] = [Unit::F32Fma, Unit::Bf16Dot, Unit::Int8Dot, Unit::TileInt8, Unit::TileBf16];

    /// Its name in tables and records.
    pub fn name(self) -> &'static str {
        match self {
            Unit::F32Fma => "f32_fma",
            Unit::Bf16Dot => "bf16_dot",
            Unit::Int8Dot => "int8_dot",
            Unit::TileInt8 => "amx_int8",
            Unit::TileBf16 => "amx_bf16",
        }
    }

    /// Keeps the unit busy from registers alone for so many rounds. Returns the operations that were done, a
    /// multiplication and an addition being two, or nothing where the processor lacks the unit.
    pub fn run(self, rounds: u64) -> Option<u64> {
        #[cfg(target_arch = "x86_64")]
        return vector::run(self, rounds);
        #[cfg(not(target_arch = "x86_64"))]
        {
            let _ = rounds;
            None
        }
    }
}

/// Reads every number once, in order, and returns their exclusive or, so that no read can be left out.
pub fn read(data: &[u64]) -> u64 {
    #[cfg(target_arch = "x86_64")]
    if let Some(all) = vector::read(data) {
        return all;
    }
    data.iter().fold(0, |all, number| all ^ number)
}

/// The same for 512-bit registers.
#[cfg(target_arch = "x86_64")]
mod vector {
    use std::arch::x86_64::*;

    use super::{Unit, black_box};
    use crate::amx::peak;

    /// Independent chains: more than the units can have in flight, fewer than there are registers.
    const CHAINS: usize = 16;

    pub(super) fn run(unit: Unit, rounds: u64) -> Option<u64> {
        let wide = is_x86_feature_detected!("avx512f");
        let sums = rounds * CHAINS as u64;
        match unit {
            Unit::F32Fma if wide => {
                // SAFETY: the set was found just above.
                unsafe { fma(rounds) };
                Some(sums * 16 * 2)
            }
            Unit::Bf16Dot if wide && is_x86_feature_detected!("avx512bf16") => {
                // SAFETY: both sets were found just above.
                unsafe { bf16_dot(rounds) };
                Some(sums * 32 * 2)
            }
            Unit::Int8Dot if wide && is_x86_feature_detected!("avx512vnni") => {
                // SAFETY: both sets were found just above.
                unsafe { int8_dot(rounds) };
                Some(sums * 64 * 2)
            }
            Unit::TileInt8 => peak::int8(rounds),
            Unit::TileBf16 => peak::bf16(rounds),
            _ => None,
        }
    }

    #[target_feature(enable = "avx512f")]
    fn fma(rounds: u64) {
        // Hidden, so that the compiler can't know what comes out; 0.5 keeps the sums finite.
        let (x, y) = (_mm512_set1_ps(black_box(0.5)), _mm512_set1_ps(black_box(1.0)));
        // Hidden one by one, or equal chains would be computed once.
        let mut sums = [_mm512_setzero_ps(); CHAINS];
        sums.iter_mut().for_each(|sum| *sum = black_box(*sum));
        for _ in 0..rounds {
            for sum in &mut sums {
                *sum = _mm512_fmadd_ps(*sum, x, y);
            }
        }
        black_box(sums);
    }

    #[target_feature(enable = "avx512f,avx512bf16")]
    fn bf16_dot(rounds: u64) {
        let ones = _mm512_set1_ps(black_box(1.0));
        let pairs = _mm512_cvtne2ps_pbh(ones, ones);
        // Hidden one by one, or equal chains would be computed once.
        let mut sums = [_mm512_setzero_ps(); CHAINS];
        sums.iter_mut().for_each(|sum| *sum = black_box(*sum));
        for _ in 0..rounds {
            for sum in &mut sums {
                *sum = _mm512_dpbf16_ps(*sum, pairs, pairs);
            }
        }
        black_box(sums);
    }

    #[target_feature(enable = "avx512f,avx512vnni")]
    fn int8_dot(rounds: u64) {
        let bytes = _mm512_set1_epi32(black_box(0x0101_0101));
        let mut sums = [_mm512_setzero_si512(); CHAINS];
        sums.iter_mut().for_each(|sum| *sum = black_box(*sum));
        for _ in 0..rounds {
            for sum in &mut sums {
                *sum = _mm512_dpbusd_epi32(*sum, bytes, bytes);
            }
        }
        black_box(sums);
    }

    /// Numbers in the registers of one round of reading.
    const STRIDE: usize = 8 * 8;

    pub(super) fn read(data: &[u64]) -> Option<u64> {
        if !is_x86_feature_detected!("avx512f") {
            return None;
        }
        // SAFETY: the set was found just above.
        Some(unsafe { read_wide(data) })
    }

    #[target_feature(enable = "avx512f")]
    fn read_wide(data: &[u64]) -> u64 {
        let mut all = [_mm512_setzero_si512(); STRIDE / 8];
        let (strides, rest) = data.as_chunks::<STRIDE>();
        for stride in strides {
            for (at, all) in all.iter_mut().enumerate() {
                // SAFETY: `at` is below 8, so eight numbers from `at * 8` on are within the stride of 64.
                let numbers = unsafe { _mm512_loadu_si512(stride.as_ptr().add(at * 8).cast()) };
                *all = _mm512_xor_si512(*all, numbers);
            }
        }
        let mut lanes = [0_u64; STRIDE];
        for (at, all) in all.iter().enumerate() {
            // SAFETY: `at` is below 8, so eight numbers from `at * 8` on are within the 64 lanes.
            unsafe { _mm512_storeu_si512(lanes.as_mut_ptr().add(at * 8).cast(), *all) };
        }
        lanes.iter().chain(rest).fold(0, |all, number| all ^ number)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_number_is_read_exactly_once() {
        for length in [0, 1, 63, 64, 65, 200, 1000] {
            let data: Vec<u64> =
                (0..length).map(|at| (at + 1_u64).wrapping_mul(0x9e37_79b9_7f4a_7c15)).collect();
            assert_eq!(read(&data), data.iter().fold(0, |all, number| all ^ number), "{length}");
        }
    }

    #[test]
    fn work_grows_with_the_rounds_where_the_unit_is_there() {
        for unit in Unit::ALL {
            let done = [unit.run(1), unit.run(10)];
            if let [Some(one), Some(ten)] = done {
                assert!(one > 0 && ten == 10 * one, "{unit:?}: {done:?}");
            } else {
                assert_eq!(done, [None, None], "{unit:?} is there or it isn't");
            }
        }
        let tiles = crate::amx::present().is_ok();
        assert_eq!(Unit::TileInt8.run(1).is_some(), tiles, "tiles are measured where they are granted");
        if crate::Isa::usable().contains(&crate::Isa::Avx512) {
            assert!(Unit::F32Fma.run(1).is_some(), "every processor with AVX-512 multiplies and adds");
        }
    }
}
