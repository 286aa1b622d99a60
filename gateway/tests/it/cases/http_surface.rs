//! The edge of HTTP: preflights, paths, `Expect`, body limits. The rule: each is seen as bytes on a socket.

use std::time::{Duration, Instant};

use pons_gateway::routes::{Access, ROUTES, Route};
use serde_json::json;

use crate::cases::harness::{CHAT, COMPLETIONS, Stack, chat, check_error, completion};
use crate::cases::model;
use crate::cases::raw_http::{Connection, Request};
use crate::cases::reading::Reading;

#[tokio::test]
async fn c_http_surface_01_preflight_without_credentials() {
    let stack = Stack::start().await;
    let key = stack.create_key("acme").await;
    assert!(key.starts_with("sk-pons-"), "{key}");
    check_error(&stack.chat(json!({})).await, 401, None, None);
    // No page has any business on the operator's and the admin's routes.
    let for_pages = |route: &&Route| matches!(route.access, Access::Public | Access::Tenant);
    for route in ROUTES.iter().filter(for_pages) {
        for path in [route.pattern.to_owned(), format!("{}/", route.pattern)] {
            let request = Request::new("OPTIONS", &path.replace('*', "some-model"))
                .with("origin", "http://localhost:3000")
                .with("access-control-request-method", "POST")
                .with("access-control-request-headers", "authorization,content-type,x-stainless-os");
            let answer = stack.send(&request).await;
            assert_eq!(answer.status(), 204, "{path}");
            let header = |name: &str| answer.head.header(name).unwrap_or_default().to_ascii_lowercase();
            assert!(
                ["*", "http://localhost:3000"].contains(&header("access-control-allow-origin").as_str()),
                "{path}"
            );
            assert!(header("access-control-allow-methods").contains("post"), "{path}");
            for name in ["authorization", "content-type", "x-stainless-os"] {
                assert!(header("access-control-allow-headers").contains(name), "{path}: {name}");
            }
        }
    }
    // A client that asks for nothing in particular is still told of the SDKs' headers.
    let answer = stack.send(&Request::new("OPTIONS", CHAT).with("origin", "http://a.example")).await;
    assert!(
        answer
            .head
            .header("access-control-allow-headers")
            .is_some_and(|names| names.contains("x-stainless-"))
    );
}

#[tokio::test]
async fn c_http_surface_02_model_ids_with_a_slash() {
    let stack = Stack::named("org/model:13b", "", "").await;
    for path in ["/v1/models/org/model:13b", "/v1/models/org%2Fmodel%3A13b", "/v1/models/org/model:13b/"] {
        let answer = stack.get(path).await;
        assert_eq!((answer.status(), &answer.json()["id"]), (200, &json!("org/model:13b")), "{path}");
        assert_eq!(answer.json()["object"], "model");
    }
    check_error(&stack.get("/v1/models/org/unknown").await, 404, Some("model"), Some("model_not_found"));
    let list = stack.get("/v1/models").await.json();
    assert_eq!((&list["object"], &list["data"][0]["id"]), (&json!("list"), &json!("org/model:13b")));
    let body = json!({"model": "org/model:13b", "messages": [{"role": "user", "content": "hi"}]});
    assert_eq!(Reading::of(&stack.post(CHAT, &body).await).only().text, "Hello, world.");
}

#[tokio::test]
async fn c_http_surface_03_expect_100_continue() {
    let stack = Stack::start().await;
    let key = stack.create_key("acme").await;
    let body = chat(json!({"messages": [{"role": "user", "content": "hi"}], "x": "x".repeat(6000)}));
    for path in [CHAT, "/v1/chat/completions/"] {
        let mut connection = Connection::open(stack.address()).await;
        let bearer = format!("Bearer {key}");
        let request =
            Request::post(path, &body).with("expect", "100-continue").with("authorization", &bearer);
        connection.write(&request.head()).await;
        let began = Instant::now();
        assert_eq!(connection.head().await.status, 100);
        assert!(began.elapsed() < Duration::from_secs(1));
        connection.write(&request.raw).await;
        assert_eq!(Reading::of(&connection.answer(false).await).only().text, "Hello, world.");
    }
    let mut connection = Connection::open(stack.address()).await;
    let request = Request::post(CHAT, &body)
        .with("expect", "100-continue")
        .with("authorization", "Bearer sk-pons-wrong");
    connection.write(&request.head()).await;
    let began = Instant::now();
    // No interim answer, and the final one comes though the body was never sent.
    let answer = connection.answer(false).await;
    check_error(&answer, 401, None, Some("invalid_api_key"));
    assert!(began.elapsed() < Duration::from_secs(1));
}

#[tokio::test]
async fn c_http_surface_04_body_above_the_limit() {
    let stack = Stack::with("[limits]\nbody_bytes = 100000").await;
    for path in [CHAT, COMPLETIONS, "/tokenize", "/v1/embeddings"] {
        let mut connection = Connection::open(stack.address()).await;
        let request = Request::post_raw(path, "").with("content-length", "200000");
        connection.write(&request.head()).await;
        let answer = connection.answer(false).await;
        check_error(&answer, 413, None, None);
    }
    // Chunked and endless: the answer comes after a bounded number of bytes.
    let mut connection = Connection::open(stack.address()).await;
    let request = Request::post_raw(CHAT, "").with("transfer-encoding", "chunked");
    connection.write(&request.head()).await;
    let start = br#"{"model":"M","messages":[{"role":"user","content":""#;
    connection.write(format!("{:x}\r\n{}\r\n", start.len(), String::from_utf8_lossy(start)).as_bytes()).await;
    let chunk = format!("{:x}\r\n{}\r\n", 10_000, "a".repeat(10_000));
    for _ in 0..12 {
        connection.try_write(chunk.as_bytes()).await;
    }
    check_error(&connection.answer(false).await, 413, None, None);
    assert!(stack.brain.log().submits.is_empty());
    let at_limit = chat(json!({"x": "a".repeat(99_000)})).to_string();
    assert!(at_limit.len() < 100_000);
    assert_eq!(stack.send(&Request::post_raw(CHAT, at_limit)).await.status(), 200);
    stack.assert_healthy().await;
}

#[tokio::test]
async fn c_http_surface_05_trailing_slash() {
    let stack = Stack::start().await;
    let answer = stack.post("/v1/chat/completions/", &chat(json!({}))).await;
    assert_eq!(Reading::of(&answer).only().text, "Hello, world.");
    let answer = stack.post("/v1/completions/", &completion(json!({"stream": true}))).await;
    assert_eq!(Reading::of(&answer).only().text, "Hello, world.");
    let answer = stack.get("/v1/models/").await;
    assert_eq!((answer.status(), &answer.json()["data"][0]["id"]), (200, &json!(model::NAME)));
    let key = stack.create_key("acme").await;
    for path in
        ["/v1//chat/completions", "//v1/chat/completions", "/v1/chat//completions", "/v1/chat/completions//"]
    {
        let body = chat(json!({}));
        let stranger = stack.post(path, &body).await;
        assert!([401, 404].contains(&stranger.status()), "{path}: {}", stranger.status());
        let known = Request::post(path, &body).with("authorization", &format!("Bearer {key}"));
        assert!([200, 404].contains(&stack.send(&known).await.status()), "{path}");
    }
    for path in ["/v1/chat/completions/", "/v1/models/"] {
        let method = if path.contains("chat") { "POST" } else { "GET" };
        let answer = stack.send(&Request::new(method, path)).await;
        check_error(&answer, 401, None, Some("invalid_api_key"));
    }
}
