//! Token counts of one request as its client sees them.
//!
//! The rule: tokens are counted, never frames; the prompt counts once whatever the number of choices, and an end
//! token counts like any other.

use std::fmt::Write as _;

use bytes::BytesMut;

/// Counts so far; right at any time, also after an abort.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct Usage {
    /// Tokens of all prompts.
    pub prompt_tokens: u64,
    /// Of these, found in the prefix cache, as far as known.
    pub cached_tokens: u64,
    /// Tokens generated for all choices and candidates.
    pub completion_tokens: u64,
    /// Of these, spent on reasoning.
    pub reasoning_tokens: u64,
    /// Finish reason of each choice, `None` while it is open.
    pub finish_reasons: Vec<Option<&'static str>>,
}

impl Usage {
    /// Prompt and completion together.
    pub fn total_tokens(&self) -> u64 {
        self.prompt_tokens + self.completion_tokens
    }

    /// The `usage` object.
    pub(crate) fn write(&self, out: &mut BytesMut) {
        let _ = write!(
            out,
            "{{\"prompt_tokens\":{},\"completion_tokens\":{},\"total_tokens\":{},\
             \"prompt_tokens_details\":{{\"cached_tokens\":{},\"audio_tokens\":0}},\
             \"completion_tokens_details\":{{\"reasoning_tokens\":{},\"audio_tokens\":0,\
             \"accepted_prediction_tokens\":0,\"rejected_prediction_tokens\":0}}}}",
            self.prompt_tokens,
            self.completion_tokens,
            self.total_tokens(),
            self.cached_tokens,
            self.reasoning_tokens,
        );
    }
}
