//! From stored tensors to the kernels' packed matrices. The rule: the stored numbers are kept as they are; no
//! weight is rounded a second time.

use pons_checkpoint::{Dtype, Tensor, quant};
use pons_kernels::Matrix;

use crate::backend::Loader;

/// Packs weights for the kernels.
#[derive(Clone, Copy, Debug, Default)]
pub struct CpuLoader;

fn halves(data: &[u8]) -> Vec<u16> {
    data.chunks_exact(2).map(|b| u16::from_le_bytes([b[0], b[1]])).collect()
}

impl Loader for CpuLoader {
    type Matrix = Matrix;
    type Vector = Vec<f32>;

    fn matrix(&self, tensor: &Tensor<'_>) -> Result<Matrix, String> {
        let (rows, cols) = (tensor.rows, tensor.cols);
        if let Some((group, bits)) = quant::group_layout(tensor.dtype) {
            return Ok(Matrix::from_grouped(rows, cols, group, bits, &mut |row, q, scale, min| {
                quant::row_to_groups(tensor.dtype, tensor.row(row), q, scale, min);
            }));
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
