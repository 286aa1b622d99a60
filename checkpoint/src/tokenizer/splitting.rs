//! How text is cut into words before merging, by the name a GGUF file gives in `tokenizer.ggml.pre`.
//!
//! The patterns are those of the models' own tokenizer.json files; a name we don't know is refused, never guessed.

use serde_json::Value;
use tokenizers::PreTokenizerWrapper;
use tokenizers::pre_tokenizers::byte_level::ByteLevel;
use tokenizers::pre_tokenizers::sequence::Sequence;
use tokenizers::pre_tokenizers::split::{Split, SplitPattern};
use tokenizers::tokenizer::SplitDelimiterBehavior;

use super::error::TokenizerError;
use super::words::Words;

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

/// How words are cut.
pub(super) enum Cut {
    /// In our own code.
    Words(Words),
    /// By a regular expression.
    Pattern(Box<PreTokenizerWrapper>),
}

/// The stages before merging, and whether a word that is a token needs no merging.
pub(super) struct Splitting {
    pub(super) composed: bool,
    pub(super) cut: Cut,
    pub(super) ignore_merges: bool,
}

/// Finds the splitting of a pre-tokenizer name.
pub(super) fn by_name(name: &str) -> Result<Splitting, TokenizerError> {
    let plain = |words| Splitting { composed: false, cut: Cut::Words(words), ignore_merges: false };
    let llama3 = plain(Words::Llama3 { digits: 3 });
    Ok(match name {
        "gpt-2" | "default" | "phi-2" | "mpt" | "olmo" | "jais" | "roberta-bpe" => {
            plain(Words::Gpt2 { single_digits: false })
        }
        "smollm" | "starcoder" | "refact" | "command-r" | "codeshell" | "exaone" => {
            plain(Words::Gpt2 { single_digits: true })
        }
        "qwen2" | "deepseek-r1-qwen" => Splitting { composed: true, ..plain(Words::Llama3 { digits: 1 }) },
        "llama-bpe" | "llama3" | "llama-v3" | "falcon3" => Splitting { ignore_merges: true, ..llama3 },
        "smaug-bpe" | "dbrx" => llama3,
        "tekken" => Splitting { composed: false, cut: Cut::Pattern(pattern(TEKKEN)?), ignore_merges: true },
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

/// A pattern of the model's own, then GPT-2's byte alphabet.
fn pattern(regex: &str) -> Result<Box<PreTokenizerWrapper>, TokenizerError> {
    let split = Split::new(SplitPattern::Regex(regex.to_owned()), SplitDelimiterBehavior::Isolated, false)
        .map_err(|error| TokenizerError::invalid("tokenizer.ggml.pre", format!("its pattern: {error}")))?;
    let stages = vec![split.into(), ByteLevel::new(false, true, false).into()];
    Ok(Box::new(Sequence::new(stages).into()))
}

/// Recognises the pre-tokenizer of a tokenizer.json as one that [`Words`] cuts the same way.
pub(super) fn by_stages(pre_tokenizer: &Value) -> Option<Words> {
    let kind = |stage: &Value| stage.get("type").and_then(Value::as_str).map(str::to_owned);
    let yes = |stage: &Value, field: &str| stage.get(field).and_then(Value::as_bool).unwrap_or(true);
    let is_bytes = |stage: &Value, regex: bool| {
        kind(stage).as_deref() == Some("ByteLevel")
            && !yes(stage, "add_prefix_space")
            && yes(stage, "use_regex") == regex
    };
    if is_bytes(pre_tokenizer, true) {
        return Some(Words::Gpt2 { single_digits: false });
    }
    let [head, bytes] = pre_tokenizer.get("pretokenizers")?.as_array()?.as_slice() else { return None };
    match kind(head)?.as_str() {
        "Digits" if head.get("individual_digits")?.as_bool()? && is_bytes(bytes, true) => {
            Some(Words::Gpt2 { single_digits: true })
        }
        "Split" if head.get("behavior")? == "Isolated" && !yes(head, "invert") && is_bytes(bytes, false) => {
            match head.get("pattern")?.get("Regex")?.as_str()? {
                LLAMA3 => Some(Words::Llama3 { digits: 3 }),
                QWEN2 => Some(Words::Llama3 { digits: 1 }),
                _ => None,
            }
        }
        _ => None,
    }
}
