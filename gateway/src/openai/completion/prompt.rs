//! The four forms of `prompt`.
//!
//! The rule: a prompt is never empty when it reaches the brain; text is data and gets exactly one BOS where the
//! model has one.

use std::sync::Arc;

use serde_json::Value;

use crate::error::ApiError;
use crate::openai::fields::{Fields, type_name};
use crate::openai::sampling::token_id;
use crate::openai::served::ServedModel;
use crate::text::detokenizer::Detokenizer;

/// A prompt before it is cut to length.
#[derive(Debug)]
pub(super) struct RawPrompt {
    pub(super) ids: Vec<u32>,
    /// As it was sent, if it was text.
    pub(super) text: Option<String>,
}

/// A prompt that will run.
#[derive(Debug)]
pub(super) struct Prompt {
    pub(super) ids: Arc<[u32]>,
    /// What `echo` shows.
    pub(super) text: String,
    pub(super) chars: usize,
    /// Where each token's text begins in the shown text, in characters.
    pub(super) offsets: Vec<usize>,
}

impl Prompt {
    pub(super) fn new(raw: RawPrompt, model: &ServedModel) -> Self {
        // A BOS that the server put there is no part of the text the client sent.
        let silent = usize::from(raw.text.is_some() && raw.ids.first().copied() == model.tokenizer.bos());
        let mut machine = Detokenizer::default();
        let (mut text, mut offsets, mut chars) = (String::new(), Vec::with_capacity(raw.ids.len()), 0);
        for (at, id) in raw.ids.iter().enumerate() {
            offsets.push(chars);
            let before = text.len();
            if at >= silent {
                machine.push(model.tokenizer.token_bytes(*id).unwrap_or_default(), &mut text);
            }
            chars += text[before..].chars().count();
        }
        machine.finish(&mut text);
        let text = raw.text.unwrap_or(text);
        Self { ids: raw.ids.into(), chars: text.chars().count(), text, offsets }
    }
}

/// Ids of a text, with BOS if the model wants one and `add_special` allows it. The empty text is BOS alone.
pub(crate) fn ids_of_text(model: &ServedModel, text: &str, add_special: bool) -> Vec<u32> {
    let ids = model.tokenizer.encode(text);
    match model.tokenizer.bos() {
        _ if add_special && model.tokenizer.add_bos() => model.tokenizer.with_bos(ids),
        Some(bos) if ids.is_empty() => vec![bos],
        _ => ids,
    }
}

/// Reads all prompts of a request.
pub(super) fn read(
    fields: &Fields<'_>,
    model: &ServedModel,
    add_special: bool,
) -> Result<Vec<RawPrompt>, ApiError> {
    let value = fields.get("prompt").ok_or_else(|| ApiError::missing("prompt"))?;
    let prompts = match value {
        Value::String(text) => vec![of_text(text, "prompt", model, add_special)?],
        Value::Array(items) if items.first().is_some_and(Value::is_number) => {
            vec![of_ids(items, "prompt", model)?]
        }
        Value::Array(items) => {
            if items.len() > model.limits.max_sequences {
                let (most, asked) = (model.limits.max_sequences, items.len());
                let message = format!("prompt must hold at most {most} prompts, but holds {asked}");
                return Err(ApiError::invalid("prompt", message));
            }
            let read = |(index, item): (usize, &Value)| {
                let path = format!("prompt[{index}]");
                match item {
                    Value::String(text) => of_text(text, &path, model, add_special),
                    Value::Array(ids) => of_ids(ids, &path, model),
                    other => {
                        let expected = "a string or an array of token ids";
                        Err(ApiError::invalid_type(path, expected, type_name(other)))
                    }
                }
            };
            items.iter().enumerate().map(read).collect::<Result<Vec<_>, _>>()?
        }
        other => {
            let expected = "a string, an array of strings, or token ids";
            return Err(ApiError::invalid_type("prompt", expected, type_name(other)));
        }
    };
    if prompts.is_empty() {
        return Err(ApiError::invalid(
            "prompt",
            "prompt must not be an empty list; send at least one prompt",
        ));
    }
    Ok(prompts)
}

fn of_text(text: &str, path: &str, model: &ServedModel, add_special: bool) -> Result<RawPrompt, ApiError> {
    let ids = ids_of_text(model, text, add_special);
    if ids.is_empty() {
        return Err(empty(path));
    }
    Ok(RawPrompt { ids, text: Some(text.to_owned()) })
}

fn of_ids(items: &[Value], path: &str, model: &ServedModel) -> Result<RawPrompt, ApiError> {
    if items.is_empty() {
        return Err(empty(path));
    }
    let read = |(index, item)| token_id(item, &format!("{path}[{index}]"), model);
    let ids = items.iter().enumerate().map(read).collect::<Result<Vec<_>, _>>()?;
    Ok(RawPrompt { ids, text: None })
}

fn empty(path: &str) -> ApiError {
    let message = format!("{path} is empty and the model has no token to begin with; send some text");
    ApiError::invalid("prompt", message)
}
