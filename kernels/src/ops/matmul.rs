//! Products with packed weights. The rule: an output element is one chain of additions over its inputs in order,
//! so that neither the number of rows nor the split over threads can change a bit of it.

use crate::dispatch::Isa;
use crate::layout::matrix::Matrix;
use crate::ops::Share;
use crate::pool::Pool;
use crate::portable;

/// Rows of `x` that one part works on, so that they stay in the second-level cache while weights pass by.
const ROWS_PER_PART: usize = 192;

/// Parts for each thread, so that a thread that starts late or is slower takes fewer.
const PARTS_PER_THREAD: usize = 4;

/// One product: what every part of it reads.
pub(crate) struct Product<'a> {
    pub(crate) x: &'a [f32],
    pub(crate) w: &'a Matrix,
    pub(crate) bias: Option<&'a [f32]>,
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

/// `out = x · wᵀ + bias`, with the bias added to each row.
///
/// # Panics
/// When `x`, `bias` or `out` does not have the length that `m` and `w` ask for.
pub fn matmul_bias(
    pool: &Pool,
    isa: Isa,
    x: &[f32],
    m: usize,
    w: &Matrix,
    bias: Option<&[f32]>,
    out: &mut [f32],
) {
    let (n, k) = (w.rows(), w.cols());
    assert!(m.checked_mul(k) == Some(x.len()), "x holds {} numbers; {m} rows need {k} each", x.len());
    assert!(m.checked_mul(n) == Some(out.len()), "out holds {} numbers; {m} rows need {n} each", out.len());
    if let Some(bias) = bias {
        assert!(bias.len() == n, "bias holds {} numbers; the weights have {n} outputs", bias.len());
    }
    if m == 0 {
        return;
    }
    let product = Product { x, w, bias };
    let grid = Grid::new(m, w.strips(), pool.threads());
    let out = Share::new(out);
    pool.run(grid.parts(), &|part| {
        let tile = grid.tile(part);
        #[cfg(target_arch = "x86_64")]
        if isa.runs_avx512() {
            crate::avx512::matmul_tile(&product, &tile, out);
            return;
        }
        let _ = isa;
        portable::matmul_tile(&product, &tile, out);
    });
}

/// How a product is cut into parts.
struct Grid {
    rows: usize,
    strips: usize,
    row_parts: usize,
    strip_parts: usize,
}

impl Grid {
    fn new(rows: usize, strips: usize, threads: usize) -> Grid {
        let row_parts = rows.div_ceil(ROWS_PER_PART);
        let wished = if threads == 1 { 1 } else { (threads * PARTS_PER_THREAD).div_ceil(row_parts) };
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
            let grid = Grid::new(rows, strips, threads);
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
