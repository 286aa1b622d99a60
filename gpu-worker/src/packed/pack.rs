//! Packs a model's weights from its stored tensors. The rule: the stored numbers are kept as they are; no weight is
//! rounded a second time.
//!
//! Strips of a matrix follow each other in each of its sections, so that a few strips at a time are packed by any
//! thread, small enough to stay in its cache until they are copied to their place.

use std::ops::Range;
use std::sync::{Mutex, OnceLock};

use pons_checkpoint::{Checkpoint, Dtype, Tensor, quant};
use pons_kernels::matrix::STRIP;
use pons_kernels::{Form, Kind, Matrix, Scaling, Width};

use super::contents::{Contents, Entry};
use crate::model::ModelError;

/// Weights that are packed at a time.
const CHUNK_WEIGHTS: usize = 256 << 10;

/// How the kernels store a tensor of this type.
pub(super) const fn kind(dtype: Dtype) -> Kind {
    match dtype {
        Dtype::F16 => Kind::F16,
        Dtype::Bf16 => Kind::Bf16,
        _ => match form(dtype) {
            Some(form) => Kind::Quantised(form),
            None => Kind::F32,
        },
    }
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

/// A few strips of a matrix, and their places in its sections.
struct Chunk<'a> {
    entry: &'a Entry,
    rows: Range<usize>,
    to: Vec<&'a mut [u8]>,
}

/// Packs all matrices of a model into a body, with `threads` threads.
///
/// # Errors
/// A tensor that is missing, or of a type the kernels can't compute with.
pub(super) fn pack(
    checkpoint: &Checkpoint,
    contents: &Contents,
    body: &mut [u8],
    threads: usize,
) -> Result<(), ModelError> {
    let chunks = Mutex::new(chunks(contents, body).into_iter());
    let failed = OnceLock::new();
    std::thread::scope(|scope| {
        for _ in 0..threads.max(1) {
            scope.spawn(|| {
                while failed.get().is_none() {
                    let next = chunks.lock().expect("nobody panics while taking a chunk").next();
                    let Some(chunk) = next else { break };
                    if let Err(error) = pack_chunk(checkpoint, chunk) {
                        // One error is enough.
                        let _ = failed.set(error);
                    }
                }
            });
        }
    });
    failed.into_inner().map_or(Ok(()), Err)
}

/// Cuts a body into chunks, each with its own places in it.
fn chunks<'a>(contents: &'a Contents, mut body: &'a mut [u8]) -> Vec<Chunk<'a>> {
    let mut chunks: Vec<Chunk<'a>> = Vec::new();
    let mut end = 0;
    for entry in contents.entries() {
        let first = chunks.len();
        let each = (CHUNK_WEIGHTS / entry.cols).max(1).next_multiple_of(STRIP);
        chunks.extend((0..entry.rows).step_by(each).map(|start| {
            let rows = start..entry.rows.min(start + each);
            Chunk { entry, rows, to: Vec::with_capacity(entry.sections.len()) }
        }));
        for (index, section) in entry.sections.iter().enumerate() {
            body = &mut body[section.start - end..];
            for chunk in &mut chunks[first..] {
                let (place, rest) = body.split_at_mut(chunk.section_bytes(index));
                chunk.to.push(place);
                body = rest;
            }
            end = section.end;
        }
    }
    chunks
}

impl Chunk<'_> {
    fn section_bytes(&self, index: usize) -> usize {
        let bytes = self.entry.kind.section_bytes(self.rows.len(), self.entry.cols);
        bytes.expect("a part of a matrix that can exist")[index]
    }
}

fn pack_chunk(checkpoint: &Checkpoint, chunk: Chunk<'_>) -> Result<(), ModelError> {
    let tensor = checkpoint.tensor(chunk.entry.role)?;
    let packed = pack_rows(&tensor, &chunk.rows).map_err(|reason| {
        let name = tensor.name.to_owned();
        ModelError::Tensor { name, reason }
    })?;
    for (to, section) in chunk.to.into_iter().zip(packed.sections()) {
        to.copy_from_slice(section);
    }
    Ok(())
}

fn pack_rows(tensor: &Tensor<'_>, rows: &Range<usize>) -> Result<Matrix, String> {
    let (count, cols) = (rows.len(), tensor.cols);
    if let Some(form) = form(tensor.dtype) {
        return Ok(Matrix::from_quantised(count, cols, form, &mut |row, to| {
            let parts = quant::Parts { q: to.q, d: to.d, m: to.m, s: to.s, t: to.t };
            quant::split_row(tensor.dtype, tensor.row(rows.start + row), parts);
        }));
    }
    let row_bytes = tensor.row_bytes();
    let data = &tensor.data[rows.start * row_bytes..rows.end * row_bytes];
    match tensor.dtype {
        Dtype::F32 => {
            let part = Tensor { rows: count, data, ..*tensor };
            Ok(Matrix::from_f32(count, cols, &part.to_f32()))
        }
        Dtype::F16 => Ok(Matrix::from_f16_bits(count, cols, &halves(data))),
        Dtype::Bf16 => Ok(Matrix::from_bf16_bits(count, cols, &halves(data))),
        other => Err(format!("storage type {} has no packed form", other.name())),
    }
}

fn halves(data: &[u8]) -> Vec<u16> {
    data.chunks_exact(2).map(|b| u16::from_le_bytes([b[0], b[1]])).collect()
}
