//! Products with packed weights. The rule: an output element is one chain of additions over its inputs in order,
//! so that neither the number of rows nor the split over threads can change a bit of it.
//!
//! All products of one call share their rows and one round of the pool, which costs less than a round each.
#![allow(unsafe_code)]

use crate::compiled::dispatch;
use crate::dispatch::Isa;
use crate::layout::matrix::{Matrix, STRIP, Store};
use crate::layout::rows::QuantRows;
use crate::ops::{Activations, Share};
use crate::pool::Pool;
use crate::portable::{self, elementwise};

/// Bytes of rows that one part works on, so that they stay in the second-level cache while weights pass by.
const PART_BYTES: usize = 448 << 10;

/// Rows of a part, at least.
const LEAST_ROWS: usize = 48;

/// Rows of a part, at most.
const MOST_ROWS: usize = 192;

/// Parts for each thread, so that a thread that starts late or is slower takes fewer. With several runs of rows the
/// number of parts is seldom a multiple of the threads, and the last part costs less if there are more.
const PARTS_PER_THREAD: usize = 4;
const PARTS_PER_THREAD_OF_MANY_ROWS: usize = 8;

/// One product: `out = x · weightᵀ + bias`, or `out += …`.
#[derive(Debug)]
pub struct Projection<'a> {
    /// The weights.
    pub weight: &'a Matrix,
    /// What is added to each row.
    pub bias: Option<&'a [f32]>,
    /// Whether the product is added to what `out` holds.
    pub add: bool,
    /// Rows of as many numbers as the weights have outputs.
    pub out: &'a mut [f32],
}

/// What every part of a product reads.
pub(crate) struct Product<'a> {
    pub(crate) x: &'a [f32],
    pub(crate) quantised: &'a QuantRows,
    pub(crate) w: &'a Matrix,
    pub(crate) bias: Option<&'a [f32]>,
    pub(crate) add: bool,
}

/// A part of a product: some rows by some strips.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Tile {
    pub(crate) rows: std::ops::Range<usize>,
    pub(crate) strips: std::ops::Range<usize>,
}

/// `out = x · wᵀ`: `x` holds `m` rows of `w.cols()`, `out` `m` rows of `w.rows()`.
pub fn matmul(pool: &Pool, isa: Isa, x: &[f32], m: usize, w: &Matrix, out: &mut [f32]) {
    matmul_bias(pool, isa, x, m, w, None, out);
}

/// `out = x · wᵀ + bias`, with the bias added to each row. For rows that are already [`Activations`], see [`project`].
///
/// # Panics
/// As [`project`].
pub fn matmul_bias(
    pool: &Pool,
    isa: Isa,
    x: &[f32],
    m: usize,
    w: &Matrix,
    bias: Option<&[f32]>,
    out: &mut [f32],
) {
    let projection = Projection { weight: w, bias, add: false, out };
    project(pool, isa, &mut Activations::from(x.to_vec()), m, [projection]);
}

/// Computes several products of the same `m` rows.
///
/// # Panics
/// When `x`, a bias or an `out` does not have the length that `m` and the weights ask for.
pub fn project<const N: usize>(
    pool: &Pool,
    isa: Isa,
    x: &mut Activations,
    m: usize,
    projections: [Projection<'_>; N],
) {
    for projection in &projections {
        check(x.values(), m, projection.weight, projection.bias, projection.out);
    }
    let Some(cols) = projections.first().map(|first| first.weight.cols()).filter(|_| m > 0) else { return };
    let weights = projections.each_ref().map(|projection| projection.weight);
    prepare(pool, isa, x, cols, &weights);
    let x = &*x;
    let products = projections.map(|projection| {
        let Projection { weight: w, bias, add, out } = projection;
        let product = Product { x: x.values(), quantised: x.quantised(), w, bias, add };
        (product, Share::new(out))
    });
    let strips = weights.iter().map(|weight| weight.strips()).sum();
    let grid = Grid::new(m, strips, row_bytes(cols, &weights), pool.threads());
    pool.run(grid.parts(), &|part| {
        let Tile { rows, strips } = grid.tile(part);
        let mut first = 0;
        for (product, out) in &products {
            let count = product.w.strips();
            let own = strips.start.clamp(first, first + count) - first
                ..strips.end.clamp(first, first + count) - first;
            if !own.is_empty() {
                product.compute(isa, &Tile { rows: rows.clone(), strips: own }, *out);
            }
            first += count;
        }
    });
}

/// `out = silu(x · gateᵀ) · (x · upᵀ)` for `m` rows; `room` is for the gate's rows meanwhile.
///
/// # Panics
/// As [`project`], or when the two matrices differ in shape.
#[expect(
    clippy::too_many_arguments,
    reason = "a kernel call names its operands; a struct would only rename them"
)]
pub fn project_gated(
    pool: &Pool,
    isa: Isa,
    x: &mut Activations,
    m: usize,
    gate: &Matrix,
    up: &Matrix,
    room: &mut [f32],
    out: &mut [f32],
) {
    assert!(gate.rows() == up.rows(), "gate has {} outputs; up has {}", gate.rows(), up.rows());
    check(x.values(), m, gate, None, room);
    check(x.values(), m, up, None, out);
    if m == 0 {
        return;
    }
    let (n, cols) = (gate.rows(), gate.cols());
    prepare(pool, isa, x, cols, &[gate, up]);
    let x = &*x;
    let product = |w| Product { x: x.values(), quantised: x.quantised(), w, bias: None, add: false };
    let (gate, up) = (product(gate), product(up));
    let (room, out) = (Share::new(room), Share::new(out));
    let grid = Grid::new(m, up.w.strips(), row_bytes(cols, &[gate.w, up.w]), pool.threads());
    pool.run(grid.parts(), &|part| {
        let tile = grid.tile(part);
        gate.compute(isa, &tile, room);
        up.compute(isa, &tile, out);
        let (first, end) = (tile.strips.start * STRIP, n.min(tile.strips.end * STRIP));
        for row in tile.rows {
            // SAFETY: this part alone has these rows and strips, and both products are done with them.
            let (room, out) = unsafe {
                (room.slice(row * n + first, end - first), out.slice(row * n + first, end - first))
            };
            dispatch!(isa, elementwise::silu_mul(room, out));
        }
    });
}

/// Makes the form of the rows that the weights are multiplied with.
fn prepare(pool: &Pool, isa: Isa, x: &mut Activations, cols: usize, weights: &[&Matrix]) {
    let quantised = weights.iter().filter(|weight| matches!(weight.store, Store::Quants(_)));
    // Weights that share their rows share the finest precision any of them asks for.
    if let Some(precision) = quantised.map(|weight| weight.precision).max() {
        x.quantise(pool, isa, cols, precision);
    }
}

/// The memory of one row in the widest form that is read.
fn row_bytes(cols: usize, weights: &[&Matrix]) -> usize {
    let floats = weights.iter().any(|weight| !matches!(weight.store, Store::Quants(_)));
    if floats { cols.saturating_mul(4) } else { cols }
}

fn check(x: &[f32], m: usize, w: &Matrix, bias: Option<&[f32]>, out: &[f32]) {
    let (n, k) = (w.rows(), w.cols());
    assert!(m.checked_mul(k) == Some(x.len()), "x holds {} numbers; {m} rows need {k} each", x.len());
    assert!(m.checked_mul(n) == Some(out.len()), "out holds {} numbers; {m} rows need {n} each", out.len());
    if let Some(bias) = bias {
        assert!(bias.len() == n, "bias holds {} numbers; the weights have {n} outputs", bias.len());
    }
}

impl Product<'_> {
    /// Computes the outputs of one part.
    fn compute(&self, isa: Isa, tile: &Tile, out: Share<'_>) {
        match &self.w.store {
            Store::Quants(w) => {
                #[cfg(target_arch = "x86_64")]
                if isa.runs_amx() && crate::amx::quantised_tile(self, w, tile, out) {
                    return;
                }
                #[cfg(target_arch = "x86_64")]
                if isa.runs_avx512() {
                    crate::avx512::quantised_tile(self, w, tile, out, isa.runs_vnni());
                    return;
                }
                dispatch!(isa, portable::quantised_tile(self, w, self.quantised, tile, out));
            }
            Store::F32(_) | Store::Bf16(_) | Store::F16(_) => {
                #[cfg(target_arch = "x86_64")]
                if isa.runs_avx512() {
                    crate::avx512::matmul_tile(self, tile, out);
                    return;
                }
                dispatch!(isa, portable::matmul_tile(self, tile, out));
            }
        }
    }
}

/// How a product is cut into parts.
struct Grid {
    rows: usize,
    strips: usize,
    row_parts: usize,
    strip_parts: usize,
}

impl Grid {
    fn new(rows: usize, strips: usize, row_bytes: usize, threads: usize) -> Grid {
        let rows_per_part = (PART_BYTES / row_bytes.max(1)).clamp(LEAST_ROWS, MOST_ROWS);
        let row_parts = rows.div_ceil(rows_per_part);
        let per_thread = if row_parts == 1 { PARTS_PER_THREAD } else { PARTS_PER_THREAD_OF_MANY_ROWS };
        let wished = if threads == 1 { 1 } else { (threads * per_thread).div_ceil(row_parts) };
        Grid { rows, strips, row_parts, strip_parts: wished.min(strips) }
    }

    fn parts(&self) -> usize {
        self.row_parts * self.strip_parts
    }

    /// Neighbouring parts share their rows and differ in strips.
    fn tile(&self, part: usize) -> Tile {
        let cut =
            |total: usize, parts: usize, index: usize| total * index / parts..total * (index + 1) / parts;
        Tile {
            rows: cut(self.rows, self.row_parts, part / self.strip_parts),
            strips: cut(self.strips, self.strip_parts, part % self.strip_parts),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_cover_every_row_and_strip_exactly_once() {
        for (rows, strips, threads) in
            [(1, 1, 1), (1, 18, 2), (7, 3, 16), (192, 5, 2), (193, 48, 4), (1000, 7, 3)]
        {
            for row_bytes in [64, 4096, 40_000] {
                let grid = Grid::new(rows, strips, row_bytes, threads);
                let mut seen = vec![0; rows * strips];
                for part in 0..grid.parts() {
                    let tile = grid.tile(part);
                    for row in tile.rows {
                        tile.strips.clone().for_each(|strip| seen[row * strips + strip] += 1);
                    }
                }
                assert!(seen.iter().all(|&count| count == 1), "{rows} {strips} {threads}");
            }
        }
    }
}
