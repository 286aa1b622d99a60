//! The gateway.

pub mod error;
pub mod text;
