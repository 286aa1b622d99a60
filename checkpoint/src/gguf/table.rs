//! The table of tensors; after reading, every known tensor lies inside the file, aligned, and apart from the others.

use std::collections::HashMap;
use std::ops::Range;

use super::cursor::Cursor;
use crate::error::{CheckpointError, Result};
use crate::tensor::Dtype;

/// The fewest bytes one entry can take: an empty name's length, the number of dimensions, one dimension, type, offset.
pub(super) const MIN_ENTRY_BYTES: usize = 8 + 4 + 8 + 4 + 8;
/// Names are under 64 bytes in practice.
const MAX_NAME_BYTES: usize = 1024;
/// ggml has at most four dimensions.
const MAX_DIMS: u32 = 4;

/// One entry of the table.
#[derive(Clone, Debug)]
pub struct TensorInfo {
    name: String,
    dims: Vec<usize>,
    ggml_type: u32,
    /// Absolute, from the start of the file.
    start: usize,
}

impl TensorInfo {
    /// The tensor's name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Dimensions, the contiguous one first.
    #[must_use]
    pub fn dims(&self) -> &[usize] {
        &self.dims
    }

    /// The storage type's number in ggml.
    #[must_use]
    pub fn ggml_type(&self) -> u32 {
        self.ggml_type
    }

    /// The storage type, where this crate reads it.
    #[must_use]
    pub fn dtype(&self) -> Option<Dtype> {
        Some(match self.ggml_type {
            0 => Dtype::F32,
            1 => Dtype::F16,
            2 => Dtype::Q4_0,
            3 => Dtype::Q4_1,
            6 => Dtype::Q5_0,
            7 => Dtype::Q5_1,
            8 => Dtype::Q8_0,
            12 => Dtype::Q4K,
            13 => Dtype::Q5K,
            14 => Dtype::Q6K,
            30 => Dtype::Bf16,
            _ => return None,
        })
    }

    /// Where the bytes lie in the file; `None` where the storage type, and with it the size, is unknown.
    #[must_use]
    pub fn byte_range(&self) -> Option<Range<usize>> {
        let row = self.dtype()?.row_bytes(*self.dims.first()?)?;
        let len = self.dims[1..].iter().try_fold(row, |n, &d| n.checked_mul(d))?;
        Some(self.start..self.start.checked_add(len)?)
    }

    /// Rows and columns of a tensor of one or two dimensions (trailing dimensions of 1 do not count).
    pub(super) fn matrix_shape(&self) -> Result<(usize, usize)> {
        let cols = self.dims.first().copied().unwrap_or(0);
        let rows = self.dims.get(1).copied().unwrap_or(1);
        if self.dims.iter().skip(2).any(|&d| d != 1) {
            let what = format!("has dimensions {:?}; only vectors and matrices are supported", self.dims);
            return Err(CheckpointError::bad_tensor(self.name.as_str(), what));
        }
        Ok((rows, cols))
    }
}

/// All entries, with an index by name.
#[derive(Debug)]
pub(super) struct Table {
    tensors: Vec<TensorInfo>,
    by_name: HashMap<String, usize>,
}

impl Table {
    pub(super) fn read(cursor: &mut Cursor<'_>, count: usize, alignment: usize) -> Result<Self> {
        let mut tensors = Vec::with_capacity(count);
        let mut by_name = HashMap::with_capacity(count);
        for index in 0..count {
            let at = cursor.offset();
            let info = read_entry(cursor, alignment)?;
            if by_name.insert(info.name.clone(), index).is_some() {
                return Err(cursor.error_at(at, format!("tensor `{}` appears twice", info.name)));
            }
            tensors.push(info);
        }
        let header_end = cursor.offset();
        let data_start = header_end
            .checked_next_multiple_of(alignment)
            .ok_or_else(|| cursor.error_at(header_end, "the header ends past the address space"))?;
        for info in &mut tensors {
            place(info, data_start, cursor)?;
        }
        refuse_overlaps(&tensors, cursor)?;
        Ok(Self { tensors, by_name })
    }

    pub(super) fn tensors(&self) -> &[TensorInfo] {
        &self.tensors
    }

    pub(super) fn find(&self, name: &str) -> Option<&TensorInfo> {
        self.by_name.get(name).map(|&index| &self.tensors[index])
    }
}

/// Reads one entry; its `start` is still relative to the data section.
fn read_entry(cursor: &mut Cursor<'_>, alignment: usize) -> Result<TensorInfo> {
    let name = cursor.string(MAX_NAME_BYTES, "a tensor name")?.to_owned();
    let at = cursor.offset();
    let n_dims = cursor.u32("a number of dimensions")?;
    if !(1..=MAX_DIMS).contains(&n_dims) {
        return Err(
            cursor.error_at(at, format!("tensor `{name}` has {n_dims} dimensions, not 1 to {MAX_DIMS}"))
        );
    }
    let mut dims = Vec::with_capacity(n_dims as usize);
    for _ in 0..n_dims {
        let at = cursor.offset();
        let dim = cursor.u64("a dimension")?;
        match usize::try_from(dim) {
            Ok(dim @ 1..) => dims.push(dim),
            _ => return Err(cursor.error_at(at, format!("tensor `{name}` has a dimension of {dim}"))),
        }
    }
    let ggml_type = cursor.u32("a tensor type")?;
    let at = cursor.offset();
    let offset = cursor.u64("a tensor offset")?;
    match usize::try_from(offset) {
        Ok(start) if start.is_multiple_of(alignment) => Ok(TensorInfo { name, dims, ggml_type, start }),
        _ => {
            let what =
                format!("tensor `{name}` has offset {offset}, no multiple of the alignment {alignment}");
            Err(cursor.error_at(at, what))
        }
    }
}

/// Makes an entry's offset absolute and checks that its bytes lie inside the file.
fn place(info: &mut TensorInfo, data_start: usize, cursor: &Cursor<'_>) -> Result<()> {
    let file_len = cursor.file_len();
    let relative = info.start;
    let outside = |what: &str| {
        let name = &info.name;
        cursor.error_at(
            data_start.saturating_add(relative),
            format!("tensor `{name}` {what} (the file has {file_len} bytes; is it complete?)"),
        )
    };
    match data_start.checked_add(relative) {
        Some(start) if start <= file_len => info.start = start,
        _ => return Err(outside("starts past the end of the file")),
    }
    if info.dtype().is_some() {
        let range = info.byte_range().ok_or_else(|| {
            let (name, dims) = (&info.name, &info.dims);
            let what =
                format!("tensor `{name}` of dimensions {dims:?} does not divide into blocks of its type");
            cursor.error_at(info.start, what)
        })?;
        if range.end > file_len {
            return Err(cursor.error_at(
                range.start,
                format!(
                    "tensor `{}` needs {} bytes, past the end of the file ({file_len} bytes; is it complete?)",
                    info.name,
                    range.len()
                ),
            ));
        }
    }
    Ok(())
}

fn refuse_overlaps(tensors: &[TensorInfo], cursor: &Cursor<'_>) -> Result<()> {
    let mut ranges: Vec<(Range<usize>, &str)> =
        tensors.iter().filter_map(|t| Some((t.byte_range()?, t.name()))).collect();
    ranges.sort_unstable_by_key(|(range, _)| range.start);
    for pair in ranges.windows(2) {
        let [(first, first_name), (second, second_name)] = pair else { continue };
        if second.start < first.end {
            let what = format!("tensors `{first_name}` and `{second_name}` overlap");
            return Err(cursor.error_at(second.start, what));
        }
    }
    Ok(())
}
