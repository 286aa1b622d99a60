//! Packed weight matrices. The rule: a matrix keeps its weights at the width they came in, and whoever reads a
//! weight, one row or a whole product, sees the same number.
//!
//! Outputs are packed in strips of `STRIP` (two vector registers). Inside a strip the weights of one input lie
//! side by side, inputs follow each other, so that a product reads each strip as one stream. The last strip is
//! padded with zeros. Quantised formats have a layout of their own, see [`super::quant`].

use super::quant::Quants;
use super::rows::Precision;
use super::stored::Stored;

/// Outputs in one strip. Strips follow each other in every section of a matrix, so that one may be packed in parts.
pub const STRIP: usize = 32;

/// The weights at their stored width.
pub(crate) enum Store {
    F32(Stored<f32>),
    Bf16(Stored<u16>),
    F16(Stored<u16>),
    Quants(Quants),
}

/// A weight matrix of `rows` outputs and `cols` inputs; a product computes `y = x · Wᵀ`.
pub struct Matrix {
    pub(crate) rows: usize,
    pub(crate) cols: usize,
    pub(crate) store: Store,
    pub(crate) precision: Precision,
}

impl std::fmt::Debug for Matrix {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Matrix({} x {}, {})", self.rows, self.cols, self.format())
    }
}

impl Matrix {
    /// How finely products with quantised weights see their activations; float weights see them as they are.
    #[must_use]
    pub fn with_precision(mut self, precision: Precision) -> Matrix {
        self.precision = precision;
        self
    }

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
            Store::Quants(quants) => quants.bytes(),
        }
    }

    /// How the weights are stored, in words for a log line.
    pub fn format(&self) -> &'static str {
        match &self.store {
            Store::F32(_) => "f32",
            Store::Bf16(_) => "bf16",
            Store::F16(_) => "f16",
            Store::Quants(quants) => quants.form().name(),
        }
    }

    pub(crate) fn strips(&self) -> usize {
        self.rows.div_ceil(STRIP)
    }

    /// Where input `k` of strip `strip` starts in a store with one element a weight.
    pub(crate) fn dense_at(cols: usize, strip: usize, k: usize) -> usize {
        (strip * cols + k) * STRIP
    }
}

#[cfg(test)]
mod tests;
