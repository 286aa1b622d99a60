//! Integration tests of the brain. One binary, so that the crate is linked once.

mod drive;
mod golden;
mod local;
mod reference;
mod tiny;
