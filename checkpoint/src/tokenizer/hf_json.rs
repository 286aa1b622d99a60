//! A tokenizer from a Hugging Face `tokenizer.json`, with what the `tokenizer_config.json` beside it adds.
//!
//! Everything the `tokenizers` crate takes for granted is checked first, so that a broken file is an error here.

use std::collections::{HashMap, HashSet};
use std::fs;
use std::path::Path;

use serde::Deserialize;
use serde_json::Value;
use tokenizers::models::bpe::{BPE, Vocab};
use tokenizers::{NormalizerWrapper, PreTokenizerWrapper};

use super::added::{AddedToken, AddedTokens};
use super::byte_pairs::BytePairs;
use super::error::TokenizerError;
use super::gguf_vocab::{check_merges, split_merge};
use super::pipeline::Pipeline;
use super::splitting;
use super::vocabulary::{Kind, MAX_IDS, Spelling, Vocabulary, byte_token};
use super::{Specials, Tokenizer};

/// The largest tokenizer.json we read; the largest known one has 35 MB.
const MAX_FILE_BYTES: u64 = 256 << 20;

/// The parts of a tokenizer.json we use. Truncation and padding are the server's own business.
#[derive(Deserialize)]
struct TokenizerJson {
    #[serde(default)]
    added_tokens: Vec<AddedJson>,
    #[serde(default)]
    normalizer: Value,
    #[serde(default)]
    pre_tokenizer: Value,
    #[serde(default)]
    post_processor: Value,
    #[serde(default)]
    decoder: Value,
    model: ModelJson,
}

#[derive(Deserialize)]
struct AddedJson {
    id: u32,
    content: String,
    #[serde(default)]
    special: bool,
    #[serde(default)]
    lstrip: bool,
    #[serde(default)]
    rstrip: bool,
    #[serde(default)]
    single_word: bool,
}

#[derive(Deserialize)]
struct ModelJson {
    #[serde(rename = "type")]
    kind: Option<String>,
    #[serde(default)]
    dropout: Option<f32>,
    #[serde(default)]
    unk_token: Option<String>,
    #[serde(default)]
    continuing_subword_prefix: Option<String>,
    #[serde(default)]
    end_of_word_suffix: Option<String>,
    #[serde(default)]
    fuse_unk: bool,
    #[serde(default)]
    byte_fallback: bool,
    #[serde(default)]
    ignore_merges: bool,
    vocab: HashMap<String, u32>,
    merges: Vec<MergeJson>,
}

/// Older files write a merge as one string, newer ones as a pair.
#[derive(Deserialize)]
#[serde(untagged)]
enum MergeJson {
    Pair(String, String),
    Line(String),
}

/// The fields of tokenizer_config.json that change ids.
#[derive(Deserialize, Default)]
struct ConfigJson {
    #[serde(default)]
    bos_token: Value,
    #[serde(default)]
    eos_token: Value,
    #[serde(default)]
    add_bos_token: Option<bool>,
}

fn read(path: &Path) -> Result<Vec<u8>, TokenizerError> {
    let failed = |source| TokenizerError::Read { path: path.to_owned(), source };
    let size_bytes = fs::metadata(path).map_err(failed)?.len();
    if size_bytes > MAX_FILE_BYTES {
        let limit_bytes = MAX_FILE_BYTES;
        return Err(TokenizerError::TooLarge { path: path.to_owned(), size_bytes, limit_bytes });
    }
    fs::read(path).map_err(failed)
}

impl Tokenizer {
    /// Reads a `tokenizer.json` with a BPE model, and the `tokenizer_config.json` beside it if there is one.
    ///
    /// # Errors
    /// A file that can't be read, a model other than BPE, or a vocabulary that contradicts itself.
    pub fn from_json_file(path: impl AsRef<Path>) -> Result<Self, TokenizerError> {
        let path = path.as_ref();
        let json = read(path)?;
        let config = path.with_file_name("tokenizer_config.json");
        let config = if config.is_file() { Some(read(&config)?) } else { None };
        Self::from_json(&json, config.as_deref())
    }

    /// Builds the tokenizer from the contents of `tokenizer.json` and, if present, `tokenizer_config.json`.
    ///
    /// # Errors
    /// As [`Self::from_json_file`].
    pub fn from_json(json: &[u8], config: Option<&[u8]>) -> Result<Self, TokenizerError> {
        let mut file: TokenizerJson = serde_json::from_slice(json)?;
        let config: ConfigJson = config.map(serde_json::from_slice).transpose()?.unwrap_or_default();
        let spelling = spelling(&file);
        let tokens = file.all_tokens();
        let merges = file.model.take_merges()?;
        let pipeline = file.pipeline(merges)?;
        let vocabulary = Vocabulary::new(tokens, spelling)?;
        let specials = specials(&file, &config, &vocabulary);
        let added = file.added_tokens.into_iter().map(|token| AddedToken {
            id: token.id,
            text: token.content,
            control: token.special,
            lstrip: token.lstrip,
            rstrip: token.rstrip,
            single_word: token.single_word,
        });
        let added = AddedTokens::new(added.collect());
        Ok(Self { vocabulary, added, pipeline, specials })
    }
}

impl TokenizerJson {
    /// The model's tokens and then the added ones, which win where both claim an id.
    fn all_tokens(&self) -> Vec<(u32, String, Kind)> {
        let fallback = self.model.byte_fallback;
        let normal = self.model.vocab.iter().map(|(text, id)| {
            let byte = fallback && byte_token(text).is_some();
            (*id, text.clone(), if byte { Kind::Byte } else { Kind::Normal })
        });
        let added = self.added_tokens.iter().map(|token| {
            (token.id, token.content.clone(), if token.special { Kind::Control } else { Kind::Added })
        });
        normal.chain(added).collect()
    }

    /// Refuses what the merge model can't be built from.
    fn check_model(&self) -> Result<(), TokenizerError> {
        let model = &self.model;
        if let Some(kind) = model.kind.as_deref().filter(|kind| *kind != "BPE") {
            return Err(TokenizerError::Unsupported {
                field: "model.type",
                value: kind.to_owned(),
                supported: "BPE".to_owned(),
            });
        }
        if model.dropout.is_some_and(|dropout| dropout != 0.0) {
            return Err(TokenizerError::invalid(
                "model.dropout",
                "must be null: a prompt has one set of ids",
            ));
        }
        if let Some(id) = model.vocab.values().find(|id| **id as usize >= MAX_IDS) {
            return Err(TokenizerError::invalid("model.vocab", format!("id {id} exceeds {MAX_IDS}")));
        }
        if let Some(unknown) = model.unk_token.as_ref().filter(|unknown| !model.vocab.contains_key(*unknown))
        {
            let reason = format!("{unknown:?} is no token of the model");
            return Err(TokenizerError::invalid("model.unk_token", reason));
        }
        let affixes = [&model.continuing_subword_prefix, &model.end_of_word_suffix];
        if affixes.into_iter().flatten().any(|affix| !affix.is_empty()) {
            return Err(TokenizerError::invalid(
                "model.continuing_subword_prefix",
                "word affixes aren't supported; byte-level and byte-fallback BPE are",
            ));
        }
        Ok(())
    }

    /// The stages for ordinary text, without added tokens except those that merging itself needs.
    fn pipeline(&mut self, merges: Vec<(String, String)>) -> Result<Pipeline, TokenizerError> {
        self.check_model()?;
        let model = &mut self.model;
        let vocab = &model.vocab;
        check_merges(merges.iter().map(|(l, r)| (l.as_str(), r.as_str())), |text| vocab.contains_key(text))?;
        let mut needed: HashSet<String> = HashSet::new();
        for (left, right) in &merges {
            needed.extend([left.clone(), right.clone(), format!("{left}{right}")]);
        }
        needed.extend(model.unk_token.clone());
        for token in self.added_tokens.iter().filter(|token| !needed.contains(&token.content)) {
            model.vocab.remove(&token.content);
        }
        let normalizer = stage::<NormalizerWrapper>("normalizer", &self.normalizer)?;
        let composed = matches!(normalizer, Some(NormalizerWrapper::NFC(_)));
        let plain = (composed || normalizer.is_none()) && model.unk_token.is_none() && !model.byte_fallback;
        if let Some(words) = splitting::by_stages(&self.pre_tokenizer).filter(|_| plain) {
            let pairs = Box::new(BytePairs::new(&model.vocab, &merges, model.ignore_merges)?);
            return Ok(Pipeline::Bytes { composed, words, pairs });
        }
        let mut builder = BPE::builder()
            .vocab_and_merges(std::mem::take(&mut model.vocab).into_iter().collect::<Vocab>(), merges)
            .fuse_unk(model.fuse_unk)
            .byte_fallback(model.byte_fallback)
            .ignore_merges(model.ignore_merges);
        if let Some(unknown) = model.unk_token.clone() {
            builder = builder.unk_token(unknown);
        }
        let built = builder.build().map_err(|error| TokenizerError::invalid("model", error.to_string()))?;
        Ok(Pipeline::General {
            normalizer,
            pre_tokenizer: stage::<PreTokenizerWrapper>("pre_tokenizer", &self.pre_tokenizer)?,
            model: Box::new(built.into()),
        })
    }
}

impl ModelJson {
    fn take_merges(&mut self) -> Result<Vec<(String, String)>, TokenizerError> {
        std::mem::take(&mut self.merges)
            .into_iter()
            .map(|merge| match merge {
                MergeJson::Pair(left, right) => Ok((left, right)),
                MergeJson::Line(line) => split_merge(&line, "model.merges"),
            })
            .collect()
    }
}

/// Reads one of the crate's own stages; `null` means that there is none.
fn stage<T: serde::de::DeserializeOwned>(
    field: &'static str,
    value: &Value,
) -> Result<Option<T>, TokenizerError> {
    if value.is_null() {
        return Ok(None);
    }
    T::deserialize(value).map(Some).map_err(|error| TokenizerError::invalid(field, error.to_string()))
}

/// Whether any stage inside of `value` has this type.
fn mentions(value: &Value, kind: &str) -> bool {
    match value {
        Value::Object(map) => {
            map.get("type").and_then(Value::as_str) == Some(kind)
                || map.values().any(|value| mentions(value, kind))
        }
        Value::Array(items) => items.iter().any(|value| mentions(value, kind)),
        _ => false,
    }
}

fn spelling(file: &TokenizerJson) -> Spelling {
    let stages = [&file.decoder, &file.pre_tokenizer, &file.normalizer];
    if stages.iter().any(|stage| mentions(stage, "ByteLevel")) {
        Spelling::ByteLevel
    } else {
        Spelling::SentencePiece
    }
}

/// The token that the post-processor puts before every text, if it does.
fn bos_of_template(value: &Value) -> Option<&str> {
    if value.get("type").and_then(Value::as_str) == Some("TemplateProcessing") {
        return value.get("single")?.get(0)?.get("SpecialToken")?.get("id")?.as_str();
    }
    value.get("processors")?.as_array()?.iter().find_map(bos_of_template)
}

/// A token in tokenizer_config.json: its text, or an object that holds it.
fn named_token(value: &Value) -> Option<&str> {
    value.as_str().or_else(|| value.get("content")?.as_str())
}

fn specials(file: &TokenizerJson, config: &ConfigJson, vocabulary: &Vocabulary) -> Specials {
    let prepended = bos_of_template(&file.post_processor).and_then(|text| vocabulary.id_of(text));
    let named = named_token(&config.bos_token).and_then(|text| vocabulary.id_of(text));
    Specials {
        bos: prepended.or(named),
        eos: named_token(&config.eos_token).and_then(|text| vocabulary.id_of(text)),
        add_bos: prepended.is_some() || config.add_bos_token == Some(true),
        strip_first_space: mentions(&file.decoder, "Strip"),
    }
}
