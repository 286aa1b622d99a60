//! Tool calls in chat requests and replies.

use pons_protocol::inference::RejectReason;
use pons_protocol::sampling::Grammar;
use serde_json::{Value, json};

use crate::openai::ChoiceState;
use crate::openai::testing::{Ends, Ran, Rig, Script, TOOL_TEMPLATE, run};
use pons_checkpoint::chat_template::CHATML;

fn weather() -> Value {
    json!({"type": "function", "function": {"name": "get_weather", "description": "Weather for a city", "parameters": {
        "type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"],
        "additionalProperties": false,
    }}})
}

fn body(more: Value) -> Value {
    let mut body =
        json!({"model": "M", "messages": [{"role": "user", "content": "Weather in Oslo and in Lima?"}]});
    body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    body
}

fn drive(pieces: &[&str], ends: Ends, more: Value) -> Ran {
    let pieces: Vec<&[u8]> = pieces.iter().map(|piece| piece.as_bytes()).collect();
    let rig = Rig::new(&pieces, TOOL_TEMPLATE, false);
    run(&rig, rig.chat(&body(more)).unwrap(), &[Script::new(&rig, &pieces, ends)])
}

/// The call fragments of a stream, in order.
fn fragments(ran: &Ran) -> Vec<Value> {
    let frames = ran.frames();
    let calls = frames.iter().filter_map(|frame| frame["choices"][0]["delta"]["tool_calls"].as_array());
    calls.flatten().cloned().collect()
}

fn arguments(fragments: &[Value], index: u64) -> String {
    let of = fragments.iter().filter(|fragment| fragment["index"] == index);
    of.map(|fragment| fragment["function"]["arguments"].as_str().unwrap()).collect()
}

const OSLO: &str = "{\"name\": \"get_weather\", \"arguments\": {\"city\": \"Oslo\"}}";
const LIMA: &str = "{\"name\": \"get_weather\", \"arguments\": {\"city\": \"Lima\"}}";

#[test]
fn c_tool_call_streaming_01_parallel_calls_have_their_own_index() {
    let pieces = ["<tool_call>", OSLO, "</tool_call>", "\n", "<tool_call>", LIMA, "</tool_call>"];
    let ran = drive(&pieces, Ends::Eos, json!({"stream": true, "tools": [weather()]}));
    let fragments = fragments(&ran);
    let indexes: Vec<u64> = fragments.iter().map(|fragment| fragment["index"].as_u64().unwrap()).collect();
    assert!(indexes.is_sorted() && indexes.contains(&0) && indexes.contains(&1));
    for index in 0..2 {
        let of: Vec<_> = fragments.iter().filter(|fragment| fragment["index"] == index).collect();
        assert!(of[0]["id"].as_str().unwrap().starts_with("call_") && of[0]["type"] == "function");
        assert_eq!(of[0]["function"]["name"], "get_weather");
        for later in &of[1..] {
            let keys: Vec<_> = later.as_object().unwrap().keys().cloned().collect();
            assert_eq!(keys, ["index", "function"]);
            assert!(later["function"].get("name").is_none());
        }
        assert!(serde_json::from_str::<Value>(&arguments(&fragments, index)).is_ok());
    }
    assert_ne!(fragments[0]["id"], fragments.last().unwrap()["id"]);
    assert_eq!(ran.usage.finish_reasons, [Some("tool_calls")]);
}

#[test]
fn c_tool_call_streaming_03_streamed_arguments_equal_the_unstreamed_ones() {
    let tool = json!({"type": "function", "function": {"name": "reserve", "parameters": {
        "type": "object", "properties": {"qty": {"type": "integer"}}, "required": ["qty"],
    }}});
    let pieces = ["<tool_call>", "{\"name\": \"reserve\", \"arguments\": {\"qty\": 7", "}}\n</tool_call>"];
    let streamed = drive(&pieces, Ends::Eos, json!({"stream": true, "tools": [tool]}));
    assert_eq!(arguments(&fragments(&streamed), 0), "{\"qty\": 7}");
    let whole = drive(&pieces, Ends::Eos, json!({"tools": [tool]})).body();
    let message = &whole["choices"][0]["message"];
    assert_eq!(message["tool_calls"][0]["function"]["arguments"], "{\"qty\": 7}");
    assert_eq!(message["tool_calls"][0]["id"], fragments(&streamed)[0]["id"]);
    assert_eq!(message["content"], Value::Null);
}

#[test]
fn c_tool_call_streaming_04_a_tool_without_parameters_streams_an_empty_object() {
    let tool = json!({"type": "function", "function": {"name": "list_tables"}});
    for call in ["{\"name\": \"list_tables\", \"arguments\": {}}", "{\"name\": \"list_tables\"}"] {
        let pieces = ["<tool_call>", call, "</tool_call>"];
        let ran = drive(&pieces, Ends::Eos, json!({"stream": true, "tools": [tool]}));
        let fragments = fragments(&ran);
        assert_eq!(arguments(&fragments, 0), "{}");
        assert!(fragments[0]["id"].is_string() && fragments[0]["function"]["name"] == "list_tables");
    }
}

#[test]
fn c_tool_call_streaming_05_a_limit_inside_a_call_finishes_with_length() {
    let pieces =
        ["<tool_call>", "{\"name\": \"get_weather\",", " \"arguments\": ", "{\"city\": ", "\"San ", "Fran"];
    let ran = drive(&pieces, Ends::Length, json!({"stream": true, "tools": [weather()], "max_tokens": 6}));
    assert_eq!(arguments(&fragments(&ran), 0), "{\"city\": \"San Fran");
    assert_eq!(ran.usage.finish_reasons, [Some("length")]);
    assert!(ran.bytes.ends_with(b"data: [DONE]\n\n"));
}

#[test]
fn half_a_call_at_the_models_own_end_is_not_offered_for_execution() {
    let pieces = ["<tool_call>", "{\"name\": \"get_weather\", \"arguments\": {\"ci"];
    let ran = drive(&pieces, Ends::Eos, json!({"tools": [weather()]}));
    assert_eq!(ran.usage.finish_reasons, [Some("stop")]);
}

#[test]
fn c_tool_choice_01_without_a_call_there_is_no_key_for_calls() {
    let messages = json!([
        {"role": "user", "content": "Weather in Oslo?"},
        {"role": "assistant", "content": null, "tool_calls": [{"id": "call_1", "type": "function",
            "function": {"name": "get_weather", "arguments": "{\"city\":\"Oslo\"}"}}]},
        {"role": "tool", "tool_call_id": "call_1", "content": "4 C, rain"},
    ]);
    let more = |stream: bool| json!({"messages": messages, "tools": [weather()], "stream": stream});
    let whole = drive(&["It is 4 C and raining."], Ends::Eos, more(false)).body();
    assert!(whole["choices"][0]["message"].get("tool_calls").is_none());
    assert_eq!(whole["choices"][0]["finish_reason"], "stop");
    let frames = drive(&["It is 4 C and raining."], Ends::Eos, more(true)).frames();
    assert!(frames.iter().all(|frame| frame["choices"][0]["delta"].get("tool_calls").is_none()));
}

#[test]
fn c_tool_choice_02_a_required_call_is_forced_by_a_grammar() {
    let rig = Rig::new(&[], TOOL_TEMPLATE, false);
    let more = json!({"tools": [weather()], "tool_choice": "required"});
    let prepared = rig.chat(&body(more)).unwrap();
    let Some(Grammar::Lark(lark)) = &prepared.sequences[0].grammar else { panic!("no grammar") };
    assert!(lark.contains("<tool_call>") && lark.contains("get_weather") && lark.contains("%json"));
    assert!(lark.contains("additionalProperties"));
}

#[test]
fn c_tool_choice_03_finish_reasons_follow_the_choice_in_both_modes() {
    let named = json!({"type": "function", "function": {"name": "get_weather"}});
    let pieces = ["<tool_call>", OSLO, "</tool_call>"];
    for (choice, expected) in
        [(json!("auto"), "tool_calls"), (json!("required"), "tool_calls"), (named, "stop")]
    {
        for stream in [false, true] {
            let more = json!({"stream": stream, "tools": [weather()], "tool_choice": choice});
            let ran = drive(&pieces, Ends::Eos, more);
            assert_eq!(ran.usage.finish_reasons, [Some(expected)], "{choice} {stream}");
            if stream {
                assert_eq!(arguments(&fragments(&ran), 0), "{\"city\": \"Oslo\"}");
                let first = ran.frames()[0]["choices"][0]["delta"]["content"].clone();
                assert_eq!(first.is_null(), choice != "auto", "a forced call has no content");
            } else {
                assert_eq!(ran.body()["choices"][0]["finish_reason"], expected);
                assert_eq!(ran.body()["choices"][0]["message"]["tool_calls"].as_array().unwrap().len(), 1);
            }
        }
    }
}

#[test]
fn c_tool_choice_04_null_tool_fields_are_absent() {
    let more = json!({
        "tools": null, "tool_choice": null, "response_format": null, "stop": null, "logit_bias": null, "user": null,
        "max_tokens": null,
    });
    assert!(Rig::plain().chat(&body(more)).is_ok());
}

#[test]
fn c_tool_choice_05_an_empty_list_is_no_tools() {
    let rig = Rig::new(&[], TOOL_TEMPLATE, false);
    let empty = rig.chat(&body(json!({"tools": [], "tool_choice": "auto"}))).unwrap();
    assert_eq!(empty.sequences, rig.chat(&body(json!({}))).unwrap().sequences);
    let text = drive(&["<tool_call>", OSLO, "</tool_call>"], Ends::Eos, json!({"tools": []})).body();
    assert_eq!(text["choices"][0]["message"]["content"], format!("<tool_call>{OSLO}</tool_call>"));
    assert_eq!(text["choices"][0]["finish_reason"], "stop");
}

#[test]
fn a_choice_that_can_not_be_kept_is_refused() {
    let rig = Rig::new(&[], TOOL_TEMPLATE, false);
    let named = |name: &str| json!({"type": "function", "function": {"name": name}});
    for (more, param) in [
        (json!({"tool_choice": "required"}), "tool_choice"),
        (json!({"tools": [], "tool_choice": "required"}), "tool_choice"),
        (json!({"tools": [], "tool_choice": named("f")}), "tool_choice"),
        (json!({"tools": [weather()], "tool_choice": named("unknown")}), "tool_choice"),
        (json!({"tools": [weather()], "tool_choice": "maybe"}), "tool_choice"),
        (json!({"tools": [weather(), weather()]}), "tools[1]"),
        (json!({"tools": [{"type": "function"}]}), "tools[0].function"),
        (
            json!({"tools": [{"type": "function", "function": {"name": "f", "parameters": {"type": "array"}}}]}),
            "tools[0].function.parameters.type",
        ),
        (json!({"functions": [{"name": "f", "parameters": {"type": null}}]}), "functions[0].parameters.type"),
        (json!({"tools": [{"type": "function", "function": {"name": "a b"}}]}), "tools[0].function.name"),
        (json!({"tools": [{"type": "custom", "custom": {}}]}), "tools[0].type"),
        (json!({"tools": [weather()], "functions": [{"name": "f"}]}), "functions"),
        (
            json!({"tools": [weather()], "tool_choice": "required", "response_format": {"type": "json_object"}}),
            "response_format",
        ),
    ] {
        let error = rig.chat(&body(more.clone())).expect_err(&more.to_string());
        assert_eq!((error.status.as_u16(), error.param.as_deref()), (400, Some(param)), "{more}");
    }
    for choice in [json!(null), json!("auto"), json!("none")] {
        assert!(rig.chat(&body(json!({"tool_choice": choice}))).is_ok());
    }
}

#[test]
fn c_input_parsing_05_nested_parameters_have_a_sharp_limit() {
    let rig = Rig::new(&[], TOOL_TEMPLATE, false);
    let nested = |levels: usize| {
        let schema = (1..levels).fold(json!({}), |inner, _| json!({ "x": inner }));
        let tool = json!({"type": "function", "function": {"name": "f", "parameters": schema}});
        rig.chat(&body(json!({"tools": [tool]}))).map(|_| ())
    };
    assert!(nested(64).is_ok());
    for levels in [65, 100, 120] {
        let error = nested(levels).unwrap_err();
        assert_eq!(error.param.as_deref(), Some("tools[0].function.parameters"));
        assert!(error.message.contains("64"));
    }
}

#[test]
fn one_call_at_most_ends_the_answer_after_it() {
    let pieces = ["<tool_call>", OSLO, "</tool_call>", "<tool_call>", LIMA, "</tool_call>"];
    let ran = drive(&pieces, Ends::Eos, json!({"tools": [weather()], "parallel_tool_calls": false}));
    assert_eq!(ran.last_state(), ChoiceState::Stopped);
    assert_eq!(ran.body()["choices"][0]["message"]["tool_calls"].as_array().unwrap().len(), 1);
    assert_eq!(ran.usage.finish_reasons, [Some("tool_calls")]);
    assert_eq!(ran.usage.completion_tokens, 2);
}

#[test]
fn allowed_tools_leave_the_others_out() {
    let other = json!({"type": "function", "function": {"name": "other"}});
    let allowed = json!({"type": "allowed_tools", "allowed_tools": {"mode": "required", "tools": [
        {"type": "function", "function": {"name": "other"}},
    ]}});
    let rig = Rig::new(&[], TOOL_TEMPLATE, false);
    let prepared = rig.chat(&body(json!({"tools": [weather(), other], "tool_choice": allowed}))).unwrap();
    let Some(Grammar::Lark(lark)) = &prepared.sequences[0].grammar else { panic!("no grammar") };
    assert!(lark.contains("other") && !lark.contains("get_weather"));
}

#[test]
fn a_structure_and_tools_make_a_choice_between_both() {
    let rig = Rig::new(&[], TOOL_TEMPLATE, false);
    let more = json!({"tools": [weather()], "response_format": {"type": "json_object"}});
    let prepared = rig.chat(&body(more)).unwrap();
    let Some(Grammar::Lark(lark)) = &prepared.sequences[0].grammar else { panic!("no grammar") };
    assert!(lark.starts_with("start: calls | answer\n"));
}

#[test]
fn legacy_functions_are_answered_in_their_own_form() {
    let functions = json!([weather()["function"]]);
    let pieces = ["<tool_call>", OSLO, "</tool_call>"];
    let whole = drive(&pieces, Ends::Eos, json!({"functions": functions})).body();
    let choice = &whole["choices"][0];
    assert_eq!(choice["finish_reason"], "function_call");
    assert_eq!(choice["message"]["function_call"]["name"], "get_weather");
    assert_eq!(choice["message"]["function_call"]["arguments"], "{\"city\": \"Oslo\"}");
    assert!(choice["message"].get("tool_calls").is_none());
    let frames = drive(&pieces, Ends::Eos, json!({"functions": functions, "stream": true})).frames();
    let parts: Vec<&Value> = frames
        .iter()
        .map(|frame| &frame["choices"][0]["delta"]["function_call"])
        .filter(|c| !c.is_null())
        .collect();
    assert_eq!(parts[0]["name"], "get_weather");
    let text: String = parts.iter().map(|part| part["arguments"].as_str().unwrap()).collect();
    assert_eq!(text, "{\"city\": \"Oslo\"}");
}

#[test]
fn a_template_without_tools_still_shows_them_with_their_calls_and_results() {
    let rig = Rig::new(&[], CHATML, false);
    let messages = json!([
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Weather?"},
        {"role": "assistant", "tool_calls": [{"id": "c1", "type": "function",
            "function": {"name": "get_weather", "arguments": "{\"city\": \"Oslo\"}"}}]},
        {"role": "tool", "tool_call_id": "c1", "content": "4 C, rain"},
    ]);
    let prepared = rig.chat(&json!({"messages": messages, "tools": [weather()]})).unwrap();
    let text = rig.model.tokenizer.decode(&prepared.sequences[0].prompt, false);
    for part in
        ["Be brief.", "get_weather", "\"arguments\": {\"city\": \"Oslo\"}", "<tool_response>\n4 C, rain"]
    {
        assert!(text.contains(part), "{part} is missing in {text}");
    }
    assert_eq!(text.matches("<|im_start|>system").count(), 1);
}

/// What a brain says of a grammar reaches the client under the field that it sent, without our grammar.
#[test]
fn c_tool_choice_02_a_refused_grammar_names_its_tool() {
    let bad = |name: &str| {
        let schema = json!({"allOf": [{"type": "string"}, {"type": "integer"}]});
        let schema = json!({"type": "object", "properties": {"x": schema}, "required": ["x"]});
        json!({"type": "function", "function": {"name": name, "parameters": schema}})
    };
    let allowed = json!([{"type": "function", "function": {"name": "bad"}}]);
    let allowed = json!({"type": "allowed_tools", "mode": "required", "tools": allowed});
    let format = json!({"type": "json_object"});
    for (more, prefix) in [
        (json!({"tools": [weather(), bad("bad")], "tool_choice": "required"}), "tools[1].function.parameters"),
        (json!({"tools": [weather(), bad("bad")], "tool_choice": allowed}), "tools[1].function.parameters"),
        (json!({"tools": [bad("bad")], "response_format": format}), "tools[0].function.parameters"),
    ] {
        let prepared = Rig::new(&[], TOOL_TEMPLATE, false).chat(&body(more)).unwrap();
        let spec = &prepared.sequences[0];
        let Some(Grammar::Lark(text)) = &spec.grammar else { panic!("no grammar: {spec:?}") };
        let line = 1 + text.lines().position(|line| line.contains("allOf")).unwrap();
        let rule = text.lines().nth(line - 1).unwrap();
        let words = format!("grammar is refused: at {line}(14): failed to compile JSON schema: it is empty\n{rule}");
        let error = spec.origin.refusal(RejectReason::BadGrammar, &words, spec.grammar.as_ref());
        assert_eq!((error.status.as_u16(), error.param.as_deref()), (400, Some(prefix)));
        assert!(error.message.contains("it is empty"), "{}", error.message);
        assert!(!error.message.contains("arguments_") && !error.message.contains("%json"), "{}", error.message);
    }
}
