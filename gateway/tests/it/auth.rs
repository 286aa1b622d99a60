//! Who may call what.

use crate::harness::{Fixture, call, configuration};
use pons_gateway::routes::{Access, ROUTES};
use serde_json::json;

fn path_of(pattern: &str) -> String {
    pattern.replace('*', "anything")
}

#[tokio::test]
async fn c_tenant_isolation_03_every_route_of_the_table_asks_for_the_key_but_the_public_ones() {
    let fixture = Fixture::start().await;
    assert_eq!(fixture.admin("POST", "/admin/v1/keys", "{\"tenant\":\"a\"}").await.status, 200);
    for route in ROUTES {
        let path = path_of(route.pattern);
        // A proxy's header makes the request one from elsewhere.
        let headers = [("x-forwarded-for", "203.0.113.9")];
        let answer = call(fixture.address(), route.method.as_str(), &path, &headers, b"").await;
        match route.access {
            Access::Public => assert!(matches!(answer.status, 200 | 503), "{path}: {}", answer.status),
            _ => assert_eq!(answer.status, 401, "{path}"),
        }
        for alias in
            [format!("/{path}"), path.replacen("/v1", "/V1", 1), format!("/x/..{path}"), format!("{path}/")]
        {
            let answer = call(fixture.address(), route.method.as_str(), &alias, &headers, b"").await;
            let public = route.access == Access::Public && alias.trim_end_matches('/') == path;
            assert!(public || matches!(answer.status, 401 | 404), "{alias}: {}", answer.status);
        }
    }
}

#[tokio::test]
async fn on_loopback_any_key_or_none_works_until_the_first_one_is_made() {
    let fixture = Fixture::start().await;
    let get = async |key: Option<&str>| {
        let value = key.map(|key| format!("Bearer {key}")).unwrap_or_default();
        let headers = [("authorization", value.as_str())];
        let headers = if key.is_some() { headers.as_slice() } else { &[] };
        call(fixture.address(), "GET", "/v1/models", headers, b"").await.status
    };
    // SDKs can't send no key, so whatever they send counts as none.
    assert_eq!((get(None).await, get(Some("wrong")).await), (200, 200));
    let created = fixture.admin("POST", "/admin/v1/keys", "{\"tenant\":\"a\"}").await.json();
    let key = created["key"].as_str().unwrap();
    assert!(key.starts_with("sk-pons-") && key.len() == 72, "{key}");
    assert_eq!((get(None).await, get(Some("wrong")).await, get(Some(key)).await), (401, 401, 200));
    let id = created["info"]["id"].as_str().unwrap();
    assert_eq!(fixture.admin("DELETE", &format!("/admin/v1/keys/{id}"), "").await.status, 200);
    // Revoking the last key must not open the door again.
    assert_eq!((get(None).await, get(Some(key)).await), (401, 401));
}

#[tokio::test]
async fn on_any_other_address_a_key_is_always_needed() {
    let dir = tempfile::tempdir().unwrap();
    pons_checkpoint::fixture::write_tiny_llama(&dir.path().join("model"), 7, &[]).unwrap();
    let mut config = configuration(dir.path(), "");
    config.listen = "0.0.0.0:0".parse().unwrap();
    let server = pons_gateway::server::start(config).await.unwrap();
    let address = std::net::SocketAddr::from(([127, 0, 0, 1], server.address().port()));
    assert_eq!(call(address, "GET", "/v1/models", &[], b"").await.status, 401);
    assert_eq!(call(address, "GET", "/health", &[], b"").await.status, 200);
    server.shutdown().await;
}

#[tokio::test]
async fn c_tenant_isolation_06_a_tenants_key_opens_no_operational_route() {
    let fixture = Fixture::start().await;
    let created = fixture.admin("POST", "/admin/v1/keys", "{\"tenant\":\"a\"}").await.json();
    let key = format!("Bearer {}", created["key"].as_str().unwrap());
    let admin = format!("Bearer {}", fixture.server.admin_token());
    let remote = ("x-forwarded-for", "203.0.113.9");
    let status = async |path: &str, headers: &[(&str, &str)]| {
        call(fixture.address(), "GET", path, headers, b"").await.status
    };
    for path in ["/admin/v1/keys", "/admin/v1/ledger", "/admin/v1/ledger/sum"] {
        assert_eq!(status(path, &[]).await, 401, "{path}");
        assert_eq!(status(path, &[("authorization", &key)]).await, 401, "{path}");
        assert_eq!(status(path, &[("authorization", &admin), remote]).await, 401, "{path}");
        assert_eq!(status(path, &[("authorization", &admin)]).await, 200, "{path}");
    }
    assert_eq!(status("/metrics", &[]).await, 200);
    assert_eq!(status("/metrics", &[remote]).await, 401);
    assert_eq!(status("/metrics", &[("authorization", &key), remote]).await, 401);
    assert_eq!(status("/metrics", &[("authorization", &admin), remote]).await, 200);
    assert_eq!(status("/v1/models", &[("authorization", &admin)]).await, 401);
}

#[tokio::test]
async fn two_authorization_headers_or_another_scheme_are_a_wrong_key() {
    let fixture = Fixture::start().await;
    let created = fixture.admin("POST", "/admin/v1/keys", &json!({"tenant": "a"}).to_string()).await.json();
    let key = created["key"].as_str().unwrap();
    let (good, basic) = (format!("Bearer {key}"), format!("Basic {key}"));
    let two = [("authorization", good.as_str()), ("authorization", "Bearer other")];
    assert_eq!(call(fixture.address(), "GET", "/v1/models", &two, b"").await.status, 401);
    assert_eq!(
        call(fixture.address(), "GET", "/v1/models", &[("authorization", &basic)], b"").await.status,
        401
    );
    let lower = format!("bearer  {key}");
    assert_eq!(
        call(fixture.address(), "GET", "/v1/models", &[("authorization", &lower)], b"").await.status,
        200
    );
}

#[tokio::test]
async fn while_there_is_no_key_a_page_from_elsewhere_gets_nothing() {
    let fixture = Fixture::start().await;
    let status = async |path: &str, host: &str, more: &[(&str, &str)]| {
        let mut head = format!("GET {path} HTTP/1.1\r\nhost: {host}\r\nconnection: close\r\n");
        for (name, value) in more {
            head.push_str(&format!("{name}: {value}\r\n"));
        }
        let answer = crate::harness::send(fixture.address(), &format!("{head}\r\n")).await;
        if answer.status == 403 {
            assert_eq!(answer.error()["code"], "key_required");
            assert!(answer.error()["message"].as_str().unwrap().contains("pons key create"));
        }
        answer.status
    };
    for host in ["localhost", "LOCALHOST:8080", "127.0.0.1", "127.0.0.1:9", "[::1]:80"] {
        assert_eq!(status("/v1/models", host, &[]).await, 200, "{host}");
        assert_eq!(status("/metrics", host, &[]).await, 200, "{host}");
    }
    for host in ["evil.example", "evil.example:8080", "localhost.evil.example", "127.0.0.1.evil.example"] {
        assert_eq!(status("/v1/models", host, &[]).await, 403, "{host}");
        assert_eq!(status("/metrics", host, &[]).await, 403, "{host}");
        assert_eq!(status("/health", host, &[]).await, 200, "{host}");
    }
    let from = async |origin: &str| status("/v1/models", "localhost", &[("origin", origin)]).await;
    assert_eq!((from("http://localhost:3000").await, from("app://client").await), (200, 200));
    assert_eq!((from("https://evil.example").await, from("null").await), (403, 403));
    // With a key the name and the page don't matter any more.
    let created = fixture.admin("POST", "/admin/v1/keys", "{\"tenant\":\"a\"}").await.json();
    let key = format!("Bearer {}", created["key"].as_str().unwrap());
    let with_key = [("authorization", key.as_str()), ("origin", "https://shop.example")];
    assert_eq!(status("/v1/models", "pons.example", &with_key).await, 200);
}

#[tokio::test]
async fn no_page_may_read_the_operators_and_the_admins_routes() {
    let fixture = Fixture::start().await;
    for route in ROUTES {
        let shared = matches!(route.access, Access::Public | Access::Tenant);
        for method in [route.method.as_str(), "OPTIONS"] {
            let answer = call(fixture.address(), method, &path_of(route.pattern), &[], b"").await;
            let allowed = answer.header("access-control-allow-origin");
            assert_eq!(allowed, shared.then_some("*"), "{method} {}", route.pattern);
        }
    }
}
