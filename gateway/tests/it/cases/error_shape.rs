//! Errors: the status, the object with its four keys, the headers.

use pons_protocol::inference::RejectReason;
use serde_json::json;

use crate::cases::harness::{CHAT, COMPLETIONS, Stack, chat, check_error, check_error_object};
use crate::cases::raw_http::Request;
use crate::cases::scripted::{Act, Reception, Script};

#[tokio::test]
async fn c_error_shape_01_unknown_model() {
    let stack = Stack::start().await;
    for stream in [true, false] {
        for (path, body) in [
            (CHAT, json!({"messages": [{"role": "user", "content": "Say hello."}]})),
            (COMPLETIONS, json!({"prompt": "Hello"})),
        ] {
            let mut body = body;
            body["model"] = json!("no-such-model");
            body["stream"] = json!(stream);
            let answer = stack.post(path, &body).await;
            stack.assert_error(&answer, 404, Some("model"), Some("model_not_found")).await;
        }
    }
    for (path, body) in [
        ("/v1/embeddings", json!({"model": "no-such-model", "input": "a"})),
        ("/tokenize", json!({"model": "no-such-model", "prompt": "a"})),
    ] {
        check_error(&stack.post(path, &body).await, 404, Some("model"), Some("model_not_found"));
    }
}

/// Rate limits do not exist yet; a full server is 503 with `retry-after` instead of 429.
#[tokio::test]
async fn c_error_shape_02_all_four_keys_and_a_string_code_for_every_status() {
    let stack = Stack::with("[limits]\nbody_bytes = 100000\nin_flight = 1\nledger_slots = 10").await;
    check_error(
        &stack.post(CHAT, &json!({"model": "M"})).await,
        400,
        Some("messages"),
        Some("missing_required_parameter"),
    );
    check_error(
        &stack.post(CHAT, &json!({"model": "x", "messages": []})).await,
        404,
        Some("model"),
        Some("model_not_found"),
    );
    check_error(&stack.get("/v1/nothing").await, 404, None, None);
    let answer = stack.get(CHAT).await;
    check_error(&answer, 405, None, None);
    assert!(answer.head.header("allow").is_some_and(|allow| allow.contains("POST")));
    let answer = stack.send(&Request::post_raw(CHAT, "x".repeat(100_001))).await;
    check_error(&answer, 413, None, None);
    let form = Request {
        headers: vec![("content-type".into(), "application/x-www-form-urlencoded".into())],
        ..Request::post_raw(CHAT, "model=M")
    };
    check_error(&stack.send(&form).await, 415, None, None);
    let packed = Request::post(CHAT, &chat(json!({}))).with("content-encoding", "zstd");
    check_error(&stack.send(&packed).await, 415, None, None);
    stack.brain.next(Script::acts(vec![Act::Fail]));
    let answer = stack.chat(json!({})).await;
    assert!([500, 502].contains(&answer.status()), "{}", answer.status());
    check_error(&answer, answer.status(), None, None);
    assert_eq!(answer.json()["error"]["type"], "server_error");

    let full = Reception::Reject(RejectReason::QueueFull, "the queue holds 8 sequences".to_owned());
    stack.brain.next(Script::default().received(full));
    let answer = stack.chat(json!({"stream": true})).await;
    check_error(&answer, 503, None, None);
    assert!(
        answer.head.header("retry-after").is_some_and(|seconds| seconds.parse::<u32>().is_ok_and(|s| s >= 1))
    );
    stack.assert_healthy().await;

    // From the first key on, one is needed.
    let key = format!("Bearer {}", stack.create_key("acme").await);
    let ask = Request::post(CHAT, &chat(json!({})));
    let wrong = ["Bearer sk-pons-wrong", "Bearer ", "Basic abc", "sk-pons-wrong"];
    for request in
        wrong.map(|value| ask.clone().with("authorization", value)).into_iter().chain([ask.clone()])
    {
        check_error(&stack.send(&request).await, 401, None, Some("invalid_api_key"));
    }
    assert_eq!(stack.send(&ask.with("authorization", &key)).await.status(), 200);
}

#[tokio::test]
async fn a_full_server_says_so_with_all_four_keys() {
    let stack = Stack::with("[limits]\nin_flight = 1\nledger_slots = 10").await;
    let gate = std::sync::Arc::new(tokio::sync::Semaphore::new(0));
    stack.brain.next(Script::acts(vec![Act::Gate(gate.clone()), Act::piece("ok"), Act::Eos]));
    let body = chat(json!({}));
    let first = stack.post(CHAT, &body);
    let second = async {
        stack.brain.until("the first request's start", |log| log.submits.len() == 1).await;
        let refused = stack.post(CHAT, &body).await;
        gate.add_permits(1);
        refused
    };
    let (first, second) = tokio::join!(first, second);
    assert_eq!(first.status(), 200);
    assert!([429, 503].contains(&second.status()));
    check_error_object(&second.json()["error"]);
    assert!(second.head.header("retry-after").is_some());
    stack.assert_healthy().await;
}

#[tokio::test]
async fn c_error_shape_03_missing_model() {
    let stack = Stack::start().await;
    for (path, body) in [
        (CHAT, json!({"messages": [{"role": "user", "content": "hi"}]})),
        (CHAT, json!({"model": null, "messages": [{"role": "user", "content": "hi"}]})),
        (COMPLETIONS, json!({"prompt": "hi"})),
    ] {
        let answer = stack.post(path, &body).await;
        stack.assert_error(&answer, 400, Some("model"), Some("missing_required_parameter")).await;
    }
}
