//! The grammar that forces tool calls.
//!
//! The rule: it produces exactly the form that the parser reads and the model was trained on, one call or several,
//! with each tool's arguments held to its schema.

use pons_protocol::sampling::Grammar;
use serde_json::json;

use super::tools::{Choice, ToolSet};
use crate::error::ApiError;
use crate::openai::schema;
use crate::openai::structured::{Structure, schema_text};

/// Most calls that a forced answer may hold.
const MAX_FORCED_CALLS: usize = 16;

/// The grammar of an answer, if anything is to be forced.
///
/// A structure and tools under `auto` make a choice: calls, or an answer of that structure.
pub(super) fn grammar(
    tools: Option<&ToolSet>,
    structure: Option<&Structure>,
) -> Result<Option<Grammar>, ApiError> {
    match (tools, structure) {
        (None, None) => Ok(None),
        (None, Some(structure)) => Ok(Some(structure.grammar())),
        (Some(set), structure) if set.is_forced() => {
            if structure.is_some() {
                let message =
                    "response_format can't be used while tool_choice forces a call; drop one of them";
                return Err(ApiError::invalid("response_format", message));
            }
            Ok(Some(Grammar::Lark(format!("start: calls\n{}", call_rules(set)?))))
        }
        (Some(set), Some(Structure::Schema(schema))) => {
            let rules = call_rules(set)?;
            let answer = schema_text(schema);
            Ok(Some(Grammar::Lark(format!("start: calls | answer\nanswer: %json {answer}\n{rules}"))))
        }
        (Some(_), Some(_)) => {
            let message =
                "a regex, choice or grammar can't be used together with tools; send tool_choice none";
            Err(ApiError::invalid("structured_outputs", message))
        }
        (Some(_), None) => Ok(None),
    }
}

/// The rules from `calls` downwards.
fn call_rules(set: &ToolSet) -> Result<String, ApiError> {
    let single = !set.parallel || matches!(set.choice, Choice::Named(_));
    let mut rules = if single {
        "calls: call\n".to_owned()
    } else {
        format!("calls: call more{{0,{}}}\nmore: \"\\n\" call\n", MAX_FORCED_CALLS - 1)
    };
    let mut alternatives = Vec::new();
    for (index, tool) in set.tools.iter().enumerate() {
        if matches!(&set.choice, Choice::Named(name) if *name != tool.name) {
            continue;
        }
        let open = format!("<tool_call>\n{{\"name\": \"{}\", \"arguments\": ", tool.name);
        let close = "}\n</tool_call>";
        alternatives.push(format!("call_{index}"));
        let arguments = match &tool.parameters {
            Some(parameters) => {
                let param = format!("tools[{index}].function.parameters");
                schema::check(parameters, &param, false)?;
                let mut schema = schema::without_unknown(parameters.clone());
                // Arguments are an object whatever the schema leaves open.
                if let Some(map) = schema.as_object_mut() {
                    map.entry("type").or_insert_with(|| "object".into());
                }
                schema_text(&schema)
            }
            None => schema_text(&json!({"type": "object", "properties": {}, "additionalProperties": false})),
        };
        rules.push_str(&format!("call_{index}: {} arguments_{index} {}\n", literal(&open), literal(close)));
        rules.push_str(&format!("arguments_{index}: %json {arguments}\n"));
    }
    rules.push_str(&format!("call: {}\n", alternatives.join(" | ")));
    Ok(rules)
}

/// A Lark string; its escapes are those of JSON.
fn literal(text: &str) -> String {
    serde_json::Value::from(text).to_string()
}
