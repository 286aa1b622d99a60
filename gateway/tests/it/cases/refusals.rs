//! What a brain refuses, told in the client's words. The rule: the error names the field that was sent, and holds
//! nothing that only the two processes say to each other.

use pons_protocol::inference::RejectReason;
use serde_json::{Value, json};

use super::harness::{CHAT, COMPLETIONS, Stack, chat, completion};
use super::scripted::{Reception, Script};

async fn refused(reason: RejectReason, words: &str, path: &str, body: Value) -> Value {
    let stack = Stack::start().await;
    stack.brain.next(Script::default().received(Reception::Reject(reason, words.to_owned())));
    let answer = stack.post(path, &body).await;
    stack.assert_error(&answer, 400, None, None).await;
    answer.json()["error"].clone()
}

#[tokio::test]
async fn c_prompt_and_context_01_a_prompt_that_the_brain_finds_too_long_has_the_routes_name() {
    for (path, body, param) in
        [(CHAT, chat(json!({})), "messages"), (COMPLETIONS, completion(json!({})), "prompt")]
    {
        let error = refused(RejectReason::TooLong, "too long", path, body).await;
        assert_eq!((&error["param"], &error["code"]), (&json!(param), &json!("context_length_exceeded")));
    }
}

#[tokio::test]
async fn c_tool_choice_02_a_grammar_that_the_brain_refuses_has_the_name_of_its_field() {
    let tool = |name: &str| json!({"type": "function", "function": {"name": name, "parameters": {"type": "object"}}});
    let forced = chat(json!({"tools": [tool("a"), tool("b")], "tool_choice": "required"}));
    let format = json!({"type": "json_schema", "json_schema": {"name": "g", "schema": {"type": "object"}}});
    for (path, body, param) in [
        (CHAT, forced, "tools"),
        (CHAT, chat(json!({"response_format": format})), "response_format"),
        (CHAT, chat(json!({"guided_grammar": "start: \"x\""})), "guided_grammar"),
        (COMPLETIONS, completion(json!({"structured_outputs": {"regex": "x+"}})), "structured_outputs.regex"),
    ] {
        let words = "grammar is refused: too complex\n 1 | start: calls\n 2 | calls: call more";
        let error = refused(RejectReason::BadGrammar, words, path, body).await;
        assert_eq!((&error["param"], &error["code"]), (&json!(param), &json!("invalid_json_schema")));
        let message = error["message"].as_str().unwrap();
        assert!(message.contains("too complex") && !message.contains("calls"), "{message}");
    }
}
