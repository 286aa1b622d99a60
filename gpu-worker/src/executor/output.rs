//! What a step produced. The rule: one entry for each plan item, in plan order, and a fault stays in its row.

use std::time::Duration;

use pons_protocol::id::TokenId;
use pons_protocol::inference::TokenLogprobs;

/// Result of a step.
#[derive(Clone, Debug, Default)]
pub struct StepResult {
    /// One row for each plan item, in order.
    pub rows: Vec<RowOutput>,
    /// Where its time went.
    pub times: StepTimes,
}

/// Where an executor's time went. Nothing that is computed depends on it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StepTimes {
    /// Checking the plan and building the batch.
    pub build: Duration,
    /// The model itself, the output layer included.
    pub forward: Duration,
    /// Waiting for grammar masks that were not ready when the model was.
    pub masks: Duration,
    /// From logits to tokens.
    pub sample: Duration,
}

/// Result of one plan item.
#[derive(Clone, Debug, Default)]
pub struct RowOutput {
    /// The sampled token, if the item asked for one and its computation succeeded.
    pub token: Option<TokenId>,
    /// Its log probabilities, if asked for.
    pub logprobs: Option<TokenLogprobs>,
    /// Log probabilities of the prompt tokens after each computed token, if asked for.
    pub prompt_logprobs: Vec<TokenLogprobs>,
    /// The grammar is complete after this token and allows nothing more.
    pub grammar_end: bool,
    /// Why this row alone failed (a logit is not finite, the grammar broke its bounds).
    pub fault: Option<String>,
}
