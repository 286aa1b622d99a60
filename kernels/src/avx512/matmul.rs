//! Products for AVX-512. The rule: output `n` of row `m` is one chain of fused multiply-adds over the inputs in
//! order, whichever of the loops below computes it; a chain cut at a panel's end is stored and taken up as `f32`.
//!
//! Few rows read the packed weights straight into registers. Many rows unpack a panel that stays in the first-level
//! cache and use it for all of them.
#![allow(unsafe_code)]

use std::arch::x86_64::*;
use std::mem::MaybeUninit;
use std::ops::Range;

use super::source::{Bf16s, Bytes, Floats, Halves, Nibbles, Panel, STEP, Source};
use crate::layout::matrix::{STRIP, Store};
use crate::ops::{Product, ProductTile, Share};

/// Inputs unpacked at once: 256 of a strip are 32 KiB.
const PANEL: usize = 256;

/// Rows up to which weights are decoded in registers instead of through a panel.
const FEW_ROWS: usize = 8;

/// The most rows whose sums are in registers together: 24 sums, 2 weights and an input.
const MOST_ROWS: usize = 12;

/// A panel on a thread's stack, on a cache line.
#[repr(align(64))]
struct PanelBuffer([MaybeUninit<f32>; PANEL * STRIP]);

/// The operands as the inner loops see them.
#[derive(Clone, Copy)]
struct Operands {
    x: *const f32,
    bias: Option<*const f32>,
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
    let operands = Operands { x: product.x.as_ptr(), bias, out: out.pointer(), n, k: cols };
    // SAFETY: `Isa` has found the features before it chose this function. The assertions above keep rows and strips
    // inside `x`, `bias`, `out` and the store; parts differ in rows or strips, so that nobody else writes there.
    unsafe {
        match &w.store {
            Store::F32(data) => floats(&operands, Floats { data: data.as_ptr(), cols }, tile),
            Store::Bf16(data) => packed(&operands, Bf16s { data: data.as_ptr(), cols }, tile),
            Store::F16(data) => packed(&operands, Halves { data: data.as_ptr(), cols }, tile),
            Store::Nibbles(data, groups) => {
                let (data, size) = (data.as_ptr(), groups.size);
                packed(&operands, Nibbles { data, cols, groups: groups.data.as_ptr(), size }, tile);
            }
            Store::Bytes(data, groups) => {
                let (data, size) = (data.as_ptr(), groups.size);
                packed(&operands, Bytes { data, cols, groups: groups.data.as_ptr(), size }, tile);
            }
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
        for strip in tile.strips.clone() {
            for start in (0..operands.k).step_by(PANEL) {
                many_rows(operands, source, strip, start..operands.k.min(start + PANEL), tile.rows.clone());
            }
        }
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
    for strip in tile.strips.clone() {
        for start in (0..operands.k).step_by(PANEL) {
            let span = start..operands.k.min(start + PANEL);
            // SAFETY: the caller's duty; the buffer holds a whole panel, and its span is written before it is read.
            unsafe {
                unpack(source, strip, span.clone(), data);
                many_rows(operands, Panel { data, start }, strip, span, tile.rows.clone());
            }
        }
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
                _ => by_rows(operands, source, first, span, row, rows),
            }
        }
        strip += if pair { 2 } else { 1 };
    }
}

/// One strip's inputs `span` for any number of rows, in blocks of nearly equal height.
///
/// # Safety
/// As [`chains`], for all of `rows`.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq")]
unsafe fn many_rows<S: Source>(
    operands: &Operands,
    source: S,
    strip: usize,
    span: Range<usize>,
    rows: Range<usize>,
) {
    let blocks = rows.len().div_ceil(MOST_ROWS);
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
/// starts at a multiple of the source's group.
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
                    *sum = _mm512_maskz_loadu_ps(mask, operands.out_at(row + r, first));
                } else if let Some(bias) = operands.bias {
                    *sum = _mm512_maskz_loadu_ps(mask, bias.wrapping_add(first));
                }
            }
        }
        let mut k = span.start;
        while k < span.end {
            let group = k / source.group();
            let mut scales = [source.scale(tile, group); T];
            for t in 1..T {
                scales[t] = source.scale(tile + t, group);
            }
            let end = span.end.min((group + 1) * source.group());
            while k + STEP <= end {
                step::<S, R, T>(&mut sums, operands, source, tile, &scales, k, STEP, row);
                k += STEP;
            }
            if k < end {
                step::<S, R, T>(&mut sums, operands, source, tile, &scales, k, end - k, row);
                k = end;
            }
        }
        for (r, sums) in sums.iter().enumerate() {
            for (t, sum) in sums.iter().enumerate() {
                let (first, mask) = operands.lanes(tile + t);
                _mm512_mask_storeu_ps(operands.out_at(row + r, first), mask, *sum);
            }
        }
    }
}

/// Carries each chain `count` (at most [`STEP`]) inputs on.
///
/// # Safety
/// As [`chains`].
#[inline]
#[expect(
    clippy::too_many_arguments,
    reason = "always inlined into the one loop that has all of these in registers"
)]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq")]
unsafe fn step<S: Source, const R: usize, const T: usize>(
    sums: &mut [[__m512; T]; R],
    operands: &Operands,
    source: S,
    tile: usize,
    scales: &[S::Scale; T],
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
        let x = operands.x.add(row * operands.k + k);
        for j in 0..count {
            let mut weights = [_mm512_setzero_ps(); T];
            for t in 0..T {
                weights[t] = S::next(&mut cursors[t], scales[t]);
            }
            for r in 0..R {
                let input = _mm512_set1_ps(*x.add(r * operands.k + j));
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
            let group = k / source.group();
            let scales = [source.scale(strip * 2, group), source.scale(strip * 2 + 1, group)];
            let end = span.end.min((group + 1) * source.group());
            while k < end {
                let count = STEP.min(end - k);
                for (t, &scale) in scales.iter().enumerate() {
                    let mut cursor = source.cursor(strip * 2 + t, k);
                    let to = panel.add((k - span.start) * STRIP + t * (STRIP / 2));
                    for j in 0..count {
                        _mm512_storeu_ps(to.add(j * STRIP), S::next(&mut cursor, scale));
                    }
                }
                k += count;
            }
        }
    }
}

impl Operands {
    /// The first output of a tile, and which of its sixteen there are.
    #[inline]
    fn lanes(&self, tile: usize) -> (usize, __mmask16) {
        let first = tile * (STRIP / 2);
        let left = self.n.saturating_sub(first).min(STRIP / 2);
        (first, ((1_u32 << left) - 1) as __mmask16)
    }

    /// Where an output lies. A tile of padding lies past the end and is only ever used with an empty mask.
    #[inline]
    fn out_at(&self, row: usize, first: usize) -> *mut f32 {
        self.out.wrapping_add(row * self.n + first)
    }
}
