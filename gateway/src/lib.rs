//! The gateway: OpenAI HTTP surface, text, tenants, durable state, supervisor, command line.
//!
//! The rule it keeps: text exists only here, and everything that waits, buffers or loops has a bound.

pub mod app;
pub mod brain;
pub mod brains;
pub mod cli;
pub mod config;
pub mod error;
mod exchange;
mod handler;
pub mod layer;
pub mod openai;
pub mod reply_body;
pub mod routes;
pub mod server;
pub mod shutdown;
pub mod stack;
pub mod store;
pub mod supervisor;
pub mod telemetry;
pub mod text;
pub mod tune;
