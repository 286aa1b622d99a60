//! Model files: find them, fetch them, read GGUF and safetensors, and say what their weights mean.
//!
//! The rule of this crate: a model file is untrusted input. Malformed bytes give an error that names the place, never a
//! panic, a hang, or an allocation larger than the file could justify.

pub mod chat_template;
pub mod config;
pub mod error;
#[cfg(feature = "fixture")]
pub mod fixture;
pub mod gguf;
pub mod locate;
pub mod mapped;
pub mod model;
pub mod pull;
pub mod quant;
pub mod safetensors;
pub mod tensor;
pub mod tokenizer;

pub use chat_template::{ChatInput, ChatTemplate, RenderedPrompt, TemplateError};
pub use config::{Family, ModelConfig, RopeLayout, RopeScaling};
pub use error::{CheckpointError, Result};
pub use gguf::Gguf;
pub use model::{Checkpoint, Role};
pub use tensor::{Dtype, Tensor};
pub use tokenizer::{Tokenizer, TokenizerError};
