//! Tool calls, streamed and whole, and what `tool_choice` promises.

use serde_json::{Value, json};

use super::harness::{CHAT, Stack, chat, check_error};
use super::reading::Reading;
use super::scripted::Script;

pub(super) fn weather() -> Value {
    json!([{"type": "function", "function": {"name": "get_weather", "description": "Weather for a city",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"],
        "additionalProperties": false}}}])
}

const OSLO: &str = "{\"name\": \"get_weather\", \"arguments\": {\"city\": \"Oslo\"}}\n";
const LIMA: &str = "{\"name\": \"get_weather\", \"arguments\": {\"city\": \"Lima\"}}\n";

/// The pieces of text as tokens of one byte, with the markup as single tokens.
fn bytewise(text: &str) -> Vec<String> {
    text.chars().map(String::from).collect()
}

fn one_call() -> Script {
    Script::pieces(&["<tool_call>", "\n", OSLO, "</tool_call>"])
}

#[tokio::test]
async fn c_tool_call_streaming_01_parallel_calls_get_their_own_index() {
    let stack = Stack::start().await;
    let whole = ["<tool_call>", "\n", OSLO, "</tool_call>", "\n", "<tool_call>", "\n", LIMA, "</tool_call>"];
    let mut bytes = Vec::new();
    for piece in whole {
        bytes.extend(if piece.starts_with('<') { vec![piece.to_owned()] } else { bytewise(piece) });
    }
    let bytes: Vec<&str> = bytes.iter().map(String::as_str).collect();
    for script in [Script::pieces(&whole), Script::burst(&whole), Script::pieces(&bytes)] {
        stack.brain.always(script);
        // `Reading` holds each fragment to its index, and id, type and name to the first fragment.
        let reading = stack.agree(CHAT, &chat(json!({"tools": weather()}))).await;
        let calls = &reading.only().calls;
        assert_eq!(calls.len(), 2);
        for (call, city) in calls.iter().zip(["Oslo", "Lima"]) {
            assert_eq!(call.name, "get_weather");
            assert_eq!(serde_json::from_str::<Value>(&call.arguments).unwrap(), json!({"city": city}));
        }
        assert_ne!(calls[0].id, calls[1].id);
        assert_eq!(reading.only().finish, "tool_calls");
        assert_eq!(reading.only().text.trim(), "");
    }
}

#[tokio::test]
async fn c_tool_call_streaming_03_last_brace_when_tokens_arrive_together() {
    let stack = Stack::start().await;
    let tools = json!([{"type": "function", "function": {"name": "reserve", "parameters": {"type": "object",
        "properties": {"qty": {"type": "integer"}}, "required": ["qty"]}}}]);
    let start = "{\"name\": \"reserve\", \"arguments\": {\"qty\": 7";
    for script in [
        Script::pieces(&["<tool_call>", start, "}}\n</tool_call>"]),
        Script::burst(&["<tool_call>", start, "}}\n</tool_call>"]),
        Script::pieces(&["<tool_call>", start, "}}\n", "</tool_call>"]),
        Script::pieces(&["<tool_call>", start, "}", "}", "</tool_call>"]),
    ] {
        stack.brain.always(script);
        let reading = stack.agree(CHAT, &chat(json!({"tools": tools}))).await;
        assert_eq!(reading.only().calls.len(), 1);
        assert_eq!(reading.only().calls[0].arguments, "{\"qty\": 7}");
        assert_eq!(reading.only().finish, "tool_calls");
    }
}

#[tokio::test]
async fn c_tool_call_streaming_04_tool_without_parameters() {
    let stack = Stack::start().await;
    let tools = json!([{"type": "function", "function": {"name": "list_tables"}}]);
    let name = "{\"name\": \"list_tables\"";
    for script in [
        Script::pieces(&["<tool_call>", name, ", \"arguments\": {}}\n", "</tool_call>"]),
        Script::pieces(&["<tool_call>", name, "}\n", "</tool_call>"]),
    ] {
        stack.brain.always(script);
        let reading = stack.agree(CHAT, &chat(json!({"tools": tools}))).await;
        let call = &reading.only().calls[0];
        assert_eq!((call.name.as_str(), call.arguments.as_str()), ("list_tables", "{}"));
        assert!(call.id.starts_with("call_"), "{}", call.id);
    }
}

#[tokio::test]
async fn c_tool_call_streaming_05_limit_reached_inside_a_call() {
    let stack = Stack::start().await;
    let pieces =
        ["<tool_call>", "{\"name\": \"get_weather\",", " \"arguments\": ", "{\"city\": ", "\"San ", "Fran"];
    stack.brain.always(Script::pieces(&pieces));
    let reading = stack.agree(CHAT, &chat(json!({"tools": weather(), "max_tokens": 6}))).await;
    assert_eq!(reading.only().finish, "length");
    assert_eq!(reading.only().calls[0].name, "get_weather");
    assert_eq!(reading.only().calls[0].arguments, "{\"city\": \"San Fran");
    stack.assert_healthy().await;
}

#[tokio::test]
async fn c_tool_choice_01_no_call_no_tool_calls_key() {
    let stack = Stack::start().await;
    stack.brain.always(Script::pieces(&["It is 4 C and raining."]));
    let messages = json!([{"role": "user", "content": "Weather in Oslo?"},
        {"role": "assistant", "content": null, "tool_calls": [{"id": "call_1", "type": "function",
            "function": {"name": "get_weather", "arguments": "{\"city\":\"Oslo\"}"}}]},
        {"role": "tool", "tool_call_id": "call_1", "content": "4 C, rain"}]);
    let body = chat(json!({"messages": messages, "tools": weather()}));
    let whole = stack.post(CHAT, &body).await.json();
    assert!(whole["choices"][0]["message"].get("tool_calls").is_none(), "{whole}");
    let reading = stack.agree(CHAT, &body).await;
    assert_eq!(
        (reading.only().text.as_str(), reading.only().finish.as_str()),
        ("It is 4 C and raining.", "stop")
    );
    for frame in &reading.frames {
        assert!(frame["choices"][0]["delta"].get("tool_calls").is_none(), "{frame}");
    }
}

#[tokio::test]
async fn c_tool_choice_03_finish_reasons_per_tool_choice() {
    let stack = Stack::start().await;
    stack.brain.always(one_call());
    let named = json!({"type": "function", "function": {"name": "get_weather"}});
    for (choice, finish) in
        [(json!("auto"), "tool_calls"), (json!("required"), "tool_calls"), (named, "stop")]
    {
        // `agree` compares the finish reasons of both modes.
        let reading = stack.agree(CHAT, &chat(json!({"tools": weather(), "tool_choice": choice}))).await;
        assert_eq!(reading.only().calls.len(), 1, "{choice}");
        assert_eq!(reading.only().finish, finish, "{choice}");
        let constrained = stack.brain.last_submit().grammar.is_some();
        assert_eq!(constrained, choice != "auto", "a required call must be enforced, not hoped for");
    }
}

#[tokio::test]
async fn c_tool_choice_04_null_tool_fields() {
    let stack = Stack::start().await;
    let nulls = json!({"tools": null, "tool_choice": null, "response_format": null, "stop": null,
        "logit_bias": null, "user": null, "max_tokens": null});
    let plain = stack.agree(CHAT, &chat(json!({"seed": 1}))).await;
    let prompt = stack.brain.last_submit();
    let reading = stack.agree(CHAT, &chat(super::harness::merged(nulls, json!({"seed": 1})))).await;
    assert_eq!(reading.choices, plain.choices);
    let with_nulls = stack.brain.last_submit();
    assert_eq!((with_nulls.prompt, with_nulls.stop), (prompt.prompt, prompt.stop));
}

#[tokio::test]
async fn c_tool_choice_05_empty_tools_are_no_tools() {
    let stack = Stack::start().await;
    let plain = stack.agree(CHAT, &chat(json!({}))).await;
    let prompt = stack.brain.last_submit().prompt;
    for choice in [json!("auto"), json!("none"), json!(null)] {
        let body = chat(json!({"tools": [], "tool_choice": choice}));
        assert_eq!(stack.agree(CHAT, &body).await.choices, plain.choices);
        assert_eq!(stack.brain.last_submit().prompt, prompt, "no tool text may be added");
    }
    // Without tools, markup is text.
    stack.brain.always(one_call());
    let reading = stack.agree(CHAT, &chat(json!({"tools": [], "tool_choice": "auto"}))).await;
    assert!(reading.only().calls.is_empty());
    assert!(reading.only().text.contains("get_weather"), "{:?}", reading.only().text);
    for choice in [json!("required"), json!({"type": "function", "function": {"name": "get_weather"}})] {
        let answer = stack.chat(json!({"tools": [], "tool_choice": choice, "stream": true})).await;
        check_error(&answer, 400, None, None);
    }
    stack.assert_healthy().await;
    assert_eq!(Reading::of(&stack.chat(json!({})).await).only().finish, "stop");
}
