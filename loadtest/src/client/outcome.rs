//! What became of a request. The rule: every request has exactly one end, and times count from when it was due.

use std::sync::Arc;

use serde_json::Value;

/// A failure's kind where the harness itself had no room: see the scenario's `max_in_flight`.
pub const NOT_SENT: &str = "not sent: harness bound";

/// How a request ended.
#[derive(Clone, Debug, PartialEq)]
pub enum End {
    /// Complete.
    Done,
    /// The client went away as planned.
    Aborted,
    /// The server had no room and said so: 429 or 503.
    Refused(u16),
    /// Anything else, by kind.
    Failed(&'static str),
}

/// What a request took, in seconds after it was due.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// Number of its group.
    pub group: usize,
    /// Number of its conversation within the group.
    pub index: usize,
    /// Number of its turn, from zero.
    pub turn: usize,
    /// Who sent it.
    pub tenant: Option<Arc<str>>,
    /// How it ended.
    pub end: End,
    /// Seconds from the start of the run to when it was due.
    pub due_s: f64,
    /// From due to sent.
    pub lag_s: f64,
    /// Whether it was sent twice, since its connection was closed before an answer began.
    pub again: bool,
    /// From due to each chunk with output.
    pub chunks_s: Vec<f64>,
    /// From due to the end.
    pub end_s: f64,
    /// From the server's usage.
    pub prompt_tokens: u64,
    /// From the server's usage.
    pub output_tokens: u64,
    /// Of the prompt's, those found in a cache.
    pub cached_tokens: u64,
}

impl Outcome {
    /// From due to the first output.
    pub fn ttft_s(&self) -> Option<f64> {
        self.chunks_s.first().copied()
    }

    /// Of a token after the first, on average.
    pub fn tpot_s(&self) -> Option<f64> {
        let (first, last) = (self.chunks_s.first()?, self.chunks_s.last()?);
        (self.output_tokens > 1 && self.chunks_s.len() > 1)
            .then(|| (last - first) / (self.output_tokens - 1) as f64)
    }

    /// Between each two chunks.
    pub fn gaps_s(&self) -> impl Iterator<Item = f64> + '_ {
        self.chunks_s.windows(2).map(|pair| pair[1] - pair[0])
    }

    pub(super) fn usage(&mut self, usage: &Value) {
        let number = |value: &Value| value.as_u64().unwrap_or(0);
        self.prompt_tokens = number(&usage["prompt_tokens"]);
        self.output_tokens = number(&usage["completion_tokens"]);
        self.cached_tokens = number(&usage["prompt_tokens_details"]["cached_tokens"]);
    }
}
