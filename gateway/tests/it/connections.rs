//! Clients that say nothing, take nothing or leave without a word, and what they must not take from others.

use crate::harness::{Fixture, MODEL, PATIENCE, call, parse};
use crate::streams::ledger;
use bytes::Bytes;
use http_body_util::Full;
use hyper::client::conn::http2::{self, SendRequest};
use hyper_util::rt::{TokioExecutor, TokioIo};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

fn chat(stream: bool) -> Value {
    json!({"model": MODEL, "messages": [{"role": "user", "content": "hi"}], "stream": stream})
}

/// A chat request as it goes over HTTP/1.1.
fn request(body: &Value) -> String {
    let body = body.to_string();
    format!(
        "POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    )
}

/// An HTTP/2 connection whose streams have this window.
async fn over_http2(
    fixture: &Fixture,
    window: u32,
) -> (SendRequest<Full<Bytes>>, tokio::task::JoinHandle<hyper::Result<()>>) {
    let socket = TcpStream::connect(fixture.address()).await.unwrap();
    let (sender, connection) = http2::Builder::new(TokioExecutor::new())
        .initial_stream_window_size(window)
        .handshake(TokioIo::new(socket))
        .await
        .unwrap();
    (sender, tokio::spawn(connection))
}

/// Asks again until the answer has this status.
async fn until_status(fixture: &Fixture, path: &str, body: &Value, status: u16) {
    let mut last = 0;
    let asking = async {
        while last != status {
            last = fixture.post(path, body).await.status;
        }
    };
    let asked = tokio::time::timeout(PATIENCE, asking).await;
    assert!(asked.is_ok(), "{path} answers {last}, not {status}");
}

async fn until_submitted(fixture: &Fixture, count: u64) {
    let waiting = async {
        while fixture.brain.submitted() < count {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(PATIENCE, waiting).await.expect("the request reaches the brain");
}

#[tokio::test]
async fn streams_without_a_window_give_their_places_back() {
    let fixture = Fixture::start_with("limits.in_flight = 2\ntimeouts.slow_reader_s = 0.4").await;
    let (mut sender, connection) = over_http2(&fixture, 0).await;
    let mut stuck = Vec::new();
    for _ in 0..2 {
        let request = http::Request::post("http://localhost/v1/chat/completions")
            .header("content-type", "application/json")
            .body(Full::new(Bytes::from(chat(true).to_string())))
            .unwrap();
        let answer = tokio::time::timeout(PATIENCE, sender.send_request(request)).await.unwrap().unwrap();
        assert_eq!(answer.status(), 200);
        stuck.push(answer);
    }
    until_status(&fixture, "/v1/chat/completions", &chat(false), 200).await;
    let records = ledger(&fixture, 3).await;
    assert_eq!(records.iter().filter(|record| record["outcome"] == "aborted").count(), 2);
    assert!(!connection.is_finished());
    drop((stuck, sender));
}

#[tokio::test]
async fn connections_that_say_nothing_make_room_for_those_that_do() {
    let fixture = Fixture::start_with("limits.connections = 3\ntimeouts.headers_s = 0.4").await;
    let mut silent = Vec::new();
    for said in ["", "PRI * HT"] {
        let mut socket = TcpStream::connect(fixture.address()).await.unwrap();
        socket.write_all(said.as_bytes()).await.unwrap();
        silent.push(socket);
    }
    // The third one has shaken hands and asks nothing.
    let (sender, connection) = over_http2(&fixture, 65_535).await;
    assert_eq!(fixture.get("/health").await.status, 200);
    for mut socket in silent {
        let ended = tokio::time::timeout(PATIENCE, socket.read(&mut [0; 8])).await;
        assert!(matches!(ended, Ok(Ok(0) | Err(_))), "{ended:?}");
    }
    tokio::time::timeout(PATIENCE, connection)
        .await
        .expect("the idle connection is closed")
        .unwrap()
        .unwrap();
    drop(sender);
}

#[tokio::test]
async fn an_http_2_connection_in_use_outlives_the_limit_of_idle_ones() {
    let mut fixture = Fixture::start_with("timeouts.headers_s = 0.2\nheartbeat_s = 0.1").await;
    fixture.brain.stall_after(1);
    let (mut sender, connection) = over_http2(&fixture, 65_535).await;
    let request = http::Request::post("http://localhost/v1/chat/completions")
        .header("content-type", "application/json")
        .body(Full::new(Bytes::from(chat(true).to_string())))
        .unwrap();
    let mut answer = sender.send_request(request).await.unwrap();
    let mut beats = 0;
    while beats < 6 {
        let frame = tokio::time::timeout(PATIENCE, http_body_util::BodyExt::frame(&mut answer)).await;
        let data = frame.unwrap().expect("the stream goes on").unwrap().into_data().unwrap();
        beats += data.windows(6).filter(|window| *window == b": ping").count();
    }
    assert!(!connection.is_finished());
    drop((answer, sender));
    fixture.brain.until_aborted(1).await;
}

#[tokio::test]
async fn a_client_that_leaves_is_noticed_behind_bytes_that_nobody_reads() {
    let mut fixture = Fixture::start().await;
    fixture.brain.stall_after(1);
    let more = ["\r\n", "GET /health HTTP/1.1\r\nhost: localhost\r\n\r\n"];
    for (index, more) in more.into_iter().enumerate() {
        for (part, stream) in [false, true].into_iter().enumerate() {
            let count = 2 * index + part + 1;
            let mut client = TcpStream::connect(fixture.address()).await.unwrap();
            client.write_all(format!("{}{more}", request(&chat(stream))).as_bytes()).await.unwrap();
            until_submitted(&fixture, count as u64).await;
            drop(client);
            fixture.brain.until_aborted(count).await;
            assert_eq!(ledger(&fixture, count).await[0]["outcome"], "aborted", "{more:?}");
        }
    }
}

#[tokio::test]
async fn a_client_that_closes_its_side_gets_what_can_be_said_at_once_and_has_otherwise_left() {
    let mut fixture = Fixture::start().await;
    let half_closed = async |request: &str| {
        let mut client = TcpStream::connect(fixture.address()).await.unwrap();
        client.write_all(request.as_bytes()).await.unwrap();
        client.shutdown().await.unwrap();
        let mut raw = Vec::new();
        tokio::time::timeout(PATIENCE, client.read_to_end(&mut raw)).await.unwrap().unwrap();
        raw
    };
    let health = half_closed("GET /health HTTP/1.1\r\nhost: localhost\r\n\r\n").await;
    assert_eq!(parse(&health).status, 200);
    let refused = half_closed(&request(&json!({}))).await;
    assert_eq!(parse(&refused).status, 400);
    fixture.brain.stall_after(1);
    assert!(half_closed(&request(&chat(false))).await.is_empty());
    if fixture.brain.submitted() > 0 {
        fixture.brain.until_aborted(1).await;
    }
}

#[tokio::test]
async fn bodies_are_bounded_together_and_the_room_comes_back() {
    let lines = "limits.body_bytes = 65536\nlimits.bodies_bytes = 131072";
    let fixture = Fixture::start_with(lines).await;
    let mut slow = Vec::new();
    for _ in 0..2 {
        let mut client = TcpStream::connect(fixture.address()).await.unwrap();
        let head = "POST /tokenize HTTP/1.1\r\nhost: localhost\r\ncontent-length: 65536\r\n\r\n";
        client.write_all(&[head.as_bytes(), &[b' '; 60 << 10]].concat()).await.unwrap();
        slow.push(client);
    }
    let held = async {
        while fixture.server.app().bodies.available_permits() > 8 {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(PATIENCE, held).await.expect("what has arrived is counted");
    let body = json!({"model": MODEL, "prompt": "a ".repeat(10 << 10)});
    until_status(&fixture, "/tokenize", &body, 503).await;
    assert_eq!(fixture.get("/health").await.status, 200);
    drop(slow);
    until_status(&fixture, "/tokenize", &body, 200).await;
    let headers = [("content-type", "application/json")];
    let refused = call(fixture.address(), "POST", "/tokenize", &headers, &[b' '; 70_000]).await;
    assert_eq!(refused.status, 413);
}
