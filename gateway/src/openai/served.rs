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

/// What the caller draws for each request, since nothing here reads a clock or a random number.
#[derive(Clone, Debug)]
pub struct RequestContext {
    /// Random characters; the reply's id is `chatcmpl-` or `cmpl-` and these.
    pub id: String,
    /// Unix time of the request in seconds.
    pub created: u64,
    /// Seed when the client sent none; ids of tool calls derive from it as well.
    pub entropy: u64,
}

/// Characters of ids.
const ID_LETTERS: &[u8; 62] = b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";

impl RequestContext {
    /// Id of a tool call, different for each call of each choice.
    pub(crate) fn call_id(&self, choice: usize, call: usize) -> String {
        let mut state =
            self.entropy ^ ((choice as u64) << 32 | call as u64).wrapping_mul(0xD6E8_FEB8_6659_FD93);
        let mut id = String::with_capacity(29);
        id.push_str("call_");
        for _ in 0..24 {
            id.push(char::from(ID_LETTERS[(split_mix(&mut state) % 62) as usize]));
        }
        id
    }
}

/// SplitMix64 (Steele, Lea and Flood, 2014).
fn split_mix(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9E37_79B9_7F4A_7C15);
    let mut z = *state;
    z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}
