//! The tokenizer of an opened model, wherever the model keeps it.
//!
//! A GGUF file carries its own vocabulary; a directory has a `tokenizer.json`.

use super::{GgufVocab, TokenTable, Tokenizer, TokenizerError};
use crate::gguf::Metadata;
use crate::model::Checkpoint;

impl GgufVocab {
    /// Reads `tokenizer.ggml.*` of a GGUF file.
    ///
    /// # Errors
    /// A file without a vocabulary.
    pub fn from_metadata(metadata: &Metadata) -> Result<Self, TokenizerError> {
        let merges = metadata.strings("tokenizer.ggml.merges").map(<[String]>::to_vec);
        Ok(Self {
            merges: merges.ok_or_else(|| missing("tokenizer.ggml.merges"))?,
            ..Self::tokens_alone(metadata)?
        })
    }

    /// The same without merges, which only whoever encodes text needs.
    pub(super) fn tokens_alone(metadata: &Metadata) -> Result<Self, TokenizerError> {
        let text = |field| metadata.str(field).ok_or_else(|| missing(field));
        let texts = |field| metadata.strings(field).map(<[String]>::to_vec).ok_or_else(|| missing(field));
        let id = |field| metadata.u64(field).and_then(|id| u32::try_from(id).ok());
        let pre = metadata.str("tokenizer.ggml.pre").unwrap_or("default");
        // Files of these models leave the habit out; their makers' tokenizers have it.
        let habit = matches!(pre, "llama-bpe" | "llama3" | "llama-v3" | "tekken");
        let token_types = metadata.integers("tokenizer.ggml.token_type").unwrap_or_default();
        Ok(Self {
            model: text("tokenizer.ggml.model")?.to_owned(),
            pre: pre.to_owned(),
            tokens: texts("tokenizer.ggml.tokens")?,
            // A number that is no token type at all becomes 0, which is refused by name.
            token_types: token_types.iter().map(|kind| i32::try_from(*kind).unwrap_or(0)).collect(),
            merges: Vec::new(),
            bos: id("tokenizer.ggml.bos_token_id"),
            eos: id("tokenizer.ggml.eos_token_id"),
            add_bos: metadata.bool("tokenizer.ggml.add_bos_token").unwrap_or(habit),
        })
    }
}

fn missing(field: &'static str) -> TokenizerError {
    TokenizerError::invalid(field, "missing; convert the model with its tokenizer")
}

impl TokenTable {
    /// The tokens of a model.
    ///
    /// # Errors
    /// A vocabulary that is missing, unsupported, or contradicts itself.
    pub fn open(model: &Checkpoint) -> Result<Self, TokenizerError> {
        let vocabulary = match model.gguf_metadata() {
            Some(metadata) => GgufVocab::tokens_alone(metadata)?.into_vocabulary()?,
            None => Tokenizer::open(model)?.vocabulary,
        };
        Ok(Self { vocabulary })
    }
}

impl Tokenizer {
    /// The tokenizer of a model.
    ///
    /// # Errors
    /// A vocabulary that is missing, unsupported, or contradicts itself.
    pub fn open(model: &Checkpoint) -> Result<Self, TokenizerError> {
        match model.gguf_metadata() {
            Some(metadata) => Self::from_gguf_vocab(GgufVocab::from_metadata(metadata)?),
            None => Self::from_json_file(model.dir().join("tokenizer.json")),
        }
    }
}
