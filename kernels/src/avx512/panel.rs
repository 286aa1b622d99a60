//! Products of many rows with quantised weights for AVX-512. The rule: the same integers and the same chain of fused
//! multiply-adds as for a few rows, bit for bit; only where the unpacked numbers wait is different.
//!
//! Some groups of a strip are unpacked once into a *panel* that fits the first-level cache beside the rows that pass
//! by. Sums of blocks that are not at the end of their strip wait in a buffer of the part.
#![allow(unsafe_code)]
#![allow(
    clippy::needless_range_loop,
    reason = "loops over constant counts become registers; iterators hide that"
)]

use std::arch::x86_64::*;
use std::mem::MaybeUninit;
use std::ops::Range;

use super::digits::{Digits, Scaler};
use super::quantised::{Operands, dot_plain, dot_vnni};
use super::source::fetch_lines;
use crate::layout::quant::GROUP;
use crate::ops::ProductTile;

/// Groups of a panel, a whole number of nests.
const GROUPS: usize = 16;

/// Vectors of numbers in one group of a strip: eight quads of two halves.
const VECTORS: usize = 16;

/// The most rows whose sums, of integers and of products, are in registers together.
const MOST_ROWS: usize = 6;

/// Some groups of a strip, ready to be multiplied: 16 KiB of numbers, 6 KiB of scales. It is written before it is
/// read, group for group, and never cleared: that would cost a short product a twentieth of its time.
struct Panel {
    /// For each group, half and quad, four numbers of each of the sixteen outputs.
    numbers: [MaybeUninit<__m512i>; GROUPS * VECTORS],
    /// For each group, half and part, the scales.
    scale: [MaybeUninit<__m512>; GROUPS * 4],
    /// For each group and half, the minima.
    minimum: [MaybeUninit<__m512>; GROUPS * 2],
}

impl Panel {
    fn new() -> Panel {
        Panel {
            numbers: [const { MaybeUninit::uninit() }; GROUPS * VECTORS],
            scale: [const { MaybeUninit::uninit() }; GROUPS * 4],
            minimum: [const { MaybeUninit::uninit() }; GROUPS * 2],
        }
    }
}

/// An entry of a panel.
///
/// # Safety
/// It exists and was written.
#[inline(always)]
unsafe fn read<T: Copy>(entries: &[MaybeUninit<T>], at: usize) -> T {
    // SAFETY: the caller's duty.
    unsafe { entries.get_unchecked(at).assume_init() }
}

/// Groups of each panel of a strip but perhaps the last: panels are about equally large, since a small one costs
/// nearly as much to enter and leave as a large one.
fn chunk_groups(groups: usize, nest: usize) -> usize {
    groups.div_ceil(groups.div_ceil(GROUPS)).next_multiple_of(nest)
}

/// Which groups of which strip.
struct Chunk {
    strip: usize,
    groups: Range<usize>,
    zero_shift: u32,
}

impl Chunk {
    fn is_first(&self) -> bool {
        self.groups.start == 0
    }
}

/// The loops compiled for one set of features: dot products by `$dot`.
macro_rules! loops {
    ($features:literal, $dot:ident, $strips:ident, $unpack:ident, $by_rows:ident, $block:ident, $dots:ident, $scale:ident) => {
        /// # Safety
        /// The processor has the features; the rows of `tile` are inside `x` and `out`, its strips inside digits and
        /// scales; nobody else touches these outputs meanwhile.
        #[target_feature(enable = $features)]
        pub(super) unsafe fn $strips<D: Digits, S: Scaler, const PLANES: usize>(
            operands: &Operands<'_>,
            scaler: S,
            tile: &ProductTile,
        ) {
            let mut panel = Panel::new();
            let chunk_groups = chunk_groups(operands.groups, S::NEST);
            let (first, rows) = (tile.rows.start, tile.rows.len());
            let blocks = rows.div_ceil(MOST_ROWS);
            // Sums of rows between two panels of a strip.
            let mut waiting =
                vec![[_mm512_setzero_ps(); 2]; if operands.groups > chunk_groups { rows } else { 0 }];
            for strip in tile.strips.clone() {
                for start in (0..operands.groups).step_by(chunk_groups) {
                    let groups = start..operands.groups.min(start + chunk_groups);
                    let chunk = Chunk { strip, groups, zero_shift: scaler.zero_shift() };
                    // SAFETY: the caller's duty; blocks are of rows of the tile.
                    unsafe {
                        $unpack::<D, S>(&mut panel, operands, scaler, &chunk);
                        for block in 0..blocks {
                            let from = rows * block / blocks;
                            let count = rows * (block + 1) / blocks - from;
                            let sums = waiting.as_mut_ptr().wrapping_add(from);
                            let fetch = block == 0;
                            $by_rows::<D, S, PLANES>(
                                &panel,
                                operands,
                                &chunk,
                                first + from,
                                count,
                                sums,
                                fetch,
                            );
                        }
                    }
                }
            }
        }

        /// # Safety
        /// As the strips loop.
        #[inline]
        #[target_feature(enable = $features)]
        unsafe fn $unpack<D: Digits, S: Scaler>(
            panel: &mut Panel,
            operands: &Operands<'_>,
            scaler: S,
            chunk: &Chunk,
        ) {
            let nests = operands.groups.div_ceil(S::NEST);
            let Chunk { strip, groups, .. } = chunk;
            for nest in groups.start / S::NEST..groups.end.div_ceil(S::NEST) {
                // SAFETY: the caller's duty.
                unsafe {
                    let at = (strip * nests + nest) * 2;
                    let scales = [scaler.open(at), scaler.open(at + 1)];
                    for group in nest * S::NEST..groups.end.min((nest + 1) * S::NEST) {
                        let (place, inner) = (group - groups.start, group - nest * S::NEST);
                        let unit = operands.digits.add((strip * operands.groups + group) * 2 * D::UNIT);
                        for half in 0..2 {
                            for quad in 0..VECTORS / 2 {
                                let numbers = D::quad(unit.add(half * D::UNIT), quad);
                                panel.numbers[place * VECTORS + half * 8 + quad].write(numbers);
                            }
                            for part in 0..1 + usize::from(S::HALVES) {
                                let scale = scaler.scale(scales[half], inner, part);
                                panel.scale[place * 4 + half * 2 + part].write(scale);
                            }
                            if S::MINIMA {
                                let minimum = scaler.minimum(scales[half], inner);
                                panel.minimum[place * 2 + half].write(minimum);
                            }
                        }
                    }
                }
            }
        }

        /// # Safety
        /// As the block.
        #[inline]
        #[target_feature(enable = $features)]
        unsafe fn $by_rows<D: Digits, S: Scaler, const PLANES: usize>(
            panel: &Panel,
            operands: &Operands<'_>,
            chunk: &Chunk,
            row: usize,
            count: usize,
            waiting: *mut [__m512; 2],
            fetch: bool,
        ) {
            // SAFETY: the caller's duty.
            unsafe {
                match count {
                    1 => $block::<D, S, PLANES, 1>(panel, operands, chunk, row, waiting, fetch),
                    2 => $block::<D, S, PLANES, 2>(panel, operands, chunk, row, waiting, fetch),
                    3 => $block::<D, S, PLANES, 3>(panel, operands, chunk, row, waiting, fetch),
                    4 => $block::<D, S, PLANES, 4>(panel, operands, chunk, row, waiting, fetch),
                    5 => $block::<D, S, PLANES, 5>(panel, operands, chunk, row, waiting, fetch),
                    6 => $block::<D, S, PLANES, 6>(panel, operands, chunk, row, waiting, fetch),
                    _ => unreachable!("blocks of rows are between 1 and {MOST_ROWS} high"),
                }
            }
        }

        /// `R` rows by the panel's groups.
        ///
        /// # Safety
        /// As the strips loop; sums of `R` rows wait at `waiting` where the strip has several panels.
        #[target_feature(enable = $features)]
        unsafe fn $block<D: Digits, S: Scaler, const PLANES: usize, const R: usize>(
            panel: &Panel,
            operands: &Operands<'_>,
            chunk: &Chunk,
            row: usize,
            waiting: *mut [__m512; 2],
            fetch: bool,
        ) {
            let groups = operands.groups;
            let mut sums = [[_mm512_setzero_ps(); 2]; R];
            // SAFETY: the caller's duty.
            unsafe {
                if chunk.is_first() {
                    operands.start::<R>(&mut sums, chunk.strip);
                } else {
                    for r in 0..R {
                        sums[r] = waiting.add(r).read();
                    }
                }
                for place in 0..chunk.groups.len() {
                    let group = chunk.groups.start + place;
                    if fetch {
                        let next = (chunk.strip * groups + group + GROUPS) * 2 * D::UNIT;
                        fetch_lines(operands.digits.wrapping_add(next), 2 * D::UNIT);
                    }
                    let at = (row, group);
                    for part in 0..1 + usize::from(S::HALVES) {
                        let dots = if S::HALVES {
                            $dots::<D, S, PLANES, R, 4>(panel, operands, chunk.zero_shift, at, place, part)
                        } else {
                            $dots::<D, S, PLANES, R, 8>(panel, operands, chunk.zero_shift, at, place, part)
                        };
                        $scale::<S, R>(&mut sums, &dots, panel, operands, at, (place, part));
                    }
                }
                if chunk.groups.end == groups {
                    operands.finish::<R>(&sums, chunk.strip, row);
                    return;
                }
                for r in 0..R {
                    waiting.add(r).write(sums[r]);
                }
            }
        }

        /// Adds a group's integer sums to the chains.
        ///
        /// # Safety
        /// As the block; the panel holds the group at `place`.
        #[inline]
        #[target_feature(enable = $features)]
        unsafe fn $scale<S: Scaler, const R: usize>(
            sums: &mut [[__m512; 2]; R],
            dots: &[[__m512i; 2]; R],
            panel: &Panel,
            operands: &Operands<'_>,
            (row, group): (usize, usize),
            (place, part): (usize, usize),
        ) {
            let x = operands.x;
            for half in 0..2 {
                // SAFETY: the caller's duty.
                unsafe {
                    let scale = read(&panel.scale, place * 4 + half * 2 + part);
                    for r in 0..R {
                        let at = (row + r) * operands.groups + group;
                        let product = _mm512_mul_ps(_mm512_cvtepi32_ps(dots[r][half]), scale);
                        let by = _mm512_set1_ps(*x.scale.as_ptr().add(at));
                        sums[r][half] = _mm512_fmadd_ps(product, by, sums[r][half]);
                        if S::MINIMA {
                            let minimum = read(&panel.minimum, place * 2 + half);
                            let sum = _mm512_set1_ps(*x.sum.as_ptr().add(at));
                            sums[r][half] = _mm512_fmadd_ps(minimum, sum, sums[r][half]);
                        }
                    }
                }
            }
        }

        /// The integer sums of `QUADS` quads of a group, from quad `QUADS * part` on.
        ///
        /// # Safety
        /// As the block; the panel holds the group at `place`.
        #[inline]
        #[target_feature(enable = $features)]
        unsafe fn $dots<D: Digits, S: Scaler, const PLANES: usize, const R: usize, const QUADS: usize>(
            panel: &Panel,
            operands: &Operands<'_>,
            zero_shift: u32,
            (row, group): (usize, usize),
            place: usize,
            part: usize,
        ) -> [[__m512i; 2]; R] {
            let (x, groups) = (operands.x, operands.groups);
            let mut dots = [[_mm512_setzero_si512(); 2]; R];
            // SAFETY: the caller's duty.
            unsafe {
                let bytes = x.stride * PLANES;
                let values = x.q.as_ptr().add(row * bytes + group * GROUP + part * QUADS * 4);
                for plane in 0..PLANES {
                    if plane + 1 == PLANES {
                        for r in 0..R {
                            if PLANES == 2 {
                                // What comes next are the lower bytes.
                                dots[r][0] = _mm512_slli_epi32::<7>(dots[r][0]);
                                dots[r][1] = _mm512_slli_epi32::<7>(dots[r][1]);
                            }
                            if !S::MINIMA {
                                // What stands for zero belongs to both planes together.
                                let at = (row + r) * groups + group;
                                let less = if S::HALVES {
                                    *x.less.as_ptr().add(at * 2 + part)
                                } else {
                                    *x.less_group.as_ptr().add(at)
                                };
                                let zero = _mm512_set1_epi32(less << zero_shift);
                                dots[r][0] = _mm512_add_epi32(dots[r][0], zero);
                                dots[r][1] = _mm512_add_epi32(dots[r][1], zero);
                            }
                        }
                    }
                    for quad in 0..QUADS {
                        let at = place * VECTORS + part * QUADS + quad;
                        let weights = [read(&panel.numbers, at), read(&panel.numbers, at + VECTORS / 2)];
                        for r in 0..R {
                            let four = values.add(r * bytes + plane * x.stride + quad * 4);
                            let four = _mm512_set1_epi32(four.cast::<i32>().read_unaligned());
                            dots[r][0] = $dot::<D>(dots[r][0], weights[0], four);
                            dots[r][1] = $dot::<D>(dots[r][1], weights[1], four);
                        }
                    }
                }
            }
            dots
        }
    };
}

loops!(
    "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni",
    dot_vnni,
    panels_vnni,
    unpack_vnni,
    rows_vnni,
    block_vnni,
    dots_vnni,
    scale_vnni
);
loops!(
    "avx512f,avx512bw,avx512vl,avx512dq",
    dot_plain,
    panels_plain,
    unpack_plain,
    rows_plain,
    block_plain,
    dots_plain,
    scale_plain
);
