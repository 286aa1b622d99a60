//! Cases that need a model which computes: grammars, seeds, alternatives, several choices. Run by a real brain.

use std::collections::HashSet;
use std::time::Duration;

use serde_json::{Value, json};

use super::harness::{CHAT, COMPLETIONS, chat, check_error, completion, merged};
use super::logprobs::check_finite;
use super::raw_http::{Chunk, Connection, Request};
use super::reading::Reading;
use super::real::RealStack;

/// A bias towards the quote and the closing bracket: a model without sense would fill strings for ever.
fn brief() -> Value {
    json!({"logit_bias": {"34": 12, "125": 12, "93": 12}})
}

#[tokio::test]
async fn c_logprobs_with_a_model_01_to_05() {
    let stack = RealStack::start().await;
    let body = completion(json!({"logprobs": 3, "max_tokens": 4, "temperature": 0, "ignore_eos": true}));
    let reading = stack.agree(COMPLETIONS, &body).await;
    let logprobs = &reading.only().logprobs;
    for key in ["tokens", "token_logprobs", "top_logprobs", "text_offset"] {
        assert_eq!(logprobs[key].as_array().map(Vec::len), Some(4), "{logprobs}");
    }
    let body =
        chat(json!({"logprobs": true, "top_logprobs": 2, "max_tokens": 8, "temperature": 0, "seed": 7}));
    let reading = stack.agree(CHAT, &body).await;
    for entry in reading.only().logprobs.as_array().unwrap() {
        let top = entry["top_logprobs"].as_array().unwrap();
        assert_eq!(top.len(), 2);
        // Greedy: the chosen token is the best alternative, with the identical number.
        assert_eq!(top[0]["logprob"], entry["logprob"], "{entry}");
    }
    let prompt = "The capital of France is Paris";
    let body = json!({"prompt": prompt, "echo": true, "max_tokens": 1, "logprobs": 1, "temperature": 0, "seed": 1234});
    let reading = stack.agree(COMPLETIONS, &completion(body)).await;
    let logprobs = &reading.only().logprobs;
    let count = reading.usage["prompt_tokens"].as_u64().unwrap() as usize + 1;
    assert_eq!(logprobs["token_logprobs"].as_array().unwrap().len(), count);
    assert!(logprobs["token_logprobs"][0].is_null() && logprobs["top_logprobs"][0].is_null());
    for at in 1..count {
        let token = logprobs["tokens"][at].as_str().unwrap();
        assert_eq!(logprobs["top_logprobs"][at][token], logprobs["token_logprobs"][at], "{token}");
    }
    assert!(reading.only().text.starts_with(prompt));
    let body =
        json!({"prompt": "seven green bottles", "echo": true, "logprobs": 1, "temperature": 1, "top_k": 1});
    check_finite(&stack.agree(COMPLETIONS, &completion(body)).await.only().logprobs);
    let format = json!({"type": "json_schema", "json_schema": {"name": "e", "schema": {"enum": ["a", "b"]}}});
    let body = chat(json!({"logprobs": true, "top_logprobs": 20, "response_format": format, "seed": 1}));
    let reading = stack.agree(CHAT, &body).await;
    assert!(["\"a\"", "\"b\""].contains(&reading.only().text.trim()), "{:?}", reading.only().text);
    check_finite(&reading.only().logprobs);
}

#[tokio::test]
async fn c_choices_n_03_choices_of_one_seeded_request_differ_from_each_other() {
    let stack = RealStack::start().await;
    for path in [CHAT, COMPLETIONS] {
        let fields = json!({"n": 4, "seed": 42, "temperature": 1.2, "max_tokens": 24, "ignore_eos": true});
        let body = if path == CHAT { chat(fields) } else { completion(fields) };
        let first = stack.agree(path, &body).await;
        let texts: HashSet<&str> = first.choices.iter().map(|choice| choice.text.as_str()).collect();
        assert!(texts.len() > 1, "{texts:?}");
        assert_eq!(first.choices, stack.agree(path, &body).await.choices);
    }
}

#[tokio::test]
async fn c_seed_determinism_01_the_seed_reaches_the_sampler() {
    let stack = RealStack::start().await;
    let text = async |seed: u64| {
        let fields = json!({"seed": seed, "temperature": 1.4, "top_p": 0.98, "max_tokens": 40});
        Reading::of(&stack.post(CHAT, &chat(fields)).await).only().text.clone()
    };
    let first = text(5).await;
    for _ in 0..9 {
        assert_eq!(text(5).await, first);
    }
    let mut texts = HashSet::new();
    for seed in 1..=10 {
        texts.insert(text(seed).await);
    }
    assert!(texts.len() >= 5, "{texts:?}");
}

#[tokio::test]
async fn c_seed_determinism_02_neighbours_in_the_batch_do_not_matter() {
    let stack = RealStack::start().await;
    let request =
        chat(json!({"seed": 11, "temperature": 0.9, "ignore_eos": true, "max_tokens": 20, "logprobs": true}));
    let alone = Reading::of(&stack.post(CHAT, &request).await).choices;
    for round in 0..10 {
        let neighbours: Vec<Value> = (0..8)
            .map(|at| {
                let seed = if round < 5 { json!(null) } else { json!(at) };
                let prompt = "and more ".repeat(1 + 3 * at);
                completion(json!({"prompt": prompt, "seed": seed, "temperature": 1.5, "max_tokens": 30}))
            })
            .collect();
        let others = neighbours.iter().map(|body| stack.post(COMPLETIONS, body));
        let (seeded, others) =
            tokio::join!(stack.post(CHAT, &request), futures_util::future::join_all(others));
        assert!(others.iter().all(|answer| answer.status() == 200));
        assert_eq!(Reading::of(&seeded).choices, alone, "round {round}");
    }
}

fn weather() -> Value {
    merged(json!({"tools": super::tools::weather(), "max_tokens": 400}), brief())
}

#[tokio::test]
async fn c_tool_choice_02_required_produces_a_call() {
    let stack = RealStack::start().await;
    let named = json!({"type": "function", "function": {"name": "get_weather"}});
    for (choice, finish) in [(json!("required"), "tool_calls"), (named, "stop")] {
        for seed in 0..5 {
            let body = chat(merged(weather(), json!({"tool_choice": choice, "seed": seed})));
            let reading = stack.agree(CHAT, &body).await;
            let calls = &reading.only().calls;
            assert!(!calls.is_empty(), "{reading:?}");
            for call in calls {
                assert_eq!(call.name, "get_weather");
                let arguments: Value = serde_json::from_str(&call.arguments).unwrap();
                assert!(arguments["city"].is_string(), "{arguments}");
                assert_eq!(arguments.as_object().unwrap().len(), 1, "{arguments}");
            }
            assert_eq!(reading.only().finish, finish);
        }
    }
    // The limit in the middle of a forced call wins over its promise.
    let body = chat(merged(weather(), json!({"tool_choice": "required", "max_tokens": 5, "seed": 4})));
    assert_eq!(stack.agree(CHAT, &body).await.only().finish, "length");
}

fn schema(schema: Value) -> Value {
    json!({"response_format": {"type": "json_schema", "json_schema": {"name": "g", "strict": true, "schema": schema}}})
}

#[tokio::test]
async fn c_structured_output_01_to_03_what_is_no_schema_is_refused_and_named() {
    let stack = RealStack::start().await;
    let ordinary = chat(json!({"max_tokens": 4}));
    let car = json!({"type": "object", "properties": {"brand": {"type": "string"}, "weight": "heavy"},
        "required": ["brand"], "additionalProperties": false});
    let pattern = json!({"type": "object", "properties": {"s": {"type": "string", "pattern": "^code-([0-9]+$"}},
        "required": ["s"], "additionalProperties": false});
    for stream in [false, true] {
        for (fields, named) in
            [(schema(car.clone()), "/properties/weight"), (schema(pattern.clone()), "code-([0-9]+")]
        {
            let answer = stack.post(CHAT, &chat(merged(fields, json!({"stream": stream})))).await;
            check_error(&answer, 400, Some("response_format"), None);
            let message = answer.json()["error"]["message"].as_str().unwrap().to_owned();
            assert!(message.contains(named), "{message}");
            assert_eq!(stack.post(CHAT, &ordinary).await.status(), 200);
        }
    }
    let wrong_level = json!({"response_format": {"type": "json_schema", "schema": {"type": "object"}}});
    let answer = stack.post(CHAT, &chat(wrong_level)).await;
    check_error(&answer, 400, Some("response_format"), None);
    let param = answer.json()["error"]["param"].as_str().unwrap().to_owned();
    assert!("response_format.json_schema".starts_with(&param), "{param}");
    assert_eq!(stack.post(CHAT, &ordinary).await.status(), 200);
    assert_eq!(stack.server.app().brains.restarts()[0].1, 0, "no engine restart");
}

#[tokio::test]
async fn c_structured_output_04_endless_whitespace() {
    let stack = RealStack::start().await;
    // Tab, newline and carriage return before all else; then what ends a string, a value, a member. A blank would
    // fill strings, where it is no white space but text.
    let bias =
        json!({"logit_bias": {"9": 100, "10": 100, "13": 100, "34": 80, "125": 60, "93": 60, "44": 40}});
    let object = json!({"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "array",
        "items": {"type": "boolean"}, "maxItems": 3}}, "required": ["a", "b"], "additionalProperties": false});
    for format in [json!({"response_format": {"type": "json_object"}}), schema(object)] {
        for path in [CHAT, COMPLETIONS] {
            let fields =
                merged(merged(format.clone(), bias.clone()), json!({"max_tokens": 512, "temperature": 0}));
            let body = if path == CHAT { chat(fields) } else { completion(fields) };
            let reading = stack.agree(path, &body).await;
            assert_eq!(reading.only().finish, "stop", "{:?}", reading.only().text);
            let value: Value = serde_json::from_str(&reading.only().text).unwrap();
            assert!(value.is_object(), "{value}");
            let longest = reading.only().text.split(|c: char| !c.is_whitespace()).map(str::len).max();
            assert!(longest <= Some(64), "{:?}", reading.only().text);
        }
    }
}

#[tokio::test]
async fn c_structured_output_05_an_unsupported_keyword_is_named_or_honoured() {
    let stack = RealStack::start().await;
    let parameters = json!({"type": "object", "properties": {"labels": {"type": "object",
        "propertyNames": {"pattern": "^[a-z]+$"}, "additionalProperties": {"type": "string"}}},
        "required": ["labels"], "additionalProperties": false});
    let tools =
        json!([{"type": "function", "function": {"name": "put", "strict": true, "parameters": parameters}}]);
    let fields =
        merged(json!({"tools": tools, "tool_choice": "required", "max_tokens": 400, "seed": 3}), brief());
    let answer = stack.post(CHAT, &chat(fields)).await;
    if answer.status() == 200 {
        let reading = Reading::of(&answer);
        let arguments: Value = serde_json::from_str(&reading.only().calls[0].arguments).unwrap();
        let labels = arguments["labels"].as_object().unwrap();
        assert!(
            labels.keys().all(|key| !key.is_empty() && key.bytes().all(|b| b.is_ascii_lowercase())),
            "{labels:?}"
        );
    } else {
        check_error(&answer, 400, Some("tools"), None);
        let message = answer.json()["error"]["message"].as_str().unwrap().to_owned();
        assert!(message.contains("propertyNames") && message.contains("/properties/labels"), "{message}");
    }
    assert_eq!(stack.post(CHAT, &chat(json!({"max_tokens": 4}))).await.status(), 200);
}

#[tokio::test]
async fn c_disconnect_and_abort_01_the_brain_frees_the_blocks_of_a_client_that_left() {
    let stack = RealStack::start().await;
    for stream in [true, false] {
        for path in [CHAT, COMPLETIONS] {
            let fields = json!({"max_tokens": 4000, "ignore_eos": true, "stream": stream});
            let body = if path == CHAT { chat(fields) } else { completion(fields) };
            let mut connection = Connection::open(stack.address()).await;
            let before = stack.capacity().output_tokens_total;
            connection.write(&Request::post(path, &body).bytes()).await;
            if stream {
                connection.head().await;
                for _ in 0..5 {
                    assert!(matches!(connection.chunk().await, Chunk::Data(_)));
                }
            } else {
                stack.until("tokens", |capacity| capacity.output_tokens_total > before + 20).await;
            }
            assert_eq!(stack.capacity().running, 1);
            drop(connection);
            let freed = stack.until("free blocks", |now| now.running == 0 && now.blocks_held == 0);
            tokio::time::timeout(Duration::from_secs(2), freed)
                .await
                .expect("within a second and a heartbeat");
            let made = stack.capacity().output_tokens_total - before;
            assert!(made < 3000, "{made} tokens for nobody");
        }
    }
}

#[tokio::test]
async fn c_disconnect_and_abort_03_a_queued_request_whose_client_left_is_never_prefilled() {
    let stack = RealStack::with("max_sequences = 1").await;
    let long = chat(json!({"max_tokens": 4000, "ignore_eos": true, "stream": true}));
    let mut first = Connection::open(stack.address()).await;
    first.begin(&Request::post(CHAT, &long)).await;
    stack.until("the first request", |capacity| capacity.running == 1).await;
    let mut queued = Connection::open(stack.address()).await;
    let prompt = json!({"prompt": "x".repeat(1000), "stream": true, "max_tokens": 4});
    queued.begin(&Request::post(COMPLETIONS, &completion(prompt))).await;
    stack.until("the queue", |capacity| capacity.waiting == 1).await;
    let prefilled = stack.capacity().prompt_tokens_total;
    drop(queued);
    stack.until("an empty queue", |capacity| capacity.waiting == 0).await;
    let third = chat(json!({"max_tokens": 4}));
    let third = stack.post(CHAT, &third);
    let free = async {
        stack.until("the third request", |capacity| capacity.waiting == 1).await;
        drop(first);
    };
    let (answer, ()) = tokio::join!(third, free);
    assert_eq!(answer.status(), 200, "{}", answer.text());
    let computed = stack.capacity().prompt_tokens_total - prefilled;
    assert!(
        computed < 500,
        "{computed} prompt tokens were computed, the 1000 of the client that left among them"
    );
}
