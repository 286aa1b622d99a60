//! A tokenizer from the vocabulary inside a GGUF file.
//!
//! Control tokens stay out of the merge model, so that ordinary text can never produce them.

use std::collections::HashMap;

use tokenizers::models::bpe::{BPE, Vocab};

use super::added::{AddedToken, AddedTokens};
use super::byte_pairs::BytePairs;
use super::error::TokenizerError;
use super::pipeline::Pipeline;
use super::splitting::{self, Cut, Splitting};
use super::vocabulary::{Kind, MAX_IDS, Spelling, Vocabulary};
use super::{Specials, Tokenizer};

/// What a GGUF file says about its tokens (`tokenizer.ggml.*`).
#[derive(Debug, Clone, Default)]
pub struct GgufVocab {
    /// `model`: the algorithm; only byte-level BPE, called `gpt2`, is read.
    pub model: String,
    /// `pre`: how text is cut into words.
    pub pre: String,
    /// `tokens`: the text of each id.
    pub tokens: Vec<String>,
    /// `token_type`: 1 normal, 2 unknown, 3 control, 4 user defined, 5 unused, 6 byte. Empty means all normal.
    pub token_types: Vec<i32>,
    /// `merges`: pairs separated by one space, best first.
    pub merges: Vec<String>,
    /// `bos_token_id`.
    pub bos: Option<u32>,
    /// `eos_token_id`.
    pub eos: Option<u32>,
    /// `add_bos_token`: whether a prompt begins with `bos`.
    pub add_bos: bool,
}

/// The kind of a GGUF token type.
fn kind(token_type: i32) -> Result<Kind, TokenizerError> {
    Ok(match token_type {
        1 => Kind::Normal,
        // The unknown token is nothing a text may produce, just as a control token.
        2 | 3 => Kind::Control,
        4 => Kind::Added,
        5 => Kind::Unused,
        6 => Kind::Byte,
        other => {
            let reason = format!("{other} is no token type; 1 to 6 are");
            return Err(TokenizerError::invalid("tokenizer.ggml.token_type", reason));
        }
    })
}

impl GgufVocab {
    fn kinds(&self) -> Result<Vec<Kind>, TokenizerError> {
        if self.token_types.is_empty() {
            return Ok(vec![Kind::Normal; self.tokens.len()]);
        }
        if self.token_types.len() != self.tokens.len() {
            let (types, tokens) = (self.token_types.len(), self.tokens.len());
            return Err(TokenizerError::invalid(
                "tokenizer.ggml.token_type",
                format!("{types} types for {tokens} tokens; there must be one for each"),
            ));
        }
        self.token_types.iter().map(|token_type| kind(*token_type)).collect()
    }

    fn check(&self) -> Result<(), TokenizerError> {
        if self.model != "gpt2" {
            return Err(TokenizerError::Unsupported {
                field: "tokenizer.ggml.model",
                value: self.model.clone(),
                supported: "gpt2 (byte-level BPE)".to_owned(),
            });
        }
        if self.tokens.len() > MAX_IDS {
            let reason = format!("{} tokens, more than the limit of {MAX_IDS}", self.tokens.len());
            return Err(TokenizerError::invalid("tokenizer.ggml.tokens", reason));
        }
        Ok(())
    }

    /// The table of tokens, without a way from text to them.
    pub(super) fn into_vocabulary(self) -> Result<Vocabulary, TokenizerError> {
        self.check()?;
        let kinds = self.kinds()?;
        let tokens = self.tokens.into_iter().zip(kinds).enumerate();
        Vocabulary::new(tokens.map(|(id, (text, kind))| (id as u32, text, kind)), Spelling::ByteLevel)
    }

    /// The stages for ordinary text: only normal tokens take part.
    fn pipeline(&self, kinds: &[Kind]) -> Result<Pipeline, TokenizerError> {
        let mut vocab: HashMap<String, u32> = HashMap::with_capacity(self.tokens.len());
        for (id, text) in self.tokens.iter().enumerate().filter(|(id, _)| kinds[*id] == Kind::Normal) {
            vocab.entry(text.clone()).or_insert(id as u32);
        }
        let merges = self
            .merges
            .iter()
            .map(|line| split_merge(line, "tokenizer.ggml.merges"))
            .collect::<Result<Vec<_>, _>>()?;
        let Splitting { composed, cut, ignore_merges } = splitting::by_name(&self.pre)?;
        Ok(match cut {
            Cut::Words(words) => Pipeline::Bytes {
                composed,
                words,
                pairs: Box::new(BytePairs::new(&vocab, &merges, ignore_merges)?),
            },
            Cut::Pattern(pre_tokenizer) => Pipeline::General {
                normalizer: None,
                pre_tokenizer: Some(*pre_tokenizer),
                model: Box::new(merge_model(vocab, merges, ignore_merges)?.into()),
            },
        })
    }
}

/// Splits `a b`, the written form of a merge.
pub(super) fn split_merge(line: &str, field: &'static str) -> Result<(String, String), TokenizerError> {
    line.split_once(' ')
        .filter(|(left, right)| !left.is_empty() && !right.is_empty() && !right.contains(' '))
        .map(|(left, right)| (left.to_owned(), right.to_owned()))
        .ok_or_else(|| {
            TokenizerError::invalid(field, format!("{line:?} is no pair of tokens with one space between"))
        })
}

/// Checks that each merge joins two tokens into a third, which the `tokenizers` crate takes for granted.
pub(super) fn check_merges<'m>(
    merges: impl Iterator<Item = (&'m str, &'m str)>,
    known: impl Fn(&str) -> bool,
) -> Result<(), TokenizerError> {
    let mut joined = String::new();
    for (left, right) in merges {
        joined.clear();
        joined.push_str(left);
        joined.push_str(right);
        if let Some(missing) = [left, right, joined.as_str()].into_iter().find(|text| !known(text)) {
            let reason = format!("the merge {left:?} + {right:?} needs {missing:?}, which is no token");
            return Err(TokenizerError::invalid("merges", reason));
        }
    }
    Ok(())
}

fn merge_model(
    vocab: HashMap<String, u32>,
    merges: Vec<(String, String)>,
    ignore_merges: bool,
) -> Result<BPE, TokenizerError> {
    check_merges(merges.iter().map(|(l, r)| (l.as_str(), r.as_str())), |text| vocab.contains_key(text))?;
    BPE::builder()
        .vocab_and_merges(vocab.into_iter().collect::<Vocab>(), merges)
        .ignore_merges(ignore_merges)
        .build()
        .map_err(|error| TokenizerError::invalid("merges", error.to_string()))
}

impl Tokenizer {
    /// Builds the tokenizer of a GGUF file.
    ///
    /// # Errors
    /// An algorithm or pre-tokenizer that isn't supported, by name, or a vocabulary that contradicts itself.
    pub fn from_gguf_vocab(vocab: GgufVocab) -> Result<Self, TokenizerError> {
        vocab.check()?;
        let kinds = vocab.kinds()?;
        let pipeline = vocab.pipeline(&kinds)?;
        let size = vocab.tokens.len() as u32;
        let known = |id: &u32| *id < size;
        let specials = Specials {
            bos: vocab.bos.filter(known),
            eos: vocab.eos.filter(known),
            add_bos: vocab.add_bos,
            strip_first_space: false,
        };
        let added = kinds.iter().zip(&vocab.tokens).enumerate().filter_map(|(id, (kind, text))| {
            let control = *kind == Kind::Control;
            (control || *kind == Kind::Added).then(|| AddedToken {
                id: id as u32,
                text: text.clone(),
                control,
                lstrip: false,
                rstrip: false,
                single_word: false,
            })
        });
        let added = AddedTokens::new(added.collect());
        Ok(Self { vocabulary: vocab.into_vocabulary()?, added, pipeline, specials })
    }
}
