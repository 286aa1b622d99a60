//! Products for AVX-512. The rule: output `n` of row `m` is one chain of fused multiply-adds over the inputs in
//! order, whichever of the loops below computes it; a chain cut at a panel's end is stored and taken up as `f32`.
//!
//! Few rows read the packed weights straight into registers. Many rows unpack a panel that stays in the first-level
//! cache and use it for all of them.
#![allow(unsafe_code)]
#![allow(
    clippy::needless_range_loop,
    reason = "loops over constant counts become registers; iterators hide that"
)]

use std::arch::x86_64::*;
use std::cell::RefCell;
use std::mem::MaybeUninit;
use std::ops::Range;

use super::outputs::{lanes, put};
use super::source::{Bf16s, Floats, Halves, Panel, STEP, Source};
use crate::layout::matrix::{STRIP, Store};
use crate::ops::{Product, ProductTile, Share};

/// Inputs unpacked at once: 256 of a strip are 32 KiB.
const PANEL: usize = 256;

/// Rows up to which weights are decoded in registers instead of through a panel, even if twice.
const FEW_ROWS: usize = 16;

/// The most rows whose sums leave enough registers to decode weights in.
const MOST_ROWS_DECODING: usize = 8;

/// The most rows whose sums are in registers together: 24 sums, 2 weights and an input.
const MOST_ROWS: usize = 12;

/// Strips whose sums are taken up together panel after panel, so that a panel's inputs are fetched once for all.
const STRIPS_TOGETHER: usize = 8;

/// Strips below which copying a panel's inputs costs more than it saves.
const LEAST_STRIPS_TO_COPY: usize = 4;

/// An unpacked panel on a thread's stack, on a cache line.
#[repr(align(64))]
struct PanelBuffer([MaybeUninit<f32>; PANEL * STRIP]);

thread_local! {
    /// Room for one panel's inputs of all rows of a part, side by side, and for the sums between two panels: rows
    /// of a power-of-two width would otherwise fall into the same few places of the cache. Kept, because it is
    /// asked for in every product.
    static SCRATCH: RefCell<Vec<f32>> = const { RefCell::new(Vec::new()) };
}

/// The operands as the inner loops see them.
#[derive(Clone, Copy)]
struct Operands {
    /// Inputs: that of row `row` and input `k` is at `(row - x_row) * x_stride + (k - x_start)`.
    x: *const f32,
    x_row: usize,
    x_start: usize,
    x_stride: usize,
    /// Sums between two panels: those of row `row` and strip `strip` are the [`STRIP`] numbers from
    /// `((strip - sums_strip) * sums_rows + row - sums_row) * STRIP` on.
    sums: *mut f32,
    sums_row: usize,
    sums_strip: usize,
    sums_rows: usize,
    bias: Option<*const f32>,
    /// Whether the product is added to what `out` holds.
    add: bool,
    out: *mut f32,
    n: usize,
    k: usize,
}

/// Computes the outputs of one part.
pub(crate) fn matmul_tile(product: &Product<'_>, tile: &ProductTile, out: Share<'_>) {
    let (w, bias) = (product.w, product.bias.map(<[f32]>::as_ptr));
    let (n, cols) = (w.rows(), w.cols());
    assert!(tile.rows.end * cols <= product.x.len() && tile.rows.end * n <= out.len(), "{tile:?}");
    assert!(tile.strips.end <= w.strips() && product.bias.is_none_or(|bias| bias.len() == n), "{tile:?}");
    let (x, out) = (product.x.as_ptr(), out.pointer());
    let operands = Operands {
        x,
        x_row: 0,
        x_start: 0,
        x_stride: cols,
        sums: std::ptr::null_mut(),
        sums_row: 0,
        sums_strip: 0,
        sums_rows: 0,
        bias,
        add: product.add,
        out,
        n,
        k: cols,
    };
    // SAFETY: `Isa` has found the features before it chose this function. The assertions above keep rows and strips
    // inside `x`, `bias`, `out` and the store; parts differ in rows or strips, so that nobody else writes there.
    unsafe {
        match &w.store {
            Store::F32(data) => floats(&operands, Floats { data: data.as_ptr(), cols }, tile),
            Store::Bf16(data) => packed(&operands, Bf16s { data: data.as_ptr(), cols }, tile),
            Store::F16(data) => packed(&operands, Halves { data: data.as_ptr(), cols }, tile),
            Store::Quants(_) => unreachable!("quantised weights have a product of their own"),
        }
    }
}

/// Weights that need no unpacking.
///
/// # Safety
/// As [`chains`], for all rows and strips of `tile`.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq")]
unsafe fn floats(operands: &Operands, source: Floats, tile: &ProductTile) {
    // SAFETY: the caller's duty.
    unsafe {
        if tile.rows.len() <= FEW_ROWS {
            return few_rows(operands, source, tile);
        }
        by_panels(operands, tile, |operands, strip, span| {
            by_blocks(operands, source, strip, span, tile.rows.clone(), MOST_ROWS);
        });
    }
}

/// Weights that are narrower than `f32`.
///
/// # Safety
/// As [`chains`], for all rows and strips of `tile`.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq")]
unsafe fn packed<S: Source>(operands: &Operands, source: S, tile: &ProductTile) {
    if tile.rows.len() <= FEW_ROWS {
        // SAFETY: the caller's duty.
        return unsafe { few_rows(operands, source, tile) };
    }
    let mut buffer = PanelBuffer([MaybeUninit::uninit(); PANEL * STRIP]);
    let data = buffer.0.as_mut_ptr().cast::<f32>();
    // SAFETY: the caller's duty; the buffer holds a whole panel, and its span is written before it is read.
    unsafe {
        by_panels(operands, tile, |operands, strip, span| {
            unpack(source, strip, span.clone(), data);
            let panel = Panel { data, start: span.start };
            by_blocks(operands, panel, strip, span, tile.rows.clone(), MOST_ROWS);
        });
    }
}

/// Calls `job` for each strip and panel of a part, with operands that have room for sums between panels and,
/// where it pays, a copy of the panel's inputs.
///
/// # Safety
/// All rows of `tile` are inside `x`.
unsafe fn by_panels(
    operands: &Operands,
    tile: &ProductTile,
    mut job: impl FnMut(&Operands, usize, Range<usize>),
) {
    let rows = tile.rows.len();
    SCRATCH.with_borrow_mut(|scratch| {
        scratch.resize(scratch.len().max(rows * (PANEL + STRIPS_TOGETHER * STRIP)), 0.0);
        let (inputs, sums) = scratch.split_at_mut(rows * PANEL);
        for first in tile.strips.clone().step_by(STRIPS_TOGETHER) {
            for start in (0..operands.k).step_by(PANEL) {
                let span = start..operands.k.min(start + PANEL);
                let mut panel = Operands {
                    sums: sums.as_mut_ptr(),
                    sums_row: tile.rows.start,
                    sums_strip: first,
                    sums_rows: rows,
                    ..*operands
                };
                if tile.strips.len() >= LEAST_STRIPS_TO_COPY {
                    // SAFETY: the rows are inside `x` by the caller's duty, and the span is inside a row.
                    unsafe { copy_inputs(operands, tile.rows.clone(), span.clone(), inputs) };
                    panel.x = inputs.as_ptr();
                    (panel.x_row, panel.x_start, panel.x_stride) = (tile.rows.start, start, PANEL);
                }
                for strip in first..tile.strips.end.min(first + STRIPS_TOGETHER) {
                    job(&panel, strip, span.clone());
                }
            }
        }
    });
}

/// Lays the inputs `span` of `rows` side by side, [`PANEL`] numbers apart.
///
/// # Safety
/// The rows and the span are inside `x`.
unsafe fn copy_inputs(operands: &Operands, rows: Range<usize>, span: Range<usize>, inputs: &mut [f32]) {
    for (row, to) in rows.zip(inputs.chunks_exact_mut(PANEL)) {
        // SAFETY: the caller's duty.
        let from = unsafe {
            let at = operands.x.add(row * operands.x_stride + span.start);
            std::slice::from_raw_parts(at, span.len())
        };
        to[..span.len()].copy_from_slice(from);
    }
}

/// All inputs at once, two strips at a time where one row alone has too few chains to fill the pipeline.
///
/// # Safety
/// As [`chains`], for all rows and strips of `tile`.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq")]
unsafe fn few_rows<S: Source>(operands: &Operands, source: S, tile: &ProductTile) {
    let (row, rows) = (tile.rows.start, tile.rows.len());
    let mut strip = tile.strips.start;
    while strip < tile.strips.end {
        let pair = rows <= 2 && strip + 1 < tile.strips.end;
        let (first, span) = (strip * 2, 0..operands.k);
        // SAFETY: the caller's duty.
        unsafe {
            match (rows, pair) {
                (1, true) => chains::<S, 1, 4>(operands, source, first, span, row),
                (2, true) => chains::<S, 2, 4>(operands, source, first, span, row),
                _ => by_blocks(operands, source, strip, span, tile.rows.clone(), MOST_ROWS_DECODING),
            }
        }
        strip += if pair { 2 } else { 1 };
    }
}

/// One strip's inputs `span` for any number of rows, in blocks of nearly equal height, at most `most`.
///
/// # Safety
/// As [`chains`], for all of `rows`.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq")]
unsafe fn by_blocks<S: Source>(
    operands: &Operands,
    source: S,
    strip: usize,
    span: Range<usize>,
    rows: Range<usize>,
    most: usize,
) {
    let blocks = rows.len().div_ceil(most);
    for block in 0..blocks {
        let first = rows.start + rows.len() * block / blocks;
        let end = rows.start + rows.len() * (block + 1) / blocks;
        // SAFETY: the caller's duty.
        unsafe { by_rows(operands, source, strip * 2, span.clone(), first, end - first) };
    }
}

/// Picks the loop for a number of rows, at most [`MOST_ROWS`].
///
/// # Safety
/// As [`chains`].
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq")]
unsafe fn by_rows<S: Source>(
    operands: &Operands,
    source: S,
    tile: usize,
    span: Range<usize>,
    row: usize,
    rows: usize,
) {
    // SAFETY: the caller's duty.
    unsafe {
        match rows {
            1 => chains::<S, 1, 2>(operands, source, tile, span, row),
            2 => chains::<S, 2, 2>(operands, source, tile, span, row),
            3 => chains::<S, 3, 2>(operands, source, tile, span, row),
            4 => chains::<S, 4, 2>(operands, source, tile, span, row),
            5 => chains::<S, 5, 2>(operands, source, tile, span, row),
            6 => chains::<S, 6, 2>(operands, source, tile, span, row),
            7 => chains::<S, 7, 2>(operands, source, tile, span, row),
            8 => chains::<S, 8, 2>(operands, source, tile, span, row),
            9 => chains::<S, 9, 2>(operands, source, tile, span, row),
            10 => chains::<S, 10, 2>(operands, source, tile, span, row),
            11 => chains::<S, 11, 2>(operands, source, tile, span, row),
            12 => chains::<S, 12, 2>(operands, source, tile, span, row),
            _ => unreachable!("blocks of rows are between 1 and {MOST_ROWS} high"),
        }
    }
}

/// `R` rows by `T` tiles: carries each chain from the start of `span` to its end.
///
/// # Safety
/// The processor has AVX-512 F, BW, VL and DQ. Rows `row..row + R` are inside `x` and `out`; tiles
/// `tile..tile + T` and inputs `span` are inside the source; nobody else touches these outputs meanwhile. `span`
/// starts at a multiple of [`STEP`]; it is all inputs unless `operands.sums` has room for these chains.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq")]
unsafe fn chains<S: Source, const R: usize, const T: usize>(
    operands: &Operands,
    source: S,
    tile: usize,
    span: Range<usize>,
    row: usize,
) {
    let mut sums = [[_mm512_setzero_ps(); T]; R];
    // SAFETY: the caller's duty; masks keep loads and stores within a row of outputs.
    unsafe {
        for (r, sums) in sums.iter_mut().enumerate() {
            for (t, sum) in sums.iter_mut().enumerate() {
                let (first, mask) = operands.lanes(tile + t);
                if span.start > 0 {
                    *sum = _mm512_loadu_ps(operands.sums_at(row + r, tile + t));
                } else if let Some(bias) = operands.bias {
                    *sum = _mm512_maskz_loadu_ps(mask, bias.wrapping_add(first));
                }
            }
        }
        let mut k = span.start;
        while k < span.end {
            if k + STEP <= span.end {
                fetch_ahead::<S, T>(operands, source, tile / 2, k);
                step::<S, R, T>(&mut sums, operands, source, tile, k, STEP, row);
            } else {
                step::<S, R, T>(&mut sums, operands, source, tile, k, span.end - k, row);
            }
            k += STEP;
        }
        for (r, sums) in sums.iter().enumerate() {
            for (t, sum) in sums.iter().enumerate() {
                if span.end < operands.k {
                    _mm512_storeu_ps(operands.sums_at(row + r, tile + t), *sum);
                } else {
                    let (first, mask) = operands.lanes(tile + t);
                    put(operands.out_at(row + r, first), mask, *sum, operands.add);
                }
            }
        }
    }
}

/// Asks for the weights that will be read some steps after those of input `k`: at the end of the strips at hand
/// those are at the start of the strips that follow them.
#[inline(always)]
fn fetch_ahead<S: Source, const T: usize>(operands: &Operands, source: S, strip: usize, k: usize) {
    if S::AHEAD > 0 {
        let strips = T / 2;
        let later = k + S::AHEAD;
        let (first, k) =
            if later < operands.k { (strip, later) } else { (strip + strips, later - operands.k) };
        for strip in first..first + strips {
            source.fetch(strip, k);
        }
    }
}

/// Carries each chain `count` (at most [`STEP`]) inputs on.
///
/// # Safety
/// As [`chains`].
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq")]
unsafe fn step<S: Source, const R: usize, const T: usize>(
    sums: &mut [[__m512; T]; R],
    operands: &Operands,
    source: S,
    tile: usize,
    k: usize,
    count: usize,
    row: usize,
) {
    // SAFETY: the caller's duty.
    unsafe {
        let mut cursors = [source.cursor(tile, k); T];
        for t in 1..T {
            cursors[t] = source.cursor(tile + t, k);
        }
        let x = operands.x.add((row - operands.x_row) * operands.x_stride + (k - operands.x_start));
        for j in 0..count {
            let mut weights = [_mm512_setzero_ps(); T];
            for t in 0..T {
                weights[t] = S::next(&mut cursors[t]);
            }
            for r in 0..R {
                let input = _mm512_set1_ps(*x.add(r * operands.x_stride + j));
                for t in 0..T {
                    sums[r][t] = _mm512_fmadd_ps(weights[t], input, sums[r][t]);
                }
            }
        }
    }
}

/// Writes one strip's inputs `span` to a panel.
///
/// # Safety
/// As [`chains`]; `panel` has room for the span.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq")]
unsafe fn unpack<S: Source>(source: S, strip: usize, span: Range<usize>, panel: *mut f32) {
    // SAFETY: the caller's duty.
    unsafe {
        let mut k = span.start;
        while k < span.end {
            let count = STEP.min(span.end - k);
            source.fetch(strip + 1, k);
            for t in 0..2 {
                let mut cursor = source.cursor(strip * 2 + t, k);
                let to = panel.add((k - span.start) * STRIP + t * (STRIP / 2));
                for j in 0..count {
                    _mm512_storeu_ps(to.add(j * STRIP), S::next(&mut cursor));
                }
            }
            k += count;
        }
    }
}

impl Operands {
    /// The first output of a tile, and which of its sixteen there are.
    #[inline]
    fn lanes(&self, tile: usize) -> (usize, __mmask16) {
        let first = tile * (STRIP / 2);
        (first, lanes(self.n, first))
    }

    /// Where the sums of a row and a tile lie between two panels.
    #[inline]
    fn sums_at(&self, row: usize, tile: usize) -> *mut f32 {
        debug_assert!(
            (self.sums_row..self.sums_row + self.sums_rows).contains(&row),
            "row {row} has no sums"
        );
        let strip = (tile / 2 - self.sums_strip) * self.sums_rows + row - self.sums_row;
        self.sums.wrapping_add(strip * STRIP + tile % 2 * (STRIP / 2))
    }

    /// Where an output lies. A tile of padding lies past the end and is only ever used with an empty mask.
    #[inline]
    fn out_at(&self, row: usize, first: usize) -> *mut f32 {
        self.out.wrapping_add(row * self.n + first)
    }
}
