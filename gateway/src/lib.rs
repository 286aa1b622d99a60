//! The gateway.

pub mod error;
pub mod openai;
pub mod text;
