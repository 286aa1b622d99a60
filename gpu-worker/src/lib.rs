//! The brain: it owns one device and turns token ids into token ids.
//!
//! The rule: no text, no tenant's key, no HTTP. One engine thread plans, submits, collects and commits; nothing
//! on it takes a lock.

pub mod backend;
pub mod engine;
pub mod executor;
pub mod grammar;
pub mod kv;
pub mod model;
pub mod scheduler;
pub mod sequence;
