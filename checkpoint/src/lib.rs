//! Model files: tokenizer and chat template. Nothing here speaks to a network or a device.

pub mod chat_template;
pub mod tokenizer;
