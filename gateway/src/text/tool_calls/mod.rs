//! Finds Hermes/Qwen tool calls (`<tool_call>{"name":…,"arguments":…}</tool_call>`) in a stream of text.
//!
//! The rule: a call is announced once its name is known to be one of the request's tools, its arguments pass
//! byte for byte, and what turns out not to be a call is given back as text.

mod call_reader;
#[cfg(test)]
mod tests;

use std::sync::Arc;

use super::partial_tag_at_end;
use call_reader::{CallReader, Progress};

/// Opens a call.
pub const OPEN_TAG: &str = "<tool_call>";
/// Ends a call.
pub const CLOSE_TAG: &str = "</tool_call>";
/// Calls of one choice; further ones stay text.
pub const MAX_CALLS: usize = 128;

/// What the stream turned out to hold.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ToolEvent {
    /// Ordinary text.
    Text(String),
    /// A call to this tool begins; calls follow each other and never overlap.
    Start(String),
    /// The next stretch of the call's arguments, a part of their JSON text.
    Arguments(String),
    /// The call is complete.
    End,
}

/// How calls are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CallFormat {
    /// Between the two tags.
    Tagged,
    /// A grammar forces a call, so a bare object is one too.
    Forced,
}

#[derive(Debug)]
enum State {
    Text,
    Call,
    /// The object is complete; the closing tag may follow.
    Closing,
}

/// The machine of one choice.
#[derive(Debug)]
pub struct ToolCallParser {
    names: Arc<[String]>,
    format: CallFormat,
    state: State,
    /// Text that may still become a tag, or white space around calls.
    held: String,
    /// Only white space so far since the beginning or the last call.
    blank: bool,
    reader: CallReader,
    /// What the current call looked like, until it is announced.
    raw: String,
    started: bool,
    calls: usize,
    complete: usize,
}

impl ToolCallParser {
    /// A machine that knows the tools with these names.
    pub fn new(names: Arc<[String]>, format: CallFormat) -> Self {
        Self {
            names,
            format,
            state: State::Text,
            held: String::new(),
            blank: true,
            reader: CallReader::default(),
            raw: String::new(),
            started: false,
            calls: 0,
            complete: 0,
        }
    }

    /// Calls announced so far.
    pub fn calls(&self) -> usize {
        self.calls
    }

    /// Calls that are complete.
    pub fn complete(&self) -> usize {
        self.complete
    }

    /// Reads on and appends what is settled to `events`.
    pub fn push(&mut self, text: &str, events: &mut Vec<ToolEvent>) {
        let mut rest = text;
        while !rest.is_empty() {
            rest = match self.state {
                State::Text => self.text(rest, events),
                State::Call => self.call(rest, events),
                State::Closing => self.closing(rest, events),
            };
        }
    }

    /// Ends the stream: what was held back is given out, an unfinished call stays unfinished. Where a call is forced,
    /// an end in its opening is a limit that cut it, and the markup so far is no text.
    pub fn finish(&mut self, events: &mut Vec<ToolEvent>) {
        let forced = self.format == CallFormat::Forced;
        match self.state {
            State::Text => {
                let opening = forced && self.blank && OPEN_TAG.starts_with(self.held.trim_start());
                if !(opening || self.blank && self.calls > 0) {
                    let held = std::mem::take(&mut self.held);
                    emit_text(events, &held);
                }
            }
            State::Call if !self.started && !forced => {
                let raw = std::mem::take(&mut self.raw);
                emit_text(events, &raw);
            }
            State::Call | State::Closing => {}
        }
        self.held.clear();
        self.raw.clear();
    }

    /// Ordinary text up to an opening tag; returns what is still to be read.
    fn text<'t>(&mut self, text: &'t str, events: &mut Vec<ToolEvent>) -> &'t str {
        let before = self.held.len();
        self.held.push_str(text);
        if self.blank {
            let spaces = self.held.len() - self.held.trim_start().len();
            let found = &self.held[spaces..];
            if self.format == CallFormat::Forced && found.starts_with('{') && self.calls < MAX_CALLS {
                let used = spaces.saturating_sub(before);
                self.open(String::new());
                return &text[used..];
            }
            if found.is_empty() || (found.len() < OPEN_TAG.len() && OPEN_TAG.starts_with(found)) {
                return "";
            }
            self.blank = found.starts_with(OPEN_TAG);
        }
        if let Some(at) = self.held.find(OPEN_TAG).filter(|_| self.calls < MAX_CALLS) {
            let end = at + OPEN_TAG.len();
            let lead = self.held[..at].to_owned();
            let raw = if self.blank {
                // White space before a call is dropped, unless the call turns out to be text.
                self.held[..end].to_owned()
            } else {
                emit_text(events, &lead);
                OPEN_TAG.to_owned()
            };
            self.open(raw);
            return &text[end - before..];
        }
        let keep = if self.calls < MAX_CALLS { partial_tag_at_end(&self.held, OPEN_TAG) } else { 0 };
        let settled: String = self.held.drain(..self.held.len() - keep).collect();
        emit_text(events, &settled);
        ""
    }

    fn open(&mut self, raw: String) {
        self.state = State::Call;
        self.raw = raw;
        self.held.clear();
        self.reader = CallReader::default();
        self.started = false;
    }

    /// Inside of a call; returns what is still to be read.
    fn call<'t>(&mut self, text: &'t str, events: &mut Vec<ToolEvent>) -> &'t str {
        let (used, progress) = self.reader.read(text);
        if !self.started {
            self.raw.push_str(&text[..used]);
            match self.reader.name() {
                Some(name) if self.names.iter().any(|known| known == name) => {
                    events.push(ToolEvent::Start(name.to_owned()));
                    self.started = true;
                    self.calls += 1;
                    self.raw.clear();
                }
                Some(_) => {
                    self.give_back(events);
                    return &text[used..];
                }
                None => {}
            }
        }
        if self.started {
            emit_arguments(events, self.reader.take_arguments());
        }
        match progress {
            Progress::More => {}
            Progress::Done if self.started => {
                if !self.reader.has_arguments() {
                    emit_arguments(events, "{}".to_owned());
                }
                events.push(ToolEvent::End);
                self.complete += 1;
                self.state = State::Closing;
            }
            // Without a name it is no call; with one, what follows the fault is text again.
            Progress::Done | Progress::Malformed => self.give_back(events),
        }
        &text[used..]
    }

    fn give_back(&mut self, events: &mut Vec<ToolEvent>) {
        let raw = std::mem::take(&mut self.raw);
        emit_text(events, &raw);
        self.state = State::Text;
        self.blank = false;
    }

    /// After the object: white space and the closing tag, if it comes.
    fn closing<'t>(&mut self, text: &'t str, _events: &mut Vec<ToolEvent>) -> &'t str {
        let before = self.held.len();
        self.held.push_str(text);
        let spaces = self.held.len() - self.held.trim_start().len();
        let found = &self.held[spaces..];
        if found.starts_with(CLOSE_TAG) {
            let end = spaces + CLOSE_TAG.len();
            self.held.clear();
            self.state = State::Text;
            self.blank = true;
            return &text[end - before..];
        }
        if found.is_empty() || CLOSE_TAG.starts_with(found) {
            return "";
        }
        // No closing tag: the call stands, and this is text or the next call. What is held was counted as read.
        self.state = State::Text;
        self.blank = true;
        self.held.truncate(before);
        text
    }
}

fn emit_text(events: &mut Vec<ToolEvent>, text: &str) {
    if text.is_empty() {
        return;
    }
    match events.last_mut() {
        Some(ToolEvent::Text(last)) => last.push_str(text),
        _ => events.push(ToolEvent::Text(text.to_owned())),
    }
}

fn emit_arguments(events: &mut Vec<ToolEvent>, text: String) {
    if text.is_empty() {
        return;
    }
    match events.last_mut() {
        Some(ToolEvent::Arguments(last)) => last.push_str(&text),
        _ => events.push(ToolEvent::Arguments(text)),
    }
}
