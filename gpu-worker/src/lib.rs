//! The brain: it owns one device and turns token ids into token ids.
//!
//! The rule: no text, no tenant's key, no HTTP. One engine thread plans, submits, collects and commits; nothing
//! on it takes a lock.

pub mod backend;
pub mod calibrate;
pub mod clock;
pub mod config;
pub mod engine;
pub mod executor;
pub mod grammar;
pub mod kv;
pub mod link;
pub mod memory;
pub mod metrics;
pub mod model;
pub mod packed;
pub mod placement;
pub mod scheduler;
pub mod sequence;
pub mod sizing;
pub mod tiles;
pub mod vocabulary;
pub mod worker;
