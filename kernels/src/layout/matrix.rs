//! Packed weight matrices. The rule: a matrix keeps its weights at the width they came in, and whoever reads a
//! weight, one row or a whole product, sees the same number.
//!
//! Outputs are packed in strips of `STRIP` (two vector registers). Inside a strip the weights of one input lie
//! side by side, inputs follow each other, so that a product reads each strip as one stream. The last strip is
//! padded with zeros. Four-bit weights put eight consecutive inputs of one output into one `u32`, lowest nibble
//! first; grouped formats keep per strip and group of inputs all scales, then all minima.

use super::aligned::Aligned;

/// Outputs in one strip.
pub(crate) const STRIP: usize = 32;

/// Inputs that share one `u32` of four-bit weights.
pub(crate) const OCTET: usize = 8;

/// One row of a grouped matrix: weight `k` is `scale[k / group] * q[k] + min[k / group]`, rounded once.
#[derive(Debug, Clone, Copy)]
pub struct GroupedRow<'a> {
    /// The small unsigned numbers, one an input.
    pub q: &'a [u8],
    /// One scale a group.
    pub scale: &'a [f32],
    /// One minimum a group.
    pub min: &'a [f32],
}

impl GroupedRow<'_> {
    /// Weight `k` of the row, with `group` inputs a group.
    pub fn weight(&self, k: usize, group: usize) -> f32 {
        self.scale[k / group].mul_add(f32::from(self.q[k]), self.min[k / group])
    }
}

/// The weights at their stored width.
pub(crate) enum Store {
    F32(Aligned<f32>),
    Bf16(Aligned<u16>),
    F16(Aligned<u16>),
    Nibbles(Aligned<u32>, Groups),
    Bytes(Aligned<u8>, Groups),
}

/// Scales and minima: per strip and group, [`STRIP`] scales and then [`STRIP`] minima.
pub(crate) struct Groups {
    /// Inputs in one group.
    pub(crate) size: usize,
    /// The numbers themselves.
    pub(crate) data: GroupData,
}

/// Scales and minima at the least width that keeps each of them exactly.
pub(crate) enum GroupData {
    F32(Aligned<f32>),
    F16(Aligned<u16>),
}

/// What writes one row for [`Matrix::from_grouped`]: its index, then room for its numbers, scales and minima.
pub type FillRow<'a> = dyn FnMut(usize, &mut [u8], &mut [f32], &mut [f32]) + 'a;

/// A weight matrix of `rows` outputs and `cols` inputs; a product computes `y = x · Wᵀ`.
pub struct Matrix {
    pub(crate) rows: usize,
    pub(crate) cols: usize,
    pub(crate) store: Store,
}

impl std::fmt::Debug for Matrix {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Matrix({} x {}, {})", self.rows, self.cols, self.format())
    }
}

impl Matrix {
    /// Outputs.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Inputs.
    pub fn cols(&self) -> usize {
        self.cols
    }

    /// The memory that the packed weights take, in bytes.
    pub fn bytes(&self) -> usize {
        match &self.store {
            Store::F32(data) => data.len() * 4,
            Store::Bf16(data) | Store::F16(data) => data.len() * 2,
            Store::Nibbles(data, groups) => data.len() * 4 + groups.bytes(),
            Store::Bytes(data, groups) => data.len() + groups.bytes(),
        }
    }

    /// How the weights are stored, in words for a log line.
    pub fn format(&self) -> &'static str {
        match &self.store {
            Store::F32(_) => "f32",
            Store::Bf16(_) => "bf16",
            Store::F16(_) => "f16",
            Store::Nibbles(..) => "4-bit grouped",
            Store::Bytes(..) => "8-bit grouped",
        }
    }

    pub(crate) fn strips(&self) -> usize {
        self.rows.div_ceil(STRIP)
    }

    /// Where input `k` of strip `strip` starts in a store with one element a weight.
    pub(crate) fn dense_at(cols: usize, strip: usize, k: usize) -> usize {
        (strip * cols + k) * STRIP
    }

    /// Where the octet that holds input `k` of strip `strip` starts in a four-bit store.
    pub(crate) fn octet_at(cols: usize, strip: usize, k: usize) -> usize {
        (strip * cols.div_ceil(OCTET) + k / OCTET) * STRIP
    }
}

impl Groups {
    /// Where the scales of group `group` of strip `strip` start; its minima follow them.
    pub(crate) fn at(size: usize, cols: usize, strip: usize, group: usize) -> usize {
        (strip * cols.div_ceil(size) + group) * 2 * STRIP
    }

    /// The number at a place.
    pub(crate) fn number(&self, at: usize) -> f32 {
        match &self.data {
            GroupData::F32(data) => data[at],
            GroupData::F16(data) => half::f16::from_bits(data[at]).to_f32(),
        }
    }

    fn bytes(&self) -> usize {
        match &self.data {
            GroupData::F32(data) => data.len() * 4,
            GroupData::F16(data) => data.len() * 2,
        }
    }
}

#[cfg(test)]
mod tests;
