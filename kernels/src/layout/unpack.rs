//! From packed strips back to `f32`. The rule: each number is exactly the stored one.

use half::{bf16, f16};

use super::matrix::{Matrix, STRIP, Store};

impl Matrix {
    /// Writes the weights of output `row`, as a product sees them, to `out` of length `cols`.
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
            Store::Quants(quants) => quants.row_to_f32(row, out),
        }
    }

    /// Writes inputs `start..start + out.len() / STRIP` of a strip of a float format to `out`, the outputs of one
    /// input side by side.
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
            Store::Quants(_) => unreachable!("quantised weights are multiplied as they are"),
        }
    }
}
