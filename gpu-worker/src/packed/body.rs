//! The packed weights of a model in memory. The rule: they lie in one stretch of large pages in the order of the
//! file, whether they were read from one or packed just now, so that both compute equally fast and are written alike.

use std::sync::Arc;

use pons_checkpoint::{Checkpoint, Tensor};
use pons_kernels::{Matrix, Pages, Section};

use super::contents::Contents;
use super::pack;
use crate::model::ModelError;

/// The packed weights of a model.
pub struct Packed {
    contents: Arc<Contents>,
    body: Arc<Pages>,
}

impl std::fmt::Debug for Packed {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Packed({} matrices)", self.contents.entries().len())
    }
}

impl Packed {
    /// Packs a model's weights with `threads` threads.
    ///
    /// # Errors
    /// A tensor that is missing or misshapen, or no memory for all of them.
    pub fn pack(checkpoint: &Checkpoint, threads: usize) -> Result<Self, ModelError> {
        Self::pack_as(checkpoint, Arc::new(Contents::of(checkpoint)?), threads)
    }

    /// [`Packed::pack`] where the contents are known.
    pub(super) fn pack_as(
        checkpoint: &Checkpoint,
        contents: Arc<Contents>,
        threads: usize,
    ) -> Result<Self, ModelError> {
        let bytes = contents.body_bytes();
        let mut body = Pages::zeroed(bytes).map_err(|source| ModelError::Memory { bytes, source })?;
        pack::pack(checkpoint, &contents, body.as_mut(), threads)?;
        Ok(Self::of(contents, body))
    }

    /// A body that was filled.
    pub(super) fn of(contents: Arc<Contents>, body: Pages) -> Self {
        Self { contents, body: Arc::new(body) }
    }

    /// What is where.
    pub(super) fn contents(&self) -> &Contents {
        &self.contents
    }

    /// All sections and what lies between them.
    pub fn bytes(&self) -> &[u8] {
        (*self.body).as_ref()
    }

    /// A view of the packed form of a tensor.
    ///
    /// # Errors
    /// These are another model's weights, in words.
    pub fn matrix(&self, tensor: &Tensor<'_>) -> Result<Matrix, String> {
        let entry = self.contents.entry(tensor.name).ok_or("it is not among the packed weights")?;
        if (entry.rows, entry.cols) != (tensor.rows, tensor.cols) {
            return Err(format!("it is packed as {} x {}", entry.rows, entry.cols));
        }
        let sections: Vec<Section> = entry
            .sections
            .iter()
            .map(|bytes| Section { region: Arc::clone(&self.body), bytes: bytes.clone() })
            .collect();
        Matrix::from_sections(entry.rows, entry.cols, entry.kind, &sections)
            .map_err(|error| error.to_string())
    }
}
