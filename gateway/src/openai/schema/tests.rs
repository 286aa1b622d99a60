//! Schemas from hostile and careless clients.

use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;

fn refused(schema: Value, strict: bool) -> String {
    let error = check(&schema, "schema", strict).expect_err(&schema.to_string());
    assert_eq!((error.status.as_u16(), error.param.as_deref()), (400, Some("schema")));
    error.message
}

#[test]
fn what_pydantic_and_zod_write_is_accepted() {
    let schema = json!({
        "$schema": "https://json-schema.org/draft/2020-12/schema", "title": "Car", "type": "object",
        "$defs": {"Wheel": {"type": "object", "properties": {"size": {"type": "integer", "minimum": 10}},
            "required": ["size"], "additionalProperties": false}},
        "properties": {
            "brand": {"type": ["string", "null"], "maxLength": 20, "description": "who made it"},
            "wheels": {"type": "array", "items": {"$ref": "#/$defs/Wheel"}, "minItems": 0, "maxItems": 4.0},
            "kind": {"anyOf": [{"enum": ["a", "b"]}, {"const": 7}, {"type": "null"}]},
            "when": {"type": "string", "format": "date-time"},
            "parent": {"$ref": "#"},
            "any": true,
        },
        "required": ["brand"], "additionalProperties": false, "deprecated": true, "uniqueItems": false,
    });
    assert!(check(&schema, "schema", true).is_ok(), "{:?}", check(&schema, "schema", true));
    let cleaned = without_unknown(schema);
    assert!(cleaned.get("deprecated").is_none() && cleaned["properties"]["wheels"]["items"].is_object());
}

#[test]
fn each_fault_is_named_with_its_pointer() {
    for (schema, named) in [
        (json!({"properties": {"a/b": {"not": {}}}}), "/properties/a~1b/not"),
        (json!({"items": {"uniqueItems": true}}), "/items/uniqueItems"),
        (json!({"anyOf": []}), "/anyOf"),
        (json!({"anyOf": [{}, 3]}), "/anyOf/1"),
        (json!({"type": "text"}), "/type"),
        (json!({"enum": []}), "/enum"),
        (json!({"required": [1]}), "/required"),
        (json!({"minLength": -1}), "/minLength"),
        (json!({"maximum": "5"}), "/maximum"),
        (json!({"items": {"minimum": 5, "maximum": 1}}), "/items/minimum"),
        (json!({"minimum": 5, "exclusiveMaximum": 5}), "/minimum"),
        (json!({"exclusiveMinimum": 5, "maximum": 5.0}), "/exclusiveMinimum"),
        (json!({"minLength": 3, "maxLength": 2}), "/minLength"),
        (json!({"minItems": 3, "maxItems": 2}), "/minItems"),
        (json!({"properties": {"s": {"pattern": "\\bx"}}}), "/properties/s/pattern"),
        (json!({"patternProperties": {"(": {}}}), "/patternProperties/("),
        (json!({"$ref": "http://example.com/x"}), "leads out"),
        (json!({"$ref": "#/$defs/none"}), "leads nowhere"),
        (json!({"properties": []}), "/properties"),
        (json!({"pattern": 5}), "/pattern"),
        (json!("x"), "at /"),
        (json!(false), "false"),
    ] {
        let message = refused(schema, false);
        assert!(message.contains(named), "{named}: {message}");
    }
}

#[test]
fn unknown_keywords_are_annotations_unless_strict() {
    let schema = json!({"type": "string", "x-order": 1, "x-guidance": {"lenient": true}, "format": "phone"});
    assert!(check(&schema, "schema", false).is_ok());
    assert_eq!(without_unknown(schema.clone()), json!({"type": "string"}));
    assert!(refused(json!({"x-order": 1}), true).contains("/x-order"));
    assert!(refused(json!({"format": "phone"}), true).contains("phone"));
}

#[test]
fn cycles_of_references_end() {
    let schema =
        json!({"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}});
    assert!(refused(schema, false).contains("cycle"));
    assert!(refused(json!({"$ref": "#"}), false).contains("cycle"));
    let tree = json!({"$ref": "#/$defs/t", "$defs": {"t": {"type": "object", "properties": {"kids": {
        "type": "array", "items": {"$ref": "#/$defs/t"}}}}}});
    assert!(check(&tree, "schema", true).is_ok());
}

#[test]
fn depth_and_size_are_bounded() {
    let nested = |levels: usize| (1..levels).fold(json!({}), |inner, _| json!({ "items": inner }));
    assert!(check(&nested(64), "schema", false).is_ok());
    assert!(refused(nested(65), false).contains("64"));
    let wide: serde_json::Map<String, Value> = (0..6000).map(|n| (format!("p{n}"), json!({}))).collect();
    assert!(refused(json!({"properties": wide}), false).contains("5000"));
    assert!(refused(json!({"enum": (0..10_001).collect::<Vec<_>>()}), false).contains("/enum"));
    assert!(check_pattern(&"a".repeat(5000), "p").is_err());
    assert!(check_pattern(&"(".repeat(2000), "p").is_err());
}

fn any_json() -> impl Strategy<Value = Value> {
    let keyword = prop::sample::select(vec![
        "type",
        "items",
        "properties",
        "anyOf",
        "$ref",
        "enum",
        "pattern",
        "required",
        "$defs",
        "not",
        "x",
        "minItems",
    ]);
    let leaf = prop_oneof![
        any::<bool>().prop_map(Value::from),
        any::<i32>().prop_map(Value::from),
        prop::sample::select(vec!["string", "#", "#/$defs/x", "(", "object"]).prop_map(Value::from),
        Just(Value::Null),
    ];
    leaf.prop_recursive(5, 40, 4, move |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
            prop::collection::vec((keyword.clone(), inner), 0..4).prop_map(|pairs| {
                Value::Object(pairs.into_iter().map(|(key, value)| (key.to_owned(), value)).collect())
            }),
        ]
    })
}

proptest! {
    #[test]
    fn no_schema_makes_the_walker_panic_or_hang(schema in any_json(), strict in any::<bool>()) {
        if check(&schema, "schema", strict).is_ok() {
            let cleaned = without_unknown(schema);
            prop_assert!(check(&cleaned, "schema", false).is_ok());
        }
    }
}
