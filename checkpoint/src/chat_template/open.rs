//! The chat template of an opened model, wherever the model keeps it.
//!
//! A GGUF file carries it in its metadata; a directory has a file of its own or a field of `tokenizer_config.json`.
//! A model without one gets [`CHATML`].

use std::fs;
use std::path::Path;

use serde_json::Value as Json;

use super::{CHATML, ChatTemplate, MAX_TEMPLATE_BYTES, TemplateError};
use crate::model::Checkpoint;
use crate::tokenizer::Tokenizer;

/// The largest tokenizer_config.json we read: a template, and a description of every added token.
const MAX_CONFIG_BYTES: usize = 4 * MAX_TEMPLATE_BYTES;

impl ChatTemplate {
    /// The chat template of a model; `tokenizer` gives it the texts of the first and the last token.
    ///
    /// # Errors
    /// [`TemplateError::Broken`] for a template that can't be read or compiled.
    pub fn open(model: &Checkpoint, tokenizer: &Tokenizer) -> Result<Self, TemplateError> {
        let source = match model.gguf_metadata() {
            Some(metadata) => metadata.str("tokenizer.chat_template").map(str::to_owned),
            None => of_directory(model.dir())?,
        };
        let text = |id: Option<u32>| id.and_then(|id| tokenizer.token_text(id)).unwrap_or_default();
        Self::new(source.as_deref().unwrap_or(CHATML), text(tokenizer.bos()), text(tokenizer.eos()))
    }
}

/// Reads a file if it exists.
fn read(path: &Path, limit_bytes: usize) -> Result<Option<String>, TemplateError> {
    let broken = |reason: String| TemplateError::Broken { reason: format!("{}: {reason}", path.display()) };
    let Ok(metadata) = fs::metadata(path) else { return Ok(None) };
    if metadata.len() > limit_bytes as u64 {
        return Err(broken(format!("{} bytes, more than the limit of {limit_bytes}", metadata.len())));
    }
    fs::read_to_string(path).map(Some).map_err(|error| broken(error.to_string()))
}

fn of_directory(dir: &Path) -> Result<Option<String>, TemplateError> {
    if let Some(source) = read(&dir.join("chat_template.jinja"), MAX_TEMPLATE_BYTES)? {
        return Ok(Some(source));
    }
    let path = dir.join("tokenizer_config.json");
    let Some(config) = read(&path, MAX_CONFIG_BYTES)? else { return Ok(None) };
    let config: Json = serde_json::from_str(&config)
        .map_err(|error| TemplateError::Broken { reason: format!("{}: {error}", path.display()) })?;
    Ok(of_config(&config["chat_template"]).map(str::to_owned))
}

/// The template itself, or of several named ones the default.
fn of_config(field: &Json) -> Option<&str> {
    let named = |template: &&Json| template["name"] == "default";
    field.as_str().or_else(|| field.as_array()?.iter().find(named)?["template"].as_str())
}
