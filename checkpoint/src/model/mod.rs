//! A model on disk, whatever its format: configuration, and tensors by the role they play.
//!
//! The rule: a tensor handed out has the shape the configuration asks for, whichever file it came from.

mod role;
mod source;

use std::path::{Path, PathBuf};
use std::time::SystemTime;

use sha2::{Digest, Sha256};

pub use role::Role;

use crate::config::{ModelConfig, RopeLayout};
use crate::error::{CheckpointError, Result};
use crate::gguf;
use crate::locate::KNOWN;
use crate::tensor::Tensor;
use source::Source;

/// An opened model: mapped weight files and a validated configuration.
#[derive(Debug)]
pub struct Checkpoint {
    path: PathBuf,
    config: ModelConfig,
    source: Source,
    fingerprint: String,
}

impl Checkpoint {
    /// Opens a `.gguf` file, or a directory with `config.json` and safetensors.
    ///
    /// # Errors
    /// When the files are missing, malformed, unsupported, or contradict the configuration.
    pub fn open(path: &Path) -> Result<Self> {
        let meta = std::fs::metadata(path).map_err(|e| CheckpointError::io("open", path, e))?;
        let (source, config) =
            if meta.is_dir() { Source::open_directory(path)? } else { Source::open_gguf(path)? };
        let mut checkpoint = Self { path: path.to_path_buf(), config, source, fingerprint: String::new() };
        for role in Role::all(&checkpoint.config) {
            checkpoint.tensor(role)?;
        }
        checkpoint.fingerprint = checkpoint.compute_fingerprint()?;
        Ok(checkpoint)
    }

    /// The validated configuration.
    #[must_use]
    pub fn config(&self) -> &ModelConfig {
        &self.config
    }

    /// The tensor that plays `role`. For a model with tied embeddings the head is the embedding.
    ///
    /// # Errors
    /// When the model has no such tensor, or its shape is not what the configuration asks for.
    pub fn tensor(&self, role: Role) -> Result<Tensor<'_>> {
        let stored = if role == Role::Head && self.config.tied_embeddings { Role::Embedding } else { role };
        let name = self.source.name_of(stored);
        let tensor = self.source.tensor(&name)?;
        let (rows, cols) = stored.shape(&self.config);
        if (tensor.rows, tensor.cols) != (rows, cols) {
            let what = format!(
                "has shape {} x {} but the configuration asks for {rows} x {cols}; the file's parts do not belong together",
                tensor.rows, tensor.cols
            );
            return Err(CheckpointError::bad_tensor(name, what));
        }
        Ok(tensor)
    }

    /// A short hash over configuration, tensor names and sizes, and samples of the weights: equal for equal models.
    /// It tells models apart; it does not prove integrity.
    #[must_use]
    pub fn fingerprint(&self) -> &str {
        &self.fingerprint
    }

    /// The model's name: that of a known model by its file, else the file's without its extension, or the directory's.
    #[must_use]
    pub fn name(&self) -> String {
        let file = self.path.file_name().map(|name| name.to_string_lossy());
        let known = KNOWN.iter().find(|known| file.as_deref() == Some(known.published_as));
        if let Some(known) = known {
            return known.name.to_owned();
        }
        let name = if self.path.is_dir() { self.path.file_name() } else { self.path.file_stem() };
        name.map_or_else(|| "model".to_owned(), |n| n.to_string_lossy().into_owned())
    }

    /// Bytes of all weight files together.
    #[must_use]
    pub fn size_bytes(&self) -> u64 {
        self.source.size_bytes()
    }

    /// Bytes and last writing of each weight file that was opened, in a fixed order: another file under the same
    /// name is noticed by them.
    #[must_use]
    pub fn stamps(&self) -> Vec<(u64, Option<SystemTime>)> {
        self.source.stamps()
    }

    /// The metadata of a GGUF file, which also holds vocabulary and chat template; `None` for a directory.
    #[must_use]
    pub fn gguf_metadata(&self) -> Option<&gguf::Metadata> {
        self.source.gguf_metadata()
    }

    /// The directory the model's files lie in.
    #[must_use]
    pub fn dir(&self) -> &Path {
        if self.path.is_dir() { &self.path } else { self.path.parent().unwrap_or(Path::new("")) }
    }

    /// The path this model was opened from.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    fn compute_fingerprint(&self) -> Result<String> {
        const SAMPLE: usize = 64;
        let mut hash = Sha256::new();
        // Debug output covers every field, so a new field can't be forgotten here.
        hash.update(format!("{:?}", self.config));
        hash.update([u8::from(self.config.rope_layout == RopeLayout::Interleaved)]);
        for role in Role::all(&self.config) {
            let tensor = self.tensor(role)?;
            hash.update(format!(
                "\n{} {} {} {}\n",
                tensor.name,
                tensor.rows,
                tensor.cols,
                tensor.dtype.name()
            ));
            let data = tensor.data;
            for start in [0, data.len() / 3, data.len() / 2, data.len().saturating_sub(SAMPLE)] {
                hash.update(&data[start..data.len().min(start + SAMPLE)]);
            }
        }
        Ok(hash.finalize().iter().take(8).map(|byte| format!("{byte:02x}")).collect())
    }
}
