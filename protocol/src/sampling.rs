//! How the next token is chosen, and what ends a sequence.
//!
//! The rule: everything a sampled token may depend on, apart from the logits, is in here or is the output
//! position, so that a sequence can be continued elsewhere with the same result.

use crate::id::TokenId;

/// Most alternatives that may be asked for at one position.
pub const MAX_TOP_LOGPROBS: u32 = 20;
/// Most entries of a logit bias table.
pub const MAX_LOGIT_BIAS: usize = 1024;
/// Most stop token ids of one sequence, the model's own end tokens apart.
pub const MAX_STOP_TOKEN_IDS: usize = 64;

/// Sampling parameters of one sequence. Defaults leave the model's distribution as it is.
#[derive(Clone, Debug, PartialEq)]
pub struct SamplingParams {
    /// 0 is greedy.
    pub temperature: f32,
    /// Nucleus mass in (0, 1]; 1 is off.
    pub top_p: f32,
    /// 0 is off.
    pub top_k: u32,
    /// Share of the best token's probability below which a token is dropped; 0 is off.
    pub min_p: f32,
    /// Divides (or multiplies) the logits of every token seen in prompt or output; 1 is off.
    pub repetition_penalty: f32,
    /// Subtracted once for each token that the output holds already.
    pub presence_penalty: f32,
    /// Subtracted for each occurrence in the output.
    pub frequency_penalty: f32,
    /// Seed of the counter-based generator. The gateway always sets it, from entropy when the client did not.
    pub seed: u64,
    /// Index of the choice inside its request; it is part of the random stream.
    pub choice: u32,
    /// Added to single logits before everything else; ids are within the vocabulary.
    pub logit_bias: Vec<(TokenId, f32)>,
    /// When not empty, only these ids may be sampled (end tokens included only if listed).
    pub allowed_token_ids: Vec<TokenId>,
    /// `Some(k)`: report the sampled token's log probability and the `k` best alternatives.
    pub logprobs: Option<u32>,
    /// `Some(k)`: report log probabilities of the prompt's tokens, with `k` alternatives each.
    pub prompt_logprobs: Option<u32>,
}

impl Default for SamplingParams {
    fn default() -> Self {
        Self {
            temperature: 1.0,
            top_p: 1.0,
            top_k: 0,
            min_p: 0.0,
            repetition_penalty: 1.0,
            presence_penalty: 0.0,
            frequency_penalty: 0.0,
            seed: 0,
            choice: 0,
            logit_bias: Vec::new(),
            allowed_token_ids: Vec::new(),
            logprobs: None,
            prompt_logprobs: None,
        }
    }
}

/// When a sequence ends.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct StopParams {
    /// Most tokens to generate, those of an earlier run included. 0 computes the prompt only.
    pub max_tokens: u32,
    /// End and stop tokens are masked until this many tokens exist.
    pub min_tokens: u32,
    /// Go on past the model's end tokens; they are then ordinary tokens. Stop token ids still end it.
    pub ignore_eos: bool,
    /// Further tokens that end the sequence.
    pub stop_token_ids: Vec<TokenId>,
}

/// Language the output is held to, compiled by the brain before the sequence is accepted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Grammar {
    /// A JSON Schema, as JSON text.
    JsonSchema(String),
    /// A regular expression that the whole output matches.
    Regex(String),
    /// A context-free grammar in Lark syntax, as `llguidance` defines it.
    Lark(String),
}

impl Grammar {
    /// Bytes of its text.
    pub fn text_bytes(&self) -> usize {
        match self {
            Grammar::JsonSchema(text) | Grammar::Regex(text) | Grammar::Lark(text) => text.len(),
        }
    }
}
