//! A step as plain data: which sequences, which tokens, which blocks.
//!
//! The rule: a plan is complete. The executor needs nothing but the plan and what earlier plans told it about
//! a slot, so a recorded list of plans replays a run.

use std::sync::Arc;

use pons_protocol::id::TokenId;
use pons_protocol::sampling::{SamplingParams, StopParams};

use crate::grammar::GrammarMatcher;

/// Index of a KV block in the arena; never an address.
pub type BlockId = u32;

/// Index of a sequence's state in the executor (sampler counts, grammar). Reused after release.
pub type SlotId = u32;

/// One engine step.
pub struct StepPlan {
    /// Rising number.
    pub step: u64,
    /// Slots whose sequence is gone; handled before `admitted`.
    pub released: Vec<SlotId>,
    /// Sequences that appear for the first time, or again after a preemption.
    pub admitted: Vec<NewSequence>,
    /// Work, decodes first. One slot appears at most once.
    pub items: Vec<PlanItem>,
}

/// State the executor keeps for a slot.
pub struct NewSequence {
    /// Its slot.
    pub slot: SlotId,
    /// How tokens are chosen.
    pub sampling: Arc<SamplingParams>,
    /// What ends it (here only for the masks of `min_tokens`).
    pub stop: Arc<StopParams>,
    /// Model end tokens and stop token ids, masked until `min_tokens` exist.
    pub end_tokens: Arc<[TokenId]>,
    /// Prompt, for the repetition penalty.
    pub prompt: Arc<[TokenId]>,
    /// Output so far (an earlier run, or before a preemption).
    pub generated: Vec<TokenId>,
    /// Compiled grammar in its initial state; the executor advances it over `generated`.
    pub grammar: Option<GrammarMatcher>,
}

/// Tokens of one sequence that this step computes.
pub struct PlanItem {
    /// Whose.
    pub slot: SlotId,
    /// Tokens to compute; never empty.
    pub tokens: Vec<TokenId>,
    /// Position of the first of them in the sequence.
    pub start: u32,
    /// Blocks of the sequence from position 0 on, covering `start + tokens.len()` positions.
    pub blocks: Vec<BlockId>,
    /// Output position to sample after the last token; none for a prefill chunk that is not the last.
    pub sample: Option<u32>,
    /// Report log probabilities of the prompt tokens that follow each computed token: alternatives wanted, and
    /// the token that follows the last computed one (none at the end of the prompt).
    pub prompt_logprobs: Option<PromptLogprobs>,
}

/// Log probabilities asked for inside the prompt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PromptLogprobs {
    /// Alternatives at each position.
    pub top: u32,
    /// Prompt token after the chunk, if there is one.
    pub next: Option<TokenId>,
}
