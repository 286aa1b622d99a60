//! Integration tests of the checkpoint crate.

mod golden;
mod vocabulary_file;
