//! One sequence as the scheduler knows it: tokens, blocks, progress, times.
//!
//! The rule: a sequence is its tokens. Everything else (blocks, slot, progress) can be dropped at any moment and
//! computed again, and the tokens that come out are the same.

use std::borrow::Cow;
use std::ops::Range;
use std::sync::Arc;

use pons_protocol::id::{SequenceId, TenantId, TokenId};
use pons_protocol::inference::{Finish, FinishReason, Submit, TokenLogprobs};
use pons_protocol::sampling::{SamplingParams, StopParams};

use crate::executor::SlotId;
use crate::grammar::GrammarMatcher;
use crate::kv::{BLOCK_TOKENS, BlockTable, ChainHash};

/// Place in the order of arrival; names a sequence inside the scheduler, where ids may come again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Arrival(pub u64);

/// A live sequence.
pub struct Sequence {
    pub(crate) id: SequenceId,
    pub(crate) arrival: Arrival,
    pub(crate) tenant: TenantId,
    pub(crate) salt: [u8; 16],
    pub(crate) priority: i32,
    pub(crate) prompt: Arc<[TokenId]>,
    pub(crate) generated: Vec<TokenId>,
    pub(crate) sampling: Arc<SamplingParams>,
    pub(crate) stop: Arc<StopParams>,
    /// Tokens masked until `min_tokens` exist: stop tokens and, unless ignored, the model's end tokens.
    pub(crate) end_tokens: Arc<[TokenId]>,
    pub(crate) grammar: Option<GrammarMatcher>,
    pub(crate) progress: Progress,
    pub(crate) times: Times,
    /// Entries for prompt tokens collected so far; the first of them has none.
    pub(crate) prompt_logprobs: Vec<TokenLogprobs>,
    /// Prompt tokens found in the cache at the first admission.
    pub(crate) cached_tokens: u32,
    pub(crate) preemptions: u32,
}

/// What is computed and where it lies. Reset by a preemption, apart from the hashes.
#[derive(Debug, Default)]
pub(crate) struct Progress {
    /// Slot while it runs.
    pub(crate) slot: Option<SlotId>,
    /// The executor has not heard of the slot's sequence yet.
    pub(crate) fresh: bool,
    /// Blocks.
    pub(crate) table: BlockTable,
    /// Leading tokens whose KV is in the blocks.
    pub(crate) computed: u32,
    /// Tokens of the step being planned.
    pub(crate) chunk: u32,
    /// Leading blocks that can be found through the index.
    pub(crate) indexed: usize,
    /// Leading blocks that came from the cache at the last admission.
    pub(crate) hits: usize,
    /// The chain of indexed blocks is broken; later ones can't be indexed.
    pub(crate) unindexable: bool,
    /// Blocks announced as being computed right now.
    pub(crate) announced: Range<usize>,
    /// Chain hashes of the full blocks.
    pub(crate) hashes: Vec<ChainHash>,
}

/// Moments in microseconds of the caller's clock.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Times {
    pub(crate) received_us: u64,
    /// Moment after which it isn't worth starting.
    pub(crate) start_by_us: Option<u64>,
    pub(crate) first_step_us: Option<u64>,
    pub(crate) first_token_us: Option<u64>,
    pub(crate) last_token_us: Option<u64>,
}

impl Sequence {
    /// A sequence that has just arrived.
    pub fn new(
        submit: Submit,
        grammar: Option<GrammarMatcher>,
        eos: &[TokenId],
        arrival: Arrival,
        now_us: u64,
    ) -> Self {
        let mut end_tokens = submit.stop.stop_token_ids.clone();
        if !submit.stop.ignore_eos {
            end_tokens.extend_from_slice(eos);
        }
        end_tokens.sort_unstable();
        end_tokens.dedup();
        let timeout_us = u64::from(submit.queue_timeout_ms) * 1000;
        Self {
            id: submit.sequence,
            arrival,
            tenant: submit.tenant,
            salt: submit.cache_salt,
            priority: submit.priority,
            prompt: submit.prompt.into(),
            generated: submit.generated,
            sampling: Arc::new(submit.sampling),
            stop: Arc::new(submit.stop),
            end_tokens: end_tokens.into(),
            grammar,
            progress: Progress::default(),
            times: Times {
                received_us: now_us,
                start_by_us: (timeout_us > 0).then(|| now_us.saturating_add(timeout_us)),
                ..Times::default()
            },
            prompt_logprobs: Vec::new(),
            cached_tokens: 0,
            preemptions: 0,
        }
    }

    /// Tokens of the prompt.
    pub fn prompt_tokens(&self) -> u32 {
        count(self.prompt.len())
    }

    /// Tokens generated, those of an earlier run included.
    pub fn output_tokens(&self) -> u32 {
        count(self.generated.len())
    }

    /// All tokens there are.
    pub fn total_tokens(&self) -> u32 {
        self.prompt_tokens() + self.output_tokens()
    }

    /// Tokens whose KV is still to be computed.
    pub fn remaining(&self) -> u32 {
        self.total_tokens() - self.progress.computed
    }

    /// Whether only the newest output token is left to compute.
    pub fn is_decoding(&self) -> bool {
        self.remaining() == 1 && !self.generated.is_empty()
    }

    /// Whether another token is wanted after those there are.
    pub fn wants_token(&self) -> bool {
        self.output_tokens() < self.stop.max_tokens
    }

    /// Whether log probabilities of prompt tokens are still to be computed; an earlier run has delivered them with
    /// its first token. All positions must be computed for them, so the cache is of no use.
    pub fn owes_prompt_logprobs(&self) -> bool {
        self.sampling.prompt_logprobs.is_some()
            && self.generated.is_empty()
            && self.prompt_logprobs.len() < self.prompt.len()
    }

    /// The tokens at positions `range`.
    pub fn tokens(&self, range: Range<u32>) -> Vec<TokenId> {
        range.filter_map(|position| self.token_at(position)).collect()
    }

    /// The token at a position, if it exists.
    pub fn token_at(&self, position: u32) -> Option<TokenId> {
        let position = position as usize;
        let prompt = self.prompt.len();
        if position < prompt {
            self.prompt.get(position).copied()
        } else {
            self.generated.get(position - prompt).copied()
        }
    }

    /// The tokens of block `index`.
    pub fn block_tokens(&self, index: usize) -> Cow<'_, [TokenId]> {
        let size = BLOCK_TOKENS as usize;
        if let Some(tokens) = self.prompt.get(index * size..(index + 1) * size) {
            return Cow::Borrowed(tokens);
        }
        let start = count(index) * BLOCK_TOKENS;
        Cow::Owned(self.tokens(start..start + BLOCK_TOKENS))
    }

    /// Why the output is at its end, judged by its tokens alone.
    pub fn end_by_tokens(&self, eos: &[TokenId], capacity_tokens: u32) -> Option<FinishReason> {
        let last = *self.generated.last()?;
        if !self.stop.ignore_eos && eos.contains(&last) {
            return Some(FinishReason::Eos);
        }
        if self.stop.stop_token_ids.contains(&last) {
            return Some(FinishReason::StopToken(last));
        }
        let full = !self.wants_token() || self.total_tokens() >= capacity_tokens;
        full.then_some(FinishReason::Length)
    }

    /// The record of its end.
    pub fn finish(&self, reason: FinishReason, now_us: u64) -> Finish {
        let times = &self.times;
        let first_step_us = times.first_step_us.unwrap_or(now_us);
        let first_token_us = times.first_token_us.unwrap_or(now_us);
        let last_token_us = times.last_token_us.unwrap_or(first_token_us);
        Finish {
            reason,
            prompt_tokens: self.prompt_tokens(),
            cached_tokens: self.cached_tokens,
            output_tokens: self.output_tokens(),
            queue_us: first_step_us.saturating_sub(times.received_us),
            prefill_us: first_token_us.saturating_sub(first_step_us),
            decode_us: last_token_us.saturating_sub(first_token_us),
            preemptions: self.preemptions,
        }
    }
}

fn count(length: usize) -> u32 {
    u32::try_from(length).expect("a sequence is bounded by the context, which is a u32")
}
