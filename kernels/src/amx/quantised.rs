//! Products of many rows with quantised weights, by tiles. The rule: the integers are those of the form for AVX-512,
//! and so is the order in which they are scaled and added up; so a row has the same bits in either.
//!
//! The numbers of a strip's group are unpacked once for all rows. A block of sixteen rows is one tile of activations
//! by two of weights, one for each half of the strip, and gives two tiles of integer sums; vector instructions then
//! scale them. What is left over of the rows is a block of its own, in smaller tiles configured beside the others.
#![allow(unsafe_code)]
#![allow(
    clippy::needless_range_loop,
    reason = "loops over constant counts become registers; iterators hide that"
)]

use std::arch::x86_64::*;
use std::ops::Range;

use super::tiles::{Config, MOST_ROWS as BLOCK, Shape, TILES, Tiles};
use crate::avx512::digits::{
    Affine, Centred, Digits, Eights, Fours, NestedAffine, NestedCentred, Scaler, Sixes,
};
use crate::avx512::outputs::{lanes, put};
use crate::layout::matrix::STRIP;
use crate::layout::quant::{GROUP, LANES, Quants, Scales, Width};
use crate::layout::rows::{Precision, QuantRows};
use crate::ops::{Product, ProductTile, Share};

/// Rows from which tiles are worth their configuration. A guess: half a block is where a tile's fixed time should be
/// less than that of the vector form.
pub(crate) const LEAST_ROWS: usize = BLOCK / 2;

/// Rows whose sums are kept at the same time, in the first-level cache.
const MOST_ROWS: usize = 192;

/// Quads of a group.
const QUADS: usize = GROUP / 4;

/// Bytes of one row of a tile of weights: a quad of sixteen outputs.
const QUAD_BYTES: usize = 4 * LANES;

// Tiles: sums of the two halves and activations, of whole blocks and of the rest; weights of the two halves.
const SUMS: [u8; 2] = [0, 1];
const ROWS: u8 = 2;
const WEIGHTS: [u8; 2] = [3, 4];
const REST_SUMS: [u8; 2] = [5, 6];
const REST_ROWS: u8 = 7;

/// Numbers of one half of a strip in a group.
type HalfDigits = [u8; QUADS * QUAD_BYTES];

/// Integer sums of one half of a strip for a block of rows.
type HalfDots = [i32; BLOCK * LANES];

/// What a strip is worked on in.
#[repr(C, align(64))]
struct Room {
    /// Unpacked numbers of a group, and of the next: of each half, quad after quad.
    digits: [[HalfDigits; 2]; 2],
    /// Integer sums of a block: of each plane of the activations, of each half.
    dots: [[HalfDots; 2]; 2],
    /// The chains of all rows.
    sums: [[[f32; LANES]; 2]; MOST_ROWS],
}

/// The operands as the loops see them.
#[derive(Clone, Copy)]
struct Operands<'a> {
    x: &'a QuantRows,
    /// The bytes of `x`.
    bytes: &'a [u8],
    digits: *const u8,
    width: Width,
    groups: usize,
    bias: Option<&'a [f32]>,
    /// Whether the product is added to what `out` holds.
    add: bool,
    out: *mut f32,
    n: usize,
}

/// Computes the outputs of one part.
///
/// # Safety
/// The processor has AVX-512 F, BW, VL and DQ. Parts that are computed at the same time differ in rows or strips.
pub(crate) unsafe fn quantised_tile<T: Tiles>(
    tiles: &mut T,
    product: &Product<'_>,
    w: &Quants,
    tile: &ProductTile,
    out: Share<'_>,
) {
    let (x, n) = (product.quantised, product.w.rows());
    let groups = x.groups();
    let units = tile.strips.end * groups * (STRIP / LANES);
    assert!(units * w.width.unit_bytes() <= w.digits.len(), "{tile:?}");
    assert!(tile.rows.end * groups <= x.scale.len() && tile.rows.end * n <= out.len(), "{tile:?}");
    assert!(product.bias.is_none_or(|bias| bias.len() == n), "{tile:?}");
    // SAFETY: signed bytes are as many bytes of any kind.
    let bytes = unsafe { std::slice::from_raw_parts(x.q.as_ptr().cast::<u8>(), x.q.len()) };
    let digits = w.digits.as_ptr();
    let (bias, add, out) = (product.bias, product.add, out.pointer());
    let operands = Operands { x, bytes, digits, width: w.width, groups, bias, add, out, n };
    let shift = |zero: u8| zero.trailing_zeros();
    // SAFETY: features and parts are the caller's duty. The assertions above keep rows, strips and groups inside `x`,
    // `out` and the digits, and scales are packed for as many units.
    unsafe {
        match &w.scales {
            Scales::Centred { d, zero } => {
                let scaler = Centred { d: d.as_ptr(), zero_shift: shift(*zero) };
                strips(tiles, &operands, scaler, tile);
            }
            Scales::Affine { dm } => strips(tiles, &operands, Affine { dm: dm.as_ptr() }, tile),
            Scales::NestedAffine { dm, st } => {
                let scaler = NestedAffine { dm: dm.as_ptr(), st: st.as_ptr() };
                strips(tiles, &operands, scaler, tile);
            }
            Scales::NestedCentred { d, s, zero } => {
                let scaler = NestedCentred { d: d.as_ptr(), s: s.as_ptr(), zero_shift: shift(*zero) };
                strips(tiles, &operands, scaler, tile);
            }
        }
    }
}

/// The shapes for `rows` rows, where a dot product is over `inputs` inputs.
pub(super) fn config(rows: usize, inputs: usize) -> Config {
    let mut shapes = [Shape::default(); TILES];
    let weights = Shape { rows: inputs / 4, row_bytes: QUAD_BYTES };
    for half in 0..2 {
        shapes[usize::from(WEIGHTS[half])] = weights;
    }
    let mut block = |rows: usize, sums: [u8; 2], activations: u8| {
        if rows > 0 {
            shapes[usize::from(activations)] = Shape { rows, row_bytes: inputs };
            for half in sums {
                shapes[usize::from(half)] = Shape { rows, row_bytes: 4 * LANES };
            }
        }
    };
    block(if rows < BLOCK { 0 } else { BLOCK }, SUMS, ROWS);
    block(rows % BLOCK, REST_SUMS, REST_ROWS);
    Config::new(shapes)
}

/// All strips of a part, in runs of rows that fit the room.
///
/// # Safety
/// The processor has the features; the rows are inside `x` and `out`, the strips inside digits and scales; nobody else
/// touches these outputs meanwhile.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq")]
unsafe fn strips<T: Tiles, S: Scaler>(tiles: &mut T, operands: &Operands<'_>, scaler: S, tile: &ProductTile) {
    let mut room = Room {
        digits: [[[0; QUADS * QUAD_BYTES]; 2]; 2],
        dots: [[[0; BLOCK * LANES]; 2]; 2],
        sums: [[[0.0; LANES]; 2]; MOST_ROWS],
    };
    let (first, rows) = (tile.rows.start, tile.rows.len());
    let runs = rows.div_ceil(MOST_ROWS);
    for run in 0..runs {
        let span = first + rows * run / runs..first + rows * (run + 1) / runs;
        tiles.configure(&config(span.len(), if S::HALVES { GROUP / 2 } else { GROUP }));
        for strip in tile.strips.clone() {
            // SAFETY: the caller's duty.
            unsafe {
                operands.start(&mut room.sums[..span.len()], strip);
                one_strip::<T, S>(tiles, operands, scaler, strip, span.clone(), &mut room);
                operands.finish(&room.sums[..span.len()], strip, span.start);
            }
        }
    }
}

/// Carries on the chains of `rows` by all groups of a strip.
///
/// # Safety
/// As [`strips`].
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq")]
unsafe fn one_strip<T: Tiles, S: Scaler>(
    tiles: &mut T,
    operands: &Operands<'_>,
    scaler: S,
    strip: usize,
    rows: Range<usize>,
    room: &mut Room,
) {
    let groups = operands.groups;
    let nests = groups.div_ceil(S::NEST);
    let (width, unit_bytes) = (operands.width, operands.width.unit_bytes());
    let unit = |group: usize| operands.digits.wrapping_add((strip * groups + group) * 2 * unit_bytes);
    if groups > 0 {
        // SAFETY: the caller's duty.
        unsafe { unpack(width, unit(0), &mut room.digits[0]) };
    }
    for group in 0..groups {
        let (nest, inner) = (group / S::NEST, group % S::NEST);
        let at = (strip * nests + nest) * 2;
        // SAFETY: the caller's duty.
        unsafe {
            // A group ahead: a tile that is loaded from what was just stored waits for it to reach the cache.
            if group + 1 < groups {
                unpack(width, unit(group + 1), &mut room.digits[(group + 1) % 2]);
            }
            let scales = [scaler.open(at), scaler.open(at + 1)];
            let digits = &room.digits[group % 2];
            let parts = if S::HALVES { 2 } else { 1 };
            for part in 0..parts {
                let from = part * (QUADS / 2) * QUAD_BYTES;
                tiles.load::<{ WEIGHTS[0] }>(&digits[0][from..], QUAD_BYTES);
                tiles.load::<{ WEIGHTS[1] }>(&digits[1][from..], QUAD_BYTES);
                let factors = Factors {
                    scale: [scaler.scale(scales[0], inner, part), scaler.scale(scales[1], inner, part)],
                    minimum: [scaler.minimum(scales[0], inner), scaler.minimum(scales[1], inner)],
                };
                let place = Place { group, part };
                for block in rows.clone().step_by(BLOCK) {
                    let height = BLOCK.min(rows.end - block);
                    operands.dots(tiles, block, height, place, &mut room.dots);
                    let sums = &mut room.sums[block - rows.start..][..height];
                    match operands.x.precision {
                        Precision::Eight => {
                            operands.scale::<S, 1>(scaler, block, place, &factors, &room.dots, sums);
                        }
                        Precision::Fifteen => {
                            operands.scale::<S, 2>(scaler, block, place, &factors, &room.dots, sums);
                        }
                    }
                }
            }
        }
    }
}

/// Unpacks a group's numbers of both halves.
///
/// # Safety
/// The processor has AVX-512 F and BW; the two units of a group start at `unit`.
#[inline]
#[target_feature(enable = "avx512f,avx512bw")]
unsafe fn unpack(width: Width, unit: *const u8, to: &mut [HalfDigits; 2]) {
    // SAFETY: the caller's duty.
    unsafe {
        match width {
            Width::Four => unpack_as::<Fours>(unit, to),
            Width::Six => unpack_as::<Sixes>(unit, to),
            Width::Eight => unpack_as::<Eights>(unit, to),
        }
    }
}

/// # Safety
/// As [`unpack`].
#[target_feature(enable = "avx512f,avx512bw")]
unsafe fn unpack_as<D: Digits>(unit: *const u8, to: &mut [HalfDigits; 2]) {
    for half in 0..2 {
        for quad in 0..QUADS {
            let to = &mut to[half][quad * QUAD_BYTES..][..QUAD_BYTES];
            // SAFETY: the caller's duty; a quad is stored to as many bytes.
            unsafe {
                let numbers = D::quad(unit.add(half * D::UNIT), quad);
                _mm512_storeu_si512(to.as_mut_ptr().cast(), numbers);
            }
        }
    }
}

/// What integers of both halves are multiplied by.
struct Factors {
    scale: [__m512; 2],
    minimum: [__m512; 2],
}

/// Where along the inputs a dot product is: a group, and of formats whose half groups differ, which half.
#[derive(Clone, Copy)]
struct Place {
    group: usize,
    part: usize,
}

impl Operands<'_> {
    /// Leaves the integer sums of a block of rows in `dots`.
    #[inline]
    fn dots<T: Tiles>(
        &self,
        tiles: &mut T,
        row: usize,
        height: usize,
        place: Place,
        dots: &mut [[HalfDots; 2]; 2],
    ) {
        let row_bytes = self.x.row_bytes();
        for plane in 0..self.x.precision.planes() {
            let at = row * row_bytes + plane * self.x.stride + place.group * GROUP + place.part * (GROUP / 2);
            let values = &self.bytes[at..];
            let [low, high] = &mut dots[plane];
            if height == BLOCK {
                tiles.load::<ROWS>(values, row_bytes);
                multiply::<T, { SUMS[0] }, ROWS, { WEIGHTS[0] }>(tiles, low);
                multiply::<T, { SUMS[1] }, ROWS, { WEIGHTS[1] }>(tiles, high);
            } else {
                tiles.load::<REST_ROWS>(values, row_bytes);
                multiply::<T, { REST_SUMS[0] }, REST_ROWS, { WEIGHTS[0] }>(tiles, low);
                multiply::<T, { REST_SUMS[1] }, REST_ROWS, { WEIGHTS[1] }>(tiles, high);
            }
        }
    }

    /// Carries on the chains of a block of rows by its integer sums, in the order of the form for AVX-512.
    ///
    /// # Safety
    /// The processor has the features; the rows from `row` on, as many as `sums`, and the group are inside `x`.
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq")]
    unsafe fn scale<S: Scaler, const PLANES: usize>(
        &self,
        scaler: S,
        row: usize,
        place: Place,
        factors: &Factors,
        dots: &[[HalfDots; 2]; 2],
        sums: &mut [[[f32; LANES]; 2]],
    ) {
        let shift = _mm_cvtsi32_si128(scaler.zero_shift().cast_signed());
        for (r, sums) in sums.iter_mut().enumerate() {
            let at = (row + r) * self.groups + place.group;
            let by = _mm512_set1_ps(self.x.scale[at]);
            let sum = _mm512_set1_ps(self.x.sum[at]);
            let less = if S::HALVES { self.x.less[at * 2 + place.part] } else { self.x.less_group[at] };
            let zeros = _mm512_sll_epi32(_mm512_set1_epi32(less), shift);
            for half in 0..2 {
                let chain = sums[half].as_mut_ptr();
                // SAFETY: a row of sixteen numbers.
                let mut sum_of_products = unsafe { _mm512_loadu_ps(chain) };
                let mut dot = integers(&dots[0][half], r);
                if PLANES == 2 {
                    dot = _mm512_add_epi32(_mm512_slli_epi32::<7>(dot), integers(&dots[1][half], r));
                }
                if !S::MINIMA {
                    dot = _mm512_add_epi32(dot, zeros);
                }
                let product = _mm512_mul_ps(_mm512_cvtepi32_ps(dot), factors.scale[half]);
                sum_of_products = _mm512_fmadd_ps(product, by, sum_of_products);
                if S::MINIMA {
                    sum_of_products = _mm512_fmadd_ps(factors.minimum[half], sum, sum_of_products);
                }
                // SAFETY: as above.
                unsafe { _mm512_storeu_ps(chain, sum_of_products) };
            }
        }
    }

    /// What the chains of a strip start from.
    ///
    /// # Safety
    /// The processor has AVX-512 F.
    #[target_feature(enable = "avx512f")]
    unsafe fn start(&self, sums: &mut [[[f32; LANES]; 2]], strip: usize) {
        for half in 0..2 {
            let first = strip * STRIP + half * LANES;
            let from = match self.bias {
                // SAFETY: the mask keeps the load inside the bias.
                Some(bias) => unsafe {
                    _mm512_maskz_loadu_ps(lanes(self.n, first), bias.as_ptr().wrapping_add(first))
                },
                None => _mm512_setzero_ps(),
            };
            for row in sums.iter_mut() {
                // SAFETY: a row of sixteen numbers.
                unsafe { _mm512_storeu_ps(row[half].as_mut_ptr(), from) };
            }
        }
    }

    /// Stores the sums, or adds them to what is there.
    ///
    /// # Safety
    /// The processor has AVX-512 F; the rows are inside `out`, and nobody else touches these outputs.
    #[target_feature(enable = "avx512f")]
    unsafe fn finish(&self, sums: &[[[f32; LANES]; 2]], strip: usize, row: usize) {
        for half in 0..2 {
            let first = strip * STRIP + half * LANES;
            let mask = lanes(self.n, first);
            for (r, sums) in sums.iter().enumerate() {
                let out = self.out.wrapping_add((row + r) * self.n + first);
                // SAFETY: the mask keeps it inside the row; the rest is the caller's duty.
                unsafe { put(out, mask, _mm512_loadu_ps(sums[half].as_ptr()), self.add) };
            }
        }
    }
}

/// `dots = LEFT · RIGHT`, by way of a tile of sums.
#[inline]
fn multiply<T: Tiles, const SUMS: u8, const LEFT: u8, const RIGHT: u8>(tiles: &mut T, dots: &mut HalfDots) {
    tiles.zero::<SUMS>();
    tiles.dot::<SUMS, LEFT, RIGHT>();
    tiles.store::<SUMS>(dots, LANES);
}

/// The integer sums of row `r` of a block.
#[inline]
#[target_feature(enable = "avx512f")]
fn integers(dots: &HalfDots, r: usize) -> __m512i {
    let row = &dots[r * LANES..][..LANES];
    // SAFETY: a row of sixteen numbers.
    unsafe { _mm512_loadu_si512(row.as_ptr().cast()) }
}

#[cfg(test)]
mod tests;
