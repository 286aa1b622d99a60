//! Rows of activations. The rule: the whole-number form is made when a product asks for it, at most once for what the
//! rows then hold; whoever writes to the rows makes it stale.
#![allow(unsafe_code)]

use crate::compiled::dispatch;
use crate::dispatch::Isa;
use crate::layout::quant::GROUP;
use crate::layout::rows::{Precision, QuantRows};
use crate::ops::elementwise::share_out;
use crate::ops::{self, Share};
use crate::pool::Pool;
use crate::portable::quantise::{self, Group};

/// Rows of `f32`, and their whole-number form where one was needed.
#[derive(Debug, Default)]
pub struct Activations {
    values: Vec<f32>,
    quantised: QuantRows,
    /// The row length and precision for which `quantised` is up to date.
    fresh: Option<(usize, Precision)>,
}

impl Activations {
    /// The numbers, row after row.
    pub fn values(&self) -> &[f32] {
        &self.values
    }

    /// Room for `len` numbers to write to; what was there may be kept or not.
    pub fn resize(&mut self, len: usize) -> &mut [f32] {
        self.fresh = None;
        self.values.resize(len, 0.0);
        &mut self.values
    }

    /// The numbers, to be changed.
    pub fn values_mut(&mut self) -> &mut [f32] {
        self.fresh = None;
        &mut self.values
    }

    /// Makes the whole-number form of rows of `cols`.
    pub(crate) fn quantise(&mut self, pool: &Pool, isa: Isa, cols: usize, precision: Precision) {
        if self.fresh == Some((cols, precision)) {
            return;
        }
        let rows = self.values.len() / cols;
        self.quantised.reset(rows, cols, precision);
        let to = &mut self.quantised;
        let (stride, bytes, groups) = (to.stride, to.row_bytes(), to.groups());
        let q = Share::new(&mut to.q);
        let (scale, sum) = (Share::new(&mut to.scale), Share::new(&mut to.sum));
        let (less, less_group) = (Share::new(&mut to.less), Share::new(&mut to.less_group));
        let values = &self.values;
        share_out(pool, rows, cols, &|first, count| {
            // SAFETY: `share_out` gives each run of rows to one part only.
            let run = unsafe {
                let groups = (first * groups, count * groups);
                Run {
                    stride,
                    precision,
                    q: q.slice(first * bytes, count * bytes),
                    scale: scale.slice(groups.0, groups.1),
                    less: less.slice(groups.0 * 2, groups.1 * 2),
                    less_group: less_group.slice(groups.0, groups.1),
                    sum: sum.slice(groups.0, groups.1),
                }
            };
            let x = &values[first * cols..][..count * cols];
            #[cfg(target_arch = "x86_64")]
            if isa.runs_avx512() {
                // SAFETY: the check above found the features.
                unsafe { crate::avx512::quantise_rows(x, cols, run) };
                return;
            }
            dispatch!(isa, ops::quantise_rows(x, cols, run));
        });
        self.fresh = Some((cols, precision));
    }

    /// The whole-number form; [`Activations::quantise`] must have made it.
    pub(crate) fn quantised(&self) -> &QuantRows {
        &self.quantised
    }
}

impl From<Vec<f32>> for Activations {
    fn from(values: Vec<f32>) -> Self {
        Self { values, ..Self::default() }
    }
}

/// Where a run of rows goes.
pub(crate) struct Run<'a> {
    stride: usize,
    precision: Precision,
    q: &'a mut [i8],
    scale: &'a mut [f32],
    less: &'a mut [i32],
    less_group: &'a mut [i32],
    sum: &'a mut [f32],
}

/// A way to quantise up to [`GROUP`] values; what is missing to a whole group counts as zero.
pub(crate) trait Quantiser {
    /// Quantises a group.
    ///
    /// # Safety
    /// The processor has what the form is compiled for.
    unsafe fn group(x: &[f32], precision: Precision, to: Group<'_>);
}

/// Plain Rust.
pub(crate) struct Plain;

impl Quantiser for Plain {
    #[inline(always)]
    unsafe fn group(x: &[f32], precision: Precision, to: Group<'_>) {
        quantise::group(x, precision, to);
    }
}

/// Quantises rows of `cols` values.
#[inline(always)]
pub(crate) fn quantise_rows(x: &[f32], cols: usize, run: Run<'_>) {
    quantise_rows_by::<Plain>(x, cols, run);
}

/// As [`quantise_rows`] by one form, inside whose features it must be called.
#[inline(always)]
pub(crate) fn quantise_rows_by<Q: Quantiser>(x: &[f32], cols: usize, run: Run<'_>) {
    let (groups, planes) = (run.stride / GROUP, run.precision.planes());
    let sums = run.less.chunks_exact_mut(2 * groups).zip(run.less_group.chunks_exact_mut(groups));
    let floats = run.scale.chunks_exact_mut(groups).zip(run.sum.chunks_exact_mut(groups));
    let rows = run.q.chunks_exact_mut(run.stride * planes).zip(floats).zip(sums);
    for (x, ((q, (scale, sum)), (less, less_group))) in x.chunks_exact(cols).zip(rows) {
        let (upper, lower) = q.split_at_mut(run.stride);
        for (index, x) in x.chunks(GROUP).enumerate() {
            let bytes = index * GROUP..(index + 1) * GROUP;
            let to = Group {
                upper: &mut upper[bytes.clone()],
                lower: if planes == 2 { &mut lower[bytes] } else { &mut [] },
                scale: &mut scale[index],
                less: &mut less[2 * index..2 * index + 2],
                less_group: &mut less_group[index],
                sum: &mut sum[index],
            };
            // One call for each precision, so that each becomes a loop without choices.
            // SAFETY: the caller is compiled for the features of the form.
            unsafe {
                match run.precision {
                    Precision::Eight => Q::group(x, Precision::Eight, to),
                    Precision::Fifteen => Q::group(x, Precision::Fifteen, to),
                }
            }
        }
    }
}
