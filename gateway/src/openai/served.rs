//! What a request is read against: the served model, its limits, and what the caller drew for this request.
//!
//! The rule: everything here is given from outside, so the same request prepares to the same result every time.

use std::sync::Arc;

use pons_checkpoint::chat_template::ChatTemplate;
use pons_checkpoint::tokenizer::Tokenizer;

/// A model as the OpenAI surface knows it.
#[derive(Debug)]
pub struct ServedModel {
    /// Name under which clients ask for it.
    pub name: String,
    /// Text to ids and back.
    pub tokenizer: Arc<Tokenizer>,
    /// Conversation to text.
    pub template: Arc<ChatTemplate>,
    /// Most tokens of prompt and output together.
    pub context_tokens: u32,
    /// Size of the output layer; every token id is below it.
    pub vocab_size: u32,
    /// Tokens that end a sequence.
    pub eos: Vec<u32>,
    /// Becomes `system_fingerprint`.
    pub fingerprint: String,
    /// Unix time of the model's creation, in seconds.
    pub created: u64,
    /// What one request may ask for.
    pub limits: RequestLimits,
}

/// Bounds of one request beyond those of the model.
#[derive(Clone, Debug)]
pub struct RequestLimits {
    /// Most prompt tokens; `None` leaves it to the context.
    pub max_prompt_tokens: Option<u32>,
    /// Most output tokens of a sequence; `None` leaves it to the context. It also bounds an absent `max_tokens`.
    pub max_output_tokens: Option<u32>,
    /// Most sequences one request may start: prompts times candidates.
    pub max_sequences: usize,
}

impl Default for RequestLimits {
    fn default() -> Self {
        Self { max_prompt_tokens: None, max_output_tokens: None, max_sequences: 1024 }
    }
}
