//! The tokenizer that lies beside a model's weights.
//!
//! The rule: a GGUF file brings its own vocabulary; a directory has `tokenizer.json`.

use super::Tokenizer;
use super::error::TokenizerError;
use super::gguf_vocab::GgufVocab;
use crate::gguf::Metadata;
use crate::model::Checkpoint;

impl Tokenizer {
    /// The tokenizer of an opened model.
    ///
    /// # Errors
    /// It is missing, of a kind that isn't supported, or contradicts itself.
    pub fn of_checkpoint(checkpoint: &Checkpoint) -> Result<Self, TokenizerError> {
        match checkpoint.gguf_metadata() {
            Some(metadata) => Self::from_gguf_vocab(gguf_vocab(metadata)),
            None => Self::from_json_file(checkpoint.dir().join("tokenizer.json")),
        }
    }
}

fn gguf_vocab(metadata: &Metadata) -> GgufVocab {
    let text = |key: &str| metadata.str(key).unwrap_or_default().to_owned();
    let texts = |key: &str| metadata.strings(key).map(<[String]>::to_vec).unwrap_or_default();
    let id = |key: &str| metadata.u64(key).and_then(|id| u32::try_from(id).ok());
    let types = metadata.integers("tokenizer.ggml.token_type").unwrap_or_default();
    GgufVocab {
        model: text("tokenizer.ggml.model"),
        pre: text("tokenizer.ggml.pre"),
        tokens: texts("tokenizer.ggml.tokens"),
        // A type outside the range becomes one that is refused by name.
        token_types: types.iter().map(|kind| i32::try_from(*kind).unwrap_or(i32::MAX)).collect(),
        merges: texts("tokenizer.ggml.merges"),
        bos: id("tokenizer.ggml.bos_token_id"),
        eos: id("tokenizer.ggml.eos_token_id"),
        add_bos: metadata.bool("tokenizer.ggml.add_bos_token").unwrap_or(false),
    }
}
