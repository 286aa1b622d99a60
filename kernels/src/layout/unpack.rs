//! From packed strips back to `f32`. The rule: grouped weights are computed with one rounding (a fused multiply and
//! add), as the vector code does.

use half::{bf16, f16};

use super::matrix::{Groups, Matrix, OCTET, STRIP, Store};

impl Matrix {
    /// Writes the weights of output `row`, as a product sees them, to `out` of length `cols`. (The portable product
    /// rounds a grouped weight twice, for want of the instruction, and may be one unit in the last place off.)
    ///
    /// # Panics
    /// When `row` is out of range or `out` has another length.
    pub fn row_to_f32(&self, row: usize, out: &mut [f32]) {
        assert!(row < self.rows, "row is {row}; the matrix has {} rows", self.rows);
        assert!(out.len() == self.cols, "out holds {} weights; a row has {}", out.len(), self.cols);
        let (strip, lane) = (row / STRIP, row % STRIP);
        let cols = self.cols;
        let dense = Matrix::dense_at(cols, strip, 0) + lane;
        let each = out.iter_mut().enumerate();
        match &self.store {
            Store::F32(data) => each.for_each(|(k, o)| *o = data[dense + k * STRIP]),
            Store::Bf16(data) => {
                each.for_each(|(k, o)| *o = bf16::from_bits(data[dense + k * STRIP]).to_f32());
            }
            Store::F16(data) => each.for_each(|(k, o)| *o = f16::from_bits(data[dense + k * STRIP]).to_f32()),
            Store::Nibbles(data, groups) => each.for_each(|(k, o)| {
                let word = data[Matrix::octet_at(cols, strip, k) + lane];
                *o = weight(groups, cols, (strip, lane), k, (word >> (4 * (k % OCTET))) & 15);
            }),
            Store::Bytes(data, groups) => each.for_each(|(k, o)| {
                *o = weight(groups, cols, (strip, lane), k, u32::from(data[dense + k * STRIP]));
            }),
        }
    }

    /// Writes inputs `start..start + out.len() / STRIP` of a strip to `out`, the outputs of one input side by side.
    /// For the portable product: grouped weights are rounded twice.
    pub(crate) fn unpack_strip(&self, strip: usize, start: usize, out: &mut [f32]) {
        let cols = self.cols;
        let dense = Matrix::dense_at(cols, strip, start);
        let len = out.len();
        match &self.store {
            Store::F32(data) => out.copy_from_slice(&data[dense..dense + len]),
            Store::Bf16(data) => {
                for (o, &bits) in out.iter_mut().zip(&data[dense..dense + len]) {
                    *o = f32::from_bits(u32::from(bits) << 16);
                }
            }
            Store::F16(data) => {
                for (o, &bits) in out.iter_mut().zip(&data[dense..dense + len]) {
                    *o = f16::from_bits(bits).to_f32();
                }
            }
            Store::Nibbles(data, groups) => {
                let mut of_group = OfGroup::new(groups, cols, strip);
                for (index, o) in out.chunks_exact_mut(STRIP).enumerate() {
                    let k = start + index;
                    let at = Matrix::octet_at(cols, strip, k);
                    let shift = 4 * (k % OCTET);
                    let (scale, min) = of_group.at(k);
                    for (lane, &word) in data[at..at + STRIP].iter().enumerate() {
                        o[lane] = scale[lane] * ((word >> shift) & 15) as f32 + min[lane];
                    }
                }
            }
            Store::Bytes(data, groups) => {
                let mut of_group = OfGroup::new(groups, cols, strip);
                for (index, o) in out.chunks_exact_mut(STRIP).enumerate() {
                    let at = dense + index * STRIP;
                    let (scale, min) = of_group.at(start + index);
                    for (lane, &value) in data[at..at + STRIP].iter().enumerate() {
                        o[lane] = scale[lane] * f32::from(value) + min[lane];
                    }
                }
            }
        }
    }
}

/// The scales and minima of the group last asked for.
struct OfGroup<'a> {
    groups: &'a Groups,
    cols: usize,
    strip: usize,
    group: usize,
    numbers: [f32; 2 * STRIP],
}

impl<'a> OfGroup<'a> {
    fn new(groups: &'a Groups, cols: usize, strip: usize) -> OfGroup<'a> {
        OfGroup { groups, cols, strip, group: usize::MAX, numbers: [0.0; 2 * STRIP] }
    }

    fn at(&mut self, k: usize) -> (&[f32], &[f32]) {
        let group = k / self.groups.size;
        if group != self.group {
            self.group = group;
            let at = Groups::at(self.groups.size, self.cols, self.strip, group);
            for (lane, number) in self.numbers.iter_mut().enumerate() {
                *number = self.groups.number(at + lane);
            }
        }
        self.numbers.split_at(STRIP)
    }
}

fn weight(groups: &Groups, cols: usize, (strip, lane): (usize, usize), k: usize, q: u32) -> f32 {
    let at = Groups::at(groups.size, cols, strip, k / groups.size) + lane;
    groups.number(at).mul_add(q as f32, groups.number(at + STRIP))
}
