//! Read-only mapped files; the only place in this crate that holds `unsafe`, and it hands out nothing but `&[u8]`.
#![allow(unsafe_code)]

use std::fs::File;
use std::ops::Deref;
use std::path::Path;
use std::time::SystemTime;

use crate::error::{CheckpointError, Result};

/// A whole file mapped into memory, read-only.
#[derive(Debug)]
pub struct MappedFile {
    map: Option<memmap2::Mmap>,
    written: Option<SystemTime>,
}

impl MappedFile {
    /// Maps the file at `path`. An empty file maps to an empty slice.
    ///
    /// # Errors
    /// When the path is not a regular file, or cannot be opened or mapped.
    pub fn open(path: &Path) -> Result<Self> {
        let file = open_regular(path)?;
        let meta = file.metadata().map_err(|e| CheckpointError::io("inspect", path, e))?;
        let written = meta.modified().ok();
        if meta.len() == 0 {
            return Ok(Self { map: None, written });
        }
        // SAFETY: the file is opened read-only and mapped read-only, and the mapping is only seen as `&[u8]`, for which
        // every bit pattern is valid. What remains is that another process may truncate or rewrite the file while it is
        // mapped: truncation ends this process with SIGBUS, a rewrite changes weights under us. Model files are
        // therefore replaced by rename (as `pull` does), never edited in place.
        let map = unsafe { memmap2::Mmap::map(&file) }.map_err(|e| CheckpointError::io("map", path, e))?;
        Ok(Self { map: Some(map), written })
    }

    /// When the file was last written, as its system knew when it was mapped.
    #[must_use]
    pub fn written(&self) -> Option<SystemTime> {
        self.written
    }
}

impl Deref for MappedFile {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        self.map.as_deref().unwrap_or(&[])
    }
}

/// Opens a regular file for reading. Anything else is refused before it is opened, since opening a pipe would wait for a
/// writer that may never come.
pub(crate) fn open_regular(path: &Path) -> Result<File> {
    let meta = std::fs::metadata(path).map_err(|e| CheckpointError::io("open", path, e))?;
    if !meta.is_file() {
        let source = std::io::Error::new(std::io::ErrorKind::InvalidInput, "not a regular file");
        return Err(CheckpointError::io("open", path, source));
    }
    File::open(path).map_err(|e| CheckpointError::io("open", path, e))
}
