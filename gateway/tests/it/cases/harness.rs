//! A whole gateway in this process with a scripted brain behind it. The rule: every test has its own, on its own
//! port with its own state, and asks it over TCP.

use std::net::SocketAddr;
use std::path::Path;

use pons_gateway::config::{self, Overrides};
use pons_gateway::server::{self, RunningServer};
use serde_json::{Value, json};

use crate::cases::model;
use crate::cases::raw_http::{self, Answer, Request};
use crate::cases::reading::Reading;
use crate::cases::scripted::{Script, ScriptedBrain, hello};

/// A gateway, its brain and its folder.
pub(crate) struct Stack {
    pub(crate) brain: ScriptedBrain,
    pub(crate) server: RunningServer,
    _folder: tempfile::TempDir,
}

/// Starts a gateway whose configuration file is `toml` and whose state is in `folder`.
pub(crate) async fn serve(folder: &Path, toml: &str) -> RunningServer {
    let raw = config::parse(Path::new("test.toml"), toml).expect("the test's configuration is valid");
    let overrides = Overrides {
        listen: Some("127.0.0.1:0".to_owned()),
        state_dir: Some(folder.join("state")),
        ..Overrides::default()
    };
    let config = config::resolve(raw, overrides).expect("the test's configuration is valid");
    server::start(config).await.expect("the server starts")
}

/// Waits until the gateway can serve its models.
pub(crate) async fn ready(address: SocketAddr) {
    let wait = async {
        while raw_http::send(address, &Request::new("GET", "/ready")).await.status() != 200 {
            tokio::time::sleep(std::time::Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(raw_http::PATIENCE, wait).await.expect("the brain connects in time");
}

impl Stack {
    /// With default settings.
    pub(crate) async fn start() -> Self {
        Self::with("").await
    }

    /// With these lines of configuration before the model's.
    pub(crate) async fn with(toml: &str) -> Self {
        Self::named(model::NAME, toml, "").await
    }

    /// Serving the model under another name, with further lines of configuration before and in its entry.
    pub(crate) async fn named(name: &str, toml: &str, model_toml: &str) -> Self {
        Self::of(model::path(), name, toml, model_toml).await
    }

    /// Serving the files of another model directory.
    pub(crate) async fn of(path: &Path, name: &str, toml: &str, model_toml: &str) -> Self {
        let folder = tempfile::tempdir().expect("there is a temporary directory");
        let socket = folder.path().join("brain.sock");
        let brain =
            ScriptedBrain::start(&socket, hello(name, model::vocab_size(), model::CONTEXT, model::eos()));
        let toml = format!(
            "{toml}\n[[model]]\nname = {name:?}\npath = {path:?}\nbrain = \"unix:{}\"\n{model_toml}",
            socket.display()
        );
        let server = serve(folder.path(), &toml).await;
        ready(server.address()).await;
        Self { brain, server, _folder: folder }
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.server.address()
    }

    pub(crate) async fn send(&self, request: &Request) -> Answer {
        raw_http::send(self.address(), request).await
    }

    pub(crate) async fn post(&self, path: &str, body: &Value) -> Answer {
        self.send(&Request::post(path, body)).await
    }

    pub(crate) async fn get(&self, path: &str) -> Answer {
        self.send(&Request::new("GET", path)).await
    }

    /// A chat of one message with these further fields.
    pub(crate) async fn chat(&self, fields: Value) -> Answer {
        self.post(CHAT, &chat(fields)).await
    }

    pub(crate) async fn complete(&self, fields: Value) -> Answer {
        self.post(COMPLETIONS, &completion(fields)).await
    }

    /// The same request unstreamed and streamed: both must tell the same. Returns the streamed reading.
    pub(crate) async fn agree(&self, path: &str, body: &Value) -> Reading {
        agree(self.address(), path, body).await
    }

    /// The same fields on chat and on completions, unstreamed and streamed.
    pub(crate) async fn everywhere(&self, fields: Value) -> [Reading; 2] {
        [self.agree(CHAT, &chat(fields.clone())).await, self.agree(COMPLETIONS, &completion(fields)).await]
    }

    /// The ledger's records so far, oldest first.
    pub(crate) async fn ledger(&self) -> Vec<Value> {
        let bearer = format!("Bearer {}", self.server.admin_token());
        let request = Request::new("GET", "/admin/v1/ledger?limit=10000").with("authorization", &bearer);
        let answer = self.send(&request).await;
        assert_eq!(answer.status(), 200, "{}", answer.text());
        let mut records = answer.json()["data"].as_array().expect("a list").clone();
        records.sort_by_key(|record| record["time_ms"].as_u64());
        records
    }

    /// Makes a key, after which every request needs one.
    pub(crate) async fn create_key(&self, tenant: &str) -> String {
        let bearer = format!("Bearer {}", self.server.admin_token());
        let request =
            Request::post("/admin/v1/keys", &json!({"tenant": tenant})).with("authorization", &bearer);
        let answer = self.send(&request).await;
        assert_eq!(answer.status(), 200, "{}", answer.text());
        answer.json()["key"].as_str().expect("the key is told once").to_owned()
    }

    pub(crate) async fn metrics(&self) -> String {
        self.get("/metrics").await.text().to_owned()
    }

    /// After whatever went before: one ordinary request must be served.
    pub(crate) async fn assert_healthy(&self) {
        self.brain.always(Script::default());
        let answer = self.chat(json!({})).await;
        assert_eq!(answer.status(), 200, "{}", answer.text());
        assert_eq!(answer.json()["choices"][0]["message"]["content"], "Hello, world.");
    }

    /// Checks an error's status, shape and headers, then that the server is healthy.
    pub(crate) async fn assert_error(
        &self,
        answer: &Answer,
        status: u16,
        param: Option<&str>,
        code: Option<&str>,
    ) {
        check_error(answer, status, param, code);
        self.assert_healthy().await;
    }
}

/// The same request unstreamed and streamed: both must tell the same. Returns the streamed reading.
pub(crate) async fn agree(address: SocketAddr, path: &str, body: &Value) -> Reading {
    let whole = merged(body.clone(), json!({"stream": false}));
    let usage = json!({"include_usage": true});
    let streamed = merged(body.clone(), json!({"stream": true, "stream_options": usage}));
    let whole = Reading::of(&raw_http::send(address, &Request::post(path, &whole)).await);
    let streamed = Reading::of(&raw_http::send(address, &Request::post(path, &streamed)).await);
    let comparable = |reading: &Reading| {
        let mut choices = reading.choices.clone();
        // The id of a call is drawn anew for each request.
        choices.iter_mut().flat_map(|choice| &mut choice.calls).for_each(|call| call.id.clear());
        choices
    };
    assert_eq!(comparable(&whole), comparable(&streamed), "streamed and unstreamed differ: {body}");
    let counts = |reading: &Reading| {
        let mut usage = reading.usage.clone();
        // The second request may find the first one's prompt in the cache.
        usage["prompt_tokens_details"]["cached_tokens"] = Value::Null;
        usage
    };
    assert_eq!(counts(&whole), counts(&streamed), "streamed and unstreamed usage differ: {body}");
    streamed
}

pub(crate) const CHAT: &str = "/v1/chat/completions";
pub(crate) const COMPLETIONS: &str = "/v1/completions";

/// The body of an ordinary chat request with these further fields.
pub(crate) fn chat(fields: Value) -> Value {
    merged(json!({"model": model::NAME, "messages": [{"role": "user", "content": "Say hello."}]}), fields)
}

pub(crate) fn completion(fields: Value) -> Value {
    merged(json!({"model": model::NAME, "prompt": "Hello"}), fields)
}

/// `base` with the fields of `more` added or replaced.
pub(crate) fn merged(mut base: Value, more: Value) -> Value {
    let (Some(target), Value::Object(more)) = (base.as_object_mut(), more) else {
        panic!("both are objects")
    };
    target.extend(more);
    base
}

/// An error object with all four keys and its headers. `None` for param or code means that any will do.
#[track_caller]
pub(crate) fn check_error(answer: &Answer, status: u16, param: Option<&str>, code: Option<&str>) {
    assert_eq!(answer.status(), status, "{}", answer.text());
    assert_eq!(answer.head.header("content-type"), Some("application/json"));
    assert!(answer.head.header("x-request-id").is_some_and(|id| !id.is_empty()));
    let body = answer.json();
    assert_eq!(body.as_object().map(|o| o.len()), Some(1), "{body}");
    check_error_object(&body["error"]);
    let error = &body["error"];
    if let Some(param) = param {
        let found = error["param"].as_str().unwrap_or_default();
        assert!(
            found == param
                || found.starts_with(&format!("{param}."))
                || found.starts_with(&format!("{param}[")),
            "{error}"
        );
    }
    if let Some(code) = code {
        assert_eq!(error["code"], code, "{error}");
    }
    if (400..500).contains(&status) && status != 429 {
        assert_eq!(error["type"], "invalid_request_error", "{error}");
    }
}

/// All four keys, a message, and a code that is a string or null.
#[track_caller]
pub(crate) fn check_error_object(error: &Value) {
    let keys: Vec<&str> = error.as_object().expect("an object").keys().map(String::as_str).collect();
    assert_eq!(keys.len(), 4, "{error}");
    for key in ["message", "type", "param", "code"] {
        assert!(keys.contains(&key), "{error} has no {key}");
    }
    assert!(error["message"].as_str().is_some_and(|message| !message.is_empty()), "{error}");
    assert!(error["type"].is_string(), "{error}");
    assert!(error["code"].is_string() || error["code"].is_null(), "{error}");
    assert!(error["param"].is_string() || error["param"].is_null(), "{error}");
}
