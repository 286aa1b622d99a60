//! From ordinary text to ids: normalise, cut into words, merge each word. The one user of the `tokenizers` crate.
//!
//! Added tokens aren't known here, so whatever the text says, only tokens that merges produce come out.

use tokenizers::tokenizer::{Model, Normalizer, PreTokenizer};
use tokenizers::{
    ModelWrapper, NormalizedString, NormalizerWrapper, OffsetReferential, OffsetType, PreTokenizedString,
    PreTokenizerWrapper,
};

/// Text is worked on in stretches of at most this many bytes, so that no search can exhaust the budget of the
/// regular expression engine. A stretch is far beyond what any context holds, so results match HF's wherever
/// they matter.
const STRETCH_BYTES: usize = 2 << 20;

/// The three stages of a tokenizer without its added tokens.
pub(super) struct Pipeline {
    normalizer: Option<NormalizerWrapper>,
    pre_tokenizer: Option<PreTokenizerWrapper>,
    model: ModelWrapper,
}

impl Pipeline {
    pub(super) fn new(
        normalizer: Option<NormalizerWrapper>,
        pre_tokenizer: Option<PreTokenizerWrapper>,
        model: ModelWrapper,
    ) -> Self {
        Self { normalizer, pre_tokenizer, model }
    }

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
        let mut normalized = NormalizedString::from(text);
        if let Some(normalizer) = &self.normalizer {
            normalizer.normalize(&mut normalized).expect("normalisers only fail on texts beyond 4 GiB");
        }
        let mut words = PreTokenizedString::from(normalized);
        if let Some(pre_tokenizer) = &self.pre_tokenizer {
            pre_tokenizer
                .pre_tokenize(&mut words)
                .expect("splitting only fails on offsets outside of the text");
        }
        for (word, _, _) in words.get_splits(OffsetReferential::Normalized, OffsetType::None) {
            let tokens =
                self.model.tokenize(word).expect("the unknown token was checked when the model was read");
            ids.extend(tokens.iter().map(|token| token.id));
        }
    }
}
