//! Integration tests of the brain. One binary, so that the crate is linked once.

mod brain;
mod client;
mod drive;
mod golden;
mod local;
mod packed;
mod reference;
mod tiles;
mod tiny;
mod worker;
