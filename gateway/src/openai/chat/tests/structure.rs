//! Structured output in chat requests.

use pons_protocol::sampling::Grammar;
use serde_json::{Value, json};

use crate::error::ApiError;
use crate::openai::testing::Rig;

fn grammar(more: Value) -> Result<Option<Grammar>, ApiError> {
    let mut body = json!({"model": "M", "messages": [{"role": "user", "content": "Say hello."}]});
    body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    Rig::plain().chat(&body).map(|prepared| prepared.sequences[0].grammar.clone())
}

fn strict(schema: Value) -> Value {
    json!({"response_format": {"type": "json_schema", "json_schema": {"name": "g", "strict": true, "schema": schema}}})
}

fn schema_of(grammar: Option<Grammar>) -> Value {
    match grammar {
        Some(Grammar::JsonSchema(text)) => serde_json::from_str(&text).unwrap(),
        other => panic!("no schema: {other:?}"),
    }
}

#[test]
fn c_structured_output_01_a_schema_that_is_none_is_refused_with_its_place() {
    let schema = json!({
        "type": "object", "properties": {"brand": {"type": "string"}, "weight": "heavy"}, "required": ["brand"],
        "additionalProperties": false,
    });
    let error = grammar(strict(schema)).unwrap_err();
    assert_eq!((error.status.as_u16(), error.kind), (400, "invalid_request_error"));
    assert!(error.message.contains("/properties/weight"), "{}", error.message);
}

#[test]
fn c_structured_output_02_a_pattern_that_does_not_compile_is_named() {
    let schema =
        json!({"type": "object", "properties": {"s": {"type": "string", "pattern": "^code-([0-9]+$"}}});
    let error = grammar(strict(schema)).unwrap_err();
    assert_eq!(error.status.as_u16(), 400);
    assert!(error.message.contains("^code-([0-9]+$"), "{}", error.message);
}

#[test]
fn c_structured_output_03_a_schema_at_the_wrong_level_is_named() {
    let error = grammar(json!({"response_format": {"type": "json_schema", "schema": {"type": "object"}}}));
    let error = error.unwrap_err();
    assert_eq!(error.param.as_deref(), Some("response_format.json_schema"));
    assert!(!error.message.is_empty());
}

#[test]
fn c_structured_output_04_the_grammar_fixes_all_white_space() {
    let schema = schema_of(grammar(json!({"response_format": {"type": "json_object"}})).unwrap());
    assert_eq!(schema["type"], "object");
    assert_eq!(schema["x-guidance"]["whitespace_flexible"], false);
}

#[test]
fn c_structured_output_05_an_unsupported_keyword_is_named_with_its_place() {
    let parameters = json!({
        "type": "object", "required": ["labels"], "additionalProperties": false,
        "properties": {"labels": {
            "type": "object", "propertyNames": {"pattern": "^[a-z]+$"}, "additionalProperties": {"type": "string"},
        }},
    });
    let tool =
        json!({"type": "function", "function": {"name": "put", "strict": true, "parameters": parameters}});
    let error = grammar(json!({"tools": [tool], "tool_choice": "required"})).unwrap_err();
    assert_eq!(error.status.as_u16(), 400);
    assert!(error.message.contains("propertyNames"), "{}", error.message);
    assert!(error.message.contains("/properties/labels"), "{}", error.message);
    assert_eq!(error.param.as_deref(), Some("tools[0].function.parameters"));
}

#[test]
fn each_vendor_form_becomes_one_grammar() {
    let of = |more: Value| grammar(more).unwrap();
    assert_eq!(of(json!({"guided_regex": "a+"})), Some(Grammar::Regex("a+".to_owned())));
    assert_eq!(of(json!({"guided_choice": ["a.b", "c"]})), Some(Grammar::Regex("a\\.b|c".to_owned())));
    let lark = "start: \"x\"";
    assert_eq!(of(json!({"guided_grammar": lark})), Some(Grammar::Lark(lark.to_owned())));
    assert_eq!(of(json!({"structured_outputs": {"grammar": lark}})), Some(Grammar::Lark(lark.to_owned())));
    assert_eq!(schema_of(of(json!({"guided_json": "{\"type\": \"array\"}"})))["type"], "array");
    assert_eq!(schema_of(of(json!({"structured_outputs": {"json": {"type": "null"}}})))["type"], "null");
    assert_eq!(schema_of(of(json!({"structured_outputs": {"json_object": true}})))["type"], "object");
    assert_eq!(of(json!({"response_format": {"type": "text"}})), None);
    assert_eq!(of(json!({"structured_outputs": null})), None);
}

#[test]
fn what_can_not_be_enforced_is_refused() {
    for (more, param) in [
        (json!({"guided_regex": "a", "guided_choice": ["b"]}), "guided_choice"),
        (
            json!({"response_format": {"type": "json_object"}, "structured_outputs": {"regex": "a"}}),
            "structured_outputs.regex",
        ),
        (json!({"structured_outputs": {}}), "structured_outputs"),
        (json!({"structured_outputs": {"json": null, "json_object": false}}), "structured_outputs"),
        (json!({"structured_outputs": {"bogus": 1}}), "structured_outputs.bogus"),
        (json!({"structured_outputs": {"regex": "a", "bogus": null}}), "structured_outputs.bogus"),
        (json!({"guided_regex": "("}), "guided_regex"),
        (json!({"guided_choice": []}), "guided_choice"),
        (json!({"guided_choice": ["a", 1]}), "guided_choice[1]"),
        (json!({"guided_grammar": "root ::= \"x\""}), "guided_grammar"),
        (json!({"guided_json": "{"}), "guided_json"),
        (json!({"guided_json": 5}), "guided_json"),
        (json!({"structured_outputs": {"structural_tag": {}}}), "structured_outputs.structural_tag"),
        (json!({"response_format": {"type": "xml"}}), "response_format.type"),
        (json!({"response_format": {}}), "response_format.type"),
        (json!({"response_format": "json"}), "response_format"),
        (
            json!({"response_format": {"type": "json_schema", "json_schema": {"schema": {}}}}),
            "response_format.json_schema.name",
        ),
        (
            json!({"response_format": {"type": "json_schema", "json_schema": {"name": "a b"}}}),
            "response_format.json_schema.name",
        ),
        (json!({"guided_whitespace_pattern": " "}), "guided_whitespace_pattern"),
    ] {
        let error = grammar(more.clone()).expect_err(&more.to_string());
        assert_eq!(error.param.as_deref(), Some(param), "{more}");
        assert_eq!(error.status.as_u16(), 400);
    }
}
