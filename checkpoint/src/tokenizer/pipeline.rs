//! From ordinary text to ids: normalise, cut into words, merge each word.
//!
//! Added tokens aren't known here, so whatever the text says, only tokens that merges produce come out.

use tokenizers::normalizers::unicode::NFC;
use tokenizers::tokenizer::{Model, Normalizer, PreTokenizer};
use tokenizers::{
    ModelWrapper, NormalizedString, NormalizerWrapper, OffsetReferential, OffsetType, PreTokenizedString,
    PreTokenizerWrapper,
};

use super::byte_pairs::BytePairs;
use super::words::Words;

/// Text is worked on in stretches of at most this many bytes, so that no search can exhaust the budget of the
/// regular expression engine. A stretch is far beyond what any context holds, so results match Hugging Face's
/// wherever they matter.
const STRETCH_BYTES: usize = 2 << 20;

/// The stages of a tokenizer without its added tokens.
pub(super) enum Pipeline {
    /// The usual kinds of byte-level BPE, in our own code.
    Bytes {
        /// Whether text is brought into Unicode's composed form first.
        composed: bool,
        /// How text is cut.
        words: Words,
        /// How words are merged.
        pairs: Box<BytePairs>,
    },
    /// Anything else that the `tokenizers` crate reads.
    General {
        /// What changes the text first.
        normalizer: Option<NormalizerWrapper>,
        /// How text is cut.
        pre_tokenizer: Option<PreTokenizerWrapper>,
        /// How words are merged.
        model: Box<ModelWrapper>,
    },
}

impl Pipeline {
    /// Appends the ids of a text.
    pub(super) fn encode_into(&self, text: &str, ids: &mut Vec<u32>) {
        let mut rest = text;
        while !rest.is_empty() {
            let (head, tail) = rest.split_at(rest.floor_char_boundary(STRETCH_BYTES));
            self.encode_stretch(head, ids);
            rest = tail;
        }
    }

    fn encode_stretch(&self, text: &str, ids: &mut Vec<u32>) {
        match self {
            // ASCII is composed as it is.
            Self::Bytes { composed: true, words, pairs } if !text.is_ascii() => {
                let mut normalized = NormalizedString::from(text);
                NFC.normalize(&mut normalized).expect("composing text has no way to fail");
                words.cut(normalized.get(), |word| pairs.encode_into(word, ids));
            }
            Self::Bytes { words, pairs, .. } => words.cut(text, |word| pairs.encode_into(word, ids)),
            Self::General { normalizer, pre_tokenizer, model } => {
                encode_generally(text, normalizer.as_ref(), pre_tokenizer.as_ref(), model, ids);
            }
        }
    }
}

fn encode_generally(
    text: &str,
    normalizer: Option<&NormalizerWrapper>,
    pre_tokenizer: Option<&PreTokenizerWrapper>,
    model: &ModelWrapper,
    ids: &mut Vec<u32>,
) {
    let mut normalized = NormalizedString::from(text);
    if let Some(normalizer) = normalizer {
        normalizer.normalize(&mut normalized).expect("normalisers only fail on offsets outside of the text");
    }
    let mut words = PreTokenizedString::from(normalized);
    if let Some(pre_tokenizer) = pre_tokenizer {
        pre_tokenizer.pre_tokenize(&mut words).expect("splitting only fails on offsets outside of the text");
    }
    for (word, _, _) in words.get_splits(OffsetReferential::Normalized, OffsetType::None) {
        let tokens = model.tokenize(word).expect("the unknown token was checked when the model was read");
        ids.extend(tokens.iter().map(|token| token.id));
    }
}
