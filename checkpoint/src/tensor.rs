//! Tensors as they lie in a file: a name, a shape, a storage type, and bytes whose length always fits the shape.

use crate::error::{CheckpointError, Result};

/// How the weights of a tensor are stored.
///
/// The block formats follow ggml's reference quantisation (`ggml-quants.c` describes them).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Dtype {
    /// IEEE single precision, little endian.
    F32,
    /// IEEE half precision, little endian.
    F16,
    /// Brain float: the upper half of an f32, little endian.
    Bf16,
    /// 4 bits, blocks of 32, one scale.
    Q4_0,
    /// 4 bits, blocks of 32, scale and minimum.
    Q4_1,
    /// 5 bits, blocks of 32, one scale.
    Q5_0,
    /// 5 bits, blocks of 32, scale and minimum.
    Q5_1,
    /// 8 bits, blocks of 32, one scale.
    Q8_0,
    /// 4 bits, super-blocks of 256 with eight 6-bit scales and minima.
    Q4K,
    /// 5 bits, super-blocks of 256 with eight 6-bit scales and minima.
    Q5K,
    /// 6 bits, super-blocks of 256 with sixteen 8-bit scales.
    Q6K,
}

impl Dtype {
    /// Every storage type this crate reads.
    pub const ALL: [Self; 11] = [
        Self::F32,
        Self::F16,
        Self::Bf16,
        Self::Q4_0,
        Self::Q4_1,
        Self::Q5_0,
        Self::Q5_1,
        Self::Q8_0,
        Self::Q4K,
        Self::Q5K,
        Self::Q6K,
    ];

    /// Weights in one block (1 for the float types).
    #[must_use]
    pub const fn block_len(self) -> usize {
        match self {
            Self::F32 | Self::F16 | Self::Bf16 => 1,
            Self::Q4_0 | Self::Q4_1 | Self::Q5_0 | Self::Q5_1 | Self::Q8_0 => 32,
            Self::Q4K | Self::Q5K | Self::Q6K => 256,
        }
    }

    /// Bytes of one block.
    #[must_use]
    pub const fn block_bytes(self) -> usize {
        match self {
            Self::F32 => 4,
            Self::F16 | Self::Bf16 => 2,
            Self::Q4_0 => 18,
            Self::Q4_1 => 20,
            Self::Q5_0 => 22,
            Self::Q5_1 => 24,
            Self::Q8_0 => 34,
            Self::Q4K => 144,
            Self::Q5K => 176,
            Self::Q6K => 210,
        }
    }

    /// Bytes of a row of `cols` weights, or `None` where `cols` is no multiple of the block or the size overflows.
    #[must_use]
    pub const fn row_bytes(self, cols: usize) -> Option<usize> {
        if !cols.is_multiple_of(self.block_len()) {
            return None;
        }
        (cols / self.block_len()).checked_mul(self.block_bytes())
    }

    /// The name model files use.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::F32 => "F32",
            Self::F16 => "F16",
            Self::Bf16 => "BF16",
            Self::Q4_0 => "Q4_0",
            Self::Q4_1 => "Q4_1",
            Self::Q5_0 => "Q5_0",
            Self::Q5_1 => "Q5_1",
            Self::Q8_0 => "Q8_0",
            Self::Q4K => "Q4_K",
            Self::Q5K => "Q5_K",
            Self::Q6K => "Q6_K",
        }
    }
}

/// A view of one tensor's bytes in a mapped file. The bytes need not be aligned.
#[derive(Clone, Copy, Debug)]
pub struct Tensor<'a> {
    /// The name in the file.
    pub name: &'a str,
    /// Outputs; 1 for a vector.
    pub rows: usize,
    /// Inputs; the length of a vector.
    pub cols: usize,
    /// How each row is stored.
    pub dtype: Dtype,
    /// `rows` rows, one after another.
    pub data: &'a [u8],
}

impl<'a> Tensor<'a> {
    /// A tensor whose byte length has been checked against its shape.
    ///
    /// # Errors
    /// When the shape does not fit the storage type, or the bytes do not fit the shape.
    pub fn new(name: &'a str, rows: usize, cols: usize, dtype: Dtype, data: &'a [u8]) -> Result<Self> {
        let bytes = dtype.row_bytes(cols).and_then(|row| row.checked_mul(rows));
        if bytes != Some(data.len()) {
            let what = format!(
                "{} bytes cannot hold {rows} x {cols} weights of type {}; the file is damaged or mislabelled",
                data.len(),
                dtype.name()
            );
            return Err(CheckpointError::bad_tensor(name, what));
        }
        Ok(Self { name, rows, cols, dtype, data })
    }

    /// Bytes of one row.
    #[must_use]
    pub fn row_bytes(&self) -> usize {
        self.data.len().checked_div(self.rows).unwrap_or(0)
    }

    /// The bytes of row `row`.
    ///
    /// # Panics
    /// When `row` is not below `rows`: that is a caller's mistake.
    #[must_use]
    pub fn row(&self, row: usize) -> &'a [u8] {
        assert!(row < self.rows, "row {row} of tensor `{}` that has {}", self.name, self.rows);
        let len = self.row_bytes();
        &self.data[row * len..(row + 1) * len]
    }

    /// The whole tensor as f32, row after row.
    #[must_use]
    pub fn to_f32(&self) -> Vec<f32> {
        let mut out = vec![0.0; self.rows * self.cols];
        crate::quant::to_f32(self.dtype, self.data, &mut out);
        out
    }
}
