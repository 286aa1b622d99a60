//! What can go wrong with the durable state. The rule: every message says which file or field, and what to do.

use std::path::PathBuf;

/// A fault of the store.
#[derive(Clone, Debug, thiserror::Error)]
pub enum StoreError {
    /// Another process has it open.
    #[error(
        "state directory {dir} is in use by another pons process; stop that one or choose another --state-dir"
    )]
    InUse {
        /// The state directory.
        dir: PathBuf,
    },
    /// Written by a newer build.
    #[error(
        "state in {dir} has schema version {found}, this build knows up to {known}; run the newer pons or choose another --state-dir"
    )]
    NewerSchema {
        /// The state directory.
        dir: PathBuf,
        /// Version found.
        found: u32,
        /// Newest version known here.
        known: u32,
    },
    /// A file operation failed.
    #[error("{path}: {reason}; check that the state directory exists and is writable")]
    Io {
        /// File or directory.
        path: PathBuf,
        /// The system's reason.
        reason: String,
    },
    /// The database refused an operation.
    #[error("state database: {0}")]
    Database(String),
    /// A stored value can't be read.
    #[error(
        "state database: {table} holds a value that can't be read: {reason}; restore the file from a backup"
    )]
    Corrupt {
        /// Table.
        table: &'static str,
        /// What is wrong.
        reason: String,
    },
    /// A name that can't be used.
    #[error("tenant name {name:?} must have 1 to 64 characters out of a-z A-Z 0-9 . _ -")]
    BadTenantName {
        /// Name given.
        name: String,
    },
    /// No such key.
    #[error("no key has the id {id:?}; see pons key list")]
    NoSuchKey {
        /// Id given.
        id: String,
    },
    /// The writer thread has ended.
    #[error("the state database is closed; the server is shutting down")]
    Closed,
}

impl StoreError {
    /// Wraps any of the database's own error types.
    pub(crate) fn database(error: impl std::fmt::Display) -> Self {
        Self::Database(error.to_string())
    }
}
