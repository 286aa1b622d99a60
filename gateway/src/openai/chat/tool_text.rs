//! Shows tools, calls and results to a model whose template knows nothing of them.
//!
//! The rule: such a conversation is rewritten into plain turns in the Hermes form, so that tools work with any model
//! and nothing is left out.

use serde_json::{Map, Value};

const INTRODUCTION: &str = "# Tools\n\nYou may call one or more functions to help with the user's request. \
    Their signatures stand within <tools></tools>, one JSON object a line:\n<tools>";
const INSTRUCTION: &str = "</tools>\n\nTo call a function, answer with a JSON object that holds its name and \
    arguments, within <tool_call></tool_call>:\n<tool_call>\n{\"name\": \"function name\", \"arguments\": {}}\n\
    </tool_call>";

/// Puts the definitions into the first system turn, which is made if there is none.
pub(super) fn describe(messages: &mut Vec<Value>, tools: &[Value]) {
    let mut text = INTRODUCTION.to_owned();
    for tool in tools {
        text.push('\n');
        text.push_str(&tool.to_string());
    }
    text.push('\n');
    text.push_str(INSTRUCTION);
    let leads = |message: &Value| matches!(role(message), "system" | "developer");
    match messages.first_mut() {
        Some(first) if leads(first) => {
            let said = first["content"].as_str().unwrap_or_default();
            first["content"] = Value::from(format!("{said}\n\n{text}"));
        }
        _ => {
            let mut map = Map::new();
            map.insert("role".to_owned(), "system".into());
            map.insert("content".to_owned(), text.into());
            messages.insert(0, Value::Object(map));
        }
    }
}

/// Rewrites calls into text of the assistant and results into turns of the user.
pub(super) fn flatten(messages: &mut [Value]) {
    for message in messages {
        let Value::Object(map) = message else { continue };
        if map.get("role").and_then(Value::as_str) == Some("tool") {
            let result = map.get("content").and_then(Value::as_str).unwrap_or_default();
            let text = format!("<tool_response>\n{result}\n</tool_response>");
            map.insert("role".to_owned(), "user".into());
            map.insert("content".to_owned(), text.into());
            map.remove("tool_call_id");
            map.remove("name");
        }
        if let Some(Value::Array(calls)) = map.remove("tool_calls") {
            let mut text = map.get("content").and_then(Value::as_str).unwrap_or_default().to_owned();
            for call in &calls {
                text.push_str(if text.is_empty() { "" } else { "\n" });
                text.push_str(&call_text(&call["function"]));
            }
            map.insert("content".to_owned(), text.into());
        }
    }
}

fn call_text(function: &Value) -> String {
    let name = &function["name"];
    let arguments = function["arguments"].as_str().unwrap_or("{}");
    format!("<tool_call>\n{{\"name\": {name}, \"arguments\": {arguments}}}\n</tool_call>")
}

fn role(message: &Value) -> &str {
    message.get("role").and_then(Value::as_str).unwrap_or_default()
}
