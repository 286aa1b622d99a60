//! One choice's tokens turned into text that may be shown, with the log probabilities that go with it.
//!
//! The rule: tokens are taken one at a time, so the result can't depend on how the engine groups them, and text
//! that is held back holds its entries back too without losing any.

use std::collections::VecDeque;
use std::sync::Arc;

use bytes::BytesMut;
use pons_protocol::inference::{FinishReason, TokenLogprobs};

use super::frame::write_optional;
use super::served::ServedModel;
use crate::text::detokenizer::Detokenizer;
use crate::text::stop::{StopMatcher, StopStrings};

/// What decides which text is shown; one for all choices of a request.
#[derive(Debug)]
pub(super) struct TextRules {
    /// Leave out control tokens.
    pub(super) skip_special: bool,
    /// Show the stop string or stop token that ended the text.
    pub(super) include_stop: bool,
    /// Where the text ends.
    pub(super) stops: Arc<StopStrings>,
    /// No stop string counts within so many tokens.
    pub(super) min_tokens: u32,
    /// Control tokens that are shown nevertheless, because a parser reads them.
    pub(super) kept: Vec<u32>,
    /// Keep log probabilities.
    pub(super) entries: bool,
    /// The end token has an entry too, as the legacy format wants it.
    pub(super) end_entry: bool,
}

/// Log probabilities of one token and where its text stands.
#[derive(Clone, Debug)]
pub(super) struct Entry {
    pub(super) token: u32,
    /// Offset of its text in characters, from the start of the choice's generated text.
    pub(super) start_chars: usize,
    /// Bytes of the token that are part of the text.
    pub(super) shown_bytes: usize,
    pub(super) logprobs: TokenLogprobs,
    start: usize,
    end: usize,
}

/// Why a choice's text is over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum End {
    /// The engine's own end.
    Engine(FinishReason),
    /// This stop string is complete.
    StopString(usize),
    /// A parser wants nothing more.
    Parser,
}

impl End {
    /// Writes the stop string or stop token that ended the text, else null.
    pub(super) fn write_stop_reason(end: Option<End>, stops: &StopStrings, out: &mut BytesMut) {
        match end {
            Some(End::StopString(index)) => write_optional(out, stops.text(index)),
            Some(End::Engine(FinishReason::StopToken(token))) => {
                out.extend_from_slice(token.to_string().as_bytes());
            }
            _ => out.extend_from_slice(b"null"),
        }
    }
}

/// The machine of one choice.
#[derive(Debug)]
pub(super) struct TokenText {
    model: Arc<ServedModel>,
    rules: Arc<TextRules>,
    detokenizer: Detokenizer,
    stop: StopMatcher,
    tokens: u32,
    /// Text decoded so far, in bytes and characters.
    decoded: usize,
    decoded_chars: usize,
    /// Text given out so far, in bytes.
    released: usize,
    entries: VecDeque<Entry>,
    piece: String,
}

impl TokenText {
    pub(super) fn new(model: &Arc<ServedModel>, rules: &Arc<TextRules>) -> Self {
        Self {
            model: model.clone(),
            rules: rules.clone(),
            detokenizer: Detokenizer::default(),
            stop: StopMatcher::new(rules.stops.clone(), rules.include_stop),
            tokens: 0,
            decoded: 0,
            decoded_chars: 0,
            released: 0,
            entries: VecDeque::new(),
            piece: String::new(),
        }
    }

    /// Tokens taken so far.
    pub(super) fn tokens(&self) -> u32 {
        self.tokens
    }

    /// Takes one token and appends to `out` the text that is settled. `finish` is set if it is the last one.
    pub(super) fn push(
        &mut self,
        token: u32,
        logprobs: Option<&TokenLogprobs>,
        finish: Option<FinishReason>,
        out: &mut String,
    ) -> Option<End> {
        self.tokens += 1;
        let ends = matches!(finish, Some(FinishReason::Eos))
            || matches!(finish, Some(FinishReason::StopToken(stop)) if stop == token);
        let tokenizer = &self.model.tokenizer;
        let hidden = ends && !self.rules.include_stop
            || self.rules.skip_special && tokenizer.is_special(token) && !self.rules.kept.contains(&token);
        let model = self.model.clone();
        let bytes = if hidden { &[][..] } else { model.tokenizer.token_bytes(token).unwrap_or_default() };
        let (start, start_chars) = (self.decoded, self.decoded_chars);
        self.piece.clear();
        self.detokenizer.push(bytes, &mut self.piece);
        self.decoded += self.piece.len();
        self.decoded_chars += self.piece.chars().count();
        if self.rules.entries && (!ends || self.rules.end_entry || !hidden) {
            self.entries.push_back(Entry {
                token,
                start_chars,
                shown_bytes: bytes.len(),
                logprobs: logprobs.cloned().unwrap_or_default(),
                start,
                end: self.decoded,
            });
        }
        self.scan(out)
    }

    /// Hands the newest piece to the stop matcher.
    fn scan(&mut self, out: &mut String) -> Option<End> {
        let before = out.len();
        let hit = if self.tokens <= self.rules.min_tokens && self.rules.min_tokens > 0 {
            self.stop.skip(&self.piece, out);
            None
        } else {
            self.stop.push(&self.piece, out)
        };
        self.released += out.len() - before;
        if hit.is_some() {
            self.cut_entries();
        }
        hit.map(End::StopString)
    }

    /// Entries of text that was cut off go with it.
    fn cut_entries(&mut self) {
        let cut = self.released;
        while self.entries.back().is_some_and(|entry| entry.start >= cut) {
            self.entries.pop_back();
        }
        if let Some(last) = self.entries.back_mut() {
            last.shown_bytes = last.shown_bytes.min(cut.saturating_sub(last.start));
            last.end = last.end.min(cut);
        }
    }

    /// Ends the text and gives out what was held back. Even the last character can complete a stop string.
    pub(super) fn finish(&mut self, out: &mut String) -> Option<End> {
        self.piece.clear();
        self.detokenizer.finish(&mut self.piece);
        self.decoded += self.piece.len();
        self.decoded_chars += self.piece.chars().count();
        let hit = self.scan(out);
        if hit.is_none() {
            let before = out.len();
            self.stop.finish(out);
            self.released += out.len() - before;
        }
        hit
    }

    /// The text ends here by a parser's will; nothing more is given out, and entries go as far as they have text.
    pub(super) fn close(&mut self) {
        self.released = self.decoded;
    }

    /// Moves the entries whose text was given out to `entries`. To be called after each token, since a later cut
    /// takes back what is still here.
    pub(super) fn take_entries(&mut self, entries: &mut Vec<Entry>) {
        while self.entries.front().is_some_and(|entry| entry.end <= self.released) {
            entries.extend(self.entries.pop_front());
        }
    }
}
