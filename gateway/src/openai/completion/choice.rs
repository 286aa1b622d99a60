//! One candidate of a completion: tokens to text.
//!
//! The rule: text and entries are handed out once, in order.

use std::sync::Arc;

use bytes::BytesMut;
use pons_protocol::inference::{FinishReason, SequenceOutput, TokenLogprobs};

use crate::openai::prepared::ChoiceState;
use crate::openai::served::ServedModel;
use crate::openai::token_text::{End, Entry, TextRules, TokenText};

/// The machine of one candidate.
#[derive(Debug)]
pub(super) struct Candidate {
    rules: Arc<TextRules>,
    tokens: TokenText,
    /// Text, entries and ids that nobody has taken yet.
    pub(super) text: String,
    pub(super) entries: Vec<Entry>,
    pub(super) ids: Vec<u32>,
    /// Log probabilities of the prompt, once they have come.
    pub(super) prompt: Vec<TokenLogprobs>,
    /// The prompt was shown.
    pub(super) echoed: bool,
    pub(super) cached_tokens: u32,
    logprob_sum: f64,
    end: Option<End>,
}

impl Candidate {
    pub(super) fn new(model: &Arc<ServedModel>, rules: &Arc<TextRules>) -> Self {
        Self {
            rules: rules.clone(),
            tokens: TokenText::new(model, rules),
            text: String::new(),
            entries: Vec::new(),
            ids: Vec::new(),
            prompt: Vec::new(),
            echoed: false,
            cached_tokens: 0,
            logprob_sum: 0.0,
            end: None,
        }
    }

    pub(super) fn tokens(&self) -> u32 {
        self.tokens.tokens()
    }

    /// By which candidates are compared.
    pub(super) fn mean_logprob(&self) -> f64 {
        self.logprob_sum / f64::from(self.tokens().max(1))
    }

    pub(super) fn push(&mut self, output: &SequenceOutput) -> ChoiceState {
        let finish = output.finish.as_ref();
        self.cached_tokens = output.cached_tokens;
        if !output.prompt_logprobs.is_empty() {
            self.prompt.clone_from(&output.prompt_logprobs);
        }
        for (at, token) in output.tokens.iter().enumerate() {
            let last = at + 1 == output.tokens.len();
            let reason = finish.filter(|_| last).map(|finish| finish.reason);
            let logprobs = output.logprobs.get(at);
            self.ids.push(*token);
            let value = logprobs.map_or(0.0, |logprobs| f64::from(logprobs.logprob));
            self.logprob_sum += if value.is_finite() { value } else { -9999.0 };
            if let Some(end) = self.tokens.push(*token, logprobs, reason, &mut self.text) {
                self.close(end);
                // The engine may have ended with the same token; there is nothing to abort then.
                return if reason.is_some() { ChoiceState::Done } else { ChoiceState::Stopped };
            }
            self.tokens.take_entries(&mut self.entries);
        }
        let Some(finish) = finish else { return ChoiceState::Open };
        let hit = self.tokens.finish(&mut self.text);
        self.close(hit.unwrap_or(End::Engine(finish.reason)));
        ChoiceState::Done
    }

    fn close(&mut self, end: End) {
        self.tokens.take_entries(&mut self.entries);
        self.end = Some(end);
    }

    /// Ends it without a result.
    pub(super) fn fail(&mut self) {
        self.end.get_or_insert(End::Engine(FinishReason::Failed));
    }

    /// OpenAI's word for how it ended; `None` while it is open. `error` is for the ledger and never sent.
    pub(super) fn finish_reason(&self) -> Option<&'static str> {
        self.end.map(|end| match end {
            End::Engine(FinishReason::Length) => "length",
            End::Engine(FinishReason::Failed) => "error",
            _ => "stop",
        })
    }

    /// The stop string or stop token that ended the text, else null.
    pub(super) fn write_stop_reason(&self, out: &mut BytesMut) {
        End::write_stop_reason(self.end, &self.rules.stops, out);
    }
}
