//! The table of all tokens: text, raw bytes and kind of each id, laid out once when the model is opened.
//!
//! An id without a token has no text and no bytes; asking for it is never an error.

use std::collections::HashMap;

use super::alphabet;
use super::error::TokenizerError;

/// The most ids a vocabulary may have; real ones stay below 300,000.
pub(super) const MAX_IDS: usize = 1 << 22;

/// What a token is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    /// A piece of text.
    Normal,
    /// A piece of text that is matched as a whole, such as `<tool_call>`.
    Added,
    /// A mark that steers the model, such as `<|im_end|>`.
    Control,
    /// One byte, written `<0x0A>`.
    Byte,
    /// A row that pads the matrix; it stands for nothing.
    Unused,
}

/// How the text of a normal token stands for bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Spelling {
    /// Each character is a byte of the GPT-2 alphabet.
    ByteLevel,
    /// Plain text in which `▁` is a space.
    SentencePiece,
}

/// All tokens of a model.
#[derive(Debug)]
pub(super) struct Vocabulary {
    texts: Vec<Box<str>>,
    kinds: Vec<Kind>,
    bytes: Vec<u8>,
    ends: Vec<usize>,
    ids: HashMap<Box<str>, u32>,
}

impl Vocabulary {
    /// Lays out the tokens. Ids need not be contiguous, but stay below [`MAX_IDS`]; of two tokens with one id
    /// the later wins, so added tokens come last.
    pub(super) fn new(
        tokens: impl IntoIterator<Item = (u32, String, Kind)>,
        spelling: Spelling,
    ) -> Result<Self, TokenizerError> {
        let mut texts: Vec<Box<str>> = Vec::new();
        let mut kinds = Vec::new();
        for (id, text, kind) in tokens {
            let at = id as usize;
            if at >= MAX_IDS {
                return Err(TokenizerError::invalid("vocabulary", format!("id {id} exceeds {MAX_IDS}")));
            }
            if at >= texts.len() {
                texts.resize(at + 1, Box::from(""));
                kinds.resize(at + 1, Kind::Unused);
            }
            texts[at] = text.into_boxed_str();
            kinds[at] = kind;
        }
        if texts.is_empty() {
            return Err(TokenizerError::invalid("vocabulary", "it is empty; a model needs tokens"));
        }
        let mut bytes = Vec::new();
        let mut ends = Vec::with_capacity(texts.len());
        let mut ids = HashMap::with_capacity(texts.len());
        for (id, (text, kind)) in texts.iter().zip(&kinds).enumerate() {
            append_bytes(&mut bytes, text, *kind, spelling);
            ends.push(bytes.len());
            if *kind != Kind::Unused {
                ids.entry(text.clone()).or_insert(id as u32);
            }
        }
        Ok(Self { texts, kinds, bytes, ends, ids })
    }

    pub(super) fn len(&self) -> usize {
        self.texts.len()
    }

    pub(super) fn kind(&self, id: u32) -> Option<Kind> {
        self.kinds.get(id as usize).copied()
    }

    pub(super) fn text(&self, id: u32) -> Option<&str> {
        self.texts.get(id as usize).map(|text| &**text)
    }

    pub(super) fn bytes(&self, id: u32) -> Option<&[u8]> {
        let at = id as usize;
        let end = *self.ends.get(at)?;
        let start = if at == 0 { 0 } else { self.ends[at - 1] };
        Some(&self.bytes[start..end])
    }

    pub(super) fn id_of(&self, text: &str) -> Option<u32> {
        self.ids.get(text).copied()
    }
}

/// Appends what a token stands for.
fn append_bytes(out: &mut Vec<u8>, text: &str, kind: Kind, spelling: Spelling) {
    match (kind, spelling) {
        (Kind::Unused, _) => {}
        (Kind::Added | Kind::Control, _) => out.extend_from_slice(text.as_bytes()),
        (Kind::Byte, _) => match byte_token(text) {
            Some(byte) => out.push(byte),
            None => out.extend_from_slice(text.as_bytes()),
        },
        (Kind::Normal, Spelling::ByteLevel) => match alphabet::decode(text) {
            Some(bytes) => out.extend_from_slice(&bytes),
            // A text outside of the alphabet is what it says; HF decodes it the same way.
            None => out.extend_from_slice(text.as_bytes()),
        },
        (Kind::Normal, Spelling::SentencePiece) => out.extend_from_slice(text.replace('▁', " ").as_bytes()),
    }
}

/// The byte that a token such as `<0x0A>` stands for.
pub(super) fn byte_token(text: &str) -> Option<u8> {
    let hex = text.strip_prefix("<0x")?.strip_suffix('>')?;
    if hex.len() == 2 { u8::from_str_radix(hex, 16).ok() } else { None }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_kind_of_token_has_its_own_bytes() {
        let tokens = [
            (0, "Ġa".to_owned(), Kind::Normal),
            (1, "<|end|>".to_owned(), Kind::Control),
            (2, "<0x0A>".to_owned(), Kind::Byte),
            (4, "[PAD]".to_owned(), Kind::Unused),
        ];
        let vocabulary = Vocabulary::new(tokens, Spelling::ByteLevel).unwrap();
        assert_eq!(vocabulary.bytes(0), Some(&b" a"[..]));
        assert_eq!(vocabulary.bytes(1), Some(&b"<|end|>"[..]));
        assert_eq!(vocabulary.bytes(2), Some(&b"\n"[..]));
        assert_eq!(vocabulary.bytes(3), Some(&b""[..]));
        assert_eq!(vocabulary.bytes(4), Some(&b""[..]));
        assert_eq!(vocabulary.bytes(5), None);
        assert_eq!(vocabulary.id_of("[PAD]"), None);
        assert_eq!(vocabulary.id_of("Ġa"), Some(0));
    }

    #[test]
    fn an_id_beyond_the_bound_is_refused_before_anything_is_allocated() {
        let tokens = [(u32::MAX, "a".to_owned(), Kind::Normal)];
        let error = Vocabulary::new(tokens, Spelling::ByteLevel).unwrap_err();
        assert!(error.to_string().contains("4294967295"), "{error}");
    }
}
