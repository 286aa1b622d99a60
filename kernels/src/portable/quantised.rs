//! Products with quantised weights in plain Rust. The rule: as in the vector form, exact integers within a group and
//! one chain across groups.

use crate::layout::matrix::STRIP;
use crate::layout::quant::{GROUP, LANES, Quants};
use crate::layout::rows::{Precision, QuantRows};
use crate::ops::{Product, ProductTile, Share};

/// Numbers that share a scale, at least.
const PART: usize = GROUP / 2;

/// One strip's numbers and scales of half a group.
struct Part {
    /// `[output][input]`.
    numbers: [[i16; PART]; STRIP],
    scale: [f32; STRIP],
    min: [f32; STRIP],
}

/// Computes the outputs of one part of the work.
#[inline(always)]
pub(crate) fn quantised_tile(
    product: &Product<'_>,
    w: &Quants,
    x: &QuantRows,
    tile: &ProductTile,
    out: Share<'_>,
) {
    let groups = x.groups();
    let mut part = Part { numbers: [[0; PART]; STRIP], scale: [0.0; STRIP], min: [0.0; STRIP] };
    let mut sums = vec![[0.0_f32; STRIP]; tile.rows.len()];
    for strip in tile.strips.clone() {
        product.start(strip, &mut sums);
        for half_group in 0..2 * groups {
            part.unpack(product.w.cols(), w, strip, half_group);
            for (row, sums) in tile.rows.clone().zip(&mut sums) {
                let group = row * groups + half_group / 2;
                let values = numbers(x, row, half_group);
                let total = -x.less[row * groups * 2 + half_group] as f32 * x.scale[group];
                part.add(&values, x.scale[group], total, sums);
            }
        }
        product.finish(strip, tile, &sums, out);
    }
}

/// The numbers of half a group of a row.
#[inline(always)]
fn numbers(x: &QuantRows, row: usize, half_group: usize) -> [i32; PART] {
    let at = row * x.row_bytes() + half_group * PART;
    let mut numbers = [0; PART];
    for (number, &upper) in numbers.iter_mut().zip(&x.q[at..]) {
        *number = i32::from(upper);
    }
    if x.precision == Precision::Fifteen {
        for (number, &lower) in numbers.iter_mut().zip(&x.q[at + x.stride..]) {
            *number = (*number << 7) + i32::from(lower);
        }
    }
    numbers
}

impl Part {
    /// Reads half a group, numbers already less what stands for zero.
    #[inline(always)]
    fn unpack(&mut self, cols: usize, w: &Quants, strip: usize, half_group: usize) {
        let (group, part) = (half_group / 2, half_group % 2);
        for lane in 0..2 * LANES {
            let row = strip * STRIP + lane;
            let scale = w.scale(row, cols, group, part);
            (self.scale[lane], self.min[lane]) = (scale.scale, scale.min);
            for (k, number) in self.numbers[lane].iter_mut().enumerate() {
                *number = i16::from(w.number(row, cols, group, part * PART + k)) - i16::from(scale.zero);
            }
        }
    }

    /// Carries each chain on by these inputs.
    #[inline(always)]
    fn add(&self, values: &[i32; PART], scale: f32, total: f32, sums: &mut [f32; STRIP]) {
        for (lane, sum) in sums.iter_mut().enumerate() {
            let mut dot = 0_i32;
            for (&number, &value) in self.numbers[lane].iter().zip(values) {
                dot += i32::from(number) * value;
            }
            *sum += dot as f32 * self.scale[lane] * scale + self.min[lane] * total;
        }
    }
}
