//! One choice of a chat reply: tokens to text to reasoning, content and tool calls.
//!
//! The rule: what a client may show or execute is decided here once, for streams and bodies alike.

use std::sync::Arc;

use bytes::BytesMut;
use pons_protocol::inference::{FinishReason, SequenceOutput};

use super::reply::Shape;
use crate::openai::frame::{write_optional, write_string};
use crate::openai::prepared::ChoiceState;
use crate::openai::served::{RequestContext, ServedModel};
use crate::openai::token_text::{End, Entry, TextRules, TokenText};
use crate::text::reasoning::{Part, ReasoningSplitter};
use crate::text::tool_calls::{CallFormat, ToolCallParser, ToolEvent};

/// A piece of the reply as a stream shows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Delta {
    Content(String),
    Reasoning(String),
    /// A call begins.
    Call {
        index: usize,
        id: String,
        name: String,
    },
    /// More of the newest call's arguments.
    Arguments {
        index: usize,
        text: String,
    },
}

/// A call as the body shows it.
#[derive(Debug)]
struct Call {
    id: String,
    name: String,
    arguments: String,
}

/// The machine of one choice.
#[derive(Debug)]
pub(super) struct ChatChoice {
    index: usize,
    shape: Arc<Shape>,
    rules: Arc<TextRules>,
    ctx: Arc<RequestContext>,
    tokens: TokenText,
    splitter: ReasoningSplitter,
    parser: Option<ToolCallParser>,
    content: String,
    reasoning: String,
    calls: Vec<Call>,
    /// Entries and ids that no frame has carried yet.
    entries: Vec<Entry>,
    ids: Vec<u32>,
    pub(super) reasoning_tokens: u32,
    pub(super) cached_tokens: u32,
    end: Option<End>,
}

impl ChatChoice {
    pub(super) fn new(
        index: usize,
        model: &Arc<ServedModel>,
        rules: &Arc<TextRules>,
        shape: &Arc<Shape>,
        ctx: &Arc<RequestContext>,
    ) -> Self {
        let parser = shape.tools.as_ref().map(|tools| {
            let format = if tools.forced { CallFormat::Forced } else { CallFormat::Tagged };
            ToolCallParser::new(tools.names.clone(), format)
        });
        Self {
            index,
            shape: shape.clone(),
            rules: rules.clone(),
            ctx: ctx.clone(),
            tokens: TokenText::new(model, rules),
            splitter: ReasoningSplitter::new(shape.reasoning),
            parser,
            content: String::new(),
            reasoning: String::new(),
            calls: Vec::new(),
            entries: Vec::new(),
            ids: Vec::new(),
            reasoning_tokens: 0,
            cached_tokens: 0,
            end: None,
        }
    }

    pub(super) fn tokens(&self) -> u32 {
        self.tokens.tokens()
    }

    /// Takes an output; appends what is settled to `deltas`.
    pub(super) fn push(&mut self, output: &SequenceOutput, deltas: &mut Vec<Delta>) -> ChoiceState {
        let finish = output.finish.as_ref();
        self.cached_tokens = output.cached_tokens;
        for (at, token) in output.tokens.iter().enumerate() {
            let last = at + 1 == output.tokens.len();
            let reason = finish.filter(|_| last).map(|finish| finish.reason);
            let mut text = String::new();
            self.ids.push(*token);
            let thought = self.splitter.is_thinking();
            let mut end = self.tokens.push(*token, output.logprobs.get(at), reason, &mut text);
            self.route(&text, deltas);
            if thought || self.splitter.is_thinking() {
                self.reasoning_tokens += 1;
            }
            if end.is_none() && self.has_enough() {
                end = Some(End::Parser);
            }
            if let Some(end) = end {
                self.close(end, deltas);
                // The engine may have ended with the same token; there is nothing to abort then.
                return if reason.is_some() { ChoiceState::Done } else { ChoiceState::Stopped };
            }
            self.tokens.take_entries(&mut self.entries);
        }
        let Some(finish) = finish else { return ChoiceState::Open };
        let mut text = String::new();
        let hit = self.tokens.finish(&mut text);
        self.route(&text, deltas);
        self.close(hit.unwrap_or(End::Engine(finish.reason)), deltas);
        ChoiceState::Done
    }

    /// Whether the one call that is allowed is complete.
    fn has_enough(&self) -> bool {
        let single = self.shape.tools.as_ref().is_some_and(|tools| tools.single);
        single && self.parser.as_ref().is_some_and(|parser| parser.complete() > 0)
    }

    fn close(&mut self, end: End, deltas: &mut Vec<Delta>) {
        if end == End::Parser {
            self.tokens.close();
        } else {
            let mut contents = Vec::new();
            self.splitter.finish(&mut |part, text: &str| contents.push((part, text.to_owned())));
            self.route_parts(contents, deltas);
            if let Some(mut parser) = self.parser.take() {
                let mut events = Vec::new();
                parser.finish(&mut events);
                self.parser = Some(parser);
                self.apply(events, deltas);
            }
        }
        self.tokens.take_entries(&mut self.entries);
        self.end = Some(end);
    }

    fn route(&mut self, text: &str, deltas: &mut Vec<Delta>) {
        if text.is_empty() {
            return;
        }
        let mut parts = Vec::new();
        self.splitter.push(text, &mut |part, text: &str| parts.push((part, text.to_owned())));
        self.route_parts(parts, deltas);
    }

    fn route_parts(&mut self, parts: Vec<(Part, String)>, deltas: &mut Vec<Delta>) {
        for (part, text) in parts {
            match part {
                Part::Reasoning if self.shape.include_reasoning => {
                    self.reasoning.push_str(&text);
                    merge(deltas, Delta::Reasoning(text));
                }
                Part::Reasoning => {}
                Part::Content => match self.parser.take() {
                    None => self.show(text, deltas),
                    Some(mut parser) => {
                        let mut events = Vec::new();
                        parser.push(&text, &mut events);
                        self.parser = Some(parser);
                        self.apply(events, deltas);
                    }
                },
            }
        }
    }

    fn show(&mut self, text: String, deltas: &mut Vec<Delta>) {
        self.content.push_str(&text);
        merge(deltas, Delta::Content(text));
    }

    fn apply(&mut self, events: Vec<ToolEvent>, deltas: &mut Vec<Delta>) {
        let single = self.shape.tools.as_ref().is_some_and(|tools| tools.single);
        for event in events {
            match event {
                ToolEvent::Text(text) => self.show(text, deltas),
                ToolEvent::Start(name) => {
                    let index = self.calls.len();
                    let id = self.ctx.call_id(self.index, index);
                    self.calls.push(Call { id: id.clone(), name: name.clone(), arguments: String::new() });
                    deltas.push(Delta::Call { index, id, name });
                }
                ToolEvent::Arguments(text) => {
                    let index = self.calls.len().saturating_sub(1);
                    if let Some(call) = self.calls.last_mut() {
                        call.arguments.push_str(&text);
                    }
                    merge(deltas, Delta::Arguments { index, text });
                }
                // What the same token says after the only call that is allowed doesn't count.
                ToolEvent::End if single => return,
                ToolEvent::End => {}
            }
        }
    }

    /// Entries and ids since the last frame.
    pub(super) fn take_pending(&mut self) -> (Vec<Entry>, Vec<u32>) {
        (std::mem::take(&mut self.entries), std::mem::take(&mut self.ids))
    }

    /// Ends it without a result.
    pub(super) fn fail(&mut self) {
        self.end.get_or_insert(End::Engine(FinishReason::Failed));
    }

    /// OpenAI's word for how the choice ended; `None` while it is open. `error` is for the ledger and never sent.
    pub(super) fn finish_reason(&self) -> Option<&'static str> {
        match self.end? {
            End::Engine(FinishReason::Length) => return Some("length"),
            End::Engine(FinishReason::Failed) => return Some("error"),
            _ => {}
        }
        let parser = self.parser.as_ref().filter(|parser| parser.calls() > 0);
        // A client executes what is finished with `tool_calls`, so half a call must not be.
        let complete = parser.is_some_and(|parser| parser.complete() == parser.calls());
        let tools = self.shape.tools.as_ref().filter(|_| complete);
        Some(match tools {
            Some(tools) if tools.legacy => "function_call",
            Some(tools) if !tools.named => "tool_calls",
            _ => "stop",
        })
    }

    /// The stop string or stop token that ended the text, else null.
    pub(super) fn write_stop_reason(&self, out: &mut BytesMut) {
        End::write_stop_reason(self.end, &self.rules.stops, out);
    }

    /// The members of the message from `content` on.
    pub(super) fn write_message(&self, out: &mut BytesMut) {
        let silent = self.content.is_empty() && (!self.calls.is_empty() || !self.reasoning.is_empty());
        write_optional(out, Some(self.content.as_str()).filter(|_| !silent));
        out.extend_from_slice(b",\"refusal\":null");
        if !self.reasoning.is_empty() {
            for name in ["reasoning_content", "reasoning"] {
                out.extend_from_slice(format!(",\"{name}\":").as_bytes());
                write_string(out, &self.reasoning);
            }
        }
        let legacy = self.shape.tools.as_ref().is_some_and(|tools| tools.legacy);
        if let Some(call) = self.calls.first().filter(|_| legacy) {
            out.extend_from_slice(b",\"function_call\":");
            write_function(out, call);
            return;
        }
        for (index, call) in self.calls.iter().enumerate() {
            out.extend_from_slice(if index > 0 { b"," } else { b",\"tool_calls\":[" });
            out.extend_from_slice(b"{\"id\":");
            write_string(out, &call.id);
            out.extend_from_slice(b",\"type\":\"function\",\"function\":");
            write_function(out, call);
            out.extend_from_slice(b"}");
        }
        if !self.calls.is_empty() {
            out.extend_from_slice(b"]");
        }
    }
}

fn write_function(out: &mut BytesMut, call: &Call) {
    out.extend_from_slice(b"{\"name\":");
    write_string(out, &call.name);
    out.extend_from_slice(b",\"arguments\":");
    write_string(out, &call.arguments);
    out.extend_from_slice(b"}");
}

/// Appends a piece, joining it with the last one of its kind.
fn merge(deltas: &mut Vec<Delta>, delta: Delta) {
    match (deltas.last_mut(), &delta) {
        (Some(Delta::Content(last)), Delta::Content(text))
        | (Some(Delta::Reasoning(last)), Delta::Reasoning(text)) => last.push_str(text),
        (Some(Delta::Arguments { index, text: last }), Delta::Arguments { index: same, text })
            if index == same =>
        {
            last.push_str(text);
        }
        _ => deltas.push(delta),
    }
}
