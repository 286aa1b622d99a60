//! GGUF files, versions 2 and 3: metadata and the table of tensors.
//!
//! The rule: nothing in the file is believed. Every count, length and offset is checked against the bytes that are
//! really there before anything is allocated or read. The format is ggml's (`docs/gguf.md`).

mod cursor;
mod metadata;
mod table;
#[cfg(test)]
mod tests;

pub use metadata::{Metadata, Value};
pub use table::TensorInfo;

use crate::error::{CheckpointError, Result};
use crate::tensor::Tensor;
use cursor::Cursor;
use table::Table;

/// The most metadata entries a file may have; real files have a few dozen.
const MAX_METADATA: u64 = 65_536;
/// The most tensors a file may have; the largest real models have some thousands.
const MAX_TENSORS: u64 = 1 << 20;
/// Alignment of tensor data where the metadata does not say.
const DEFAULT_ALIGNMENT: usize = 32;

/// A parsed GGUF file. It owns names and metadata, not the weights: those stay in the bytes it was parsed from.
#[derive(Debug)]
pub struct Gguf {
    version: u32,
    metadata: Metadata,
    table: Table,
}

impl Gguf {
    /// Reads header, metadata and tensor table from the bytes of a whole file.
    ///
    /// # Errors
    /// When anything in the file is malformed, cut short, or contradicts itself; the message says where.
    pub fn parse(bytes: &[u8]) -> Result<Self> {
        let mut cursor = Cursor::new(bytes);
        let version = read_version(&mut cursor)?;
        let tensor_count = read_count(&mut cursor, "tensor count", MAX_TENSORS, table::MIN_ENTRY_BYTES)?;
        let metadata_count =
            read_count(&mut cursor, "metadata count", MAX_METADATA, metadata::MIN_ENTRY_BYTES)?;
        let metadata = Metadata::read(&mut cursor, metadata_count)?;
        let alignment = read_alignment(&metadata, &cursor)?;
        let table = Table::read(&mut cursor, tensor_count, alignment)?;
        Ok(Self { version, metadata, table })
    }

    /// The format version: 2 or 3.
    #[must_use]
    pub fn version(&self) -> u32 {
        self.version
    }

    /// The key-value pairs.
    #[must_use]
    pub fn metadata(&self) -> &Metadata {
        &self.metadata
    }

    /// All tensors, in file order.
    #[must_use]
    pub fn tensors(&self) -> &[TensorInfo] {
        self.table.tensors()
    }

    /// Whether a tensor of that name exists, whatever its type.
    #[must_use]
    pub fn has_tensor(&self, name: &str) -> bool {
        self.table.find(name).is_some()
    }

    /// The tensor `name`, as a view into `bytes`, which must be the bytes this file was parsed from.
    ///
    /// # Errors
    /// When there is none, its storage type is not supported, it has more than two dimensions, or it lies outside
    /// `bytes`.
    pub fn tensor<'a>(&'a self, bytes: &'a [u8], name: &str) -> Result<Tensor<'a>> {
        let info =
            self.table.find(name).ok_or_else(|| CheckpointError::MissingTensor { name: name.to_owned() })?;
        let dtype = info.dtype().ok_or_else(|| {
            let what = format!(
                "storage type {} is not supported; convert the model to one of F32, F16, BF16, Q4_0, Q4_1, Q5_0, \
                 Q5_1, Q8_0, Q4_K, Q5_K, Q6_K",
                info.ggml_type()
            );
            CheckpointError::bad_tensor(name, what)
        })?;
        let (rows, cols) = info.matrix_shape()?;
        let range = info.byte_range().unwrap_or(0..0);
        let data = bytes.get(range).ok_or_else(|| {
            CheckpointError::bad_tensor(name, "lies past the end of the file; the download is incomplete")
        })?;
        Tensor::new(info.name(), rows, cols, dtype, data)
    }
}

fn read_version(cursor: &mut Cursor<'_>) -> Result<u32> {
    if cursor.take(4, "the magic number")? != b"GGUF" {
        return Err(cursor.error_at(0, "the file does not begin with `GGUF`"));
    }
    let version = cursor.u32("the version")?;
    match version {
        2 | 3 => Ok(version),
        _ if matches!(version.swap_bytes(), 2 | 3) => {
            Err(cursor.error_at(4, "the file is big-endian, which is not supported"))
        }
        _ => Err(cursor.error_at(4, format!("version {version} is not supported (2 and 3 are)"))),
    }
}

fn read_count(cursor: &mut Cursor<'_>, what: &str, limit: u64, entry_bytes: usize) -> Result<usize> {
    let at = cursor.offset();
    let count = cursor.u64(what)?;
    if count > limit {
        return Err(cursor.error_at(at, format!("{what} {count} is above the limit of {limit}")));
    }
    cursor.bounded_count(count, entry_bytes, what, at)
}

fn read_alignment(metadata: &Metadata, cursor: &Cursor<'_>) -> Result<usize> {
    let Some(value) = metadata.get("general.alignment") else {
        return Ok(DEFAULT_ALIGNMENT);
    };
    match value.as_u64() {
        Some(n @ 1..=65_536) if n.is_power_of_two() => Ok(n as usize),
        _ => Err(cursor.error_at(
            cursor.offset(),
            format!("`general.alignment` is {value:?}, not a power of two from 1 to 65536, seen"),
        )),
    }
}
