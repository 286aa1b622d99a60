//! Rows of activations. The rule: the eight-bit form is made when a product asks for it, at most once for what the
//! rows then hold; whoever writes to the rows makes it stale.
#![allow(unsafe_code)]

use crate::dispatch::Isa;
use crate::layout::quant::GROUP;
use crate::layout::rows::QuantRows;
use crate::ops::{self, Share};
use crate::compiled::dispatch;
use crate::ops::elementwise::share_out;
use crate::pool::Pool;
use crate::portable::quantise::{self, Group};

/// Rows of `f32`, and their eight-bit form where one was needed.
#[derive(Debug, Default)]
pub struct Activations {
    values: Vec<f32>,
    quantised: QuantRows,
    /// The row length for which `quantised` is up to date.
    fresh_cols: Option<usize>,
}

impl Activations {
    /// The numbers, row after row.
    pub fn values(&self) -> &[f32] {
        &self.values
    }

    /// Room for `len` numbers to write to; what was there may be kept or not.
    pub fn resize(&mut self, len: usize) -> &mut [f32] {
        self.fresh_cols = None;
        self.values.resize(len, 0.0);
        &mut self.values
    }

    /// The numbers, to be changed.
    pub fn values_mut(&mut self) -> &mut [f32] {
        self.fresh_cols = None;
        &mut self.values
    }

    /// The eight-bit form of rows of `cols`.
    pub(crate) fn quantise(&mut self, pool: &Pool, isa: Isa, cols: usize) {
        if self.fresh_cols == Some(cols) {
            return;
        }
        let rows = self.values.len() / cols;
        self.quantised.reset(rows, cols);
        let to = &mut self.quantised;
        let (stride, groups) = (to.stride, to.groups());
        let q = Share::new(&mut to.q);
        let (scale, sum) = (Share::new(&mut to.scale), Share::new(&mut to.sum));
        let (less, less_group) = (Share::new(&mut to.less), Share::new(&mut to.less_group));
        let values = &self.values;
        share_out(pool, rows, cols, &|first, count| {
            // SAFETY: `share_out` gives each run of rows to one part only.
            let run = unsafe {
                let groups = (first * groups, count * groups);
                Run {
                    q: q.slice(first * stride, count * stride),
                    scale: scale.slice(groups.0, groups.1),
                    less: less.slice(groups.0 * 2, groups.1 * 2),
                    less_group: less_group.slice(groups.0, groups.1),
                    sum: sum.slice(groups.0, groups.1),
                }
            };
            let x = &values[first * cols..][..count * cols];
            dispatch!(isa, ops::quantise_rows(x, cols, run));
        });
        self.fresh_cols = Some(cols);
    }

    /// The eight-bit form; [`Activations::quantise`] must have made it.
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
    q: &'a mut [i8],
    scale: &'a mut [f32],
    less: &'a mut [i32],
    less_group: &'a mut [i32],
    sum: &'a mut [f32],
}

/// Quantises rows of `cols` values.
#[inline(always)]
pub(crate) fn quantise_rows(x: &[f32], cols: usize, run: Run<'_>) {
    let sums = run.less.chunks_exact_mut(2).zip(run.less_group).zip(run.sum);
    let groups = run.q.chunks_exact_mut(GROUP).zip(run.scale).zip(sums);
    let groups = groups.map(|((q, scale), ((less, less_group), sum))| Group { q, scale, less, less_group, sum });
    quantise::rows(x, cols, groups);
}
