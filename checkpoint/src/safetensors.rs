//! Safetensors files: the header that says which tensor lies where.
//!
//! The rule: the header is bounded before it is parsed, and every tensor it names lies inside the file, has exactly the
//! bytes its shape asks for, and shares them with no other. The format is that of the `safetensors` crate's README.

use std::collections::HashMap;
use std::fmt;
use std::ops::Range;

use serde::Deserialize;
use serde::de::{Error as _, MapAccess, Visitor};

use crate::error::{CheckpointError, Result};
use crate::tensor::{Dtype, Tensor};

/// The longest header that is read; a model of ten thousand tensors needs about one MiB.
const MAX_HEADER_BYTES: usize = 32 << 20;
/// The most dimensions a tensor may have.
const MAX_DIMS: usize = 8;
/// Bytes before the header: its length.
const PREFIX_BYTES: usize = 8;

/// The parsed header of one file. The weights stay in the bytes it was parsed from.
#[derive(Debug)]
pub struct Header {
    tensors: HashMap<String, Entry>,
}

#[derive(Debug)]
struct Entry {
    dtype: String,
    shape: Vec<usize>,
    /// Absolute, from the start of the file.
    bytes: Range<usize>,
}

impl Header {
    /// Reads and checks the header of a whole file; `file` names it in errors.
    ///
    /// # Errors
    /// When the header is malformed or does not fit the bytes behind it.
    pub fn parse(bytes: &[u8], file: &str) -> Result<Self> {
        let fail = |what: String| CheckpointError::Safetensors { file: file.to_owned(), what };
        let prefix: [u8; PREFIX_BYTES] = bytes
            .get(..PREFIX_BYTES)
            .and_then(|b| b.try_into().ok())
            .ok_or_else(|| fail(format!("{} bytes are too few for a header length", bytes.len())))?;
        let declared = u64::from_le_bytes(prefix);
        let len = usize::try_from(declared)
            .ok()
            .filter(|&n| n <= MAX_HEADER_BYTES && n <= bytes.len() - PREFIX_BYTES)
            .ok_or_else(|| {
                fail(format!("a header of {declared} bytes is above {MAX_HEADER_BYTES} or the file's end"))
            })?;
        let (header, data) = bytes[PREFIX_BYTES..].split_at(len);
        let raw: RawHeader = serde_json::from_slice(header).map_err(|e| fail(format!("header: {e}")))?;
        let data_start = PREFIX_BYTES + len;
        let mut tensors = HashMap::with_capacity(raw.tensors.len());
        for (name, raw) in raw.tensors {
            let entry =
                place(raw, data.len(), data_start).map_err(|what| fail(format!("tensor `{name}` {what}")))?;
            tensors.insert(name, entry);
        }
        let header = Self { tensors };
        header.refuse_overlaps().map_err(fail)?;
        Ok(header)
    }

    /// Whether the file has a tensor of that name.
    #[must_use]
    pub fn has_tensor(&self, name: &str) -> bool {
        self.tensors.contains_key(name)
    }

    /// All names, in no particular order.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.tensors.keys().map(String::as_str)
    }

    /// The tensor `name`, as a view into `bytes`, which must be the bytes this header was parsed from.
    ///
    /// # Errors
    /// When there is none, or it is neither a vector nor a matrix of F32, F16 or BF16.
    pub fn tensor<'a>(&'a self, bytes: &'a [u8], name: &str) -> Result<Tensor<'a>> {
        let (name, entry) = self
            .tensors
            .get_key_value(name)
            .ok_or_else(|| CheckpointError::MissingTensor { name: name.to_owned() })?;
        let dtype = entry.dtype().ok_or_else(|| {
            let what = format!(
                "storage type {} is not supported; convert the model to F32, F16 or BF16",
                entry.dtype.escape_debug()
            );
            CheckpointError::bad_tensor(name, what)
        })?;
        let (rows, cols) = match entry.shape[..] {
            [cols] => (1, cols),
            [rows, cols] => (rows, cols),
            _ => {
                let what = format!("has shape {:?}; only vectors and matrices are supported", entry.shape);
                return Err(CheckpointError::bad_tensor(name, what));
            }
        };
        let data = bytes
            .get(entry.bytes.clone())
            .ok_or_else(|| CheckpointError::bad_tensor(name, "lies past the end of the file"))?;
        Tensor::new(name, rows, cols, dtype, data)
    }

    fn refuse_overlaps(&self) -> std::result::Result<(), String> {
        let mut ranges: Vec<(&Range<usize>, &str)> =
            self.tensors.iter().map(|(name, entry)| (&entry.bytes, name.as_str())).collect();
        ranges.retain(|(range, _)| !range.is_empty());
        ranges.sort_unstable_by_key(|(range, _)| range.start);
        for pair in ranges.windows(2) {
            if pair[1].0.start < pair[0].0.end {
                return Err(format!("tensors `{}` and `{}` overlap", pair[0].1, pair[1].1));
            }
        }
        Ok(())
    }
}

impl Entry {
    fn dtype(&self) -> Option<Dtype> {
        match self.dtype.as_str() {
            "F32" => Some(Dtype::F32),
            "F16" => Some(Dtype::F16),
            "BF16" => Some(Dtype::Bf16),
            _ => None,
        }
    }
}

fn place(raw: RawEntry, data_len: usize, data_start: usize) -> std::result::Result<Entry, String> {
    let [start, end] = raw.data_offsets;
    if start > end || end > data_len {
        return Err(format!("has offsets {start}..{end}, outside the {data_len} bytes of data"));
    }
    if raw.shape.len() > MAX_DIMS {
        return Err(format!("has {} dimensions, above the limit of {MAX_DIMS}", raw.shape.len()));
    }
    let entry = Entry { dtype: raw.dtype, shape: raw.shape, bytes: data_start + start..data_start + end };
    if let Some(dtype) = entry.dtype() {
        let weights = entry.shape.iter().try_fold(1_usize, |n, &d| n.checked_mul(d));
        if weights.and_then(|n| dtype.row_bytes(n)) != Some(end - start) {
            let shape = &entry.shape;
            return Err(format!("of shape {shape:?} and type {} has {} bytes", dtype.name(), end - start));
        }
    }
    Ok(entry)
}

#[derive(Deserialize)]
struct RawEntry {
    dtype: String,
    shape: Vec<usize>,
    data_offsets: [usize; 2],
}

/// The header's JSON object; a name that appears twice is an error, which a plain map would hide.
struct RawHeader {
    tensors: HashMap<String, RawEntry>,
}

impl<'de> Deserialize<'de> for RawHeader {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> std::result::Result<Self, D::Error> {
        struct Names;
        impl<'de> Visitor<'de> for Names {
            type Value = RawHeader;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object of tensors")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> std::result::Result<RawHeader, A::Error> {
                let mut tensors = HashMap::new();
                while let Some(name) = map.next_key::<String>()? {
                    if name == "__metadata__" {
                        map.next_value::<serde::de::IgnoredAny>()?;
                    } else {
                        let entry = map.next_value::<RawEntry>()?;
                        if tensors.insert(name, entry).is_some() {
                            return Err(A::Error::custom("a tensor name appears twice"));
                        }
                    }
                }
                Ok(RawHeader { tensors })
            }
        }
        deserializer.deserialize_map(Names)
    }
}

#[cfg(test)]
mod tests;
