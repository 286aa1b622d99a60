//! Inference messages: what the gateway asks of a brain and what the brain answers.
//!
//! The rule: a [`Submit`] holds all that is needed to start a sequence *or to go on with it* on another brain
//! (prompt, tokens generated so far, parameters, seed), so a brain's death costs time, never text.

use crate::capacity::Capacity;
use crate::id::{SequenceId, TenantId, TokenId};
use crate::sampling::{Grammar, SamplingParams, StopParams};

/// Gateway to brain.
#[derive(Clone, Debug, PartialEq)]
pub enum ToBrain {
    /// First message on a link.
    Hello(ClientHello),
    /// Start or continue sequences. Those that arrive together travel together.
    Submit(Vec<Submit>),
    /// Forget sequences: free their blocks within two engine steps, send nothing more for them.
    Abort(Vec<SequenceId>),
    /// Finish what runs, accept nothing new, then close the link.
    Drain,
}

/// Brain to gateway.
#[derive(Clone, Debug, PartialEq)]
pub enum FromBrain {
    /// Answer to [`ToBrain::Hello`]: what is served and within which limits.
    Hello(BrainHello),
    /// Sequences that passed every check (grammar compiled, room in the queue). Sent before their first output,
    /// so that errors can still carry an HTTP status.
    Accepted(Vec<SequenceId>),
    /// One sequence was refused; nothing more follows for it.
    Rejected(Rejection),
    /// What one engine step produced, for all sequences at once.
    Step(StepOutput),
    /// Sent at least every second, also when idle.
    Heartbeat(Capacity),
}

/// First message of the gateway.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClientHello {
    /// Must equal [`crate::PROTOCOL_VERSION`].
    pub protocol_version: u32,
    /// Build of the sender, for the log.
    pub software: String,
}

/// What a brain measured of its device at start.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Calibration {
    /// Prompt tokens computed in a second.
    pub prefill_tokens_per_s: u32,
    /// Duration of a decode step of one row, in microseconds.
    pub decode_us_1: u64,
    /// Of eight rows.
    pub decode_us_8: u64,
    /// Of 32 rows.
    pub decode_us_32: u64,
}

/// First message of the brain.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BrainHello {
    /// Must equal [`crate::PROTOCOL_VERSION`].
    pub protocol_version: u32,
    /// Build of the sender, for the log.
    pub software: String,
    /// Name under which the model is served.
    pub model: String,
    /// Short hash of weights, configuration and numeric path; it becomes `system_fingerprint`.
    pub fingerprint: String,
    /// Size of the output layer; every token id is below it.
    pub vocab_size: u32,
    /// Most tokens of prompt and output together.
    pub context_tokens: u32,
    /// Tokens that end a sequence.
    pub eos_token_ids: Vec<TokenId>,
    /// Most sequences that run at the same time.
    pub max_sequences: u32,
    /// Most sequences that may wait.
    pub max_waiting: u32,
    /// Most prompt tokens that may wait.
    pub max_waiting_tokens: u64,
    /// Tokens of one KV block.
    pub block_tokens: u32,
    /// Number of KV blocks.
    pub blocks_total: u32,
    /// Most tokens of one engine step.
    pub step_tokens: u32,
    /// What the limits were computed from; none where nothing was measured.
    pub calibration: Option<Calibration>,
}

/// Start or continue one sequence.
#[derive(Clone, Debug, PartialEq)]
pub struct Submit {
    /// Chosen by the gateway.
    pub sequence: SequenceId,
    /// For fairness, quotas and, through `cache_salt`, isolation.
    pub tenant: TenantId,
    /// Secret part of the prefix-cache key, set by the gateway from the authenticated tenant; sequences share
    /// cached blocks only if it is equal.
    pub cache_salt: [u8; 16],
    /// Lower runs first.
    pub priority: i32,
    /// Prompt. Never empty.
    pub prompt: Vec<TokenId>,
    /// Output of an earlier run of this sequence, which this one goes on from.
    pub generated: Vec<TokenId>,
    /// How tokens are chosen.
    pub sampling: SamplingParams,
    /// When it ends.
    pub stop: StopParams,
    /// What the output is held to.
    pub grammar: Option<Grammar>,
    /// Milliseconds from receipt after which it is not worth starting; 0 is none.
    pub queue_timeout_ms: u32,
}

/// Why a sequence was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum RejectReason {
    /// Too many sequences or prompt tokens wait.
    QueueFull,
    /// Prompt and output can't fit the context or the whole KV cache.
    TooLong,
    /// The grammar doesn't compile within its bounds.
    BadGrammar,
    /// A parameter is out of range.
    BadParameter,
    /// The brain is draining.
    Draining,
    /// It waited longer than `queue_timeout_ms`.
    QueueTimeout,
}

/// A refused sequence.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rejection {
    /// Which one.
    pub sequence: SequenceId,
    /// The class, which decides the HTTP status.
    pub reason: RejectReason,
    /// The field, the value and the remedy.
    pub message: String,
}

/// What one engine step produced.
#[derive(Clone, Debug, PartialEq)]
pub struct StepOutput {
    /// Number of the step, rising.
    pub step: u64,
    /// One entry for each sequence that got tokens or ended.
    pub outputs: Vec<SequenceOutput>,
    /// State after the step.
    pub capacity: Capacity,
}

/// New tokens of one sequence.
#[derive(Clone, Debug, PartialEq)]
pub struct SequenceOutput {
    /// Which one.
    pub sequence: SequenceId,
    /// Output position of the first token of `tokens`; tokens of an earlier run count.
    pub position: u32,
    /// New tokens, the end token included when it was sampled.
    pub tokens: Vec<TokenId>,
    /// As in [`Finish::cached_tokens`], already known now: who leaves early is to be charged by it too.
    pub cached_tokens: u32,
    /// One entry for each of `tokens` if log probabilities were asked for, else empty.
    pub logprobs: Vec<TokenLogprobs>,
    /// With the first output only, if asked for: one entry for each prompt token; the first is empty.
    pub prompt_logprobs: Vec<TokenLogprobs>,
    /// Set with the last output.
    pub finish: Option<Finish>,
}

/// Log probabilities at one position, from the raw distribution.
#[derive(Clone, Debug, PartialEq, Default)]
pub struct TokenLogprobs {
    /// Of the token itself; NaN for the first token of a prompt, which has none.
    pub logprob: f32,
    /// The best alternatives, best first, ties by lower id.
    pub top: Vec<(TokenId, f32)>,
}

/// Why a sequence ended, and what it took.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finish {
    /// Why.
    pub reason: FinishReason,
    /// Prompt tokens.
    pub prompt_tokens: u32,
    /// Prompt tokens found in the prefix cache when it was first admitted.
    pub cached_tokens: u32,
    /// Tokens generated, the end token and those of an earlier run included.
    pub output_tokens: u32,
    /// Microseconds from receipt to the first step.
    pub queue_us: u64,
    /// Microseconds from the first step to the first token.
    pub prefill_us: u64,
    /// Microseconds from the first token to the last.
    pub decode_us: u64,
    /// How often it was preempted.
    pub preemptions: u32,
}

/// Why a sequence ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum FinishReason {
    /// A model end token.
    Eos,
    /// One of `stop_token_ids`; it is the last token.
    StopToken(TokenId),
    /// `max_tokens` or the context.
    Length,
    /// The grammar is complete and allows nothing more.
    GrammarEnd,
    /// The computation failed for this sequence alone.
    Failed,
}
