//! Clients that leave: before, during and after the answer. The rule: what they leave behind is ended within a
//! second and billed as far as it got.

use std::sync::Arc;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tokio::sync::Semaphore;

use super::harness::{CHAT, COMPLETIONS, Stack, chat, completion};
use super::process::ServerProcess;
use super::raw_http::{Chunk, Connection, Request};
use super::scripted::{Act, Reception, Script};

fn long(path: &str, stream: bool) -> Request {
    let fields = json!({"max_tokens": 4000, "ignore_eos": true, "stream": stream});
    Request::post(path, &if path == CHAT { chat(fields) } else { completion(fields) })
}

/// The ledger's records, once there are so many; a client that left isn't told when its record is written.
async fn records(stack: &Stack, count: usize) -> Vec<Value> {
    let wait = async {
        loop {
            let records = stack.ledger().await;
            if records.len() >= count {
                return records;
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(super::raw_http::PATIENCE, wait).await.expect("each request is recorded")
}

#[tokio::test]
async fn c_disconnect_and_abort_01_the_client_leaves_and_the_work_stops() {
    let stack = Stack::start().await;
    stack.brain.always(Script::endless(Duration::from_millis(5)));
    let mut ended = 0;
    for path in [CHAT, COMPLETIONS] {
        for stream in [true, false] {
            let mut connection = Connection::open(stack.address()).await;
            if stream {
                connection.begin(&long(path, true)).await;
                for _ in 0..5 {
                    assert!(matches!(connection.chunk().await, Chunk::Data(_)));
                }
            } else {
                connection.write(&long(path, false).bytes()).await;
                let sent = stack.brain.log().tokens_sent;
                stack.brain.until("some tokens", |log| log.tokens_sent > sent + 10).await;
            }
            drop(connection);
            let left = Instant::now();
            ended += 1;
            stack.brain.until("the abort", |log| log.aborts.len() == ended).await;
            assert!(left.elapsed() < Duration::from_secs(1), "{:?}", left.elapsed());
            assert_eq!(stack.brain.log().live(), 0);
        }
    }
    for record in records(&stack, ended).await {
        let tokens = record["output_tokens"].as_u64().unwrap();
        assert!((3..1000).contains(&tokens), "{record}");
        assert_eq!(record["outcome"], "aborted", "{record}");
        assert!(record["prompt_tokens"].as_u64().unwrap() > 0, "{record}");
    }
    stack.assert_healthy().await;
}

/// Every choice of a request is aborted with it.
#[tokio::test]
async fn c_disconnect_and_abort_01_all_choices_are_aborted() {
    let stack = Stack::start().await;
    stack.brain.always(Script::endless(Duration::from_millis(5)));
    let mut connection = Connection::open(stack.address()).await;
    connection.begin(&Request::post(CHAT, &chat(json!({"n": 5, "stream": true, "max_tokens": 4000})))).await;
    stack.brain.until("some tokens", |log| log.tokens_sent > 10).await;
    drop(connection);
    stack.brain.until("the aborts", |log| log.aborts.len() == 5).await;
    assert_eq!(stack.brain.log().live(), 0);
}

/// A brain that takes two seconds for its prompt stands for a long one.
#[tokio::test]
async fn c_disconnect_and_abort_02_the_client_leaves_during_prompt_processing() {
    let stack = Stack::start().await;
    let prefill = Script::acts(vec![Act::Wait(Duration::from_secs(2)), Act::piece("one"), Act::Eos]);
    for (at, stream) in [true, false].into_iter().enumerate() {
        stack.brain.next(prefill.clone());
        let prompt = json!([{"role": "user", "content": "x".repeat(3500)}]);
        let mut connection = Connection::open(stack.address()).await;
        let body = chat(json!({"messages": prompt, "stream": stream}));
        connection.write(&Request::post(CHAT, &body).bytes()).await;
        stack.brain.until("the submission", |log| log.submits.len() == at + 1).await;
        drop(connection);
        let left = Instant::now();
        stack.brain.until("the abort", |log| log.aborts.len() == at + 1).await;
        assert!(left.elapsed() < Duration::from_secs(1), "{:?}", left.elapsed());
    }
    assert_eq!(stack.brain.log().tokens_sent, 0, "no decoding for a client that is gone");
    stack.assert_healthy().await;
}

/// Queued means not yet accepted by the brain here; the brain's own queue is in the tests of the real one.
#[tokio::test]
async fn c_disconnect_and_abort_03_the_client_leaves_while_queued() {
    let stack = Stack::with("[limits]\nin_flight = 2\nledger_slots = 10").await;
    let gate = Arc::new(Semaphore::new(0));
    stack.brain.next(Script::acts(vec![Act::Gate(Arc::clone(&gate)), Act::piece("ok"), Act::Eos]));
    let mut first = Connection::open(stack.address()).await;
    let head = first.begin(&Request::post(CHAT, &chat(json!({"stream": true})))).await;
    stack.brain.next(Script::default().received(Reception::Never));
    let mut queued = Connection::open(stack.address()).await;
    queued.write(&long(CHAT, true).bytes()).await;
    stack.brain.until("the queued request", |log| log.submits.len() == 2).await;
    let queued_id = stack.brain.last_submit().sequence;
    drop(queued);
    stack.brain.until("its abort", |log| log.aborts == [queued_id]).await;
    // Both places were taken; the one of the client that left is free again.
    stack.assert_healthy().await;
    gate.add_permits(1);
    let answer = first.rest(head, false).await;
    assert_eq!(super::reading::Reading::of(&answer).only().text, "ok");
}

#[tokio::test]
async fn c_disconnect_and_abort_04_close_right_after_the_end_marker_200_times() {
    let stack = Stack::start().await;
    let request = Request::post(CHAT, &chat(json!({"stream": true})));
    for _ in 0..200 {
        let mut connection = Connection::open(stack.address()).await;
        connection.begin(&request).await;
        let mut text = Vec::new();
        while !text.ends_with(b"data: [DONE]\n\n") {
            match connection.chunk().await {
                Chunk::Data(piece) => text.extend(piece),
                other => panic!("{other:?} before the end marker"),
            }
        }
    }
    let records = records(&stack, 200).await;
    assert_eq!(records.len(), 200);
    for record in records {
        assert_eq!(
            (&record["outcome"], &record["output_tokens"]),
            (&json!("completed"), &json!(4)),
            "{record}"
        );
        assert_eq!(record["status"], 200, "{record}");
    }
    assert!(stack.brain.log().aborts.is_empty());
    let metrics = stack.metrics().await;
    let requests =
        metrics.lines().filter(|line| line.starts_with("pons_requests_total{") && line.contains("\"chat\""));
    assert!(requests.clone().all(|line| line.contains("2xx") || line.contains("200")), "{metrics}");
    assert!(requests.count() > 0, "{metrics}");
}

/// 2,000 requests with prompts of 50 kB, 64 at a time, each closed after up to 5 ms; a server of its own, so that
/// its memory can be read.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn c_disconnect_and_abort_05_2000_cancels_during_admission() {
    let server = Arc::new(ServerProcess::start(100_000).await);
    server.brain.always(Script::endless(Duration::from_millis(20)));
    server.brain.forget();
    let request = json!([{"role": "user", "content": "x".repeat(50_000)}]);
    let bytes = Arc::new(Request::post(CHAT, &chat(json!({"messages": request, "stream": true}))).bytes());
    let storm = async |count: u64| {
        let places = Arc::new(Semaphore::new(64));
        let mut clients = tokio::task::JoinSet::new();
        for at in 0..count {
            let place = Arc::clone(&places).acquire_owned().await.expect("it stays open");
            let (bytes, address) = (Arc::clone(&bytes), server.address);
            clients.spawn(async move {
                let _place = place;
                let mut connection = Connection::open(address).await;
                connection.try_write(&bytes).await;
                tokio::time::sleep(Duration::from_micros(at * 7919 % 5000)).await;
            });
        }
        clients.join_all().await;
    };
    let settled = async || {
        let wait = async {
            loop {
                let metrics = super::raw_http::send(server.address, &Request::new("GET", "/metrics")).await;
                let idle = metrics.text().lines().any(|line| line == "pons_requests_in_flight 0");
                if idle && server.brain.running() == 0 {
                    return;
                }
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        };
        tokio::time::timeout(super::raw_http::PATIENCE, wait).await.expect("no request is left behind");
        server.memory_kib()
    };
    // The allocator keeps what the busiest moment took, so as many cancels as are judged come first.
    storm(2000).await;
    let before = settled().await;
    storm(2000).await;
    let after = settled().await;
    // Each prompt alone takes a quarter of a megabyte as tokens, so a leak of one in ten would show.
    assert!(after < before + before / 4 + 16 * 1024, "{before} KiB before, {after} KiB after");
}
