//! HTTP itself: methods, paths, bodies, headers.

use crate::harness::{Answer, Fixture, MODEL, PATIENCE, call, parse};
use serde_json::json;
use std::io::Write;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

fn chat() -> serde_json::Value {
    json!({"model": MODEL, "messages": [{"role": "user", "content": "hi"}], "max_tokens": 8})
}

#[tokio::test]
async fn c_http_surface_01_a_preflight_needs_no_key_on_any_route() {
    let fixture = Fixture::start().await;
    fixture.admin("POST", "/admin/v1/keys", "{\"tenant\":\"a\"}").await;
    let asked = "authorization,content-type,x-stainless-os";
    let headers = [
        ("origin", "http://localhost:3000"),
        ("access-control-request-method", "POST"),
        ("access-control-request-headers", asked),
    ];
    for path in ["/v1/chat/completions", "/v1/models", "/v1/models/a/b", "/v1/completions/", "/v1/embeddings"]
    {
        let answer = call(fixture.address(), "OPTIONS", path, &headers, b"").await;
        assert_eq!(answer.status, 204, "{path}");
        assert_eq!(answer.header("access-control-allow-origin"), Some("*"));
        assert!(answer.header("access-control-allow-methods").unwrap().contains("POST"));
        assert_eq!(answer.header("access-control-allow-headers"), Some(asked));
    }
}

#[tokio::test]
async fn c_http_surface_02_a_model_id_may_have_a_slash_and_a_colon() {
    let fixture = Fixture::start().await;
    for path in ["/v1/models/org/tiny:1b", "/v1/models/org%2Ftiny%3A1b", "/v1/models/org/tiny:1b/"] {
        let answer = fixture.get(path).await;
        assert_eq!((answer.status, answer.json()["id"].as_str()), (200, Some(MODEL)), "{path}");
    }
    let list = fixture.get("/v1/models/").await.json();
    assert_eq!(list["object"], "list");
    assert_eq!(list["data"][0]["id"], MODEL);
    let unknown = fixture.get("/v1/models/org/unknown").await;
    assert_eq!((unknown.status, unknown.error()["code"].as_str()), (404, Some("model_not_found")));
}

#[tokio::test]
async fn c_http_surface_03_a_client_that_expects_100_gets_it_and_a_bad_key_gets_401_without_a_body() {
    let fixture = Fixture::start().await;
    let body = chat().to_string();
    let head = |key: &str| {
        format!(
            "POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\nexpect: 100-continue\r\n{key}\
             content-type: application/json\r\ncontent-length: {}\r\n\r\n",
            body.len()
        )
    };
    let mut stream = TcpStream::connect(fixture.address()).await.unwrap();
    stream.write_all(head("").as_bytes()).await.unwrap();
    let mut interim = [0; 25];
    tokio::time::timeout(PATIENCE, stream.read_exact(&mut interim)).await.unwrap().unwrap();
    assert_eq!(&interim, b"HTTP/1.1 100 Continue\r\n\r\n");
    stream.write_all(body.as_bytes()).await.unwrap();
    assert_eq!(rest(&mut stream).await.status, 200);

    assert_eq!(fixture.admin("POST", "/admin/v1/keys", "{\"tenant\":\"a\"}").await.status, 200);
    let mut stream = TcpStream::connect(fixture.address()).await.unwrap();
    stream.write_all(head("authorization: Bearer wrong\r\n").as_bytes()).await.unwrap();
    let answer = rest(&mut stream).await;
    assert_eq!((answer.status, answer.error()["code"].as_str()), (401, Some("invalid_api_key")));
}

async fn rest(stream: &mut TcpStream) -> Answer {
    let mut raw = Vec::new();
    tokio::time::timeout(PATIENCE, stream.read_to_end(&mut raw)).await.unwrap().unwrap();
    parse(&raw)
}

#[tokio::test]
async fn c_http_surface_04_a_body_over_the_limit_is_a_413_whether_its_length_is_declared_or_not() {
    let fixture = Fixture::start_with("limits.body_bytes = 4096").await;
    // Only the head is sent: the answer can't have waited for the body.
    let mut stream = TcpStream::connect(fixture.address()).await.unwrap();
    let head = "POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\ncontent-length: 8192\r\n\r\n";
    stream.write_all(head.as_bytes()).await.unwrap();
    let mut first = [0; 12];
    tokio::time::timeout(PATIENCE, stream.read_exact(&mut first)).await.unwrap().unwrap();
    assert_eq!(&first, b"HTTP/1.1 413");

    let mut stream = TcpStream::connect(fixture.address()).await.unwrap();
    let head = "POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\ntransfer-encoding: chunked\r\n\r\n";
    stream.write_all(head.as_bytes()).await.unwrap();
    let chunk = [b"400\r\n".as_slice(), &[b'a'; 1024], b"\r\n"].concat();
    for _ in 0..64 {
        stream.write_all(&chunk).await.unwrap();
    }
    stream.write_all(b"0\r\n\r\n").await.unwrap();
    let answer = rest(&mut stream).await;
    assert_eq!(answer.status, 413);
    answer.error();
}

#[tokio::test]
async fn c_http_surface_05_a_trailing_slash_is_the_same_route_and_a_double_one_is_none() {
    let fixture = Fixture::start().await;
    assert_eq!(fixture.post("/v1/chat/completions/", &chat()).await.status, 200);
    assert_eq!(fixture.get("/v1/models/").await.status, 200);
    for path in
        ["/v1//chat/completions", "//v1/chat/completions", "/V1/chat/completions", "/%2fv1/chat/completions"]
    {
        let answer = fixture.post(path, &chat()).await;
        assert_eq!((answer.status, answer.error()["code"].as_str()), (404, Some("not_found")), "{path}");
    }
}

#[tokio::test]
async fn head_works_on_every_get_route_and_has_no_body() {
    let fixture = Fixture::start().await;
    for path in ["/health", "/ready", "/v1/models", "/v1/models/org/tiny:1b", "/version", "/ping", "/metrics"]
    {
        let head = call(fixture.address(), "HEAD", path, &[], b"").await;
        let get = fixture.get(path).await;
        assert_eq!(head.status, get.status, "{path}");
        assert!(head.body.is_empty(), "{path}");
        assert_eq!(head.header("content-type"), get.header("content-type"), "{path}");
    }
}

#[tokio::test]
async fn gzip_is_read_an_unknown_coding_refused_and_a_bomb_stopped() {
    let fixture = Fixture::start_with("limits.body_bytes = 65536").await;
    let send = async |coding: &str, body: &[u8]| {
        let headers = [("content-type", "application/json"), ("content-encoding", coding)];
        call(fixture.address(), "POST", "/v1/chat/completions", &headers, body).await.status
    };
    let gzip = |data: &[u8]| {
        let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::best());
        encoder.write_all(data).unwrap();
        encoder.finish().unwrap()
    };
    assert_eq!(send("gzip", &gzip(chat().to_string().as_bytes())).await, 200);
    assert_eq!(send("gzip", b"not gzip").await, 400);
    assert_eq!(send("br", chat().to_string().as_bytes()).await, 415);
    assert_eq!(send("gzip", &gzip(&vec![b' '; 1 << 20])).await, 413);
}

#[tokio::test]
async fn one_connection_serves_many_requests_errors_among_them() {
    let fixture = Fixture::start().await;
    let mut stream = TcpStream::connect(fixture.address()).await.unwrap();
    for (body, status) in [("{", "400"), ("{}", "400"), ("[]", "400")] {
        let request = format!(
            "POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\ncontent-length: {}\r\n\r\n{body}",
            body.len()
        );
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut raw = Vec::new();
        let mut byte = [0];
        while !raw.ends_with(b"\r\n\r\n") {
            tokio::time::timeout(PATIENCE, stream.read_exact(&mut byte)).await.unwrap().unwrap();
            raw.push(byte[0]);
        }
        let answer = parse(&raw);
        assert_eq!(answer.status.to_string(), status);
        let mut body = vec![0; answer.header("content-length").unwrap().parse().unwrap()];
        stream.read_exact(&mut body).await.unwrap();
    }
}

#[tokio::test]
async fn every_answer_has_its_request_id_and_timing_and_no_upstream_headers() {
    let fixture = Fixture::start().await;
    let headers = [("x-request-id", "mine-1"), ("content-type", "application/json")];
    let answer =
        call(fixture.address(), "POST", "/v1/chat/completions", &headers, chat().to_string().as_bytes())
            .await;
    assert_eq!(answer.header("x-request-id"), Some("mine-1"));
    assert!(answer.header("openai-processing-ms").unwrap().parse::<u64>().is_ok());
    assert!(answer.header("openai-version").is_some());
    assert_eq!(answer.header("access-control-allow-origin"), Some("*"));
    let minted = fixture.get("/health").await;
    assert!(minted.header("x-request-id").unwrap().starts_with("req_"));
    let odd = call(fixture.address(), "GET", "/health", &[("x-request-id", "a b")], b"").await;
    assert!(odd.header("x-request-id").unwrap().starts_with("req_"));
}

#[tokio::test]
async fn http_2_without_tls_is_served_on_the_same_port() {
    let fixture = Fixture::start().await;
    let stream = TcpStream::connect(fixture.address()).await.unwrap();
    let (mut sender, connection) = hyper::client::conn::http2::handshake(
        hyper_util::rt::TokioExecutor::new(),
        hyper_util::rt::TokioIo::new(stream),
    )
    .await
    .unwrap();
    let connection = tokio::spawn(connection);
    let request = http::Request::get("http://localhost/v1/models")
        .body(http_body_util::Empty::<bytes::Bytes>::new())
        .unwrap();
    let answer = tokio::time::timeout(PATIENCE, sender.send_request(request)).await.unwrap().unwrap();
    assert_eq!((answer.status().as_u16(), answer.version()), (200, http::Version::HTTP_2));
    connection.abort();
}
