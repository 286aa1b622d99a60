//! Reads `messages` into the shape that chat templates are written for.
//!
//! The rule: nothing the client said is dropped: text parts are joined, what can't be read is refused by its path.

use std::collections::HashSet;

use serde_json::{Map, Value, json};

use crate::error::ApiError;
use crate::openai::fields::{Fields, type_name};

/// Most messages of a conversation.
const MAX_MESSAGES: usize = 16_384;
/// Most calls of one assistant turn.
const MAX_CALLS: usize = 128;

const ROLES: [&str; 6] = ["developer", "system", "user", "assistant", "tool", "function"];

/// Reads and checks all messages.
pub(super) fn read(fields: &Fields<'_>) -> Result<Vec<Value>, ApiError> {
    let items = fields.array("messages")?.ok_or_else(|| ApiError::missing("messages"))?;
    if items.is_empty() || items.len() > MAX_MESSAGES {
        let message = format!("messages must have 1 to {MAX_MESSAGES} entries, but has {}", items.len());
        return Err(ApiError::invalid("messages", message));
    }
    let mut call_ids = HashSet::new();
    let read = |(index, item)| read_message(item, &format!("messages[{index}]"), &mut call_ids);
    items.iter().enumerate().map(read).collect()
}

fn read_message(item: &Value, path: &str, call_ids: &mut HashSet<String>) -> Result<Value, ApiError> {
    let fields = Fields::of(item, path)?;
    let role = fields.one_of("role", &ROLES)?.ok_or_else(|| ApiError::missing(fields.path_of("role")))?;
    let mut message = Map::new();
    message.insert("role".to_owned(), role.into());
    let content = read_content(&fields, role)?;
    if role == "assistant" {
        return read_assistant(&fields, message, content, call_ids);
    }
    let content = content.ok_or_else(|| ApiError::missing(fields.path_of("content")))?;
    message.insert("content".to_owned(), content.into());
    match role {
        "tool" => {
            let id = fields.string("tool_call_id")?;
            let id = id.ok_or_else(|| ApiError::missing(fields.path_of("tool_call_id")))?;
            if !call_ids.contains(id) {
                let shown: String = id.chars().take(80).collect();
                let what =
                    format!("{path}.tool_call_id: no earlier message has a tool call with the id {shown:?}");
                return Err(ApiError::invalid(fields.path_of("tool_call_id"), what));
            }
            message.insert("tool_call_id".to_owned(), id.into());
        }
        // Templates know the legacy role by its newer name.
        "function" => {
            let name = fields.string("name")?.ok_or_else(|| ApiError::missing(fields.path_of("name")))?;
            message.insert("role".to_owned(), "tool".into());
            message.insert("name".to_owned(), sanitised(name).into());
            return Ok(Value::Object(message));
        }
        _ => {}
    }
    insert_name(&fields, &mut message)?;
    Ok(Value::Object(message))
}

fn insert_name(fields: &Fields<'_>, message: &mut Map<String, Value>) -> Result<(), ApiError> {
    if let Some(name) = fields.string("name")?.map(sanitised).filter(|name| !name.is_empty()) {
        message.insert("name".to_owned(), name.into());
    }
    Ok(())
}

/// A speaker's name as it may stand next to control text: letters, digits and a few marks, at most 64.
fn sanitised(name: &str) -> String {
    name.chars().filter(|c| c.is_alphanumeric() || matches!(c, '_' | '-' | '.' | ' ')).take(64).collect()
}

/// The text of a content, its parts joined; `None` if there is none.
fn read_content(fields: &Fields<'_>, role: &str) -> Result<Option<String>, ApiError> {
    match fields.get("content") {
        None => Ok(None),
        Some(Value::String(text)) => Ok(Some(text.clone())),
        Some(Value::Array(parts)) => {
            let mut text = String::new();
            for (index, part) in parts.iter().enumerate() {
                text.push_str(&read_part(part, &format!("{}[{index}]", fields.path_of("content")), role)?);
            }
            Ok(Some(text))
        }
        Some(other) => {
            let expected = "a string or an array of parts";
            Err(ApiError::invalid_type(fields.path_of("content"), expected, type_name(other)))
        }
    }
}

fn read_part(part: &Value, path: &str, role: &str) -> Result<String, ApiError> {
    let fields = Fields::of(part, path)?;
    let kind = fields.string("type")?.ok_or_else(|| ApiError::missing(fields.path_of("type")))?;
    let name = match kind {
        "text" => "text",
        "refusal" if role == "assistant" => "refusal",
        "image_url" | "input_audio" | "file" => {
            let why = format!("the model reads text only, not {kind} parts; send text");
            return Err(ApiError::unsupported(path, &why));
        }
        other => {
            let shown: String = other.chars().take(60).collect();
            let message = format!("{path}.type: {shown:?} is no content part of the role {role}; use text");
            return Err(ApiError::invalid(fields.path_of("type"), message));
        }
    };
    fields.string(name)?.map(str::to_owned).ok_or_else(|| ApiError::missing(fields.path_of(name)))
}

fn read_assistant(
    fields: &Fields<'_>,
    mut message: Map<String, Value>,
    content: Option<String>,
    call_ids: &mut HashSet<String>,
) -> Result<Value, ApiError> {
    let mut calls = read_calls(fields, call_ids)?;
    if let Some(call) = fields.get("function_call") {
        let path = fields.path_of("function_call");
        calls.push(json!({"type": "function", "function": read_function(call, &path)?}));
    }
    let content = content.or(fields.string("refusal")?.map(str::to_owned));
    if content.is_none() && calls.is_empty() {
        let path = fields.path_of("content");
        let message = format!("{path} must be a string unless the assistant turn has tool_calls");
        return Err(ApiError::invalid(path, message));
    }
    message.insert("content".to_owned(), content.map_or(Value::Null, Value::from));
    for name in ["reasoning_content", "reasoning"] {
        if let Some(text) = fields.string(name)? {
            message.entry("reasoning_content").or_insert_with(|| text.into());
        }
    }
    insert_name(fields, &mut message)?;
    if !calls.is_empty() {
        message.insert("tool_calls".to_owned(), calls.into());
    }
    Ok(Value::Object(message))
}

fn read_calls(fields: &Fields<'_>, call_ids: &mut HashSet<String>) -> Result<Vec<Value>, ApiError> {
    let items = fields.array("tool_calls")?.unwrap_or_default();
    let list = fields.path_of("tool_calls");
    if items.len() > MAX_CALLS {
        let message = format!("{list} must have at most {MAX_CALLS} entries, but has {}", items.len());
        return Err(ApiError::invalid(list, message));
    }
    let mut calls = Vec::with_capacity(items.len());
    for (index, item) in items.iter().enumerate() {
        let path = format!("{list}[{index}]");
        let call = Fields::of(item, &path)?;
        let id = call.string("id")?.ok_or_else(|| ApiError::missing(call.path_of("id")))?;
        call.one_of("type", &["function"])?;
        let function_path = call.path_of("function");
        let function = call.get("function").ok_or_else(|| ApiError::missing(&*function_path))?;
        call_ids.insert(id.to_owned());
        calls.push(
            json!({"id": id, "type": "function", "function": read_function(function, &function_path)?}),
        );
    }
    Ok(calls)
}

/// A call that was made; its arguments stay the text they are, valid JSON or not.
fn read_function(value: &Value, path: &str) -> Result<Value, ApiError> {
    let fields = Fields::of(value, path)?;
    let name = fields.string("name")?.ok_or_else(|| ApiError::missing(fields.path_of("name")))?;
    let arguments = fields.string("arguments")?.unwrap_or("{}");
    Ok(json!({"name": sanitised(name), "arguments": arguments}))
}
