//! Whether an answer is right. The rule: once in full before anything is timed, and for every timed answer by
//! its status, its length or number of events, and its end.

use anyhow::{Context, ensure};
use serde_json::Value;

use crate::plan::Shape;

/// What ends a whole event stream.
const DONE: &[u8] = b"data: [DONE]\n\n";

/// What a right answer looks like, learnt from one that was checked in full.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Expected {
    /// Bytes of the body.
    pub bytes: usize,
    /// Events of a stream, the terminator included; 0 for a plain body.
    pub events: usize,
}

/// Follows a body as it arrives and keeps only what is needed to judge it.
#[derive(Debug)]
pub struct Judge {
    shape: Shape,
    seen: Expected,
    tail: Vec<u8>,
}

impl Judge {
    /// For one answer.
    pub fn new(shape: Shape) -> Self {
        Self { shape, seen: Expected { bytes: 0, events: 0 }, tail: Vec::with_capacity(2 * DONE.len()) }
    }

    /// Takes what arrived.
    pub fn take(&mut self, piece: &[u8]) {
        self.seen.bytes += piece.len();
        if self.shape == Shape::Streamed {
            let mut last = self.tail.last().copied();
            for &byte in piece {
                self.seen.events += usize::from(byte == b'\n' && last == Some(b'\n'));
                last = Some(byte);
            }
        }
        self.tail.extend_from_slice(&piece[piece.len().saturating_sub(DONE.len())..]);
        self.tail.drain(..self.tail.len().saturating_sub(DONE.len()));
    }

    /// Whether the whole of it is what was expected.
    pub fn is_right(&self, expected: Expected) -> bool {
        let ends = match self.shape {
            Shape::Plain => self.tail.ends_with(b"}"),
            Shape::Streamed => self.tail == DONE,
        };
        ends && self.seen == expected
    }
}

/// Checks an answer in full: JSON, object kind, text, finish reason, token counts.
///
/// # Errors
/// Says what is wrong with it.
pub fn check(shape: Shape, body: &[u8], tokens: u32) -> anyhow::Result<Expected> {
    let shown = || format!("the answer is {}", String::from_utf8_lossy(body));
    match shape {
        Shape::Plain => check_plain(body, tokens).with_context(shown)?,
        Shape::Streamed => check_stream(body, tokens).with_context(shown)?,
    }
    let mut judge = Judge::new(shape);
    judge.take(body);
    ensure!(judge.is_right(judge.seen), "the answer has no proper end; {}", shown());
    Ok(judge.seen)
}

/// The text of the instant brain: letters in order, and an end token that shows nothing.
fn text(tokens: u32) -> String {
    (0..tokens - 1).map(|at| char::from(b'a' + (at % 26) as u8)).collect()
}

fn check_plain(body: &[u8], tokens: u32) -> anyhow::Result<()> {
    let body: Value = serde_json::from_slice(body)?;
    ensure!(body["object"] == "chat.completion", "object is {}", body["object"]);
    let choice = &body["choices"][0];
    ensure!(choice["message"]["role"] == "assistant", "role is {}", choice["message"]["role"]);
    let content = &choice["message"]["content"];
    ensure!(*content == text(tokens), "content is {content}");
    ensure!(choice["finish_reason"] == "stop", "finish_reason is {}", choice["finish_reason"]);
    check_usage(&body["usage"], tokens)
}

fn check_stream(body: &[u8], tokens: u32) -> anyhow::Result<()> {
    let body = std::str::from_utf8(body)?;
    let body = body.strip_suffix("data: [DONE]\n\n").context("no [DONE] at the end")?;
    let (mut content, mut finish, mut usage) = (String::new(), Value::Null, Value::Null);
    for event in body.split_terminator("\n\n") {
        let event = event.strip_prefix("data: ").with_context(|| format!("no data in {event:?}"))?;
        let chunk: Value = serde_json::from_str(event)?;
        ensure!(chunk["object"] == "chat.completion.chunk", "object is {}", chunk["object"]);
        content.push_str(chunk["choices"][0]["delta"]["content"].as_str().unwrap_or_default());
        for (kept, found) in
            [(&mut finish, &chunk["choices"][0]["finish_reason"]), (&mut usage, &chunk["usage"])]
        {
            if !found.is_null() {
                *kept = found.clone();
            }
        }
    }
    ensure!(content == text(tokens), "content is {content:?}");
    ensure!(finish == "stop", "finish_reason is {finish}");
    check_usage(&usage, tokens)
}

fn check_usage(usage: &Value, tokens: u32) -> anyhow::Result<()> {
    ensure!(usage["completion_tokens"] == tokens, "completion_tokens is not {tokens} in {usage}");
    ensure!(usage["prompt_tokens"].as_u64().is_some_and(|count| count > 0), "no prompt_tokens in {usage}");
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_are_counted_however_the_stream_is_cut() {
        let stream = b"data: {}\n\ndata: {}\n\ndata: [DONE]\n\n";
        let expected = Expected { bytes: stream.len(), events: 3 };
        for size in 1..=stream.len() {
            let mut judge = Judge::new(Shape::Streamed);
            stream.chunks(size).for_each(|piece| judge.take(piece));
            assert!(judge.is_right(expected), "in pieces of {size}");
        }
    }

    #[test]
    fn a_cut_stream_is_not_right() {
        let stream = b"data: {}\n\ndata: [DONE]\n";
        let mut judge = Judge::new(Shape::Streamed);
        judge.take(stream);
        assert!(!judge.is_right(judge.seen));
    }

    #[test]
    fn an_answer_with_another_token_count_is_refused() {
        let body = br#"{"object":"chat.completion","choices":[{"message":{"role":"assistant","content":"ab"},
            "finish_reason":"stop"}],"usage":{"prompt_tokens":5,"completion_tokens":2}}"#;
        let error = format!("{:#}", check(Shape::Plain, body, 3).unwrap_err());
        assert!(error.contains("completion_tokens is not 3"), "{error}");
    }
}
