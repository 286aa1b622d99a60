//! From packed units back to weights. The rule: the same index functions as packing; a weight is rounded once.

use half::f16;

use super::{GROUP, LANES, NEST, NEST_WORDS, Quants, Scales, Width, six_bits, unit_at};
use crate::layout::matrix::STRIP;

/// What one output's numbers of a run of inputs are multiplied with: `w = scale · (q − zero) + min`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Scale {
    pub(crate) scale: f32,
    pub(crate) min: f32,
    pub(crate) zero: u8,
}

impl Scale {
    fn weight(self, q: u8) -> f32 {
        let number = f32::from(i16::from(q) - i16::from(self.zero));
        self.scale.mul_add(number, self.min)
    }
}

impl Quants {
    /// Writes the weights of output `row` to `out`, one an input.
    pub(crate) fn row_to_f32(&self, row: usize, out: &mut [f32]) {
        let cols = out.len();
        for (half, out) in out.chunks_mut(GROUP / 2).enumerate() {
            let (group, part) = (half / 2, half % 2);
            let scale = self.scale(row, cols, group, part);
            for (k, out) in out.iter_mut().enumerate() {
                *out = scale.weight(self.number(row, cols, group, part * (GROUP / 2) + k));
            }
        }
    }

    /// The number of input `k` of a group.
    pub(crate) fn number(&self, row: usize, cols: usize, group: usize, k: usize) -> u8 {
        let (strip, half, lane) = (row / STRIP, row % STRIP / LANES, row % LANES);
        let bytes = self.width.unit_bytes();
        let unit = &self.digits[unit_at(cols.div_ceil(GROUP), strip, group, half) * bytes..][..bytes];
        let (quad, at) = (k / 4, lane * 4 + k % 4);
        let (vector, high) = (quad % 4 * 64, quad / 4);
        match self.width {
            Width::Four => (unit[vector + at] >> (4 * high)) & 15,
            Width::Six => {
                let upper = (unit[256 + high * 64 + at] >> (2 * (quad % 4))) & 3;
                ((unit[vector + at] >> (4 * high)) & 15) | (upper << 4)
            }
            Width::Eight => unit[quad * 64 + at],
        }
    }

    /// The scale of a group's first (`part` 0) or second half (`part` 1) of inputs.
    pub(crate) fn scale(&self, row: usize, cols: usize, group: usize, part: usize) -> Scale {
        let (strip, half, lane) = (row / STRIP, row % STRIP / LANES, row % LANES);
        let unit = unit_at(cols.div_ceil(GROUP), strip, group, half);
        let nest = unit_at(cols.div_ceil(GROUP * NEST), strip, group / NEST, half);
        let number = |bits: u16| f16::from_bits(bits).to_f32();
        match &self.scales {
            Scales::Centred { d, zero } => {
                Scale { scale: number(d[unit * LANES + lane]), min: 0.0, zero: *zero }
            }
            Scales::Affine { dm } => {
                let at = unit * 2 * LANES + lane;
                Scale { scale: number(dm[at]), min: number(dm[at + LANES]), zero: 0 }
            }
            Scales::NestedAffine { dm, st } => {
                let (at, first) = (nest * 2 * LANES + lane, nest * NEST_WORDS * LANES + lane);
                let words = [st[first], st[first + LANES], st[first + 2 * LANES]];
                let (s, t) =
                    (six_bits(words, group % NEST) as f32, six_bits(words, NEST + group % NEST) as f32);
                Scale { scale: number(dm[at]) * s, min: -(number(dm[at + LANES]) * t), zero: 0 }
            }
            Scales::NestedCentred { d, s, zero } => {
                let at = nest * 2 * NEST * LANES + (group % NEST * 2 + part) * LANES + lane;
                let scale = number(d[nest * LANES + lane]) * f32::from(s[at].cast_signed());
                Scale { scale, min: 0.0, zero: *zero }
            }
        }
    }
}
