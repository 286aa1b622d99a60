//! Answers that must be JSON of a given shape. The rule: an answer that isn't is a failure of its own kind, however
//! fast it came.
//!
//! Of JSON Schema the words `type`, `enum`, `const`, `required`, `properties`, `additionalProperties = false`,
//! `items`, `minItems` and `maxItems` are checked; a schema with other words that narrow is refused, since an answer
//! would seem to conform when nobody looked.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use super::ScenarioError;

/// The deepest schema.
const DEEPEST: usize = 32;
/// Words that are checked.
const CHECKED: [&str; 9] = [
    "type",
    "enum",
    "const",
    "required",
    "properties",
    "additionalProperties",
    "items",
    "minItems",
    "maxItems",
];
/// Words that say nothing about what conforms.
const REMARKS: [&str; 7] = ["title", "description", "default", "examples", "$schema", "$id", "$comment"];

/// What answers must be like.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Structured {
    /// JSON Schema; without it any JSON object will do.
    pub schema: Option<Value>,
    /// Whether the server is asked to hold to the schema strictly.
    #[serde(default = "strictly")]
    pub strict: bool,
    /// Put before each prompt.
    pub instruction: Option<String>,
}

fn strictly() -> bool {
    true
}

impl Structured {
    /// The `response_format` of a request.
    pub fn response_format(&self) -> Value {
        let Some(schema) = &self.schema else { return json!({ "type": "json_object" }) };
        json!({
            "type": "json_schema",
            "json_schema": { "name": "answer", "strict": self.strict, "schema": schema },
        })
    }

    /// What is wrong with an answer, as a kind of failure.
    ///
    /// # Errors
    /// The kind: not JSON, or not of the shape.
    pub fn conforms(&self, answer: &str) -> Result<(), &'static str> {
        let Ok(value) = serde_json::from_str::<Value>(answer) else { return Err("structure: not JSON") };
        let fits = self.schema.as_ref().map_or_else(|| value.is_object(), |schema| fits(schema, &value));
        if fits { Ok(()) } else { Err("structure: breaks the schema") }
    }

    /// Checks that the schema can be checked.
    pub(super) fn check(&self) -> Result<(), ScenarioError> {
        self.schema.as_ref().map_or(Ok(()), |schema| check(schema, "structured.schema", DEEPEST))
    }
}

fn check(schema: &Value, field: &str, depth: usize) -> Result<(), ScenarioError> {
    let wrong =
        |value: String, remedy: String| Err(ScenarioError::Value { field: field.to_owned(), value, remedy });
    if depth == 0 {
        return wrong("deeper than the bound".into(), format!("nest at most {DEEPEST} schemas"));
    }
    let Some(schema) = schema.as_object() else {
        return wrong(schema.to_string(), "use a table".into());
    };
    let unknown =
        schema.keys().find(|word| !CHECKED.contains(&word.as_str()) && !REMARKS.contains(&word.as_str()));
    if let Some(word) = unknown {
        return wrong(format!("a schema with {word}"), format!("use {} alone", CHECKED.join(", ")));
    }
    check_words(schema, field)?;
    if let Some(items) = schema.get("items") {
        check(items, &format!("{field}.items"), depth - 1)?;
    }
    for (name, property) in schema.get("properties").and_then(Value::as_object).into_iter().flatten() {
        check(property, &format!("{field}.properties.{name}"), depth - 1)?;
    }
    Ok(())
}

/// Checks that each word holds what it must.
fn check_words(schema: &Map<String, Value>, field: &str) -> Result<(), ScenarioError> {
    let known = |name: &Value| name.as_str().is_some_and(|name| type_fits(name, &Value::Null).is_some());
    let strings = |value: &Value| value.as_array().is_some_and(|all| all.iter().all(Value::is_string));
    for (word, value) in schema {
        let (right, remedy) = match word.as_str() {
            "type" => {
                let many = value.as_array().is_some_and(|names| names.iter().all(known));
                (many || known(value), "name a JSON type, or a list of them")
            }
            "enum" => (value.is_array(), "give a list"),
            "required" => (strings(value), "give a list of names"),
            "properties" => (value.is_object(), "give a table of schemas"),
            "additionalProperties" => (value.is_boolean(), "use true or false"),
            "minItems" | "maxItems" => (value.is_u64(), "use a whole number"),
            _ => (true, ""),
        };
        if !right {
            let field = format!("{field}.{word}");
            return Err(ScenarioError::Value { field, value: value.to_string(), remedy: remedy.into() });
        }
    }
    Ok(())
}

/// Whether a value is of a type; none for a type nobody knows.
fn type_fits(name: &str, value: &Value) -> Option<bool> {
    Some(match name {
        "object" => value.is_object(),
        "array" => value.is_array(),
        "string" => value.is_string(),
        "boolean" => value.is_boolean(),
        "null" => value.is_null(),
        "number" => value.is_number(),
        // JSON Schema counts 1.0 among the integers.
        "integer" => value.is_i64() || value.is_u64() || value.as_f64().is_some_and(|n| n.fract() == 0.0),
        _ => return None,
    })
}

/// Whether a value fits a schema that was checked.
fn fits(schema: &Value, value: &Value) -> bool {
    let of_type = |name: &Value| name.as_str().and_then(|name| type_fits(name, value)).unwrap_or(false);
    let type_ok = match &schema["type"] {
        Value::Null => true,
        Value::Array(names) => names.iter().any(of_type),
        name => of_type(name),
    };
    let enum_ok = schema["enum"].as_array().is_none_or(|all| all.contains(value));
    let const_ok = schema.get("const").is_none_or(|only| only == value);
    type_ok && enum_ok && const_ok && object_fits(schema, value) && array_fits(schema, value)
}

fn object_fits(schema: &Value, value: &Value) -> bool {
    let Some(object) = value.as_object() else { return true };
    let required = schema["required"].as_array().into_iter().flatten();
    let all_there = required.filter_map(Value::as_str).all(|name| object.contains_key(name));
    let closed = schema["additionalProperties"] == Value::Bool(false);
    let properties = schema["properties"].as_object();
    let each_fits = object.iter().all(|(name, value)| {
        let property = properties.and_then(|properties| properties.get(name));
        property.map_or(!closed, |property| fits(property, value))
    });
    all_there && each_fits
}

fn array_fits(schema: &Value, value: &Value) -> bool {
    let Some(items) = value.as_array() else { return true };
    let count = items.len() as u64;
    let enough = schema["minItems"].as_u64().is_none_or(|least| count >= least);
    let few = schema["maxItems"].as_u64().is_none_or(|most| count <= most);
    let each = schema.get("items").is_none_or(|schema| items.iter().all(|item| fits(schema, item)));
    enough && few && each
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asked(schema: Value) -> Structured {
        let asked = Structured { schema: Some(schema), ..Structured::default() };
        asked.check().expect("the schema can be checked");
        asked
    }

    #[test]
    fn answers_of_the_shape_conform_and_others_do_not() {
        let asked = asked(json!({
            "type": "object",
            "required": ["name", "tags"],
            "additionalProperties": false,
            "properties": {
                "name": { "type": "string" },
                "size": { "type": ["integer", "null"] },
                "kind": { "enum": ["a", "b"] },
                "tags": { "type": "array", "items": { "type": "string" }, "minItems": 1, "maxItems": 2 },
            },
        }));
        let good = [
            r#"{"name":"x","tags":["a"]}"#,
            r#" {"name":"x","tags":["a","b"],"size":3,"kind":"b"} "#,
            r#"{"name":"x","tags":["a"],"size":null}"#,
        ];
        for answer in good {
            assert_eq!(asked.conforms(answer), Ok(()), "{answer}");
        }
        let bad = [
            r#"{"name":"x"}"#,
            r#"{"name":1,"tags":["a"]}"#,
            r#"{"name":"x","tags":[]}"#,
            r#"{"name":"x","tags":["a","b","c"]}"#,
            r#"{"name":"x","tags":["a",1]}"#,
            r#"{"name":"x","tags":["a"],"size":1.5}"#,
            r#"{"name":"x","tags":["a"],"kind":"c"}"#,
            r#"{"name":"x","tags":["a"],"more":1}"#,
            "[]",
        ];
        for answer in bad {
            assert_eq!(asked.conforms(answer), Err("structure: breaks the schema"), "{answer}");
        }
        for answer in ["", "{", "sure: {}", r#"{"name":"x","tags":["a"]} and so on"#] {
            assert_eq!(asked.conforms(answer), Err("structure: not JSON"), "{answer}");
        }
    }

    #[test]
    fn without_a_schema_any_object_conforms() {
        let asked = Structured::default();
        assert_eq!(asked.conforms("{}"), Ok(()));
        assert_eq!(asked.conforms("[]"), Err("structure: breaks the schema"));
        assert_eq!(asked.response_format()["type"], "json_object");
    }

    #[test]
    fn a_schema_that_would_not_be_checked_is_refused() {
        let message = |schema: Value| {
            let asked = Structured { schema: Some(schema), ..Structured::default() };
            asked.check().expect_err("it is wrong").to_string()
        };
        assert!(message(json!({ "pattern": "x" })).contains("a schema with pattern"));
        assert!(message(json!({ "type": "text" })).contains("structured.schema.type"));
        let nested = message(json!({ "properties": { "a": { "items": { "anyOf": [] } } } }));
        assert!(nested.contains("structured.schema.properties.a.items is a schema with anyOf"), "{nested}");
        let mut deep = json!({});
        for _ in 0..40 {
            deep = json!({ "items": deep });
        }
        assert!(message(deep).contains("nest at most"));
    }
}
