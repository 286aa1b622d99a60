//! The grammars that requests turn into, held against the compiler that brains use.

use std::sync::Arc;

use llguidance::api::TopLevelGrammar;
use llguidance::toktrie::ApproximateTokEnv;
use llguidance::{Matcher, ParserFactory};
use pons_protocol::inference::RejectReason;
use pons_protocol::sampling::Grammar;
use serde_json::{Value, json};

use crate::openai::SequenceSpec;
use crate::openai::testing::{Rig, TOOL_TEMPLATE};

/// A sequence's grammar as the compiler takes it.
fn top(spec: &SequenceSpec) -> TopLevelGrammar {
    match spec.grammar.clone().unwrap() {
        Grammar::JsonSchema(text) => TopLevelGrammar::from_json_schema(serde_json::from_str(&text).unwrap()),
        Grammar::Regex(regex) => TopLevelGrammar::from_regex(&regex),
        Grammar::Lark(lark) => TopLevelGrammar::from_lark(lark),
    }
}

/// Compiles the grammar of a request; the test's tokens are single bytes.
fn matcher(more: Value) -> Matcher {
    let rig = Rig::new(&[], TOOL_TEMPLATE, false);
    let mut body = json!({"messages": [{"role": "user", "content": "Say hello."}]});
    body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    let grammar = top(&rig.chat(&body).unwrap().sequences[0]);
    let factory = ParserFactory::new_simple(&ApproximateTokEnv::single_byte_env()).unwrap();
    let factory = Arc::new(factory);
    let matcher = Matcher::new(factory.create_parser(grammar));
    assert!(!matcher.is_error(), "{:?}", matcher.get_error());
    matcher
}

/// Whether the whole text is in the grammar's language.
fn accepts(more: &Value, text: &str) -> bool {
    let mut matcher = matcher(more.clone());
    let tokens: Vec<u32> = text.bytes().map(u32::from).collect();
    let taken = matcher.validate_tokens(&tokens).unwrap();
    if taken < tokens.len() {
        return false;
    }
    matcher.consume_tokens(&tokens).unwrap();
    matcher.is_accepting().unwrap()
}

fn tools() -> Value {
    json!([
        {"type": "function", "function": {"name": "get_weather", "parameters": {
            "type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"],
            "additionalProperties": false,
        }}},
        {"type": "function", "function": {"name": "list_tables"}},
    ])
}

const CALL: &str =
    "<tool_call>\n{\"name\": \"get_weather\", \"arguments\": {\"city\": \"Oslo\"}}\n</tool_call>";
const TABLES: &str = "<tool_call>\n{\"name\": \"list_tables\", \"arguments\": {}}\n</tool_call>";

#[test]
fn c_tool_choice_02_required_accepts_calls_and_nothing_else() {
    let more = json!({"tools": tools(), "tool_choice": "required"});
    assert!(accepts(&more, CALL) && accepts(&more, TABLES));
    assert!(accepts(&more, &format!("{CALL}\n{TABLES}\n{CALL}")));
    for wrong in [
        "",
        "Hello",
        "<tool_call>\n{\"name\": \"other\", \"arguments\": {}}\n</tool_call>",
        "<tool_call>\n{\"name\": \"get_weather\", \"arguments\": {}}\n</tool_call>",
        &CALL[..CALL.len() - 1],
    ] {
        assert!(!accepts(&more, wrong), "{wrong}");
    }
}

#[test]
fn one_call_is_the_most_where_only_one_is_allowed() {
    let named = json!({"type": "function", "function": {"name": "get_weather"}});
    let named = json!({"tools": tools(), "tool_choice": named});
    assert!(accepts(&named, CALL) && !accepts(&named, TABLES));
    let single = json!({"tools": tools(), "tool_choice": "required", "parallel_tool_calls": false});
    for more in [&named, &single] {
        assert!(!accepts(more, &format!("{CALL}\n{CALL}")));
    }
}

#[test]
fn a_structure_beside_tools_accepts_either() {
    let schema = json!({"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]});
    let format = json!({"type": "json_schema", "json_schema": {"name": "g", "schema": schema}});
    let more = json!({"tools": tools(), "response_format": format});
    assert!(accepts(&more, CALL) && accepts(&more, "{\"a\": 1}"));
    assert!(!accepts(&more, "{\"b\": 1}"));
}

#[test]
fn c_structured_output_04_blanks_have_no_place_between_values() {
    let more = json!({"response_format": {"type": "json_object"}});
    assert!(accepts(&more, "{\"a\": [1, {\"b\": null}]}"));
    for wrong in ["{ \"a\": 1}", " {}", "{\"a\":\n1}", "{}\n", "[]", "{\"a\":  1}"] {
        assert!(!accepts(&more, wrong), "{wrong:?}");
    }
}

#[test]
fn c_logprobs_05_a_schema_of_values_alone_compiles() {
    let format = json!({"type": "json_schema", "json_schema": {"name": "e", "schema": {"enum": ["a", "b"]}}});
    let more = json!({"response_format": format});
    assert!(accepts(&more, "\"a\"") && !accepts(&more, "\"c\""));
}

#[test]
fn choices_and_patterns_are_whole_matches() {
    let choice = json!({"guided_choice": ["a.b", "c|d"]});
    assert!(accepts(&choice, "a.b") && accepts(&choice, "c|d"));
    assert!(!accepts(&choice, "axb") && !accepts(&choice, "c"));
    let regex = json!({"structured_outputs": {"regex": "[0-9]{2}"}});
    assert!(accepts(&regex, "42") && !accepts(&regex, "4"));
}

/// What the compiler itself says of a schema that nothing fits.
#[test]
fn a_refusal_by_the_compiler_leads_to_the_field_whose_schema_it_is() {
    let empty = json!({"type": "object", "required": ["x"], "properties": {
        "x": {"allOf": [{"type": "string"}, {"type": "integer"}]}}});
    let bad = json!({"type": "function", "function": {"name": "bad", "parameters": empty}});
    let list = json!([tools()[0], bad]);
    let format = json!({"type": "json_schema", "json_schema": {"name": "g", "schema": empty}});
    for (more, field) in [
        (json!({"tools": list, "tool_choice": "required"}), "tools[1].function.parameters"),
        (json!({"tools": tools(), "response_format": format}), "response_format"),
        (json!({"response_format": format}), "response_format"),
        (json!({"guided_grammar": "start: nowhere"}), "guided_grammar"),
    ] {
        let mut body = json!({"messages": [{"role": "user", "content": "Say hello."}]});
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        let prepared = Rig::new(&[], TOOL_TEMPLATE, false).chat(&body).unwrap();
        let spec = &prepared.sequences[0];
        let factory = ParserFactory::new_simple(&ApproximateTokEnv::single_byte_env()).unwrap();
        let refused = factory.create_parser(top(spec)).map(|_| ()).unwrap_err();
        let words = format!("grammar is refused: {refused:#}");
        let error = spec.origin.refusal(RejectReason::BadGrammar, &words, spec.grammar.as_ref());
        assert_eq!(error.param.as_deref(), Some(field), "{words}");
        assert!(error.message.starts_with(field) && !error.message.contains("%json"), "{}", error.message);
    }
}
