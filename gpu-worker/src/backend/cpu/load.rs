//! From stored tensors to the kernels' packed matrices. The rule: the stored numbers are kept as they are; no
//! weight is rounded a second time.

use std::sync::Arc;

use pons_checkpoint::{Dtype, Tensor, quant};
use pons_kernels::{Form, Kind, Matrix, Precision, Scaling, Width};

use crate::backend::Loader;
use crate::packed::read::Packed;

/// Hidden size below which a model's activations need fifteen bits. Narrow models lose most by eight: the mean error
/// of SmolLM2-135M's log probabilities (hidden size 576) falls from 0.107 to 0.012 with fifteen.
const NARROW: usize = 1024;

/// Packs weights for the kernels.
#[derive(Clone, Debug)]
pub struct CpuLoader {
    precision: Precision,
    packed: Option<Arc<Packed>>,
}

impl CpuLoader {
    /// A loader for a model of this hidden size: as precise as a model so narrow needs.
    #[must_use]
    pub fn for_width(hidden: usize) -> Self {
        let precision = if hidden < NARROW { Precision::Fifteen } else { Precision::Eight };
        Self { precision, packed: None }
    }

    /// The same loader, taking what it can from weights that were packed before.
    #[must_use]
    pub fn with_packed(mut self, packed: Option<Arc<Packed>>) -> Self {
        self.packed = packed;
        self
    }
}

fn halves(data: &[u8]) -> Vec<u16> {
    data.chunks_exact(2).map(|b| u16::from_le_bytes([b[0], b[1]])).collect()
}

/// The kernels' form of a block format. Five-bit numbers are kept in six.
const fn form(dtype: Dtype) -> Option<Form> {
    let (width, scaling) = match dtype {
        Dtype::F32 | Dtype::F16 | Dtype::Bf16 => return None,
        Dtype::Q4_0 => (Width::Four, Scaling::Centred { zero: 8 }),
        Dtype::Q4_1 => (Width::Four, Scaling::Affine),
        Dtype::Q4K => (Width::Four, Scaling::NestedAffine),
        Dtype::Q5_0 => (Width::Six, Scaling::Centred { zero: 16 }),
        Dtype::Q5_1 => (Width::Six, Scaling::Affine),
        Dtype::Q5K => (Width::Six, Scaling::NestedAffine),
        Dtype::Q6K => (Width::Six, Scaling::NestedCentred { zero: 32 }),
        Dtype::Q8_0 => (Width::Eight, Scaling::Centred { zero: 128 }),
    };
    Some(Form { width, scaling })
}

/// How the kernels store a tensor of this type.
pub const fn kind(dtype: Dtype) -> Kind {
    match dtype {
        Dtype::F16 => Kind::F16,
        Dtype::Bf16 => Kind::Bf16,
        _ => match form(dtype) {
            Some(form) => Kind::Quantised(form),
            None => Kind::F32,
        },
    }
}

impl Loader for CpuLoader {
    type Matrix = Matrix;
    type Vector = Vec<f32>;

    fn matrix(&self, tensor: &Tensor<'_>) -> Result<Matrix, String> {
        let (rows, cols) = (tensor.rows, tensor.cols);
        if let Some(matrix) = self.packed.as_ref().and_then(|packed| packed.matrix(tensor)) {
            return Ok(matrix.with_precision(self.precision));
        }
        if let Some(form) = form(tensor.dtype) {
            let matrix = Matrix::from_quantised(rows, cols, form, &mut |row, to| {
                let parts = quant::Parts { q: to.q, d: to.d, m: to.m, s: to.s, t: to.t };
                quant::split_row(tensor.dtype, tensor.row(row), parts);
            });
            return Ok(matrix.with_precision(self.precision));
        }
        match tensor.dtype {
            Dtype::F32 => Ok(Matrix::from_f32(rows, cols, &tensor.to_f32())),
            Dtype::F16 => Ok(Matrix::from_f16_bits(rows, cols, &halves(tensor.data))),
            Dtype::Bf16 => Ok(Matrix::from_bf16_bits(rows, cols, &halves(tensor.data))),
            other => Err(format!("storage type {} has no packed form", other.name())),
        }
    }

    fn vector(&self, tensor: &Tensor<'_>) -> Vec<f32> {
        tensor.to_f32()
    }
}
