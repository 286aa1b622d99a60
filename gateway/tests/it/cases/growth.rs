//! What grows with the number of requests: nothing. Counts of the cases are scaled to what fits into seconds and
//! stand in the names.

use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};

use super::harness::{CHAT, COMPLETIONS, Stack, chat, check_error, completion};
use super::process::ServerProcess;
use super::raw_http::{Connection, Request};
use super::scripted::{Act, Script};

fn series(metrics: &str) -> usize {
    metrics.lines().filter(|line| !line.starts_with('#')).count()
}

#[tokio::test]
async fn c_resource_growth_01_2000_invented_model_names_in_metrics() {
    let stack = Stack::start().await;
    let mut connection = Connection::open(stack.address()).await;
    let ask = |at: usize| Request::post(CHAT, &chat(json!({"model": format!("made-up-{at}")})));
    check_error(&connection.send(&ask(0)).await, 404, Some("model"), Some("model_not_found"));
    // The first look adds the series of looking.
    stack.metrics().await;
    let before = stack.metrics().await;
    for at in 1..2000 {
        assert_eq!(connection.send(&ask(at)).await.status(), 404);
    }
    let after = stack.metrics().await;
    assert_eq!(series(&before), series(&after));
    assert!(!after.contains("made-up"), "{after}");
    let other =
        after.lines().find(|line| line.starts_with("pons_requests_total{route=\"chat\",model=\"other\""));
    assert!(other.is_some_and(|line| line.ends_with(" 2000")), "{after}");
    stack.assert_healthy().await;
}

#[tokio::test]
async fn c_resource_growth_04_1000_end_user_ids_in_metrics() {
    let stack = Stack::start().await;
    stack.brain.forget();
    let mut connection = Connection::open(stack.address()).await;
    let ask = |at: usize| {
        let body =
            chat(json!({"user": format!("end-user-{at}"), "safety_identifier": format!("end-user-{at}"),
            "prompt_cache_key": format!("end-user-{at}"), "metadata": {"tag": format!("end-user-{at}")}}));
        Request::post(CHAT, &body)
            .with("user-agent", &format!("end-user-{at}"))
            .with("x-request-id", &format!("end-user-{at}"))
    };
    for at in 0..50 {
        assert_eq!(connection.send(&ask(at)).await.status(), 200);
    }
    // The first look adds the series of looking.
    stack.metrics().await;
    let before = stack.metrics().await;
    for at in 50..1000 {
        assert_eq!(connection.send(&ask(at)).await.status(), 200);
    }
    let after = stack.metrics().await;
    assert_eq!(series(&before), series(&after));
    assert!(!after.contains("end-user"), "{after}");
}

fn mix() -> Vec<Request> {
    let tools = json!({"tools": super::tools::weather(), "stream": true});
    let schema = json!({"response_format": {"type": "json_schema", "json_schema": {"name": "s", "strict": true,
        "schema": {"type": "object", "properties": {"a": {"type": "string"}}, "required": ["a"],
        "additionalProperties": false}}}});
    let post = |path: &str, body: &Value| Request::post(path, body);
    vec![
        post(CHAT, &chat(json!({}))),
        post(CHAT, &chat(json!({"stream": true}))),
        post(COMPLETIONS, &completion(json!({"logprobs": 3}))),
        post(CHAT, &chat(tools)),
        post(CHAT, &chat(schema)),
        post("/v1/embeddings", &json!({"model": "M", "input": "a"})),
        post(CHAT, &chat(json!({"model": "unknown"}))),
        post(CHAT, &json!({"model": "M"})),
        Request::post_raw(CHAT, "{not json"),
        post("/tokenize", &json!({"model": "M", "prompt": "Hello, world."})),
    ]
}

/// 10,000 requests of every kind over 8 connections, compared with the first 2,000; each kind is a tenth.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn c_resource_growth_03_memory_after_10000_requests() {
    let server = Arc::new(ServerProcess::start(4096).await);
    server.brain.always(Script::acts(vec![Act::piece("ok"), Act::Eos]));
    server.brain.forget();
    let run = async |rounds: usize| {
        let mut clients = tokio::task::JoinSet::new();
        for _ in 0..8 {
            let address = server.address;
            clients.spawn(async move {
                let mut connection = Connection::open(address).await;
                let mix = mix();
                for _ in 0..rounds {
                    for request in &mix {
                        assert!(connection.send(request).await.status() < 500);
                    }
                }
            });
        }
        clients.join_all().await;
        tokio::time::sleep(Duration::from_millis(50)).await;
        server.memory_kib()
    };
    let before = run(25).await;
    let after = run(100).await;
    // A twentieth, and the granularity in which the allocator takes memory for a few threads.
    assert!(
        after < before + before / 20 + 3 * 1024,
        "{before} KiB after 2,000 requests, {after} KiB after 10,000"
    );
}
