//! Products with quantised weights for AVX-512. The rule: within a group sums are integers and exact; across groups
//! an output is one chain of fused multiply-adds in order. So the number of rows cannot show.
//!
//! A block of rows by one strip holds all its sums in registers. Numbers are unpacked where they are used: for one
//! row that is still faster than memory. For many rows they are unpacked once, in `panel.rs`.
#![allow(unsafe_code)]
#![allow(
    clippy::needless_range_loop,
    reason = "loops over constant counts become registers; iterators hide that"
)]

use std::arch::x86_64::*;
use std::ops::Range;

use super::digits::{Affine, Centred, Digits, Eights, Fours, NestedAffine, NestedCentred, Scaler, Sixes};
use super::outputs::{lanes, put};
use super::panel::{panels_plain, panels_vnni};
use super::source::fetch_lines;
use crate::layout::matrix::STRIP;
use crate::layout::quant::{GROUP, LANES, Quants, Scales, Width};
use crate::layout::rows::{Precision, QuantRows};
use crate::ops::{Product, ProductTile, Share};

/// The most rows whose sums, of integers and of products, are in registers together.
const MOST_ROWS: usize = 6;

/// Rows up to which unpacking numbers where they are used is faster than unpacking them once for all rows.
const FEW_ROWS: usize = 12;

/// How far ahead of its use a unit is fetched.
const AHEAD_BYTES: usize = 4096;

/// The operands as the loops see them.
#[derive(Clone, Copy)]
pub(super) struct Operands<'a> {
    pub(super) x: &'a QuantRows,
    pub(super) digits: *const u8,
    pub(super) groups: usize,
    bias: Option<&'a [f32]>,
    /// Whether the product is added to what `out` holds.
    add: bool,
    out: *mut f32,
    n: usize,
}

/// Computes the outputs of one part; with `vnni` by the instructions made for it.
pub(crate) fn quantised_tile(
    product: &Product<'_>,
    w: &Quants,
    tile: &ProductTile,
    out: Share<'_>,
    vnni: bool,
) {
    let (x, n) = (product.quantised, product.w.rows());
    let groups = x.groups();
    let units = tile.strips.end * groups * (STRIP / LANES);
    assert!(units * w.width.unit_bytes() <= w.digits.len(), "{tile:?}");
    assert!(tile.rows.end * groups <= x.scale.len() && tile.rows.end * n <= out.len(), "{tile:?}");
    assert!(product.bias.is_none_or(|bias| bias.len() == n), "{tile:?}");
    let operands = Operands {
        x,
        digits: w.digits.as_ptr(),
        groups,
        bias: product.bias,
        add: product.add,
        out: out.pointer(),
        n,
    };
    let shift = |zero: u8| zero.trailing_zeros();
    // SAFETY: `Isa` has found the features before it chose this function. The assertions above keep rows, strips and
    // groups inside `x`, `out` and the digits, and scales are packed for as many units; parts differ in rows or
    // strips, so that nobody else writes there.
    unsafe {
        match &w.scales {
            Scales::Centred { d, zero } => {
                let scaler = Centred { d: d.as_ptr(), zero_shift: shift(*zero) };
                by_width(&operands, w.width, scaler, tile, vnni);
            }
            Scales::Affine { dm } => {
                by_width(&operands, w.width, Affine { dm: dm.as_ptr() }, tile, vnni);
            }
            Scales::NestedAffine { dm, st } => {
                let scaler = NestedAffine { dm: dm.as_ptr(), st: st.as_ptr() };
                by_width(&operands, w.width, scaler, tile, vnni);
            }
            Scales::NestedCentred { d, s, zero } => {
                let scaler = NestedCentred { d: d.as_ptr(), s: s.as_ptr(), zero_shift: shift(*zero) };
                by_width(&operands, w.width, scaler, tile, vnni);
            }
        }
    }
}

/// # Safety
/// As the block loop below, for all rows and strips of `tile`.
unsafe fn by_width<S: Scaler>(
    operands: &Operands<'_>,
    width: Width,
    scaler: S,
    tile: &ProductTile,
    vnni: bool,
) {
    // SAFETY: the caller's duty.
    unsafe {
        match width {
            Width::Four => by_planes::<Fours, S>(operands, scaler, tile, vnni),
            Width::Six => by_planes::<Sixes, S>(operands, scaler, tile, vnni),
            Width::Eight => by_planes::<Eights, S>(operands, scaler, tile, vnni),
        }
    }
}

/// # Safety
/// As [`by_width`].
unsafe fn by_planes<D: Digits, S: Scaler>(
    operands: &Operands<'_>,
    scaler: S,
    tile: &ProductTile,
    vnni: bool,
) {
    let many = tile.rows.len() > FEW_ROWS;
    // SAFETY: the caller's duty.
    unsafe {
        match (operands.x.precision, vnni) {
            (Precision::Eight, true) if many => panels_vnni::<D, S, 1>(operands, scaler, tile),
            (Precision::Fifteen, true) if many => panels_vnni::<D, S, 2>(operands, scaler, tile),
            (Precision::Eight, false) if many => panels_plain::<D, S, 1>(operands, scaler, tile),
            (Precision::Fifteen, false) if many => panels_plain::<D, S, 2>(operands, scaler, tile),
            (Precision::Eight, true) => strips_vnni::<D, S, 1>(operands, scaler, tile),
            (Precision::Fifteen, true) => strips_vnni::<D, S, 2>(operands, scaler, tile),
            (Precision::Eight, false) => strips_plain::<D, S, 1>(operands, scaler, tile),
            (Precision::Fifteen, false) => strips_plain::<D, S, 2>(operands, scaler, tile),
        }
    }
}

/// The loops compiled for one set of features: dot products by `$dot`.
macro_rules! loops {
    ($features:literal, $dot:ident, $strips:ident, $by_rows:ident, $block:ident, $sums:ident) => {
        /// # Safety
        /// As the block loop, for all rows and strips of `tile`.
        #[target_feature(enable = $features)]
        unsafe fn $strips<D: Digits, S: Scaler, const PLANES: usize>(
            operands: &Operands<'_>,
            scaler: S,
            tile: &ProductTile,
        ) {
            let (first, rows) = (tile.rows.start, tile.rows.len());
            let blocks = rows.div_ceil(MOST_ROWS);
            for strip in tile.strips.clone() {
                for block in 0..blocks {
                    let span = first + rows * block / blocks..first + rows * (block + 1) / blocks;
                    // SAFETY: the caller's duty.
                    unsafe { $by_rows::<D, S, PLANES>(operands, scaler, strip, span) };
                }
            }
        }

        /// # Safety
        /// As the block loop.
        #[inline]
        #[target_feature(enable = $features)]
        unsafe fn $by_rows<D: Digits, S: Scaler, const PLANES: usize>(
            operands: &Operands<'_>,
            scaler: S,
            strip: usize,
            rows: Range<usize>,
        ) {
            // SAFETY: the caller's duty.
            unsafe {
                match rows.len() {
                    1 => $block::<D, S, PLANES, 1>(operands, scaler, strip, rows.start),
                    2 => $block::<D, S, PLANES, 2>(operands, scaler, strip, rows.start),
                    3 => $block::<D, S, PLANES, 3>(operands, scaler, strip, rows.start),
                    4 => $block::<D, S, PLANES, 4>(operands, scaler, strip, rows.start),
                    5 => $block::<D, S, PLANES, 5>(operands, scaler, strip, rows.start),
                    6 => $block::<D, S, PLANES, 6>(operands, scaler, strip, rows.start),
                    _ => unreachable!("blocks of rows are between 1 and {MOST_ROWS} high"),
                }
            }
        }

        /// `R` rows by one strip.
        ///
        /// # Safety
        /// The processor has the features; the rows are inside `x` and `out`, the strip inside digits and scales;
        /// nobody else touches these outputs meanwhile.
        #[target_feature(enable = $features)]
        unsafe fn $block<D: Digits, S: Scaler, const PLANES: usize, const R: usize>(
            operands: &Operands<'_>,
            scaler: S,
            strip: usize,
            row: usize,
        ) {
            let groups = operands.groups;
            let nests = groups.div_ceil(S::NEST);
            let mut sums = [[_mm512_setzero_ps(); 2]; R];
            // SAFETY: the caller's duty.
            unsafe {
                operands.start::<R>(&mut sums, strip);
                for nest in 0..nests {
                    let at = (strip * nests + nest) * 2;
                    let scales = [scaler.open(at), scaler.open(at + 1)];
                    let end = groups.min((nest + 1) * S::NEST);
                    for group in nest * S::NEST..end {
                        let unit = operands.digits.add((strip * groups + group) * 2 * D::UNIT);
                        fetch_lines(unit.wrapping_add(AHEAD_BYTES), 2 * D::UNIT);
                        let inner = group - nest * S::NEST;
                        let place = (row, group);
                        if S::HALVES {
                            $sums::<D, S, PLANES, R, 0, 4>(
                                &mut sums, operands, scaler, scales, unit, place, inner,
                            );
                            $sums::<D, S, PLANES, R, 4, 8>(
                                &mut sums, operands, scaler, scales, unit, place, inner,
                            );
                        } else {
                            $sums::<D, S, PLANES, R, 0, 8>(
                                &mut sums, operands, scaler, scales, unit, place, inner,
                            );
                        }
                    }
                }
                operands.finish::<R>(&sums, strip, row);
            }
        }

        /// Takes quads `FROM..TO` of a group into account.
        ///
        /// # Safety
        /// As the block loop.
        #[inline]
        #[target_feature(enable = $features)]
        unsafe fn $sums<
            D: Digits,
            S: Scaler,
            const PLANES: usize,
            const R: usize,
            const FROM: usize,
            const TO: usize,
        >(
            sums: &mut [[__m512; 2]; R],
            operands: &Operands<'_>,
            scaler: S,
            scales: [S::Nest; 2],
            unit: *const u8,
            (row, group): (usize, usize),
            inner: usize,
        ) {
            let (x, groups) = (operands.x, operands.groups);
            // SAFETY: the caller's duty.
            unsafe {
                let mut zeros = [_mm512_setzero_si512(); R];
                if !S::MINIMA {
                    let shift = _mm_cvtsi32_si128(scaler.zero_shift().cast_signed());
                    for r in 0..R {
                        let at = (row + r) * groups + group;
                        let less = if S::HALVES {
                            *x.less.as_ptr().add(at * 2 + FROM / 4)
                        } else {
                            *x.less_group.as_ptr().add(at)
                        };
                        zeros[r] = _mm512_sll_epi32(_mm512_set1_epi32(less), shift);
                    }
                }
                let mut dots = [[_mm512_setzero_si512(); 2]; R];
                // Loops, not closures: a closure is compiled without the features and called.
                if PLANES == 1 {
                    for r in 0..R {
                        dots[r] = [zeros[r]; 2];
                    }
                }
                let bytes = x.stride * PLANES;
                let values = x.q.as_ptr().add(row * bytes + group * GROUP);
                for plane in 0..PLANES {
                    for quad in FROM..TO {
                        let weights = [D::quad(unit, quad), D::quad(unit.add(D::UNIT), quad)];
                        for r in 0..R {
                            let four = values.add(r * bytes + plane * x.stride + quad * 4);
                            let four = _mm512_set1_epi32(four.cast::<i32>().read_unaligned());
                            dots[r][0] = $dot::<D>(dots[r][0], weights[0], four);
                            dots[r][1] = $dot::<D>(dots[r][1], weights[1], four);
                        }
                    }
                    if PLANES == 2 && plane == 0 {
                        // What comes next are the lower bytes, and what stands for zero belongs to both.
                        for r in 0..R {
                            for half in 0..2 {
                                let upper = _mm512_slli_epi32::<7>(dots[r][half]);
                                dots[r][half] = _mm512_add_epi32(upper, zeros[r]);
                            }
                        }
                    }
                }
                for half in 0..2 {
                    let scale = scaler.scale(scales[half], inner, FROM / 4);
                    let minimum = scaler.minimum(scales[half], inner);
                    for r in 0..R {
                        let at = (row + r) * groups + group;
                        let product = _mm512_mul_ps(_mm512_cvtepi32_ps(dots[r][half]), scale);
                        let by = _mm512_set1_ps(*x.scale.as_ptr().add(at));
                        sums[r][half] = _mm512_fmadd_ps(product, by, sums[r][half]);
                        if S::MINIMA {
                            let sum = _mm512_set1_ps(*x.sum.as_ptr().add(at));
                            sums[r][half] = _mm512_fmadd_ps(minimum, sum, sums[r][half]);
                        }
                    }
                }
            }
        }
    };
}

loops!(
    "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni",
    dot_vnni,
    strips_vnni,
    rows_vnni,
    block_vnni,
    sums_vnni
);
loops!("avx512f,avx512bw,avx512vl,avx512dq", dot_plain, strips_plain, rows_plain, block_plain, sums_plain);

/// `sum + Σ numbers · values` over each lane's four bytes.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vnni")]
pub(super) fn dot_vnni<D: Digits>(sum: __m512i, numbers: __m512i, values: __m512i) -> __m512i {
    _mm512_dpbusd_epi32(sum, numbers, values)
}

/// As [`dot_vnni`] where that instruction is missing. Sums of two products must fit sixteen bits, so that a number of
/// eight bits is taken in two pieces.
#[inline]
#[target_feature(enable = "avx512f,avx512bw")]
pub(super) fn dot_plain<D: Digits>(sum: __m512i, numbers: __m512i, values: __m512i) -> __m512i {
    let pairs =
        |numbers, weight| _mm512_madd_epi16(_mm512_maddubs_epi16(numbers, values), _mm512_set1_epi16(weight));
    if D::SMALL {
        return _mm512_add_epi32(sum, pairs(numbers, 1));
    }
    let low = _mm512_and_si512(numbers, _mm512_set1_epi8(0x7f));
    let top = _mm512_and_si512(_mm512_srli_epi16::<7>(numbers), _mm512_set1_epi8(1));
    _mm512_add_epi32(sum, _mm512_add_epi32(pairs(low, 1), pairs(top, 128)))
}

impl Operands<'_> {
    /// What the chains of a strip start from.
    ///
    /// # Safety
    /// The processor has AVX-512 F.
    #[inline]
    #[target_feature(enable = "avx512f")]
    pub(super) unsafe fn start<const R: usize>(&self, sums: &mut [[__m512; 2]; R], strip: usize) {
        let Some(bias) = self.bias else { return };
        for half in 0..2 {
            let first = strip * STRIP + half * LANES;
            // SAFETY: the mask keeps the load inside the bias.
            let bias =
                unsafe { _mm512_maskz_loadu_ps(lanes(self.n, first), bias.as_ptr().wrapping_add(first)) };
            for r in 0..R {
                sums[r][half] = bias;
            }
        }
    }

    /// Stores the sums, or adds them to what is there.
    ///
    /// # Safety
    /// The processor has AVX-512 F; the rows are inside `out`, and nobody else touches these outputs.
    #[inline]
    #[target_feature(enable = "avx512f")]
    pub(super) unsafe fn finish<const R: usize>(&self, sums: &[[__m512; 2]; R], strip: usize, row: usize) {
        for half in 0..2 {
            let first = strip * STRIP + half * LANES;
            let mask = lanes(self.n, first);
            for r in 0..R {
                let out = self.out.wrapping_add((row + r) * self.n + first);
                // SAFETY: the mask keeps it inside the row; the rest is the caller's duty.
                unsafe { put(out, mask, sums[r][half], self.add) };
            }
        }
    }
}
