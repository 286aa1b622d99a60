//! The error object, whatever went wrong.

use crate::harness::{Fixture, MODEL, call};
use serde_json::json;

#[tokio::test]
async fn c_error_shape_01_an_unknown_model_is_a_404_with_its_code_also_for_a_stream() {
    let fixture = Fixture::start().await;
    for stream in [false, true] {
        let body = json!({"model": "no-such-model", "messages": [{"role": "user", "content": "x"}], "stream": stream});
        let answer = fixture.post("/v1/chat/completions", &body).await;
        let error = answer.error();
        assert_eq!(answer.status, 404);
        assert_eq!(
            (&error["code"], &error["param"], &error["type"]),
            (&json!("model_not_found"), &json!("model"), &json!("invalid_request_error"))
        );
    }
}

#[tokio::test]
async fn c_error_shape_02_every_error_has_four_keys_and_a_request_id() {
    let fixture = Fixture::start_with("limits.body_bytes = 4096").await;
    let json_type = [("content-type", "application/json")];
    let provoke = async |method: &str, path: &str, headers: &[(&str, &str)], body: &str| {
        let answer = call(fixture.address(), method, path, headers, body.as_bytes()).await;
        answer.error();
        answer
    };
    let chat = "/v1/chat/completions";
    let missing = format!("{{\"model\":\"{MODEL}\"}}");
    assert_eq!(provoke("POST", chat, &json_type, &missing).await.status, 400);
    assert_eq!(provoke("POST", chat, &json_type, "{\"model\":\"x\",\"messages\":[]}").await.status, 404);
    assert_eq!(provoke("GET", "/no/such/path", &[], "").await.status, 404);
    let wrong = provoke("GET", chat, &[], "").await;
    assert_eq!((wrong.status, wrong.header("allow")), (405, Some("POST, OPTIONS")));
    assert_eq!(provoke("POST", chat, &json_type, &"x".repeat(5000)).await.status, 413);
    assert_eq!(provoke("POST", chat, &[("content-type", "text/plain")], "{}").await.status, 415);
    // From here on a key is needed.
    assert_eq!(fixture.admin("POST", "/admin/v1/keys", "{\"tenant\":\"a\"}").await.status, 200);
    assert_eq!(provoke("POST", chat, &[("authorization", "Bearer no")], "{}").await.status, 401);
}

#[tokio::test]
async fn c_error_shape_03_a_missing_model_is_a_400_that_names_it() {
    let fixture = Fixture::start().await;
    let answer =
        fixture.post("/v1/chat/completions", &json!({"messages": [{"role": "user", "content": "hi"}]})).await;
    let error = answer.error();
    assert_eq!(answer.status, 400);
    assert_eq!((&error["param"], &error["code"]), (&json!("model"), &json!("missing_required_parameter")));
}

#[tokio::test]
async fn c_input_parsing_02_two_model_keys_reach_no_model() {
    let fixture = Fixture::start().await;
    for second in ["model", "mod\\u0065l"] {
        let body = format!(
            "{{\"model\":\"{MODEL}\",\"{second}\":\"large\",\"messages\":[{{\"role\":\"user\",\"content\":\"hi\"}}]}}"
        );
        let headers = [("content-type", "application/json")];
        let answer = call(fixture.address(), "POST", "/v1/chat/completions", &headers, body.as_bytes()).await;
        assert_eq!(answer.status, 400);
        answer.error();
    }
    assert_eq!(fixture.brain.submitted(), 0);
}

#[tokio::test]
async fn c_input_parsing_03_deep_nesting_is_refused_and_the_server_lives() {
    let fixture = Fixture::start().await;
    let deep = format!("{}{}", "[".repeat(100_000), "]".repeat(100_000));
    let objects = format!("{}1{}", "{\"a\":".repeat(100_000), "}".repeat(100_000));
    for body in [
        format!("{{\"model\":\"{MODEL}\",\"messages\":[],\"x\":{deep}}}"),
        format!("{{\"model\":\"{MODEL}\",\"messages\":{objects}}}"),
    ] {
        let headers = [("content-type", "application/json")];
        let answer = call(fixture.address(), "POST", "/v1/chat/completions", &headers, body.as_bytes()).await;
        assert_eq!(answer.status, 400);
        answer.error();
    }
    assert_eq!(fixture.get("/health").await.status, 200);
}

#[tokio::test]
async fn embeddings_are_refused_by_name_and_an_empty_input_first() {
    let fixture = Fixture::start().await;
    let empty = fixture.post("/v1/embeddings", &json!({"model": MODEL, "input": ["a", ""]})).await;
    assert_eq!((empty.status, empty.error()["param"].as_str()), (400, Some("input[1]")));
    let refused = fixture.post("/v1/embeddings", &json!({"model": MODEL, "input": "a"})).await;
    assert_eq!((refused.status, refused.error()["param"].as_str()), (400, Some("model")));
    let unknown = fixture.post("/v1/embeddings", &json!({"model": "x", "input": "a"})).await;
    assert_eq!(unknown.status, 404);
}

#[tokio::test]
async fn more_requests_than_fit_are_told_to_come_back() {
    let fixture = Fixture::start_with("limits.in_flight = 1").await;
    fixture.brain.stall_after(1);
    let held = crate::streams::Stream::open(&fixture, json!({"stream": true})).await;
    let body = json!({"model": MODEL, "messages": [{"role": "user", "content": "hi"}]});
    let answer = fixture.post("/v1/chat/completions", &body).await;
    answer.error();
    assert_eq!(answer.status, 503);
    assert!(answer.header("retry-after").unwrap().parse::<u32>().unwrap() >= 1);
    assert_eq!(fixture.get("/health").await.status, 200);
    drop(held);
}
