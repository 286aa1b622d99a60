//! From messages and template options to prompt ids.
//!
//! The rule: only the template writes control tokens, and its refusal is the client's error, in its own words.

use pons_checkpoint::chat_template::{ChatInput, TemplateError};
use serde_json::{Map, Value};

use super::tools::ToolSet;
use super::{messages, tool_text};
use crate::error::ApiError;
use crate::openai::fields::{Fields, type_name};
use crate::openai::served::ServedModel;
use crate::text::reasoning::OPEN_TAG;

/// A rendered conversation.
pub(super) struct Prompt {
    pub(super) ids: Vec<u32>,
    /// The template opened a reasoning tag, so the answer begins inside of it.
    pub(super) thinking: bool,
}

/// The prompt's ids for a body with `messages`, as [`super::prepare_chat`] would use them.
pub(crate) fn ids_of_messages(fields: &Fields<'_>, model: &ServedModel) -> Result<Vec<u32>, ApiError> {
    let tools = super::tools::read(fields)?;
    Ok(read(fields, model, tools.as_ref())?.ids)
}

/// Reads messages and template options and renders them.
pub(super) fn read(
    fields: &Fields<'_>,
    model: &ServedModel,
    tools: Option<&ToolSet>,
) -> Result<Prompt, ApiError> {
    let mut messages = messages::read(fields)?;
    let continues = fields.bool("continue_final_message")?.unwrap_or(false);
    let generation = fields.bool("add_generation_prompt")?;
    if continues && generation == Some(true) {
        let message = "continue_final_message and add_generation_prompt can't both be true; send one of them";
        return Err(ApiError::invalid("continue_final_message", message));
    }
    // The final turn goes after the opening of an assistant turn, whose end is left to the model.
    let tail = if continues { Some(take_final(&mut messages)?) } else { None };
    let extra = read_extra(fields, model)?;
    let shown = tools.map(ToolSet::shown);
    let native = model.template.supports_tools();
    if !native {
        tool_text::flatten(&mut messages);
        if let Some(shown) = &shown {
            tool_text::describe(&mut messages, shown);
        }
    }
    let input = ChatInput {
        messages: &messages,
        tools: shown.as_deref().filter(|_| native),
        add_generation_prompt: continues || generation.unwrap_or(true),
        extra: Some(&extra),
    };
    let rendered = model.template.render(&input, &model.tokenizer).map_err(refused)?;
    let thinking = tail.is_none() && rendered.text().trim_end().ends_with(OPEN_TAG);
    let mut ids = if fields.bool("add_special_tokens")?.unwrap_or(false) {
        with_bos(model, model.tokenizer.encode_prompt(&rendered))
    } else {
        model.tokenizer.encode_prompt(&rendered)
    };
    if let Some(tail) = tail {
        ids.extend(model.tokenizer.encode(&tail));
    }
    if ids.is_empty() {
        return Err(ApiError::invalid("messages", "messages render to an empty prompt; send some content"));
    }
    Ok(Prompt { ids, thinking })
}

/// Exactly one BOS, if the vocabulary has one.
fn with_bos(model: &ServedModel, mut ids: Vec<u32>) -> Vec<u32> {
    if let Some(bos) = model.tokenizer.bos().filter(|bos| ids.first() != Some(bos)) {
        ids.insert(0, bos);
    }
    ids
}

/// Takes the assistant turn that is to be continued.
fn take_final(messages: &mut Vec<Value>) -> Result<String, ApiError> {
    let last = messages.pop().filter(|last| last["role"] == "assistant" && last.get("tool_calls").is_none());
    let text = last.as_ref().and_then(|last| last["content"].as_str()).filter(|_| !messages.is_empty());
    text.map(str::to_owned).ok_or_else(|| {
        let message =
            "continue_final_message needs a last message of the assistant with text, after another one";
        ApiError::invalid("continue_final_message", message)
    })
}

/// Further variables of the template.
fn read_extra(fields: &Fields<'_>, model: &ServedModel) -> Result<Map<String, Value>, ApiError> {
    let mut extra = fields.object("chat_template_kwargs")?.cloned().unwrap_or_default();
    if let Some(documents) = fields.array("documents")? {
        if let Some(index) = documents.iter().position(|document| !document.is_object()) {
            let path = format!("documents[{index}]");
            return Err(ApiError::invalid_type(path, "an object", type_name(&documents[index])));
        }
        if !model.template.source().contains("documents") {
            return Err(ApiError::unsupported("documents", "the model's template has no place for them"));
        }
        extra.insert("documents".to_owned(), documents.to_vec().into());
    }
    let efforts = ["none", "minimal", "low", "medium", "high", "xhigh", "max"];
    if let Some(effort) = fields.one_of("reasoning_effort", &efforts)? {
        // Models that don't think have no effort to set; those that do know at least on and off.
        if model.template.supports_thinking() {
            extra.entry("enable_thinking").or_insert_with(|| (effort != "none").into());
            extra.entry("reasoning_effort").or_insert_with(|| effort.into());
        }
    }
    Ok(extra)
}

fn refused(error: TemplateError) -> ApiError {
    if !error.is_client_fault() {
        return ApiError::internal(error.to_string());
    }
    let param = match &error {
        TemplateError::Refused { message: Some(index), .. } => format!("messages[{index}]"),
        TemplateError::TooDeep { field, .. } => field.clone(),
        TemplateError::Reserved { .. } => "chat_template_kwargs".to_owned(),
        _ => "messages".to_owned(),
    };
    ApiError::invalid(param, error.to_string())
}
