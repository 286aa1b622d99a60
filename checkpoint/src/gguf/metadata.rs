//! GGUF key-value pairs; keys are unique and every array's length was checked against the bytes behind it.

use std::collections::HashMap;

use super::cursor::Cursor;
use crate::error::Result;

/// The fewest bytes one key-value pair can take: an empty key's length, a type, one byte of value.
pub(super) const MIN_ENTRY_BYTES: usize = 8 + 4 + 1;
/// The specification's limit on a key.
const MAX_KEY_BYTES: usize = 65_535;
/// The longest string value; chat templates and vocabularies are far smaller.
const MAX_STRING_BYTES: usize = 16 << 20;
/// The most elements of one array; the largest vocabularies have under a million.
const MAX_ARRAY: u64 = 16 << 20;
/// The most bytes of all metadata together; arrays take up to eight times their size in memory.
const MAX_BYTES: usize = 128 << 20;
/// Arrays of arrays are legal but unused in practice.
const MAX_DEPTH: u32 = 4;

/// A metadata value. Arrays are kept by element type, so that a large vocabulary costs no tag an element.
#[derive(Clone, Debug, PartialEq)]
#[expect(missing_docs, reason = "each variant is the GGUF type of its name")]
pub enum Value {
    U8(u8),
    I8(i8),
    U16(u16),
    I16(i16),
    U32(u32),
    I32(i32),
    U64(u64),
    I64(i64),
    F32(f32),
    F64(f64),
    Bool(bool),
    String(String),
    /// An array of any integer type, widened.
    Integers(Vec<i64>),
    /// An array of f32 or f64, widened.
    Floats(Vec<f64>),
    Bools(Vec<bool>),
    Strings(Vec<String>),
    /// An array of arrays.
    Arrays(Vec<Value>),
}

impl Value {
    /// The value as a non-negative integer, if it is one.
    #[must_use]
    pub fn as_u64(&self) -> Option<u64> {
        self.as_i128().and_then(|n| u64::try_from(n).ok())
    }

    /// The value as an integer, if it is one.
    #[must_use]
    pub fn as_i64(&self) -> Option<i64> {
        self.as_i128().and_then(|n| i64::try_from(n).ok())
    }

    fn as_i128(&self) -> Option<i128> {
        match *self {
            Self::U8(n) => Some(n.into()),
            Self::I8(n) => Some(n.into()),
            Self::U16(n) => Some(n.into()),
            Self::I16(n) => Some(n.into()),
            Self::U32(n) => Some(n.into()),
            Self::I32(n) => Some(n.into()),
            Self::U64(n) => Some(n.into()),
            Self::I64(n) => Some(n.into()),
            _ => None,
        }
    }

    /// The value as a float, if it is a number.
    #[must_use]
    #[expect(clippy::cast_precision_loss, reason = "metadata floats written as integers are small")]
    pub fn as_f64(&self) -> Option<f64> {
        match *self {
            Self::F32(n) => Some(n.into()),
            Self::F64(n) => Some(n),
            _ => self.as_i64().map(|n| n as f64),
        }
    }

    /// The value as a boolean, if it is one.
    #[must_use]
    pub fn as_bool(&self) -> Option<bool> {
        if let Self::Bool(b) = *self { Some(b) } else { None }
    }

    /// The value as a string, if it is one.
    #[must_use]
    pub fn as_str(&self) -> Option<&str> {
        if let Self::String(s) = self { Some(s) } else { None }
    }

    /// The value as an array of strings, if it is one.
    #[must_use]
    pub fn as_strings(&self) -> Option<&[String]> {
        if let Self::Strings(items) = self { Some(items) } else { None }
    }

    /// The value as an array of integers, if it is one.
    #[must_use]
    pub fn as_integers(&self) -> Option<&[i64]> {
        if let Self::Integers(items) = self { Some(items) } else { None }
    }
}

/// All key-value pairs of a file.
#[derive(Clone, Debug, Default)]
pub struct Metadata {
    entries: HashMap<String, Value>,
}

impl Metadata {
    pub(super) fn read(cursor: &mut Cursor<'_>, count: usize) -> Result<Self> {
        let mut entries = HashMap::with_capacity(count);
        for _ in 0..count {
            let at = cursor.offset();
            let key = cursor.string(MAX_KEY_BYTES, "a metadata key")?;
            let kind = cursor.u32("a metadata type")?;
            let value = read_value(cursor, kind, key)?;
            if cursor.offset() > MAX_BYTES {
                let what = format!("the metadata is longer than the limit of {MAX_BYTES} bytes");
                return Err(cursor.error_at(at, what));
            }
            if entries.insert(key.to_owned(), value).is_some() {
                return Err(cursor.error_at(at, format!("metadata key `{key}` appears twice")));
            }
        }
        Ok(Self { entries })
    }

    /// The value of `key`.
    #[must_use]
    pub fn get(&self, key: &str) -> Option<&Value> {
        self.entries.get(key)
    }

    /// The string `key`, where it exists and is a string.
    #[must_use]
    pub fn str(&self, key: &str) -> Option<&str> {
        self.get(key).and_then(Value::as_str)
    }

    /// The non-negative integer `key`, where it exists and is one.
    #[must_use]
    pub fn u64(&self, key: &str) -> Option<u64> {
        self.get(key).and_then(Value::as_u64)
    }

    /// The boolean `key`, where it exists and is one.
    #[must_use]
    pub fn bool(&self, key: &str) -> Option<bool> {
        self.get(key).and_then(Value::as_bool)
    }

    /// The array of strings `key`, where it exists and is one.
    #[must_use]
    pub fn strings(&self, key: &str) -> Option<&[String]> {
        self.get(key).and_then(Value::as_strings)
    }

    /// The array of integers `key`, where it exists and is one.
    #[must_use]
    pub fn integers(&self, key: &str) -> Option<&[i64]> {
        self.get(key).and_then(Value::as_integers)
    }

    /// Number of pairs.
    #[must_use]
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// All pairs, in no particular order.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &Value)> {
        self.entries.iter().map(|(k, v)| (k.as_str(), v))
    }
}

fn read_value(cursor: &mut Cursor<'_>, kind: u32, key: &str) -> Result<Value> {
    Ok(match kind {
        0 => Value::U8(u8::from_le_bytes(cursor.array(key)?)),
        1 => Value::I8(i8::from_le_bytes(cursor.array(key)?)),
        2 => Value::U16(u16::from_le_bytes(cursor.array(key)?)),
        3 => Value::I16(i16::from_le_bytes(cursor.array(key)?)),
        4 => Value::U32(u32::from_le_bytes(cursor.array(key)?)),
        5 => Value::I32(i32::from_le_bytes(cursor.array(key)?)),
        6 => Value::F32(f32::from_le_bytes(cursor.array(key)?)),
        7 => Value::Bool(read_bool(cursor, key)?),
        8 => Value::String(cursor.string(MAX_STRING_BYTES, key)?.to_owned()),
        9 => read_array(cursor, key, MAX_DEPTH)?,
        10 => Value::U64(u64::from_le_bytes(cursor.array(key)?)),
        11 => Value::I64(i64::from_le_bytes(cursor.array(key)?)),
        12 => Value::F64(f64::from_le_bytes(cursor.array(key)?)),
        _ => return Err(unknown_type(cursor, kind, key)),
    })
}

fn unknown_type(cursor: &Cursor<'_>, kind: u32, key: &str) -> crate::CheckpointError {
    cursor.error_at(cursor.offset() - 4, format!("metadata `{key}` has unknown type {kind}"))
}

fn read_bool(cursor: &mut Cursor<'_>, key: &str) -> Result<bool> {
    match cursor.array::<1>(key)? {
        [0] => Ok(false),
        [1] => Ok(true),
        [n] => Err(cursor.error_at(cursor.offset() - 1, format!("boolean `{key}` is {n}, neither 0 nor 1"))),
    }
}

fn read_array(cursor: &mut Cursor<'_>, key: &str, depth: u32) -> Result<Value> {
    if depth == 0 {
        return Err(cursor.error_at(cursor.offset(), format!("metadata `{key}` nests arrays too deeply")));
    }
    let kind = cursor.u32(key)?;
    let element_bytes = match kind {
        0 | 1 | 7 => 1,
        2 | 3 => 2,
        4..=6 => 4,
        8 | 10..=12 => 8,
        9 => 12,
        _ => return Err(unknown_type(cursor, kind, key)),
    };
    let at = cursor.offset();
    let count = cursor.u64(key)?;
    if count > MAX_ARRAY {
        return Err(
            cursor.error_at(at, format!("array `{key}` of {count} is above the limit of {MAX_ARRAY}"))
        );
    }
    let count = cursor.bounded_count(count, element_bytes, "array length", at)?;
    Ok(match kind {
        6 | 12 => Value::Floats(collect(count, || {
            Ok(match read_value(cursor, kind, key)? {
                Value::F32(n) => f64::from(n),
                Value::F64(n) => n,
                _ => unreachable!("types 6 and 12 are floats"),
            })
        })?),
        7 => Value::Bools(collect(count, || read_bool(cursor, key))?),
        8 => Value::Strings(collect(count, || Ok(cursor.string(MAX_STRING_BYTES, key)?.to_owned()))?),
        9 => Value::Arrays(collect(count, || read_array(cursor, key, depth - 1))?),
        _ => Value::Integers(collect(count, || {
            let at = cursor.offset();
            let value = read_value(cursor, kind, key)?;
            value.as_i64().ok_or_else(|| cursor.error_at(at, format!("`{key}` holds {value:?}, above 2^63")))
        })?),
    })
}

fn collect<T>(count: usize, mut next: impl FnMut() -> Result<T>) -> Result<Vec<T>> {
    let mut out = Vec::with_capacity(count);
    for _ in 0..count {
        out.push(next()?);
    }
    Ok(out)
}
