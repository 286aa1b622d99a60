//! State that outlives the server, and operational routes.

use crate::harness::{Fixture, MODEL, PATIENCE, call, configuration};
use pons_gateway::server;
use pons_gateway::store::{LedgerFilter, Store, StoreError};
use serde_json::json;
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;

#[tokio::test]
async fn keys_and_ledger_outlive_the_server_and_the_file_has_one_owner() {
    let fixture = Fixture::start().await;
    let body = json!({"model": MODEL, "messages": [{"role": "user", "content": "hi"}]});
    assert_eq!(fixture.post("/v1/chat/completions", &body).await.status, 200);
    let created = fixture.admin("POST", "/admin/v1/keys", "{\"tenant\":\"team-a\"}").await.json();
    let state = fixture.dir.path().join("state");
    let in_use = Store::open(&state, 1).unwrap_err();
    assert!(matches!(in_use, StoreError::InUse { .. }), "{in_use}");
    let second = server::start(configuration(fixture.dir.path(), "")).await.unwrap_err().to_string();
    assert!(second.contains("in use") && second.contains("--state-dir"), "{second}");

    let Fixture { server, brain, dir } = fixture;
    server.shutdown().await;
    assert!(!state.join("admin.json").exists());
    let store = Store::open(&state, 1).unwrap();
    let ring = store.keys();
    assert_eq!(ring.find(created["key"].as_str().unwrap()).unwrap().tenant, "team-a");
    assert_eq!(store.ledger_list(&LedgerFilter { limit: 10, ..LedgerFilter::default() }).unwrap().len(), 1);
    drop((brain, dir));
}

#[tokio::test]
async fn the_admin_file_and_the_state_are_for_the_owner_only() {
    use std::os::unix::fs::PermissionsExt;
    let fixture = Fixture::start().await;
    let state = fixture.dir.path().join("state");
    let mode = |name: &str| std::fs::metadata(state.join(name)).unwrap().permissions().mode() & 0o777;
    assert_eq!((mode("admin.json"), mode("state.redb"), mode("")), (0o600, 0o600, 0o700));
}

#[tokio::test]
async fn a_bad_tenant_name_and_an_unknown_key_are_named() {
    let fixture = Fixture::start().await;
    let bad = fixture.admin("POST", "/admin/v1/keys", "{\"tenant\":\"a b\"}").await;
    assert_eq!((bad.status, bad.error()["param"].as_str()), (400, Some("tenant")));
    let missing = fixture.admin("POST", "/admin/v1/keys", "{}").await;
    assert_eq!((missing.status, missing.error()["param"].as_str()), (400, Some("tenant")));
    let typed = fixture.admin("POST", "/admin/v1/keys", "{\"tenant\":5}").await;
    assert_eq!((typed.status, typed.error()["code"].as_str()), (400, Some("invalid_type")));
    assert!(typed.error()["message"].as_str().unwrap().contains("an integer"), "{typed:?}");
    let unknown = fixture.admin("DELETE", "/admin/v1/keys/key_none", "").await;
    assert_eq!((unknown.status, unknown.error()["code"].as_str()), (404, Some("not_found")));
    assert!(unknown.error()["message"].as_str().unwrap().contains("key_none"));
}

#[tokio::test]
async fn a_key_is_revoked_also_when_the_admin_hangs_up_before_the_answer() {
    let fixture = Fixture::start().await;
    for _ in 0..10 {
        let created = fixture.admin("POST", "/admin/v1/keys", "{\"tenant\":\"a\"}").await.json();
        let key = format!("Bearer {}", created["key"].as_str().unwrap());
        let id = created["info"]["id"].as_str().unwrap();
        let mut admin = TcpStream::connect(fixture.address()).await.unwrap();
        let head = format!(
            "DELETE /admin/v1/keys/{id} HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer {}\r\n\r\n",
            fixture.server.admin_token()
        );
        admin.write_all(head.as_bytes()).await.unwrap();
        let revoked = async {
            loop {
                let keys = fixture.admin("GET", "/admin/v1/keys", "").await.json();
                let keys = keys["data"].as_array().unwrap().clone();
                if keys.iter().any(|key| key["id"] == id && !key["revoked"].is_null()) {
                    return;
                }
            }
        };
        // Nobody is there any more when the change comes back from the disk.
        drop(admin);
        tokio::time::timeout(PATIENCE, revoked).await.expect("the key is revoked");
        let refused = async {
            let headers = [("authorization", key.as_str())];
            while call(fixture.address(), "GET", "/v1/models", &headers, b"").await.status != 401 {}
        };
        tokio::time::timeout(PATIENCE, refused).await.expect("the revoked key is refused");
    }
}

#[tokio::test]
async fn c_resource_growth_01_invented_names_make_no_series() {
    let fixture = Fixture::start().await;
    let unknown = async |index: usize| {
        let body = json!({"model": format!("m-{index}"), "user": format!("u-{index}"), "messages": [{"role": "user", "content": "x"}]});
        assert_eq!(fixture.post("/v1/chat/completions", &body).await.status, 404);
    };
    let series = async || fixture.get("/metrics").await.text().lines().count();
    unknown(0).await;
    series().await;
    let before = series().await;
    for index in 1..50 {
        unknown(index).await;
    }
    assert_eq!(series().await, before);
    let text = fixture.get("/metrics").await.text();
    assert!(text.contains("model=\"other\"") && !text.contains("m-1"), "{text}");
}

#[tokio::test]
async fn the_promised_metrics_are_there() {
    let fixture = Fixture::start().await;
    let body = json!({"model": MODEL, "messages": [{"role": "user", "content": "hi"}]});
    fixture.post("/v1/chat/completions", &body).await;
    let text = fixture.get("/metrics").await.text();
    for name in [
        "pons_requests_total{",
        "pons_request_seconds_bucket{",
        "pons_time_to_first_token_seconds_bucket{",
        "pons_inter_token_seconds_bucket{",
        "pons_tokens_total{",
        "pons_requests_in_flight 0",
        "pons_brain_sequences_running{",
        "pons_brain_sequences_waiting{",
        "pons_brain_blocks{",
        "pons_brain_step_age_seconds{",
        "pons_ledger_commit_seconds_bucket{",
        "pons_process_resident_bytes ",
    ] {
        assert!(text.contains(name), "{name} is missing in {text}");
    }
    assert!(text.contains("state=\"free\"") && text.contains("kind=\"output\""));
}

#[tokio::test]
async fn ready_follows_the_brain() {
    let dir = tempfile::tempdir().unwrap();
    pons_checkpoint::fixture::write_tiny_llama(&dir.path().join("model"), 7, &[]).unwrap();
    let server = server::start(configuration(dir.path(), "")).await.unwrap();
    let get = async |path: &str| crate::harness::call(server.address(), "GET", path, &[], b"").await.status;
    assert_eq!((get("/health").await, get("/ready").await), (200, 503));
    let body = json!({"model": MODEL, "messages": [{"role": "user", "content": "hi"}]}).to_string();
    let headers = [("content-type", "application/json")];
    let answer =
        crate::harness::call(server.address(), "POST", "/v1/chat/completions", &headers, body.as_bytes())
            .await;
    assert_eq!(answer.status, 503);
    assert!(answer.header("retry-after").is_some());
}
