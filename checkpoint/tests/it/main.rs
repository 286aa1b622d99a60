//! Integration tests of the checkpoint crate.

mod golden;
mod huggingface;
mod vocabulary_file;
