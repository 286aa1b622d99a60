//! The reply of a chat request: one machine a choice, frames or one body.
//!
//! The rule: frames and body come from the same pieces of text, so both modes always agree.

use std::sync::Arc;

use bytes::BytesMut;
use pons_protocol::inference::SequenceOutput;

use super::choice::{ChatChoice, Delta};
use crate::openai::frame::{Envelope, UsageFrames, write_numbers, write_optional, write_string};
use crate::openai::logprobs::{Naming, write_chat};
use crate::openai::prepared::ChoiceState;
use crate::openai::sampling::Display;
use crate::openai::served::{RequestContext, ServedModel};
use crate::openai::token_text::{Entry, TextRules};
use crate::openai::usage::Usage;
use crate::text::reasoning::ReasoningStart;

/// What the reply has to know of the request's tools.
#[derive(Clone, Debug)]
pub(super) struct ReplyTools {
    pub(super) names: Arc<[String]>,
    /// A grammar forces a call.
    pub(super) forced: bool,
    /// One function was named, so a call finishes with `stop`.
    pub(super) named: bool,
    /// The answer ends with its first call.
    pub(super) single: bool,
    /// Calls are shown as `function_call`.
    pub(super) legacy: bool,
}

/// How the reply looks.
#[derive(Clone, Debug)]
pub(super) struct Shape {
    pub(super) tools: Option<ReplyTools>,
    pub(super) reasoning: ReasoningStart,
    pub(super) include_reasoning: bool,
    pub(super) top_logprobs: Option<u32>,
    pub(super) display: Display,
}

/// A chat reply while it grows.
#[derive(Debug)]
pub(crate) struct ChatReply {
    model: Arc<ServedModel>,
    shape: Arc<Shape>,
    envelope: Envelope,
    prompt: Arc<[u32]>,
    choices: Vec<ChatChoice>,
}

impl ChatReply {
    pub(super) fn new(
        model: &Arc<ServedModel>,
        ctx: RequestContext,
        rules: Arc<TextRules>,
        shape: Shape,
        prompt: Arc<[u32]>,
        n: usize,
    ) -> Self {
        let object = if shape.display.stream { "chat.completion.chunk" } else { "chat.completion" };
        let id = format!("chatcmpl-{}", ctx.id);
        let usage = if shape.display.stream { shape.display.usage } else { UsageFrames::Off };
        let envelope = Envelope::new(&id, object, ctx.created, &model.name, &model.fingerprint, usage);
        let shape = Arc::new(shape);
        let ctx = Arc::new(ctx);
        let choices = (0..n).map(|index| ChatChoice::new(index, model, &rules, &shape, &ctx)).collect();
        Self { model: model.clone(), shape, envelope, prompt, choices }
    }

    pub(crate) fn streams(&self) -> bool {
        self.shape.display.stream
    }

    pub(crate) fn is_complete(&self) -> bool {
        self.choices.iter().all(|choice| choice.finish_reason().is_some())
    }

    pub(crate) fn usage(&self) -> Usage {
        Usage {
            prompt_tokens: self.prompt.len() as u64,
            // The other choices find the first one's prompt in the cache, which is no saving of the client's.
            cached_tokens: self.choices.first().map_or(0, |choice| u64::from(choice.cached_tokens)),
            completion_tokens: self.choices.iter().map(|choice| u64::from(choice.tokens())).sum(),
            reasoning_tokens: self.choices.iter().map(|choice| u64::from(choice.reasoning_tokens)).sum(),
            finish_reasons: self.choices.iter().map(ChatChoice::finish_reason).collect(),
        }
    }

    /// The role frames of all choices, in order, before anything else.
    pub(crate) fn open(&mut self, out: &mut BytesMut) {
        if !self.streams() {
            return;
        }
        let forced = self.shape.tools.as_ref().is_some_and(|tools| tools.forced);
        let content: &[u8] = if forced { b"null" } else { b"\"\"" };
        for index in 0..self.choices.len() {
            let extra = if index == 0 { self.prompt_ids() } else { BytesMut::new() };
            self.envelope.frame(
                out,
                index,
                || self.usage(),
                &extra,
                |out| {
                    out.extend_from_slice(b",\"delta\":{\"role\":\"assistant\",\"content\":");
                    out.extend_from_slice(content);
                    out.extend_from_slice(b"},\"logprobs\":null,\"finish_reason\":null");
                },
            );
        }
    }

    /// `,"prompt_token_ids":[…]` if asked for.
    fn prompt_ids(&self) -> BytesMut {
        let mut extra = BytesMut::new();
        if self.shape.display.token_ids {
            extra.extend_from_slice(b",\"prompt_token_ids\":");
            write_numbers(&mut extra, self.prompt.iter());
        }
        extra
    }

    pub(crate) fn push(&mut self, index: usize, output: &SequenceOutput, out: &mut BytesMut) -> ChoiceState {
        let Some(choice) = self.choices.get_mut(index) else { return ChoiceState::Open };
        if choice.finish_reason().is_some() {
            return ChoiceState::Done;
        }
        let mut deltas = Vec::new();
        let state = choice.push(output, &mut deltas);
        if self.streams() {
            for delta in &deltas {
                self.delta_frame(index, delta, out);
            }
            if state != ChoiceState::Open {
                self.finish_frame(index, out);
            }
        }
        state
    }

    /// The choice can't be completed.
    pub(crate) fn fail_choice(&mut self, index: usize) {
        if let Some(choice) = self.choices.get_mut(index) {
            choice.fail();
        }
    }

    fn delta_frame(&mut self, index: usize, delta: &Delta, out: &mut BytesMut) {
        let (entries, ids) = self.choices[index].take_pending();
        let legacy = self.shape.tools.as_ref().is_some_and(|tools| tools.legacy);
        self.envelope.frame(
            out,
            index,
            || self.usage(),
            b"",
            |out| {
                out.extend_from_slice(b",\"delta\":{");
                write_delta(out, delta, legacy);
                out.extend_from_slice(b"},\"logprobs\":");
                self.write_logprobs(out, &entries);
                out.extend_from_slice(b",\"finish_reason\":null");
                self.write_token_ids(out, &ids);
            },
        );
    }

    fn finish_frame(&mut self, index: usize, out: &mut BytesMut) {
        let (entries, ids) = self.choices[index].take_pending();
        self.envelope.frame(
            out,
            index,
            || self.usage(),
            b"",
            |out| {
                out.extend_from_slice(b",\"delta\":{},\"logprobs\":");
                // Nothing but text that was never shown can be left.
                if entries.is_empty() {
                    out.extend_from_slice(b"null");
                } else {
                    self.write_logprobs(out, &entries);
                }
                self.write_finish(out, index);
                self.write_token_ids(out, &ids);
            },
        );
    }

    fn write_finish(&self, out: &mut BytesMut, index: usize) {
        let choice = &self.choices[index];
        out.extend_from_slice(b",\"finish_reason\":");
        write_optional(out, choice.finish_reason());
        out.extend_from_slice(b",\"stop_reason\":");
        choice.write_stop_reason(out);
    }

    fn write_logprobs(&self, out: &mut BytesMut, entries: &[Entry]) {
        let Some(top) = self.shape.top_logprobs else {
            out.extend_from_slice(b"null");
            return;
        };
        let naming = Naming { tokenizer: &self.model.tokenizer, as_ids: self.shape.display.tokens_as_ids };
        write_chat(out, naming, entries, top as usize);
    }

    fn write_token_ids(&self, out: &mut BytesMut, ids: &[u32]) {
        if self.shape.display.token_ids {
            out.extend_from_slice(b",\"token_ids\":");
            write_numbers(out, ids.iter());
        }
    }

    /// The usage frame of a stream, or the whole body.
    pub(crate) fn close(&mut self, out: &mut BytesMut) {
        let usage = self.usage();
        if self.streams() {
            self.envelope.usage_frame(out, &usage);
            return;
        }
        let pending: Vec<_> = self.choices.iter_mut().map(ChatChoice::take_pending).collect();
        self.envelope.body(out, &usage, &self.prompt_ids(), |out| {
            for (index, (entries, ids)) in pending.iter().enumerate() {
                out.extend_from_slice(if index > 0 { b",{\"index\":" } else { b"{\"index\":" });
                out.extend_from_slice(index.to_string().as_bytes());
                out.extend_from_slice(b",\"message\":{\"role\":\"assistant\",\"content\":");
                self.choices[index].write_message(out);
                out.extend_from_slice(b"},\"logprobs\":");
                self.write_logprobs(out, entries);
                self.write_finish(out, index);
                self.write_token_ids(out, ids);
                out.extend_from_slice(b"}");
            }
        });
    }
}

/// The members of a delta.
fn write_delta(out: &mut BytesMut, delta: &Delta, legacy: bool) {
    match delta {
        Delta::Content(text) => {
            out.extend_from_slice(b"\"content\":");
            write_string(out, text);
        }
        Delta::Reasoning(text) => {
            out.extend_from_slice(b"\"reasoning_content\":");
            write_string(out, text);
            out.extend_from_slice(b",\"reasoning\":");
            write_string(out, text);
        }
        Delta::Call { id: _, name, .. } if legacy => {
            out.extend_from_slice(b"\"function_call\":{\"name\":");
            write_string(out, name);
            out.extend_from_slice(b",\"arguments\":\"\"}");
        }
        Delta::Arguments { text, .. } if legacy => {
            out.extend_from_slice(b"\"function_call\":{\"arguments\":");
            write_string(out, text);
            out.extend_from_slice(b"}");
        }
        Delta::Call { index, id, name } => {
            out.extend_from_slice(format!("\"tool_calls\":[{{\"index\":{index},\"id\":").as_bytes());
            write_string(out, id);
            out.extend_from_slice(b",\"type\":\"function\",\"function\":{\"name\":");
            write_string(out, name);
            out.extend_from_slice(b",\"arguments\":\"\"}}]");
        }
        Delta::Arguments { index, text } => {
            let open = format!("\"tool_calls\":[{{\"index\":{index},\"function\":{{\"arguments\":");
            out.extend_from_slice(open.as_bytes());
            write_string(out, text);
            out.extend_from_slice(b"}}]");
        }
    }
}
