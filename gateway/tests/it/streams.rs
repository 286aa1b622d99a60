//! Streams and what is settled for them.

use crate::brain::TEXT;
use crate::harness::{Fixture, MODEL, PATIENCE, join_chunks};
use serde_json::{Value, json};
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// An open chat request whose answer is read bit by bit.
pub(crate) struct Stream {
    socket: TcpStream,
    raw: Vec<u8>,
}

impl Stream {
    /// Sends a chat request with these further fields.
    pub(crate) async fn open(fixture: &Fixture, fields: Value) -> Self {
        let mut stream = Self::send(fixture, fields).await;
        stream.until("\r\n\r\n").await;
        stream
    }

    async fn send(fixture: &Fixture, fields: Value) -> Self {
        let mut body = json!({"model": MODEL, "messages": [{"role": "user", "content": "hi"}]});
        for (key, value) in fields.as_object().unwrap() {
            body[key] = value.clone();
        }
        let body = body.to_string();
        let mut socket = TcpStream::connect(fixture.address()).await.unwrap();
        let head = format!(
            "POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n",
            body.len()
        );
        socket.write_all(&[head.as_bytes(), body.as_bytes()].concat()).await.unwrap();
        Self { socket, raw: Vec::new() }
    }

    fn text(&self) -> String {
        String::from_utf8_lossy(&self.raw).into_owned()
    }

    /// Reads until the raw answer holds this.
    async fn until(&mut self, wanted: &str) {
        let read = async {
            while !self.text().contains(wanted) {
                let mut buffer = [0; 4096];
                let count = self.socket.read(&mut buffer).await.unwrap();
                assert_ne!(count, 0, "the stream ended before {wanted:?}: {}", self.text());
                self.raw.extend_from_slice(&buffer[..count]);
            }
        };
        tokio::time::timeout(PATIENCE, read).await.unwrap_or_else(|_| panic!("no {wanted:?}"));
    }

    /// The events so far.
    fn body(&self) -> String {
        let at = self.text().find("\r\n\r\n").unwrap() + 4;
        String::from_utf8(join_chunks(&self.raw[at..])).unwrap()
    }
}

/// The ledger once it has so many records.
pub(crate) async fn ledger(fixture: &Fixture, count: usize) -> Vec<Value> {
    let wait = async {
        loop {
            let answer = fixture.admin("GET", "/admin/v1/ledger", "").await.json();
            let records = answer["data"].as_array().unwrap().clone();
            if records.len() >= count {
                return records;
            }
        }
    };
    tokio::time::timeout(PATIENCE, wait).await.expect("the ledger has its records")
}

#[tokio::test]
async fn c_streaming_framing_01_a_stream_has_its_frames_in_order_and_ends_with_the_marker() {
    let fixture = Fixture::start().await;
    let body = json!({"model": MODEL, "messages": [{"role": "user", "content": "hi"}], "stream": true,
        "stream_options": {"include_usage": true}});
    let answer = fixture.post("/v1/chat/completions", &body).await;
    assert_eq!(answer.status, 200);
    assert_eq!(answer.header("content-type"), Some("text/event-stream; charset=utf-8"));
    assert_eq!(answer.header("cache-control"), Some("no-cache, no-transform"));
    assert_eq!(answer.header("x-accel-buffering"), Some("no"));
    let text = answer.text();
    assert!(text.ends_with("data: [DONE]\n\n"));
    let frames: Vec<Value> = text
        .split("\n\n")
        .filter_map(|event| event.strip_prefix("data: "))
        .filter(|data| *data != "[DONE]")
        .map(|data| serde_json::from_str(data).unwrap())
        .collect();
    assert_eq!(frames[0]["choices"][0]["delta"]["role"], "assistant");
    let content: String =
        frames.iter().filter_map(|frame| frame["choices"][0]["delta"]["content"].as_str()).collect();
    assert_eq!(content, TEXT);
    let usage = &frames.last().unwrap()["usage"];
    assert_eq!(usage["completion_tokens"], fixture.brain.tokens);
}

#[tokio::test]
async fn a_whole_answer_is_in_the_ledger_before_its_client_has_it() {
    let fixture = Fixture::start().await;
    for stream in [false, true] {
        let body = json!({"model": MODEL, "messages": [{"role": "user", "content": "hi"}], "stream": stream});
        assert_eq!(fixture.post("/v1/chat/completions", &body).await.status, 200);
    }
    // No waiting here: both answers had arrived.
    let answer = fixture.admin("GET", "/admin/v1/ledger", "").await.json();
    let records = answer["data"].as_array().unwrap();
    assert_eq!(records.len(), 2);
    for record in records {
        assert_eq!((&record["outcome"], &record["status"]), (&json!("completed"), &json!(200)));
        assert_eq!(record["output_tokens"], fixture.brain.tokens);
        let (prompt, output) =
            (record["prompt_tokens"].as_u64().unwrap(), record["output_tokens"].as_u64().unwrap());
        assert!(prompt > 0);
        assert_eq!(record["price_micro"], prompt + 2 * output);
        assert_eq!((&record["tenant"], &record["route"]), (&json!("default"), &json!("chat")));
    }
}

#[tokio::test]
async fn c_disconnect_and_abort_01_a_client_that_leaves_stops_the_work_and_pays_for_what_was_made() {
    let mut fixture = Fixture::start().await;
    fixture.brain.stall_after(2);
    let mut stream = Stream::open(&fixture, json!({"stream": true})).await;
    stream.until("\"content\":\"o").await;
    drop(stream);
    fixture.brain.until_aborted(1).await;
    let records = ledger(&fixture, 1).await;
    assert_eq!((&records[0]["outcome"], &records[0]["stream"]), (&json!("aborted"), &json!(true)));
    assert!(records[0]["output_tokens"].as_u64().unwrap() >= 1);
    assert!(records[0]["prompt_tokens"].as_u64().unwrap() > 0);

    let unstreamed = Stream::send(&fixture, json!({})).await;
    let wait = async {
        while fixture.brain.submitted() < 2 {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(PATIENCE, wait).await.unwrap();
    drop(unstreamed);
    fixture.brain.until_aborted(2).await;
    let records = ledger(&fixture, 2).await;
    assert_eq!((&records[0]["outcome"], &records[0]["status"]), (&json!("aborted"), &json!(499)));
}

#[tokio::test]
async fn c_disconnect_and_abort_04_leaving_right_after_the_end_marker_is_success() {
    let fixture = Fixture::start().await;
    for _ in 0..20 {
        let mut stream = Stream::open(&fixture, json!({"stream": true})).await;
        stream.until("data: [DONE]").await;
        drop(stream);
    }
    let records = ledger(&fixture, 20).await;
    assert!(records.iter().all(|record| record["outcome"] == "completed"));
}

#[tokio::test]
async fn c_timeouts_and_keepalive_01_a_silent_stream_is_kept_open_by_comments_between_events() {
    let fixture = Fixture::start_with("heartbeat_s = 0.05").await;
    fixture.brain.stall_after(1);
    let mut stream = Stream::open(&fixture, json!({"stream": true})).await;
    stream.until(": ping\n\n").await;
    let body = stream.body();
    assert!(body.split("\n\n").filter(|event| !event.is_empty()).all(|event| {
        event == ": ping"
            || event.strip_prefix("data: ").is_some_and(|data| serde_json::from_str::<Value>(data).is_ok())
    }));
    assert!(!body.contains("id:") || !body.lines().any(|line| line.starts_with("id:")));
}

#[tokio::test]
async fn c_timeouts_and_keepalive_03_a_brain_that_falls_silent_is_a_504_or_an_error_frame() {
    let fixture = Fixture::start_with("timeouts.first_token_s = 0.3\ntimeouts.inter_token_s = 0.3").await;
    fixture.brain.stall_after(0);
    let body = json!({"model": MODEL, "messages": [{"role": "user", "content": "hi"}]});
    let answer = fixture.post("/v1/chat/completions", &body).await;
    assert_eq!((answer.status, answer.error()["code"].as_str()), (504, Some("timeout")));

    fixture.brain.stall_after(2);
    let streamed = json!({"model": MODEL, "messages": [{"role": "user", "content": "hi"}], "stream": true});
    let answer = fixture.post("/v1/chat/completions", &streamed).await;
    let text = answer.text();
    let last = text.trim_end().rsplit("\n\n").next().unwrap();
    let frame: Value = serde_json::from_str(last.strip_prefix("data: ").unwrap()).unwrap();
    assert_eq!(frame["error"]["code"], "timeout", "{text}");
    assert!(!text.contains("[DONE]") && !text.contains("\"finish_reason\":\"stop\""));
    let records = ledger(&fixture, 2).await;
    assert!(records.iter().all(|record| record["outcome"] == "failed"));
}

#[tokio::test]
async fn draining_lets_streams_finish_and_then_ends_them_with_an_error_frame() {
    let fixture = Fixture::start_with("drain_s = 0.2").await;
    fixture.brain.stall_after(1);
    let mut stream = Stream::open(&fixture, json!({"stream": true})).await;
    let Fixture { server, brain, dir } = fixture;
    let address = server.address();
    tokio::time::timeout(Duration::from_secs(10), server.shutdown()).await.expect("the server stops");
    stream.until("\"error\"").await;
    assert!(stream.body().contains("\"type\":"));
    assert!(!stream.body().contains("[DONE]"));
    assert!(TcpStream::connect(address).await.is_err());
    drop((brain, dir));
}
