//! Reads the events of a stream. The rule: nothing is computed between two reads but what tells a token's arrival
//! and, where it is needed, keeps its text.

use std::time::Instant;

use http_body_util::BodyExt;
use serde_json::Value;

use super::MOST_BYTES;
use super::outcome::{End, Outcome};
use crate::run::Progress;

/// The most bytes of one event.
const MOST_EVENT: usize = 1 << 20;

/// How an answer is read.
pub(super) struct Reading<'a> {
    /// When the request was due.
    pub(super) due: Instant,
    /// Told of each chunk.
    pub(super) progress: &'a Progress,
    /// Chunks after which the client goes away.
    pub(super) abort_after: Option<u32>,
    /// Filled as chunks arrive.
    pub(super) outcome: &'a mut Outcome,
    /// Where the answer's text is kept, if it is needed.
    pub(super) text: Option<&'a mut String>,
    /// Whether a finish reason came.
    pub(super) finished: bool,
    /// Whether that was the bound on its length.
    pub(super) cut_short: bool,
}

impl Reading<'_> {
    /// Reads server-sent events up to their end mark.
    pub(super) async fn stream(&mut self, mut body: hyper::body::Incoming) -> End {
        let mut rest: Vec<u8> = Vec::new();
        let mut bytes = 0;
        while let Some(frame) = body.frame().await {
            let Ok(frame) = frame else { return End::Failed("cut") };
            let Some(data) = frame.data_ref() else { continue };
            let now_s = self.due.elapsed().as_secs_f64();
            bytes += data.len();
            rest.extend_from_slice(data);
            if bytes > MOST_BYTES || rest.len() > MOST_EVENT {
                return End::Failed("too long");
            }
            let mut read = 0;
            while let Some((length, gap)) = event_end(&rest[read..]) {
                let end = self.event(&rest[read..read + length], now_s);
                read += length + gap;
                if let Some(end) = end {
                    return end;
                }
            }
            rest.drain(..read);
            let chunks = self.outcome.chunks_s.len();
            if self.abort_after.is_some_and(|most| chunks >= most as usize) {
                return End::Aborted;
            }
        }
        End::Failed("cut")
    }

    /// Takes one event; tells how the answer ended once it has.
    fn event(&mut self, event: &[u8], now_s: f64) -> Option<End> {
        let data = event.strip_prefix(b"data:")?.trim_ascii();
        if data == b"[DONE]" {
            return Some(if self.finished { End::Done } else { End::Failed("no finish reason") });
        }
        let Ok(chunk) = serde_json::from_slice::<Value>(data) else { return Some(End::Failed("not JSON")) };
        if !chunk["error"].is_null() {
            return Some(End::Failed("error in stream"));
        }
        if chunk["usage"].is_object() {
            self.outcome.usage(&chunk["usage"]);
        }
        let choice = &chunk["choices"][0];
        self.finish(&choice["finish_reason"]);
        let delta = &choice["delta"];
        let said = |field: &str| delta[field].as_str().is_some_and(|text| !text.is_empty());
        if said("content") || said("reasoning_content") || delta["tool_calls"].is_array() {
            self.outcome.chunks_s.push(now_s);
            self.progress.chunk(&self.outcome.chunks_s);
        }
        if let (Some(kept), Some(said)) = (&mut self.text, delta["content"].as_str()) {
            kept.push_str(said);
        }
        None
    }

    /// Takes an answer that came whole.
    pub(super) fn whole(&mut self, body: &[u8]) -> End {
        self.outcome.chunks_s.push(self.due.elapsed().as_secs_f64());
        self.progress.chunk(&self.outcome.chunks_s);
        let Ok(answer) = serde_json::from_slice::<Value>(body) else { return End::Failed("not JSON") };
        self.outcome.usage(&answer["usage"]);
        let choice = &answer["choices"][0];
        self.finish(&choice["finish_reason"]);
        if let (Some(kept), Some(said)) = (&mut self.text, choice["message"]["content"].as_str()) {
            kept.push_str(said);
        }
        if self.finished { End::Done } else { End::Failed("cut") }
    }

    fn finish(&mut self, reason: &Value) {
        self.finished |= reason.is_string();
        self.cut_short |= reason == "length";
    }
}

/// Bytes of the first event and of the empty line behind it.
fn event_end(bytes: &[u8]) -> Option<(usize, usize)> {
    let lines = bytes.iter().enumerate().filter(|(_, byte)| **byte == b'\n').map(|(at, _)| at);
    for at in lines {
        match &bytes[at + 1..] {
            [b'\n', ..] => return Some((at, 2)),
            [b'\r', b'\n', ..] => return Some((at, 3)),
            _ => {}
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The events in bytes that arrive in pieces of so many.
    fn events(bytes: &[u8], piece: usize) -> Vec<String> {
        let (mut rest, mut found) = (Vec::new(), Vec::new());
        for piece in bytes.chunks(piece) {
            rest.extend_from_slice(piece);
            while let Some((length, gap)) = event_end(&rest) {
                found.push(String::from_utf8_lossy(&rest[..length]).trim_end().to_owned());
                rest.drain(..length + gap);
            }
        }
        found
    }

    #[test]
    fn events_end_with_an_empty_line_however_they_arrive() {
        let bytes = b"data: one\n\ndata: two\r\n\r\n: remark\n\ndata: last";
        for piece in 1..bytes.len() {
            assert_eq!(events(bytes, piece), ["data: one", "data: two", ": remark"], "pieces of {piece}");
        }
        assert_eq!(event_end(b"data: one\n"), None);
        assert_eq!(event_end(b"\r\n"), None);
    }
}
