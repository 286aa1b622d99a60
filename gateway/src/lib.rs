//! The gateway: OpenAI HTTP surface, text, tenants, durable state, supervisor, command line.
//!
//! The rule it keeps: text exists only here, and everything that waits, buffers or loops has a bound.

pub mod app;
pub mod brain;
pub mod brains;
pub mod cli;
pub mod config;
pub mod error;
pub mod openai;
pub mod text;
