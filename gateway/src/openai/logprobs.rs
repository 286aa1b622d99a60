//! Log probabilities in the chat shape and in the legacy shape.
//!
//! The rule: one value is always written the same way, so that a client may compare for equality, and in the
//! legacy shape the sampled token always stands in its own map.

use std::fmt::Write as _;

use bytes::BytesMut;
use pons_checkpoint::tokenizer::Tokenizer;
use pons_protocol::inference::TokenLogprobs;

use super::frame::{write_logprob, write_numbers, write_string};
use super::token_text::Entry;

/// How tokens are named.
#[derive(Clone, Copy, Debug)]
pub(super) struct Naming<'t> {
    pub(super) tokenizer: &'t Tokenizer,
    /// As `token_id:5` instead of text.
    pub(super) as_ids: bool,
}

impl Naming<'_> {
    fn bytes(&self, token: u32) -> &[u8] {
        self.tokenizer.token_bytes(token).unwrap_or_default()
    }

    /// A token's text with replacement characters for what is no whole character.
    fn lossy(&self, token: u32) -> String {
        if self.as_ids {
            return format!("token_id:{token}");
        }
        String::from_utf8_lossy(self.bytes(token)).into_owned()
    }

    /// A token's text, or its bytes in a form that differs from token to token.
    fn distinct(&self, token: u32) -> String {
        if self.as_ids {
            return format!("token_id:{token}");
        }
        let bytes = self.bytes(token);
        match std::str::from_utf8(bytes) {
            Ok(text) => text.to_owned(),
            Err(_) => bytes.iter().fold("bytes:".to_owned(), |mut name, byte| {
                let _ = write!(name, "\\x{byte:02x}");
                name
            }),
        }
    }
}

/// `{"content":[…],"refusal":null}` with one element for each token.
pub(super) fn write_chat(out: &mut BytesMut, naming: Naming<'_>, entries: &[Entry], top: usize) {
    out.extend_from_slice(b"{\"content\":[");
    for (index, entry) in entries.iter().enumerate() {
        if index > 0 {
            out.extend_from_slice(b",");
        }
        let shown = &naming.bytes(entry.token)[..entry.shown_bytes.min(naming.bytes(entry.token).len())];
        write_chat_token(out, &naming.lossy(entry.token), entry.logprobs.logprob, shown);
        out.extend_from_slice(b",\"top_logprobs\":[");
        for (rank, (token, logprob)) in entry.logprobs.top.iter().take(top).enumerate() {
            if rank > 0 {
                out.extend_from_slice(b",");
            }
            write_chat_token(out, &naming.lossy(*token), *logprob, naming.bytes(*token));
            out.extend_from_slice(b"}");
        }
        out.extend_from_slice(b"]}");
    }
    out.extend_from_slice(b"],\"refusal\":null}");
}

/// The members that a token and an alternative share; the object stays open.
fn write_chat_token(out: &mut BytesMut, token: &str, logprob: f32, bytes: &[u8]) {
    out.extend_from_slice(b"{\"token\":");
    write_string(out, token);
    out.extend_from_slice(b",\"logprob\":");
    write_logprob(out, logprob);
    out.extend_from_slice(b",\"bytes\":");
    write_numbers(out, bytes);
}

/// One position of the legacy shape.
pub(super) struct LegacyEntry<'e> {
    pub(super) token: u32,
    /// Offset in characters of the returned text.
    pub(super) offset_chars: usize,
    /// `None` for the first token of a prompt, which has no probability.
    pub(super) logprobs: Option<&'e TokenLogprobs>,
}

/// `{"tokens":[…],"token_logprobs":[…],"top_logprobs":[…],"text_offset":[…]}`, all of one length.
pub(super) fn write_legacy(out: &mut BytesMut, naming: Naming<'_>, entries: &[LegacyEntry<'_>], top: usize) {
    let separated = |out: &mut BytesMut, write: &dyn Fn(&mut BytesMut, &LegacyEntry<'_>)| {
        for (index, entry) in entries.iter().enumerate() {
            if index > 0 {
                out.extend_from_slice(b",");
            }
            write(out, entry);
        }
    };
    out.extend_from_slice(b"{\"tokens\":[");
    separated(out, &|out, entry| write_string(out, &naming.distinct(entry.token)));
    out.extend_from_slice(b"],\"token_logprobs\":[");
    separated(out, &|out, entry| match entry.logprobs {
        Some(logprobs) => write_logprob(out, logprobs.logprob),
        None => out.extend_from_slice(b"null"),
    });
    out.extend_from_slice(b"],\"top_logprobs\":[");
    separated(out, &|out, entry| match entry.logprobs {
        Some(logprobs) => write_top_map(out, naming, entry.token, logprobs, top),
        None => out.extend_from_slice(b"null"),
    });
    out.extend_from_slice(b"],\"text_offset\":");
    write_numbers(out, entries.iter().map(|entry| entry.offset_chars));
    out.extend_from_slice(b"}");
}

/// The sampled token and the best alternatives; of two tokens that read the same the better one stays.
fn write_top_map(out: &mut BytesMut, naming: Naming<'_>, token: u32, logprobs: &TokenLogprobs, top: usize) {
    let sampled = (token, logprobs.logprob);
    let others = logprobs.top.iter().take(top).copied().filter(|(other, _)| *other != token);
    let mut names: Vec<String> = Vec::with_capacity(top + 1);
    out.extend_from_slice(b"{");
    for (token, logprob) in std::iter::once(sampled).chain(others) {
        let name = naming.distinct(token);
        if names.contains(&name) {
            continue;
        }
        if !names.is_empty() {
            out.extend_from_slice(b",");
        }
        write_string(out, &name);
        out.extend_from_slice(b":");
        write_logprob(out, logprob);
        names.push(name);
    }
    out.extend_from_slice(b"}");
}
