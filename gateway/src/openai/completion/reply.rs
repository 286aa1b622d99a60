//! The reply of a completion request: frames or one body.
//!
//! The rule: frames and body come from the same candidates, and every candidate is billed, shown or not.

use std::sync::Arc;

use bytes::BytesMut;
use pons_protocol::inference::SequenceOutput;

use super::choice::Candidate;
use super::prompt::Prompt;
use crate::openai::frame::{Envelope, UsageFrames, write_numbers, write_optional, write_string};
use crate::openai::logprobs::{LegacyEntry, Naming, write_legacy};
use crate::openai::prepared::ChoiceState;
use crate::openai::sampling::Display;
use crate::openai::served::{RequestContext, ServedModel};
use crate::openai::token_text::{Entry, TextRules};
use crate::openai::usage::Usage;

/// How the reply looks.
#[derive(Clone, Debug)]
pub(super) struct Shape {
    pub(super) n: usize,
    pub(super) best_of: usize,
    pub(super) echo: bool,
    pub(super) logprobs: Option<u32>,
    pub(super) display: Display,
}

/// What a choice shows next.
#[derive(Debug, Default)]
struct Piece {
    text: String,
    entries: Vec<Entry>,
    ids: Vec<u32>,
    /// The prompt belongs to it: the first piece under `echo`.
    with_prompt: bool,
    /// It is the choice's first piece.
    first: bool,
}

/// A completion reply while it grows.
#[derive(Debug)]
pub(crate) struct CompletionReply {
    model: Arc<ServedModel>,
    shape: Shape,
    envelope: Envelope,
    prompts: Vec<Prompt>,
    /// `best_of` for each prompt, in order.
    candidates: Vec<Candidate>,
}

impl CompletionReply {
    pub(super) fn new(
        model: &Arc<ServedModel>,
        ctx: &RequestContext,
        rules: &Arc<TextRules>,
        shape: Shape,
        prompts: Vec<Prompt>,
    ) -> Self {
        let id = format!("cmpl-{}", ctx.id);
        let usage = if shape.display.stream { shape.display.usage } else { UsageFrames::Off };
        let envelope =
            Envelope::new(&id, "text_completion", ctx.created, &model.name, &model.fingerprint, usage);
        let count = prompts.len() * shape.best_of;
        let candidates = (0..count).map(|_| Candidate::new(model, rules)).collect();
        Self { model: model.clone(), shape, envelope, prompts, candidates }
    }

    pub(crate) fn streams(&self) -> bool {
        self.shape.display.stream
    }

    pub(crate) fn is_complete(&self) -> bool {
        self.candidates.iter().all(|candidate| candidate.finish_reason().is_some())
    }

    pub(crate) fn usage(&self) -> Usage {
        let firsts = self.candidates.iter().step_by(self.shape.best_of.max(1));
        Usage {
            prompt_tokens: self.prompts.iter().map(|prompt| prompt.ids.len() as u64).sum(),
            // Further candidates find the first one's prompt in the cache, which is no saving of the client's.
            cached_tokens: firsts.map(|candidate| u64::from(candidate.cached_tokens)).sum(),
            completion_tokens: self.candidates.iter().map(|candidate| u64::from(candidate.tokens())).sum(),
            reasoning_tokens: 0,
            finish_reasons: self.shown().map(|at| self.candidates[at].finish_reason()).collect(),
        }
    }

    /// Numbers of the candidates that are shown, in the order of the choices: of each prompt the `n` with the
    /// highest mean log probability, the earlier one where two are equal.
    fn shown(&self) -> impl Iterator<Item = usize> {
        let (n, best_of) = (self.shape.n, self.shape.best_of);
        (0..self.prompts.len()).flat_map(move |prompt| {
            let mut numbers: Vec<usize> = (prompt * best_of..(prompt + 1) * best_of).collect();
            if best_of > n {
                let mean = |at: &usize| self.candidates[*at].mean_logprob();
                numbers.sort_by(|a, b| mean(b).total_cmp(&mean(a)));
            }
            numbers.truncate(n);
            numbers
        })
    }

    pub(crate) fn push(&mut self, index: usize, output: &SequenceOutput, out: &mut BytesMut) -> ChoiceState {
        let Some(candidate) = self.candidates.get_mut(index) else { return ChoiceState::Open };
        if candidate.finish_reason().is_some() {
            return ChoiceState::Done;
        }
        let state = candidate.push(output);
        if self.streams() {
            let done = state != ChoiceState::Open;
            let candidate = &self.candidates[index];
            let shows = !candidate.text.is_empty() || (self.shape.echo && !candidate.echoed);
            if done || shows {
                self.frame(index, out);
            }
        }
        state
    }

    /// The candidate can't be completed.
    pub(crate) fn fail_choice(&mut self, index: usize) {
        if let Some(candidate) = self.candidates.get_mut(index) {
            candidate.fail();
        }
    }

    /// Takes what a candidate has to show.
    fn take(&mut self, at: usize) -> Piece {
        let candidate = &mut self.candidates[at];
        let first = !candidate.echoed;
        candidate.echoed = true;
        Piece {
            text: std::mem::take(&mut candidate.text),
            entries: std::mem::take(&mut candidate.entries),
            ids: std::mem::take(&mut candidate.ids),
            with_prompt: first && self.shape.echo,
            first,
        }
    }

    fn frame(&mut self, at: usize, out: &mut BytesMut) {
        let piece = self.take(at);
        self.envelope.frame(out, at, || self.usage(), b"", |out| self.write_choice(out, at, &piece));
    }

    /// What follows a choice's index.
    fn write_choice(&self, out: &mut BytesMut, at: usize, piece: &Piece) {
        let candidate = &self.candidates[at];
        let prompt = &self.prompts[at / self.shape.best_of.max(1)];
        out.extend_from_slice(b",\"text\":");
        if piece.with_prompt {
            write_string(out, &format!("{}{}", prompt.text, piece.text));
        } else {
            write_string(out, &piece.text);
        }
        out.extend_from_slice(b",\"logprobs\":");
        match self.shape.logprobs {
            Some(top) => self.write_logprobs(out, at, prompt, piece, top as usize),
            None => out.extend_from_slice(b"null"),
        }
        out.extend_from_slice(b",\"finish_reason\":");
        write_optional(out, candidate.finish_reason());
        if candidate.finish_reason().is_some() {
            out.extend_from_slice(b",\"stop_reason\":");
            candidate.write_stop_reason(out);
        }
        if self.shape.display.token_ids {
            if piece.first {
                out.extend_from_slice(b",\"prompt_token_ids\":");
                write_numbers(out, prompt.ids.iter());
            }
            out.extend_from_slice(b",\"token_ids\":");
            write_numbers(out, piece.ids.iter());
        }
    }

    fn write_logprobs(&self, out: &mut BytesMut, at: usize, prompt: &Prompt, piece: &Piece, top: usize) {
        let known = &self.candidates[at].prompt;
        let mut entries: Vec<LegacyEntry<'_>> = Vec::with_capacity(piece.entries.len());
        if piece.with_prompt {
            for (position, token) in prompt.ids.iter().enumerate() {
                // The first token has no probability, nor has one the engine did not report.
                let logprobs = known.get(position).filter(|found| position > 0 && !found.logprob.is_nan());
                entries.push(LegacyEntry { token: *token, offset_chars: prompt.offsets[position], logprobs });
            }
        }
        let base = if self.shape.echo { prompt.chars } else { 0 };
        entries.extend(piece.entries.iter().map(|entry| LegacyEntry {
            token: entry.token,
            offset_chars: base + entry.start_chars,
            logprobs: Some(&entry.logprobs),
        }));
        let naming = Naming { tokenizer: &self.model.tokenizer, as_ids: self.shape.display.tokens_as_ids };
        write_legacy(out, naming, &entries, top);
    }

    /// The usage frame of a stream, or the whole body.
    pub(crate) fn close(&mut self, out: &mut BytesMut) {
        let usage = self.usage();
        if self.streams() {
            self.envelope.usage_frame(out, &usage);
            return;
        }
        let shown: Vec<usize> = self.shown().collect();
        let pieces: Vec<Piece> = shown.iter().map(|at| self.take(*at)).collect();
        self.envelope.body(out, &usage, b"", |out| {
            for (index, (at, piece)) in shown.iter().zip(&pieces).enumerate() {
                out.extend_from_slice(if index > 0 { b",{\"index\":" } else { b"{\"index\":" });
                out.extend_from_slice(index.to_string().as_bytes());
                self.write_choice(out, *at, piece);
                out.extend_from_slice(b"}");
            }
        });
    }
}
