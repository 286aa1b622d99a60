//! How text is cut into words before merging, by the name a GGUF file gives in `tokenizer.ggml.pre`.
//!
//! The patterns are those of the models' own tokenizer.json files; a name we don't know is refused, never guessed.

use tokenizers::normalizers::unicode::NFC;
use tokenizers::pre_tokenizers::byte_level::ByteLevel;
use tokenizers::pre_tokenizers::digits::Digits;
use tokenizers::pre_tokenizers::sequence::Sequence;
use tokenizers::pre_tokenizers::split::{Split, SplitPattern};
use tokenizers::tokenizer::SplitDelimiterBehavior;
use tokenizers::{NormalizerWrapper, PreTokenizerWrapper};

use super::error::TokenizerError;

/// Llama 3: digits in groups of three.
const LLAMA3: &str = concat!(
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}|",
    r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
);

/// Qwen 2: the same with single digits.
const QWEN2: &str = concat!(
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}|",
    r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
);

/// Mistral's Tekken: words break where lower case meets upper case.
const TEKKEN: &str = concat!(
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|",
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}|",
    r" ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
);

/// The stages before merging, and whether a word that is a token needs no merging.
pub(super) struct Splitting {
    pub(super) normalizer: Option<NormalizerWrapper>,
    pub(super) pre_tokenizer: PreTokenizerWrapper,
    pub(super) ignore_merges: bool,
}

/// Finds the splitting of a pre-tokenizer name.
pub(super) fn by_name(name: &str) -> Result<Splitting, TokenizerError> {
    let plain = |pre_tokenizer| Splitting { normalizer: None, pre_tokenizer, ignore_merges: false };
    Ok(match name {
        "gpt-2" | "default" | "phi-2" | "mpt" | "olmo" | "jais" | "roberta-bpe" => plain(gpt2()),
        "smollm" | "starcoder" | "refact" | "command-r" | "codeshell" | "exaone" => {
            plain(sequence(vec![PreTokenizerWrapper::Digits(Digits::new(true)), gpt2()]))
        }
        "qwen2" | "deepseek-r1-qwen" => Splitting { normalizer: Some(NFC.into()), ..plain(pattern(QWEN2)?) },
        "llama-bpe" | "llama3" | "llama-v3" | "falcon3" => {
            Splitting { ignore_merges: true, ..plain(pattern(LLAMA3)?) }
        }
        "smaug-bpe" | "dbrx" => plain(pattern(LLAMA3)?),
        "tekken" => Splitting { ignore_merges: true, ..plain(pattern(TEKKEN)?) },
        unknown => {
            return Err(TokenizerError::Unsupported {
                field: "tokenizer.ggml.pre",
                value: unknown.to_owned(),
                supported: "gpt-2, default, smollm, starcoder, qwen2, llama-bpe, smaug-bpe, tekken; \
                            or use the model's Hugging Face directory with its tokenizer.json"
                    .to_owned(),
            });
        }
    })
}

/// GPT-2's own pattern, then its byte alphabet.
fn gpt2() -> PreTokenizerWrapper {
    ByteLevel::new(false, true, true).into()
}

/// A pattern of the model's own, then GPT-2's byte alphabet.
fn pattern(regex: &str) -> Result<PreTokenizerWrapper, TokenizerError> {
    let split = Split::new(SplitPattern::Regex(regex.to_owned()), SplitDelimiterBehavior::Isolated, false)
        .map_err(|error| TokenizerError::invalid("tokenizer.ggml.pre", format!("its pattern: {error}")))?;
    Ok(sequence(vec![split.into(), ByteLevel::new(false, true, false).into()]))
}

fn sequence(stages: Vec<PreTokenizerWrapper>) -> PreTokenizerWrapper {
    Sequence::new(stages).into()
}
