//! Writes JSON and SSE frames straight into the output buffer.
//!
//! The rule: a frame is `data: `, one line of JSON and an empty line, and all frames of a stream share one prefix
//! that is built once.

use std::fmt::Write as _;

use bytes::{Bytes, BytesMut};

use super::usage::Usage;

/// The last frame of a stream that is complete.
pub(super) const DONE: &[u8] = b"data: [DONE]\n\n";

/// Lowest log probability that is shown; JSON has no infinity.
const LOGPROB_FLOOR: f32 = -9999.0;

const HEX: &[u8; 16] = b"0123456789abcdef";

/// A JSON string with its quotes.
pub(super) fn write_string(out: &mut BytesMut, text: &str) {
    out.extend_from_slice(b"\"");
    let bytes = text.as_bytes();
    let mut done = 0;
    for (at, byte) in bytes.iter().enumerate() {
        let short: &[u8] = match byte {
            b'"' => b"\\\"",
            b'\\' => b"\\\\",
            b'\n' => b"\\n",
            b'\r' => b"\\r",
            b'\t' => b"\\t",
            0..=0x1f | 0x7f => b"",
            _ => continue,
        };
        out.extend_from_slice(&bytes[done..at]);
        done = at + 1;
        if short.is_empty() {
            let code = [HEX[usize::from(byte >> 4)], HEX[usize::from(byte & 15)]];
            out.extend_from_slice(b"\\u00");
            out.extend_from_slice(&code);
        } else {
            out.extend_from_slice(short);
        }
    }
    out.extend_from_slice(&bytes[done..]);
    out.extend_from_slice(b"\"");
}

/// A string or null.
pub(super) fn write_optional(out: &mut BytesMut, text: Option<&str>) {
    match text {
        Some(text) => write_string(out, text),
        None => out.extend_from_slice(b"null"),
    }
}

/// A log probability; always finite, and the same value always reads the same.
pub(super) fn write_logprob(out: &mut BytesMut, logprob: f32) {
    let shown = if logprob.is_nan() { LOGPROB_FLOOR } else { logprob.clamp(LOGPROB_FLOOR, 0.0) };
    // `-0.0` and `0.0` are one number.
    let _ = write!(out, "{:?}", shown + 0.0);
}

/// Numbers separated by commas, in brackets.
pub(super) fn write_numbers<N: std::fmt::Display>(out: &mut BytesMut, numbers: impl IntoIterator<Item = N>) {
    out.extend_from_slice(b"[");
    for (index, number) in numbers.into_iter().enumerate() {
        let _ = if index > 0 { write!(out, ",{number}") } else { write!(out, "{number}") };
    }
    out.extend_from_slice(b"]");
}

/// Whether and where usage is shown in a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub(super) enum UsageFrames {
    /// Nowhere; no frame has the key.
    #[default]
    Off,
    /// In a last frame; all others carry null.
    Last,
    /// In a last frame, and the counts so far in each other.
    Each,
}

/// What all frames and the whole body of one reply share.
#[derive(Debug)]
pub(super) struct Envelope {
    /// The members before `choices`, without the opening brace.
    head: Bytes,
    pub(super) usage: UsageFrames,
}

impl Envelope {
    pub(super) fn new(
        id: &str,
        object: &str,
        created: u64,
        model: &str,
        fingerprint: &str,
        usage: UsageFrames,
    ) -> Self {
        let mut head = BytesMut::with_capacity(192);
        head.extend_from_slice(b"\"id\":");
        write_string(&mut head, id);
        head.extend_from_slice(b",\"object\":");
        write_string(&mut head, object);
        let _ = write!(head, ",\"created\":{created},\"model\":");
        write_string(&mut head, model);
        head.extend_from_slice(b",\"system_fingerprint\":");
        write_string(&mut head, fingerprint);
        head.extend_from_slice(b",\"service_tier\":\"default\",");
        Self { head: head.freeze(), usage }
    }

    /// One frame with one choice; `choice` writes what follows the choice's index, beginning with a comma.
    pub(super) fn frame(
        &self,
        out: &mut BytesMut,
        index: usize,
        counts: impl FnOnce() -> Usage,
        extra: &[u8],
        choice: impl FnOnce(&mut BytesMut),
    ) {
        out.extend_from_slice(b"data: {");
        out.extend_from_slice(&self.head);
        let _ = write!(out, "\"choices\":[{{\"index\":{index}");
        choice(out);
        out.extend_from_slice(b"}]");
        match self.usage {
            UsageFrames::Off => {}
            UsageFrames::Last => out.extend_from_slice(b",\"usage\":null"),
            UsageFrames::Each => {
                out.extend_from_slice(b",\"usage\":");
                counts().write(out);
            }
        }
        out.extend_from_slice(extra);
        out.extend_from_slice(b"}\n\n");
    }

    /// The frame without choices that carries the usage, if it was asked for.
    pub(super) fn usage_frame(&self, out: &mut BytesMut, usage: &Usage) {
        if self.usage == UsageFrames::Off {
            return;
        }
        out.extend_from_slice(b"data: {");
        out.extend_from_slice(&self.head);
        out.extend_from_slice(b"\"choices\":[],\"usage\":");
        usage.write(out);
        out.extend_from_slice(b"}\n\n");
    }

    /// A whole body; `choices` writes the array's content.
    pub(super) fn body(
        &self,
        out: &mut BytesMut,
        usage: &Usage,
        extra: &[u8],
        choices: impl FnOnce(&mut BytesMut),
    ) {
        out.extend_from_slice(b"{");
        out.extend_from_slice(&self.head);
        out.extend_from_slice(b"\"choices\":[");
        choices(out);
        out.extend_from_slice(b"],\"usage\":");
        usage.write(out);
        out.extend_from_slice(extra);
        out.extend_from_slice(b"}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn any_string_reads_back_as_itself_on_one_line(text in any::<String>()) {
            let mut out = BytesMut::new();
            write_string(&mut out, &text);
            prop_assert!(!out.contains(&b'\n'));
            prop_assert_eq!(serde_json::from_slice::<String>(&out).unwrap(), text);
        }
    }

    #[test]
    fn c_logprobs_05_a_log_probability_is_always_a_finite_number() {
        for (value, shown) in [
            (f32::NEG_INFINITY, "-9999.0"),
            (f32::NAN, "-9999.0"),
            (-0.0, "0.0"),
            (f32::INFINITY, "0.0"),
            (-1e-10, "-1e-10"),
            (-0.5, "-0.5"),
        ] {
            let mut out = BytesMut::new();
            write_logprob(&mut out, value);
            assert_eq!(out, shown.as_bytes());
            assert!(serde_json::from_slice::<f64>(&out).unwrap().is_finite());
        }
    }
}
