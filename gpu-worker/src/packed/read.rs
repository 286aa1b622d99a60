//! Reads a packed file into memory. The rule: no byte of it is computed with before its checksum was found right.
//!
//! The file is read, not mapped: its pages come small, and a pass over all weights through small pages is slower than
//! through the large ones that memory of our own has. Reading takes a moment, once; each token would pay for the
//! other. It also makes the check nearly free, for a block is looked at while it is in the cache, and the weights stay
//! as they were checked whatever becomes of the file.

use std::fs::File;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use pons_kernels::Pages;

use super::body::Packed;
use super::contents::Contents;
use super::header::{self, BLOCK_BYTES};
use super::write::open_plain;

/// Bytes read at a time; they stay in a core's own cache until their checksum is taken.
const STRETCH_BYTES: usize = 256 << 10;

/// Why a packed file is not used.
#[derive(Debug, thiserror::Error)]
pub(super) enum ReadError {
    /// There is none.
    #[error("there is no packed file")]
    Missing,
    /// It could not be read.
    #[error("it can't be read: {0}")]
    Io(#[from] std::io::Error),
    /// It is not what it should be.
    #[error("{0}")]
    Unusable(&'static str),
}

impl Packed {
    /// Reads the packed file of a model with `threads` threads.
    ///
    /// # Errors
    /// There is none, or it is damaged, cut short, of something else, or another user's.
    pub(super) fn read(path: &Path, contents: &Arc<Contents>, threads: usize) -> Result<Self, ReadError> {
        let (file, sums) = open(path, contents)?;
        let mut pages = Pages::zeroed(contents.body_bytes())?;
        let start = header::header_bytes(contents) as u64;
        let blocks = pages.as_mut().chunks_mut(BLOCK_BYTES).zip(sums).enumerate();
        let blocks = Mutex::new(blocks);
        let (sound, failed) = (AtomicBool::new(true), Mutex::new(None));
        std::thread::scope(|scope| {
            for _ in 0..threads.max(1) {
                scope.spawn(|| {
                    while sound.load(Ordering::Relaxed) {
                        let next = blocks.lock().expect("nobody panics while taking a block").next();
                        let Some((index, (block, sum))) = next else { break };
                        let at = start + (index * BLOCK_BYTES) as u64;
                        match read_block(&file, at, block) {
                            Ok(found) if found == sum => continue,
                            Ok(_) => {}
                            Err(error) => *failed.lock().expect("nobody panics while failing") = Some(error),
                        }
                        sound.store(false, Ordering::Relaxed);
                    }
                });
            }
        });
        if let Some(error) = failed.into_inner().expect("all threads have ended well") {
            return Err(error.into());
        }
        if !sound.into_inner() {
            return Err(ReadError::Unusable("its weights are damaged"));
        }
        Ok(Self::of(Arc::clone(contents), pages))
    }
}

/// Opens a packed file and checks all but its body.
///
/// # Errors
/// As [`Packed::read`].
pub(super) fn open(path: &Path, contents: &Contents) -> Result<(File, Vec<u32>), ReadError> {
    let file = match open_plain(std::fs::File::options().read(true), path) {
        Ok(file) => file,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Err(ReadError::Missing),
        Err(error) => return Err(error.into()),
    };
    let metadata = file.metadata()?;
    // In a folder that others may write to, only who owns the program's other files is believed.
    let owner = metadata.uid();
    if owner != 0 && owner != rustix::process::geteuid().as_raw() {
        return Err(ReadError::Unusable("it belongs to another user"));
    }
    if metadata.len() != header::file_bytes(contents) {
        return Err(ReadError::Unusable(
            "it has another size; its writing was cut short, or it is of another model",
        ));
    }
    let mut bytes = vec![0; header::header_bytes(contents)];
    file.read_exact_at(&mut bytes, 0)?;
    let sums = header::decode(contents, &bytes).map_err(ReadError::Unusable)?;
    Ok((file, sums))
}

/// Reads a block and returns its checksum.
fn read_block(file: &File, mut at: u64, block: &mut [u8]) -> std::io::Result<u32> {
    let mut sum = crc32fast::Hasher::new();
    for stretch in block.chunks_mut(STRETCH_BYTES) {
        file.read_exact_at(stretch, at)?;
        sum.update(stretch);
        at += stretch.len() as u64;
    }
    Ok(sum.finalize())
}
