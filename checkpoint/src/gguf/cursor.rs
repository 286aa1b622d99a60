//! Reads little-endian values from a byte slice; it never reads past the end and every failure knows its offset.

use crate::error::{CheckpointError, Result};

/// A position in the bytes of a file.
pub(super) struct Cursor<'a> {
    bytes: &'a [u8],
    offset: usize,
}

impl<'a> Cursor<'a> {
    pub(super) fn new(bytes: &'a [u8]) -> Self {
        Self { bytes, offset: 0 }
    }

    pub(super) fn offset(&self) -> usize {
        self.offset
    }

    /// Length of the whole file.
    pub(super) fn file_len(&self) -> usize {
        self.bytes.len()
    }

    fn remaining(&self) -> usize {
        self.bytes.len() - self.offset
    }

    #[expect(clippy::unused_self, reason = "an error belongs to the file being read")]
    pub(super) fn error_at(&self, offset: usize, what: impl Into<String>) -> CheckpointError {
        CheckpointError::Gguf { what: what.into(), offset }
    }

    pub(super) fn take(&mut self, len: usize, what: &str) -> Result<&'a [u8]> {
        if len > self.remaining() {
            let have = self.remaining();
            return Err(
                self.error_at(self.offset, format!("{what} needs {len} bytes but only {have} are left"))
            );
        }
        let slice = &self.bytes[self.offset..self.offset + len];
        self.offset += len;
        Ok(slice)
    }

    pub(super) fn array<const N: usize>(&mut self, what: &str) -> Result<[u8; N]> {
        let slice = self.take(N, what)?;
        let mut out = [0; N];
        out.copy_from_slice(slice);
        Ok(out)
    }

    pub(super) fn u32(&mut self, what: &str) -> Result<u32> {
        self.array(what).map(u32::from_le_bytes)
    }

    pub(super) fn u64(&mut self, what: &str) -> Result<u64> {
        self.array(what).map(u64::from_le_bytes)
    }

    /// Turns an untrusted count into one for which at least `min_bytes` bytes an entry are really left.
    pub(super) fn bounded_count(&self, count: u64, min_bytes: usize, what: &str, at: usize) -> Result<usize> {
        let most = self.remaining() / min_bytes.max(1);
        match usize::try_from(count) {
            Ok(count) if count <= most => Ok(count),
            _ => Err(self
                .error_at(at, format!("{what} {count} cannot fit in the {} bytes left", self.remaining()))),
        }
    }

    /// A length-prefixed UTF-8 string of at most `limit` bytes.
    pub(super) fn string(&mut self, limit: usize, what: &str) -> Result<&'a str> {
        let at = self.offset;
        let len = self.u64(what)?;
        let len = self.bounded_count(len, 1, "string length", at)?;
        if len > limit {
            return Err(self.error_at(at, format!("{what} is {len} bytes long, above the limit of {limit}")));
        }
        let bytes = self.take(len, what)?;
        std::str::from_utf8(bytes).map_err(|_| self.error_at(at, format!("{what} is not valid UTF-8")))
    }
}
