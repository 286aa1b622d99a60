//! Keeps packed weights beside the model, so that only its first start packs them.
//!
//! The rule: it never fails a start and never makes the first one slower. What is missing, stale or damaged is packed
//! from the model again, and written once the brain serves; what can't be written is only packed again next time.

mod body;
mod contents;
mod header;
mod pack;
mod place;
mod read;
mod write;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

use pons_checkpoint::Checkpoint;

use self::contents::Contents;
use self::place::Place;
use self::read::ReadError;
use self::write::Written;
use crate::model::ModelError;

pub use self::body::Packed;

/// The priority of a thread that works when nobody else does.
const LEAST_PRIORITY: i32 = 19;

/// Where packed weights may be kept.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Folder {
    /// Nowhere: weights are packed at every start.
    None,
    /// Beside the model, or in this one if that can't be written to.
    Beside(Option<PathBuf>),
    /// In this one.
    Given(PathBuf),
}

/// Packed weights that no file has yet, and where one may be.
#[derive(Debug)]
pub struct Unkept {
    packed: Arc<Packed>,
    places: Vec<Place>,
    /// A file that can't be used lies in the place of this number.
    replace: Option<usize>,
}

/// The packed weights of a model: those that were kept or, with whoever keeps them, new ones.
///
/// # Errors
/// A model that can't be packed.
pub fn load(
    folder: &Folder,
    checkpoint: &Checkpoint,
    threads: usize,
) -> Result<(Arc<Packed>, Option<Unkept>), ModelError> {
    let contents = Arc::new(Contents::of(checkpoint)?);
    let places = places(folder, checkpoint, &contents);
    let mut replace = None;
    for (index, place) in places.iter().enumerate() {
        let path = place.path();
        match Packed::read(&path, &contents, threads) {
            Ok(packed) => return Ok((Arc::new(packed), None)),
            Err(ReadError::Missing) => {}
            Err(reason) => {
                tracing::warn!(file = %path.display(), %reason, "the packed weights can't be used; packing anew");
                replace = replace.or(Some(index));
            }
        }
    }
    let packed = Arc::new(Packed::pack_as(checkpoint, contents, threads)?);
    let unkept = Unkept { packed: Arc::clone(&packed), places, replace };
    Ok((packed, Some(unkept).filter(|unkept| !unkept.places.is_empty())))
}

fn places(folder: &Folder, checkpoint: &Checkpoint, contents: &Contents) -> Vec<Place> {
    let dirs: Vec<PathBuf> = match folder {
        Folder::None => Vec::new(),
        Folder::Beside(other) => {
            [Some(beside(checkpoint.dir())), other.clone()].into_iter().flatten().collect()
        }
        Folder::Given(dir) => vec![dir.clone()],
    };
    dirs.iter().map(|dir| Place::new(dir, checkpoint, contents)).collect()
}

impl Unkept {
    /// Writes the weights on a thread of its own that works when nobody else does.
    pub fn write_later(self) {
        let write = move || {
            // The kernel takes this for the calling thread alone; if it refuses, the writing is only less polite.
            let _ = rustix::process::setpriority_process(None, LEAST_PRIORITY);
            self.write();
        };
        if let Err(error) = std::thread::Builder::new().name("packed".to_owned()).spawn(write) {
            tracing::warn!(%error, "no thread to keep the packed weights; the next start packs them again");
        }
    }

    /// Writes the weights to the first place that takes them. What stands in the way is only logged.
    pub fn write(&self) {
        let began = Instant::now();
        for (index, place) in self.places.iter().enumerate() {
            let path = place.path();
            match write::write(place, &self.packed, self.replace == Some(index)) {
                Ok(Written::Whole) => {
                    let removed = place.remove_stale().len();
                    let (bytes, took_ms) = (self.packed.bytes().len(), began.elapsed().as_millis());
                    tracing::info!(file = %path.display(), bytes, took_ms, removed, "kept the packed weights");
                    return;
                }
                Ok(Written::Elsewhere) => return,
                Err(error) if index + 1 < self.places.len() => {
                    tracing::debug!(file = %path.display(), %error, "the packed weights are kept elsewhere");
                }
                Err(error) => {
                    let next = "the next start packs them again";
                    tracing::warn!(file = %path.display(), %error, "the packed weights can't be kept; {next}");
                }
            }
        }
    }
}

/// A model named by its file alone lies in the folder the process works in.
fn beside(dir: &Path) -> PathBuf {
    if dir.as_os_str().is_empty() { PathBuf::from(".") } else { dir.to_path_buf() }
}

#[cfg(test)]
mod tests;
