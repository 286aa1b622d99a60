//! Keeps packed weights beside the model, so that only its first start packs them.
//!
//! The rule: it never fails a start and never makes the first one slower. What is missing, stale or damaged is packed
//! from the model again, and written once the brain serves; what can't be written is only packed again next time.

pub mod contents;
mod header;
pub mod place;
pub mod read;
pub mod write;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

use pons_checkpoint::Checkpoint;

use self::contents::Contents;
use self::place::Place;
use self::read::{Packed, ReadError};
use self::write::Written;
use crate::backend::cpu::CpuLoader;
use crate::model::weights::Weights;

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

/// The packed file of one model.
#[derive(Debug)]
pub struct PackedCache {
    contents: Arc<Contents>,
    places: Vec<Place>,
    /// A file that can't be used was found in the place of this number.
    replace: Option<usize>,
}

impl PackedCache {
    /// The cache of a model; none if nothing is to be kept, or nothing can be.
    pub fn new(folder: &Folder, checkpoint: &Checkpoint) -> Option<Self> {
        let dirs: Vec<PathBuf> = match folder {
            Folder::None => return None,
            Folder::Beside(other) => {
                [Some(beside(checkpoint.dir())), other.clone()].into_iter().flatten().collect()
            }
            Folder::Given(dir) => vec![dir.clone()],
        };
        // A tensor that is missing is reported by the loading that follows.
        let contents = Arc::new(Contents::of(checkpoint).ok()??);
        let places = dirs.iter().map(|dir| Place::new(dir, checkpoint, &contents)).collect();
        Some(Self { contents, places, replace: None })
    }

    /// The packed weights, read with `threads` threads, if they are there and sound.
    pub fn read(&mut self, threads: usize) -> Option<Packed> {
        for (index, place) in self.places.iter().enumerate() {
            let path = place.path();
            match Packed::read(&path, &self.contents, threads) {
                Ok(packed) => return Some(packed),
                Err(ReadError::Missing) => {}
                Err(reason) => {
                    tracing::warn!(file = %path.display(), %reason, "the packed weights can't be used; packing anew");
                    self.replace = self.replace.or(Some(index));
                }
            }
        }
        None
    }

    /// Writes packed weights on a thread of its own that works when nobody else does.
    pub fn write_later(self, weights: Arc<Weights<CpuLoader>>) {
        let write = move || {
            // The kernel takes this for the calling thread alone; if it refuses, the writing is only less polite.
            let _ = rustix::process::setpriority_process(None, 19);
            self.write(&weights);
        };
        if let Err(error) = std::thread::Builder::new().name("packed".to_owned()).spawn(write) {
            tracing::warn!(%error, "no thread to keep the packed weights; the next start packs them again");
        }
    }

    /// Writes packed weights to the first place that takes them.
    pub fn write(&self, weights: &Weights<CpuLoader>) {
        let began = Instant::now();
        for (index, place) in self.places.iter().enumerate() {
            let path = place.path();
            match write::write(place, &self.contents, weights, self.replace == Some(index)) {
                Ok(Written::Whole) => {
                    let removed = place.remove_stale().len();
                    let bytes = self.contents.body_bytes();
                    let took_ms = began.elapsed().as_millis();
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
