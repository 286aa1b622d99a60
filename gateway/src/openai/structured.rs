//! Structured output: `response_format`, `guided_*` and `structured_outputs` become one grammar.
//!
//! The rule: at most one of them is given, and what can't be enforced is refused, never dropped.

use pons_protocol::sampling::Grammar;
use serde_json::{Value, json};

use super::fields::{Fields, type_name};
use super::schema;
use crate::error::ApiError;

/// Largest grammar, regular expression or list of choices in bytes.
const MAX_GRAMMAR_BYTES: usize = 64 * 1024;
/// Most choices.
const MAX_CHOICES: usize = 1024;

/// Everything that `structured_outputs` may hold.
const MEMBERS: [&str; 9] = [
    "json",
    "regex",
    "choice",
    "grammar",
    "json_object",
    "structural_tag",
    "whitespace_pattern",
    "disable_any_whitespace",
    "disable_additional_properties",
];

/// A language the output is held to.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Structure {
    /// A checked JSON Schema.
    Schema(Value),
    /// A regular expression for the whole output.
    Regex(String),
    /// A Lark grammar.
    Lark(String),
}

impl Structure {
    /// What the brain compiles.
    pub(super) fn grammar(&self) -> Grammar {
        match self {
            Self::Schema(schema) => Grammar::JsonSchema(schema_text(schema)),
            Self::Regex(regex) => Grammar::Regex(regex.clone()),
            Self::Lark(lark) => Grammar::Lark(lark.clone()),
        }
    }
}

/// A schema as JSON text that also fixes the white space: one space after commas and colons and none elsewhere,
/// so that a model can't spend its budget on blanks.
pub(super) fn schema_text(schema: &Value) -> String {
    let mut map = match schema {
        Value::Object(map) => map.clone(),
        // `true` allows anything, as the empty schema does; `false` was refused.
        _ => serde_json::Map::new(),
    };
    map.insert(
        "x-guidance".to_owned(),
        json!({"whitespace_flexible": false, "item_separator": ", ", "key_separator": ": "}),
    );
    Value::Object(map).to_string()
}

/// A structure and the field that asks for it.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Asked {
    pub(super) field: String,
    pub(super) structure: Structure,
}

/// Reads all fields that ask for structure; more than one is a 400.
pub(super) fn read(fields: &Fields<'_>) -> Result<Option<Asked>, ApiError> {
    let mut found: Vec<(String, Structure)> = Vec::new();
    if let Some(structure) = response_format(fields)? {
        found.push(("response_format".to_owned(), structure));
    }
    for (name, kind) in [
        ("guided_json", "json"),
        ("guided_regex", "regex"),
        ("guided_choice", "choice"),
        ("guided_grammar", "grammar"),
    ] {
        if let Some(value) = fields.get(name) {
            found.push((name.to_owned(), of_kind(kind, value, name)?));
        }
    }
    if let Some(value) = fields.get("structured_outputs") {
        found.extend(structured_outputs(value)?);
    }
    if found.len() > 1 {
        let names: Vec<&str> = found.iter().map(|(name, _)| name.as_str()).collect();
        let message = format!("only one way of structured output can be used, but got {}", names.join(", "));
        return Err(ApiError::invalid(names[1], message));
    }
    Ok(found.pop().map(|(field, structure)| Asked { field, structure }))
}

fn structured_outputs(value: &Value) -> Result<Vec<(String, Structure)>, ApiError> {
    let fields = Fields::of(value, "structured_outputs")?;
    if let Some(name) = fields.names().find(|name| !MEMBERS.contains(name)) {
        let shown: String = name.chars().take(60).collect();
        let known = MEMBERS.join(", ");
        let message = format!("structured_outputs has no member {shown:?}; it may have one of {known}");
        return Err(ApiError::invalid(fields.path_of(&shown), message));
    }
    let mut found = Vec::new();
    for kind in ["json", "regex", "choice", "grammar"] {
        if let Some(value) = fields.get(kind) {
            let path = fields.path_of(kind);
            let structure = of_kind(kind, value, &path)?;
            found.push((path, structure));
        }
    }
    if fields.bool("json_object")?.unwrap_or(false) {
        found.push((fields.path_of("json_object"), Structure::Schema(any_object())));
    }
    if fields.get("structural_tag").is_some() {
        return Err(ApiError::unsupported(fields.path_of("structural_tag"), "use json, regex or grammar"));
    }
    for name in ["whitespace_pattern", "disable_any_whitespace", "disable_additional_properties"] {
        if fields.get(name).is_some_and(|value| *value != Value::Bool(false)) {
            return Err(ApiError::unsupported(fields.path_of(name), "white space and schemas are fixed"));
        }
    }
    if found.is_empty() {
        let message = "structured_outputs asks for nothing; give one of json, regex, choice, grammar or \
                       json_object, or leave it out";
        return Err(ApiError::invalid("structured_outputs", message));
    }
    Ok(found)
}

fn any_object() -> Value {
    json!({"type": "object"})
}

fn response_format(fields: &Fields<'_>) -> Result<Option<Structure>, ApiError> {
    let Some(value) = fields.get("response_format") else { return Ok(None) };
    let format = Fields::of(value, "response_format")?;
    let kinds = ["text", "json_object", "json_schema"];
    let kind = format.one_of("type", &kinds)?.ok_or_else(|| ApiError::missing("response_format.type"))?;
    match kind {
        "json_object" => Ok(Some(Structure::Schema(any_object()))),
        "json_schema" => json_schema(&format).map(Some),
        _ => Ok(None),
    }
}

fn json_schema(format: &Fields<'_>) -> Result<Structure, ApiError> {
    let path = "response_format.json_schema";
    let value = format.get("json_schema").ok_or_else(|| {
        let error = ApiError::missing(path);
        let message = format!("{}: an object with name and schema", error.message);
        ApiError { message, ..error }
    })?;
    let inner = Fields::of(value, path)?;
    let name = inner.string("name")?.ok_or_else(|| ApiError::missing(inner.path_of("name")))?;
    check_name(name, &inner.path_of("name"))?;
    inner.string("description")?;
    let strict = inner.bool("strict")?.unwrap_or(false);
    let schema = inner.get("schema").cloned().unwrap_or_else(any_object);
    schema::check(&schema, &inner.path_of("schema"), strict)?;
    Ok(Structure::Schema(schema::without_unknown(schema)))
}

/// Names of schemas and tools.
pub(super) fn check_name(name: &str, path: &str) -> Result<(), ApiError> {
    let fits = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '-';
    if !name.is_empty() && name.len() <= 64 && name.chars().all(fits) {
        return Ok(());
    }
    let shown: String = name.chars().take(80).collect();
    let rule = "must be 1 to 64 letters, digits, underscores or dashes";
    Err(ApiError::invalid(path, format!("{path} {rule}, but is {shown:?}")))
}

fn of_kind(kind: &str, value: &Value, path: &str) -> Result<Structure, ApiError> {
    match kind {
        "json" => guided_json(value, path),
        "choice" => guided_choice(value, path),
        "regex" => {
            let pattern = bounded_text(value, path)?;
            schema::check_pattern(pattern, path)?;
            Ok(Structure::Regex(pattern.to_owned()))
        }
        _ => {
            let grammar = bounded_text(value, path)?;
            if grammar.contains("::=") || !grammar.contains("start") {
                let message = format!("{path} must be a Lark grammar with a rule called start");
                return Err(ApiError::invalid_schema(path, message));
            }
            Ok(Structure::Lark(grammar.to_owned()))
        }
    }
}

fn bounded_text<'v>(value: &'v Value, path: &str) -> Result<&'v str, ApiError> {
    let text = value.as_str().ok_or_else(|| ApiError::invalid_type(path, "a string", type_name(value)))?;
    if text.is_empty() || text.len() > MAX_GRAMMAR_BYTES {
        let message = format!("{path} must have 1 to {MAX_GRAMMAR_BYTES} bytes, but has {}", text.len());
        return Err(ApiError::invalid(path, message));
    }
    Ok(text)
}

/// A schema, or the text of one.
fn guided_json(value: &Value, path: &str) -> Result<Structure, ApiError> {
    let schema = match value {
        Value::String(text) => super::json::parse(text.as_bytes()).map_err(|error| {
            ApiError::invalid_schema(path, format!("{path} is not valid JSON: {}", error.message))
        })?,
        other => other.clone(),
    };
    schema::check(&schema, path, false)?;
    Ok(Structure::Schema(schema::without_unknown(schema)))
}

fn guided_choice(value: &Value, path: &str) -> Result<Structure, ApiError> {
    let items = value.as_array().ok_or_else(|| ApiError::invalid_type(path, "an array", type_name(value)))?;
    if items.is_empty() || items.len() > MAX_CHOICES {
        let message = format!("{path} must have 1 to {MAX_CHOICES} strings, but has {}", items.len());
        return Err(ApiError::invalid(path, message));
    }
    let mut regex = String::new();
    for (index, item) in items.iter().enumerate() {
        let path = format!("{path}[{index}]");
        let text = bounded_text(item, &path)?;
        regex.push_str(if index > 0 { "|" } else { "" });
        regex.push_str(&regex_syntax::escape(text));
        if regex.len() > MAX_GRAMMAR_BYTES {
            let message = format!("all choices together must have at most {MAX_GRAMMAR_BYTES} bytes");
            return Err(ApiError::invalid(path, message));
        }
    }
    Ok(Structure::Regex(regex))
}
