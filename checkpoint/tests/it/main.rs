//! One binary of integration tests: everything through the public API, on real files in temporary directories.

mod golden;
mod huggingface;
mod open;
mod vocabulary_file;
