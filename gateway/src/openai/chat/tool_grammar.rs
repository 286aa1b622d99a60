//! The grammar that forces tool calls.
//!
//! The rule: it produces exactly the form that the parser reads and the model was trained on, one call or several,
//! with each tool's arguments held to its schema.

use pons_protocol::sampling::Grammar;
use serde_json::json;

use super::tools::{Choice, Tool, ToolSet};
use crate::error::ApiError;
use crate::openai::origin::Origin;
use crate::openai::schema;
use crate::openai::structured::{Asked, Structure, schema_text};

/// Most calls that a forced answer may hold.
const MAX_FORCED_CALLS: usize = 16;

/// The grammar of an answer, if anything is to be forced.
///
/// A structure and tools under `auto` make a choice: calls, or an answer of that structure.
pub(super) fn grammar(
    tools: Option<&ToolSet>,
    asked: Option<&Asked>,
    origin: Origin,
) -> Result<(Option<Grammar>, Origin), ApiError> {
    match (tools, asked) {
        (None, None) => Ok((None, origin)),
        (None, Some(asked)) => Ok((Some(asked.structure.grammar()), origin.with_grammar(&asked.field))),
        (Some(set), asked) if set.is_forced() => {
            if let Some(Asked { field, .. }) = asked {
                let message =
                    format!("{field} can't be used while tool_choice forces a call; drop one of them");
                return Err(ApiError::invalid(field, message));
            }
            let grammar = Grammar::Lark(format!("start: calls\n{}", call_rules(set)?));
            Ok((Some(grammar), origin.with_grammar(field_of_tools(set)).with_parts(tool_parts(set))))
        }
        (Some(set), Some(Asked { field, structure: Structure::Schema(schema) })) => {
            let rules = call_rules(set)?;
            let answer = schema_text(schema);
            let grammar = Grammar::Lark(format!("start: calls | answer\nanswer: %json {answer}\n{rules}"));
            let mut parts = tool_parts(set);
            parts.push(("answer:".to_owned(), field.clone()));
            Ok((Some(grammar), origin.with_grammar(field_of_tools(set)).with_parts(parts)))
        }
        (Some(_), Some(Asked { field, .. })) => {
            let message = format!(
                "{field}: a regex, choice or grammar can't be used together with tools; send tool_choice none"
            );
            Err(ApiError::invalid(field, message))
        }
        (Some(_), None) => Ok((None, origin)),
    }
}

fn field_of_tools(set: &ToolSet) -> &'static str {
    if set.legacy { "functions" } else { "tools" }
}

/// Which rule holds which tool's schema.
fn tool_parts(set: &ToolSet) -> Vec<(String, String)> {
    let part = |(index, tool): (usize, &Tool)| (format!("arguments_{index}:"), tool.parameters_path.clone());
    set.tools.iter().enumerate().map(part).collect()
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
                schema::check(parameters, &tool.parameters_path, false)?;
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
