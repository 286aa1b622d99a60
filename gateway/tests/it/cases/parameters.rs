//! Parameters at the edges of their ranges. The rule: each is honoured or refused by its name.

use serde_json::{Value, json};

use super::harness::{CHAT, COMPLETIONS, Stack, chat, check_error, completion, merged};
use super::raw_http::Request;
use super::reading::Reading;
use super::scripted::{Act, Script};

/// Sends a chat whose field has this text as its value, which need not be a number that Rust has.
async fn chat_raw(stack: &Stack, path: &str, field: &str, value: &str) -> super::raw_http::Answer {
    let body = if path == CHAT { chat(json!({})) } else { completion(json!({})) };
    let text = body.to_string();
    let text = format!("{},\"{field}\":{value}}}", text.strip_suffix('}').unwrap());
    stack.send(&Request::post_raw(path, text)).await
}

/// Every value must be refused on both routes with the field's name, and the server goes on.
async fn refused(stack: &Stack, field: &str, values: &[&str]) {
    for value in values {
        for path in [CHAT, COMPLETIONS] {
            let answer = chat_raw(stack, path, field, value).await;
            check_error(&answer, 400, Some(field), None);
            let message = answer.json()["error"]["message"].as_str().unwrap().to_owned();
            assert!(message.contains(field), "{field} {value}: {message}");
        }
        stack.assert_healthy().await;
    }
}

async fn taken(stack: &Stack, field: &str, values: &[&str]) {
    for value in values {
        for path in [CHAT, COMPLETIONS] {
            let answer = chat_raw(stack, path, field, value).await;
            assert_eq!(answer.status(), 200, "{field} {value}: {}", answer.text());
        }
    }
}

#[tokio::test]
async fn c_parameter_edges_01_max_tokens_0_in_chat() {
    let stack = Stack::start().await;
    for field in ["max_tokens", "max_completion_tokens"] {
        for value in [json!(0), json!(-1), json!(1.5), json!("5"), json!(true)] {
            for stream in [false, true] {
                let answer = stack.chat(json!({field: value, "stream": stream})).await;
                check_error(&answer, 400, Some(field), None);
            }
        }
    }
    assert!(stack.brain.log().submits.is_empty());
    for value in [json!(-1), json!(1.5), json!("5")] {
        check_error(&stack.complete(json!({"max_tokens": value})).await, 400, Some("max_tokens"), None);
    }
    stack.assert_healthy().await;
}

#[tokio::test]
async fn c_parameter_edges_02_max_tokens_null() {
    let stack = Stack::start().await;
    stack.brain.always(Script::acts(vec![Act::Seeded]));
    let chat_limit = stack.agree(CHAT, &chat(json!({"seed": 4}))).await;
    let limit = stack.brain.last_submit().stop.max_tokens;
    let with_null =
        stack.agree(CHAT, &chat(json!({"seed": 4, "max_tokens": null, "max_completion_tokens": null}))).await;
    assert_eq!(with_null.choices, chat_limit.choices);
    assert_eq!(stack.brain.last_submit().stop.max_tokens, limit);
    let left_out = stack.agree(COMPLETIONS, &completion(json!({"seed": 4}))).await;
    let null = stack.agree(COMPLETIONS, &completion(json!({"seed": 4, "max_tokens": null}))).await;
    assert_eq!(left_out.choices, null.choices);
    assert_eq!(null.completion_tokens(), 16);
}

#[tokio::test]
async fn c_parameter_edges_03_seed_outside_int64() {
    let stack = Stack::start().await;
    refused(
        &stack,
        "seed",
        &["18446744073709551616", "9223372036854775808", "-9223372036854775809", "1.5", "\"1\"", "1e999"],
    )
    .await;
    taken(&stack, "seed", &["9223372036854775807", "-9223372036854775808", "-1", "0", "null"]).await;
    let mut seeds = std::collections::HashSet::new();
    for seed in [i64::MAX, i64::MIN, -1, 0, 1] {
        stack.chat(json!({"seed": seed})).await;
        seeds.insert(stack.brain.last_submit().sampling.seed);
    }
    assert_eq!(seeds.len(), 5, "no two seeds may become one");
}

#[tokio::test]
async fn c_parameter_edges_04_logit_bias_outside_the_vocabulary() {
    let stack = Stack::start().await;
    let bad = [
        "{\"99999999\":5}",
        "{\"-1\":5}",
        "{\"abc\":5}",
        "{\"5\":101}",
        "{\"5\":-101}",
        "{\"5\":null}",
        "[]",
    ];
    refused(&stack, "logit_bias", &bad).await;
    for id in ["99999999", "-1", "abc"] {
        let answer = chat_raw(&stack, CHAT, "logit_bias", &format!("{{\"{id}\":5}}")).await;
        assert!(answer.json()["error"]["message"].as_str().unwrap().contains(id), "{}", answer.text());
    }
    taken(&stack, "logit_bias", &["{}", "null", "{\"5\":100}", "{\"5\":-100,\"6\":0.5}"]).await;
}

#[tokio::test]
async fn c_parameter_edges_05_fractional_top_k() {
    let stack = Stack::start().await;
    refused(&stack, "top_k", &["0.01", "\"5\"", "1e20", "-2", "[5]", "true"]).await;
    taken(&stack, "top_k", &["0", "-1", "null"]).await;
    for off in [0, -1] {
        stack.chat(json!({"top_k": off})).await;
        assert_eq!(stack.brain.last_submit().sampling.top_k, 0);
    }
    stack.chat(json!({"top_k": 5})).await;
    assert_eq!(stack.brain.last_submit().sampling.top_k, 5);
}

#[tokio::test]
async fn c_parameter_edges_05_relatives_are_refused_by_name() {
    let stack = Stack::start().await;
    refused(&stack, "temperature", &["-0.1", "2.1", "\"1\"", "1e999"]).await;
    refused(&stack, "top_p", &["-0.1", "1.1", "\"1\""]).await;
    refused(&stack, "min_p", &["-0.1", "1.1"]).await;
    refused(&stack, "n", &["0", "-1", "129", "1.5", "\"2\""]).await;
    refused(&stack, "presence_penalty", &["-2.1", "2.1"]).await;
    refused(&stack, "frequency_penalty", &["-2.1", "2.1"]).await;
    refused(&stack, "repetition_penalty", &["0", "-1"]).await;
    refused(&stack, "stop", &["\"\"", "5", "[\"a\",\"\"]", "[1]", "[\"a\",\"b\",\"c\",\"d\",\"e\"]"]).await;
    refused(&stack, "stream", &["\"true\"", "1"]).await;
    taken(&stack, "stop", &["null", "[]", "\"zz\"", "[\"a\",\"b\",\"c\",\"zz\"]"]).await;
    taken(&stack, "temperature", &["0", "2", "null", "1.0"]).await;
    taken(&stack, "n", &["null", "1", "2.0"]).await;
    for (field, value) in [("top_logprobs", json!(2)), ("stream_options", json!({"include_usage": true}))] {
        check_error(&stack.chat(json!({field: value})).await, 400, Some(field), None);
    }
    check_error(
        &stack.chat(json!({"logprobs": true, "top_logprobs": 21})).await,
        400,
        Some("top_logprobs"),
        None,
    );
    check_error(&stack.complete(json!({"logprobs": 6})).await, 400, Some("logprobs"), None);
    stack.assert_healthy().await;
}

/// The scripted brain draws from the seed it is given, so these see whether the seed arrives; the sampler itself
/// is in the tests of the real brain.
#[tokio::test]
async fn c_seed_determinism_01_the_seed_arrives_and_none_is_shared() {
    let stack = Stack::start().await;
    stack.brain.always(Script::acts(vec![Act::Seeded]));
    let text = async |fields: Value| {
        Reading::of(&stack.chat(merged(json!({"max_tokens": 40}), fields)).await).only().text.clone()
    };
    let first = text(json!({"seed": 5})).await;
    for _ in 0..9 {
        assert_eq!(text(json!({"seed": 5})).await, first);
    }
    let mut seeded = std::collections::HashSet::new();
    let mut unseeded = std::collections::HashSet::new();
    for seed in 1..=10 {
        seeded.insert(text(json!({"seed": seed})).await);
        unseeded.insert(text(json!({})).await);
    }
    assert_eq!((seeded.len(), unseeded.len()), (10, 10));
}

#[tokio::test]
async fn a_request_may_step_back_behind_others_but_not_in_front_of_them() {
    let stack = Stack::start().await;
    for (asked, given) in [(i64::from(i32::MIN), 0), (-1, 0), (0, 0), (7, 7)] {
        assert_eq!(stack.post(CHAT, &chat(json!({"priority": asked}))).await.status(), 200);
        assert_eq!(stack.brain.last_submit().priority, given, "asked for {asked}");
    }
}
