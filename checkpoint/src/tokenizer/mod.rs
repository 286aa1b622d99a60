//! Text to token ids and back. One rule: only the template makes control tokens, text is data.
//!
//! [`Tokenizer::encode`] never yields an added token whatever the text says; [`Tokenizer::encode_with_control`]
//! is for text that the template wrote. Nothing here fails or panics on any text or id.

use std::fmt;

mod added;
mod alphabet;
mod byte_pairs;
mod error;
mod gguf_vocab;
mod hf_json;
mod open;
mod pipeline;
mod splitting;
mod vocabulary;
mod words;

#[cfg(test)]
pub(crate) mod tests;

pub(crate) use added::AddedTokens;
pub use error::TokenizerError;
pub use gguf_vocab::GgufVocab;

use added::Piece;
use pipeline::Pipeline;
use vocabulary::{Kind, Vocabulary};

use crate::chat_template::RenderedPrompt;

/// The ids a prompt begins and an answer ends with, and the habits that go with them.
#[derive(Debug, Clone, Copy, Default)]
struct Specials {
    bos: Option<u32>,
    eos: Option<u32>,
    add_bos: bool,
    strip_first_space: bool,
}

/// The tokenizer of one model; cheap to share, immutable.
pub struct Tokenizer {
    vocabulary: Vocabulary,
    added: AddedTokens,
    pipeline: Pipeline,
    specials: Specials,
}

impl fmt::Debug for Tokenizer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tokenizer")
            .field("vocab_size", &self.vocab_size())
            .field("added", &self.added.tokens().len())
            .field("specials", &self.specials)
            .finish_non_exhaustive()
    }
}

/// The tokens of a model alone, for whoever reads ids but never makes them of a text: merges, most of the work of
/// opening a tokenizer, are left out where the model's format allows it.
#[derive(Debug)]
pub struct TokenTable {
    vocabulary: Vocabulary,
}

impl TokenTable {
    /// As [`Tokenizer::token_bytes`].
    #[must_use]
    pub fn bytes(&self, id: u32) -> Option<&[u8]> {
        self.vocabulary.bytes(id)
    }

    /// As [`Tokenizer::is_control`].
    #[must_use]
    pub fn is_control(&self, id: u32) -> bool {
        self.vocabulary.kind(id) == Some(Kind::Control)
    }
}

impl Tokenizer {
    /// One more than the largest id.
    pub fn vocab_size(&self) -> usize {
        self.vocabulary.len()
    }

    /// The token a prompt begins with, if the model has one.
    pub fn bos(&self) -> Option<u32> {
        self.specials.bos
    }

    /// The token an answer ends with, if the tokenizer files name one.
    pub fn eos(&self) -> Option<u32> {
        self.specials.eos
    }

    /// Whether every prompt must begin with [`Self::bos`].
    pub fn add_bos(&self) -> bool {
        self.specials.add_bos && self.specials.bos.is_some()
    }

    /// The ids of a text that is data: no added token is ever among them, and no BOS is put before them.
    pub fn encode(&self, text: &str) -> Vec<u32> {
        let mut ids = Vec::with_capacity(text.len() / 3 + 1);
        self.pipeline.encode_into(text, &mut ids);
        ids
    }

    /// The ids of a text in which added tokens mean what they say. No BOS is put before them.
    pub fn encode_with_control(&self, text: &str) -> Vec<u32> {
        self.encode_pieces(text, None)
    }

    /// The ids of a rendered chat, beginning with exactly one BOS if the tokenizer wants one: the template's
    /// own if it wrote one. Control text inside of message contents stays text.
    pub fn encode_prompt(&self, prompt: &RenderedPrompt) -> Vec<u32> {
        self.with_bos(self.encode_pieces(prompt.guarded_text(), Some(prompt.guard())))
    }

    /// Puts BOS before the ids, if the tokenizer wants one and they don't begin with it.
    pub fn with_bos(&self, mut ids: Vec<u32>) -> Vec<u32> {
        if let Some(bos) = self.bos().filter(|bos| self.add_bos() && ids.first() != Some(bos)) {
            ids.insert(0, bos);
        }
        ids
    }

    fn encode_pieces(&self, text: &str, guard: Option<char>) -> Vec<u32> {
        let mut ids = Vec::with_capacity(text.len() / 3 + 1);
        for piece in self.added.split(text, guard) {
            match piece {
                Piece::Token(id) => ids.push(id),
                // The guard only kept this text from reading as an added token; the model never sees it.
                Piece::Text(text) => match guard.filter(|guard| text.contains(*guard)) {
                    Some(guard) => self.pipeline.encode_into(&text.replace(guard, ""), &mut ids),
                    None => self.pipeline.encode_into(text, &mut ids),
                },
            }
        }
        ids
    }

    /// The raw bytes a token stands for; a control token's are its literal text, a padding row's are empty.
    /// `None` beyond the vocabulary.
    pub fn token_bytes(&self, id: u32) -> Option<&[u8]> {
        self.vocabulary.bytes(id)
    }

    /// Whether a token steers the model, such as `<|im_end|>`, and is no text for a reader.
    pub fn is_control(&self, id: u32) -> bool {
        self.vocabulary.kind(id) == Some(Kind::Control)
    }

    /// Whether a token is hidden from readers when special tokens are skipped: control tokens and padding rows.
    pub fn is_special(&self, id: u32) -> bool {
        matches!(self.vocabulary.kind(id), Some(Kind::Control | Kind::Unused))
    }

    /// Whether a token is matched as a whole and never made by merges: control tokens and others such as
    /// `<tool_call>`.
    pub fn is_added(&self, id: u32) -> bool {
        matches!(self.vocabulary.kind(id), Some(Kind::Control | Kind::Added))
    }

    /// A token's text as the model file spells it.
    pub fn token_text(&self, id: u32) -> Option<&str> {
        self.vocabulary.text(id)
    }

    /// The token that the model file spells like this.
    pub fn id_of(&self, text: &str) -> Option<u32> {
        self.vocabulary.id_of(text)
    }

    /// The text of some ids; bytes that are no UTF-8 become U+FFFD, ids beyond the vocabulary are left out.
    pub fn decode(&self, ids: &[u32], skip_special: bool) -> String {
        let mut bytes = Vec::with_capacity(ids.len() * 4);
        for id in ids.iter().filter(|id| !(skip_special && self.is_special(**id))) {
            bytes.extend_from_slice(self.token_bytes(*id).unwrap_or_default());
        }
        if self.specials.strip_first_space && bytes.first() == Some(&b' ') {
            bytes.remove(0);
        }
        match String::from_utf8(bytes) {
            Ok(text) => text,
            Err(error) => String::from_utf8_lossy(error.as_bytes()).into_owned(),
        }
    }

    /// The added tokens, which a chat template guards against in message contents.
    pub(crate) fn added_tokens(&self) -> &AddedTokens {
        &self.added
    }
}
