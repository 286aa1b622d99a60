//! What can go wrong while a tokenizer is built. Encoding and decoding themselves can't fail.

use std::path::PathBuf;

/// A tokenizer that can't be used, and why.
#[derive(Debug, thiserror::Error)]
pub enum TokenizerError {
    /// The file could not be read.
    #[error("tokenizer file {path}: {source}; check that the file exists and can be read")]
    Read {
        /// The file asked for.
        path: PathBuf,
        /// The system's answer.
        source: std::io::Error,
    },
    /// The file is larger than any tokenizer we know of.
    #[error(
        "tokenizer file {path} has {size_bytes} bytes, more than the limit of {limit_bytes}; is it a tokenizer.json?"
    )]
    TooLarge {
        /// The file asked for.
        path: PathBuf,
        /// Its size.
        size_bytes: u64,
        /// The most we read.
        limit_bytes: u64,
    },
    /// The file isn't the JSON we expect.
    #[error("tokenizer.json: {0}; export the tokenizer again with save_pretrained")]
    Json(#[from] serde_json::Error),
    /// The vocabulary is of a kind we don't read.
    #[error("{field} is {value:?}, which isn't supported; supported: {supported}")]
    Unsupported {
        /// The field of the model file.
        field: &'static str,
        /// What it says.
        value: String,
        /// What would work.
        supported: String,
    },
    /// The vocabulary contradicts itself.
    #[error("{field}: {reason}")]
    Invalid {
        /// The field of the model file.
        field: &'static str,
        /// What is wrong with it and what would be right.
        reason: String,
    },
}

impl TokenizerError {
    /// A contradiction in `field`.
    pub(crate) fn invalid(field: &'static str, reason: impl Into<String>) -> Self {
        Self::Invalid { field, reason: reason.into() }
    }
}
