//! What a step produced. The rule: one entry for each plan item, in plan order, and a fault stays in its row.

use pons_protocol::id::TokenId;
use pons_protocol::inference::TokenLogprobs;

/// Result of a step.
#[derive(Clone, Debug, Default)]
pub struct StepResult {
    /// One row for each plan item, in order.
    pub rows: Vec<RowOutput>,
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
