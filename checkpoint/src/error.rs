//! The one error type of this crate; every message names the thing, its value, and what to do about it.

use std::path::PathBuf;

/// Why a model could not be found, fetched, read, or understood.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CheckpointError {
    /// A file or folder could not be read or written.
    #[error("cannot {action} {}: {source}", path.display())]
    Io {
        /// What was being done, as a verb phrase ("open", "read").
        action: &'static str,
        /// The file or folder.
        path: PathBuf,
        /// What the operating system said.
        source: std::io::Error,
    },
    /// The bytes are not a well-formed GGUF file.
    #[error("malformed gguf file: {what} at byte {offset}; fetch the file again or convert the model anew")]
    Gguf {
        /// What is wrong.
        what: String,
        /// Where, as a byte offset into the file.
        offset: usize,
    },
    /// The bytes are not a well-formed safetensors file or index.
    #[error("malformed safetensors data in {file}: {what}; fetch the file again or convert the model anew")]
    Safetensors {
        /// The file's name.
        file: String,
        /// What is wrong.
        what: String,
    },
    /// A configuration field is missing, out of range, or asks for something this build cannot do.
    #[error("model config field `{field}` is {value}: {remedy}")]
    Config {
        /// The field as the model's file spells it.
        field: String,
        /// What was found there ("missing" where nothing was).
        value: String,
        /// What would be accepted.
        remedy: String,
    },
    /// A tensor the model needs is absent.
    #[error("tensor `{name}` is missing from the model; the file is incomplete or of another architecture")]
    MissingTensor {
        /// The name looked for.
        name: String,
    },
    /// A tensor exists but cannot be used.
    #[error("tensor `{name}`: {what}")]
    BadTensor {
        /// The tensor's name.
        name: String,
        /// What is wrong and what was expected.
        what: String,
    },
    /// A model argument names nothing that exists.
    #[error("{0}")]
    NotFound(String),
    /// A known model could not be fetched.
    #[error("cannot fetch model `{model}`: {what}")]
    Pull {
        /// The model's name.
        model: String,
        /// What went wrong and what to do.
        what: String,
    },
}

/// The result of everything in this crate that reads model files.
pub type Result<T> = std::result::Result<T, CheckpointError>;

impl CheckpointError {
    pub(crate) fn io(action: &'static str, path: &std::path::Path, source: std::io::Error) -> Self {
        Self::Io { action, path: path.to_path_buf(), source }
    }

    pub(crate) fn config(field: impl Into<String>, value: impl ToString, remedy: impl Into<String>) -> Self {
        Self::Config { field: field.into(), value: value.to_string(), remedy: remedy.into() }
    }

    pub(crate) fn bad_tensor(name: impl Into<String>, what: impl Into<String>) -> Self {
        Self::BadTensor { name: name.into(), what: what.into() }
    }
}
