//! One binary of integration tests: everything through the public API, on real files in temporary directories.
// A failed unwrap is how a test fails; the lint only sees that in functions marked as tests, not in what they share.
#![allow(clippy::unwrap_used)]

mod fixture;
mod gguf;
mod golden;
mod huggingface;
mod open;
mod text_of_models;
mod vocabulary_file;
