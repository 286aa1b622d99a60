//! Bodies that are not what they seem. The rule: the request is at fault and is told so; nothing else suffers.

use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::cases::harness::{CHAT, COMPLETIONS, Stack, chat, check_error};
use crate::cases::raw_http::{Connection, Request};
use crate::cases::reading::Reading;
use crate::cases::scripted::{Act, Script};

fn chat_with_content(content: &str) -> String {
    format!(r#"{{"model":"M","messages":[{{"role":"user","content":"{content}"}}]}}"#)
}

fn completion_with_prompt(prompt: &str) -> String {
    format!(r#"{{"model":"M","prompt":"{prompt}"}}"#)
}

#[tokio::test]
async fn c_input_parsing_01_unpaired_surrogate_escape() {
    let stack = Stack::start().await;
    for text in [r"cut here \ud83e", r"\udd84 tail", r"\udd84\ud83e", r"\ud83e\ud83e\udd84", r"\ud83ex\udd84"]
    {
        for (path, body) in [(CHAT, chat_with_content(text)), (COMPLETIONS, completion_with_prompt(text))] {
            let answer = stack.send(&Request::post_raw(path, body)).await;
            stack.assert_error(&answer, 400, None, None).await;
        }
    }
    let unicorn: Vec<u32> = "fine 🦄".bytes().map(u32::from).collect();
    for (path, body) in [
        (CHAT, chat_with_content(r"fine \ud83e\udd84")),
        (COMPLETIONS, completion_with_prompt(r"fine \ud83e\udd84")),
    ] {
        let answer = stack.send(&Request::post_raw(path, body)).await;
        assert_eq!(answer.status(), 200, "{}", answer.text());
        let prompt = stack.brain.last_submit().prompt;
        // The letters may have merged; the unicorn's bytes are single tokens of this vocabulary.
        assert!(prompt.windows(4).any(|window| window == &unicorn[5..]), "{prompt:?}");
    }
}

#[tokio::test]
async fn c_input_parsing_02_two_keys_of_one_name() {
    let stack = Stack::start().await;
    for body in [
        r#"{"model":"M","model":"large","messages":[{"role":"user","content":"hi"}]}"#,
        r#"{"model":"M","mod\u0065l":"M","messages":[{"role":"user","content":"hi"}]}"#,
        r#"{"model":"M","messages":[{"role":"user","content":"hi","role":"system"}]}"#,
        r#"{"model":"M","messages":[{"role":"user","content":"hi"}],"metadata":{"a":"1","a":"2"}}"#,
        r#"{"model":"M","messages":[{"role":"user","content":"hi"}],"unread":{"b":{"c":1,"c":1}}}"#,
    ] {
        let answer = stack.send(&Request::post_raw(CHAT, body)).await;
        check_error(&answer, 400, None, None);
    }
    assert!(stack.brain.log().submits.is_empty(), "no model may receive any of them");
    stack.assert_healthy().await;
}

fn nested(open: &str, close: &str, depth: usize) -> String {
    format!("{}1{}", open.repeat(depth), close.repeat(depth))
}

#[tokio::test]
async fn c_input_parsing_03_deep_nesting_in_a_field_nobody_reads() {
    let stack = Stack::start().await;
    let messages = r#""messages":[{"role":"user","content":"hi"}]"#;
    for body in [
        format!(r#"{{"model":"M",{messages},"x":{}}}"#, nested("[", "]", 100_000)),
        format!(r#"{{"model":"M",{messages},"tools":{}}}"#, nested("[", "]", 4000)),
        format!(r#"{{"model":"M","messages":{}}}"#, nested(r#"{"a":"#, "}", 100_000)),
        format!(r#"{{"model":"M",{messages},"x":{}"#, "[".repeat(100_000)),
    ] {
        for path in [CHAT, COMPLETIONS] {
            let began = Instant::now();
            let answer = stack.send(&Request::post_raw(path, body.clone())).await;
            check_error(&answer, 400, None, None);
            assert!(began.elapsed() < Duration::from_secs(1), "{:?}", began.elapsed());
            assert_eq!(stack.get("/health").await.status(), 200);
        }
    }
    stack.assert_healthy().await;
}

#[tokio::test]
async fn c_input_parsing_04_bytes_that_are_not_utf_8() {
    let stack = Stack::start().await;
    let mut connection = Connection::open(stack.address()).await;
    for bad in [&b"\xff"[..], b"\xe4\xbd", b"\xc0\x80", b"\xed\xa0\x80", b"\xf5\x80\x80\x80"] {
        for (path, template) in
            [(CHAT, chat_with_content("a@b")), (COMPLETIONS, completion_with_prompt("a@b"))]
        {
            let (before, after) = template.split_once('@').unwrap();
            let body = [before.as_bytes(), bad, after.as_bytes()].concat();
            let answer = connection.send(&Request::post_raw(path, body)).await;
            check_error(&answer, 400, None, None);
        }
    }
    assert!(stack.brain.log().submits.is_empty());
    let with_mark = [b"\xef\xbb\xbf".to_vec(), chat_with_content("hi").into_bytes()].concat();
    // The same connection is used for all of them.
    let answer = connection.send(&Request::post_raw(CHAT, with_mark)).await;
    assert_eq!(Reading::of(&answer).only().text, "Hello, world.");
}

/// A schema that is `depth` levels deep.
fn parameters(depth: usize) -> String {
    let inner = depth - 1;
    format!("{}{}{}", r#"{"type":"array","items":"#.repeat(inner), r#"{"type":"integer"}"#, "}".repeat(inner))
}

fn with_tool(parameters: &str) -> String {
    let tool = format!(r#"{{"type":"function","function":{{"name":"f","parameters":{parameters}}}}}"#);
    format!(r#"{{"model":"M","messages":[{{"role":"user","content":"hi"}}],"tools":[{tool}]}}"#)
}

#[tokio::test]
async fn c_input_parsing_05_nested_tool_parameters_meet_one_sharp_limit() {
    let stack = Stack::start().await;
    stack.brain.next(Script::acts(vec![
        Act::piece("one"),
        Act::Wait(Duration::from_millis(300)),
        Act::piece("two"),
        Act::Eos,
    ]));
    let mut stream = Connection::open(stack.address()).await;
    let head = stream.begin(&Request::post(CHAT, &chat(json!({"stream": true})))).await;
    for depth in [100, 127, 128, 129, 1000, 20_000] {
        let answer = stack.send(&Request::post_raw(CHAT, with_tool(&parameters(depth)))).await;
        check_error(&answer, 400, None, None);
    }
    assert_eq!(
        Reading::of(&stream.rest(head, false).await).only().text,
        "onetwo",
        "another stream is undisturbed"
    );
    let mut accepted = Vec::new();
    for depth in 1..=80 {
        let answer = stack.send(&Request::post_raw(CHAT, with_tool(&parameters(depth)))).await;
        match answer.status() {
            200 => accepted.push(depth),
            _ => check_error(&answer, 400, None, None),
        }
    }
    let documented: Vec<usize> = (1..=64).collect();
    assert_eq!(accepted, documented, "the limit of a schema is 64 levels");
    let value: Value = serde_json::from_str(&with_tool(&parameters(64))).unwrap();
    assert_eq!(stack.post(CHAT, &value).await.status(), 200);
    stack.assert_healthy().await;
}
