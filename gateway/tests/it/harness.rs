//! A whole server on loopback and an HTTP client of a few lines, so that every byte of both sides is seen.

use crate::brain::ScriptedBrain;
use pons_checkpoint::fixture::write_tiny_llama;
use pons_gateway::config::{self, Overrides, ResolvedConfig};
use pons_gateway::server::{self, RunningServer};
use serde_json::Value;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// No test waits longer for anything.
pub(crate) const PATIENCE: Duration = Duration::from_secs(20);

/// Name of the served model; it has what URLs don't like.
pub(crate) const MODEL: &str = "org/tiny:1b";

/// A server, its brain and its folder.
pub(crate) struct Fixture {
    pub(crate) server: RunningServer,
    pub(crate) brain: ScriptedBrain,
    pub(crate) dir: tempfile::TempDir,
}

impl Fixture {
    /// Starts with the default limits.
    pub(crate) async fn start() -> Self {
        Self::start_with("").await
    }

    /// Starts with these lines at the head of the configuration file, and waits until it is ready.
    pub(crate) async fn start_with(lines: &str) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let tiny = write_tiny_llama(&dir.path().join("model"), 7, &[]).unwrap();
        drop(tiny);
        let brain = ScriptedBrain::start(&dir.path().join("model"), &dir.path().join("brain.sock"));
        let server = server::start(configuration(dir.path(), lines)).await.unwrap();
        let fixture = Self { server, brain, dir };
        fixture.until_ready().await;
        fixture
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.server.address()
    }

    pub(crate) async fn get(&self, path: &str) -> Answer {
        call(self.address(), "GET", path, &[], b"").await
    }

    pub(crate) async fn post(&self, path: &str, body: &Value) -> Answer {
        let headers = [("content-type", "application/json")];
        call(self.address(), "POST", path, &headers, body.to_string().as_bytes()).await
    }

    pub(crate) async fn admin(&self, method: &str, path: &str, body: &str) -> Answer {
        let token = format!("Bearer {}", self.server.admin_token());
        call(self.address(), method, path, &[("authorization", &token)], body.as_bytes()).await
    }

    async fn until_ready(&self) {
        let ready = async {
            while self.get("/ready").await.status != 200 {
                tokio::task::yield_now().await;
            }
        };
        tokio::time::timeout(PATIENCE, ready).await.expect("the server becomes ready");
    }
}

/// The configuration of a test server whose brain is the scripted one.
pub(crate) fn configuration(dir: &Path, lines: &str) -> ResolvedConfig {
    let text = format!(
        "listen = \"127.0.0.1:0\"\nstate_dir = {:?}\n{lines}\n[[model]]\nname = \"{MODEL}\"\npath = {:?}\nbrain = {:?}\n\
         price_prompt = 1000000\nprice_output = 2000000\n",
        dir.join("state"),
        dir.join("model"),
        format!("unix:{}", dir.join("brain.sock").display()),
    );
    let raw = config::parse(&PathBuf::from("test.toml"), &text).unwrap();
    config::resolve(raw, Overrides::default()).unwrap()
}

/// An answer, with its body put together.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) headers: Vec<(String, String)>,
    pub(crate) body: Vec<u8>,
}

impl Answer {
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(key, _)| key == name).map(|(_, value)| value.as_str())
    }

    pub(crate) fn text(&self) -> String {
        String::from_utf8(self.body.clone()).expect("bodies are UTF-8")
    }

    pub(crate) fn json(&self) -> Value {
        serde_json::from_slice(&self.body)
            .unwrap_or_else(|error| panic!("{error}: {:?}", String::from_utf8_lossy(&self.body)))
    }

    /// The error object, after checking that it has its four keys and nothing is off about them.
    pub(crate) fn error(&self) -> Value {
        let value = self.json();
        let error = value["error"].as_object().expect("an error object").clone();
        for key in ["message", "type", "param", "code"] {
            assert!(error.contains_key(key), "{key} is missing in {value}");
        }
        assert!(error["code"].is_string() || error["code"].is_null(), "{value}");
        assert!(error["message"].as_str().is_some_and(|message| !message.is_empty()), "{value}");
        assert!(self.header("x-request-id").is_some());
        assert!(self.header("content-type").unwrap().starts_with("application/json"));
        value["error"].clone()
    }
}

/// One request on a connection of its own.
pub(crate) async fn call(
    address: SocketAddr,
    method: &str,
    path: &str,
    headers: &[(&str, &str)],
    body: &[u8],
) -> Answer {
    let mut head = format!("{method} {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n");
    for (name, value) in headers {
        head.push_str(&format!("{name}: {value}\r\n"));
    }
    if !body.is_empty() || method == "POST" {
        head.push_str(&format!("content-length: {}\r\n", body.len()));
    }
    head.push_str("\r\n");
    let exchange = async {
        let mut stream = TcpStream::connect(address).await.unwrap();
        stream.write_all(&[head.as_bytes(), body].concat()).await.unwrap();
        let mut raw = Vec::new();
        stream.read_to_end(&mut raw).await.unwrap();
        parse(&raw)
    };
    tokio::time::timeout(PATIENCE, exchange).await.expect("an answer in time")
}

/// Sends these bytes on a connection of their own; the answer must close it.
pub(crate) async fn send(address: SocketAddr, request: &str) -> Answer {
    let exchange = async {
        let mut stream = TcpStream::connect(address).await.unwrap();
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut raw = Vec::new();
        stream.read_to_end(&mut raw).await.unwrap();
        parse(&raw)
    };
    tokio::time::timeout(PATIENCE, exchange).await.expect("an answer in time")
}

/// Takes an answer apart; chunked bodies are joined.
pub(crate) fn parse(raw: &[u8]) -> Answer {
    let at = raw.windows(4).position(|window| window == b"\r\n\r\n").expect("a head");
    let head = String::from_utf8(raw[..at].to_vec()).unwrap();
    let mut lines = head.split("\r\n");
    let status = lines.next().unwrap().split(' ').nth(1).unwrap().parse().unwrap();
    let headers: Vec<(String, String)> = lines
        .map(|line| line.split_once(':').unwrap())
        .map(|(name, value)| (name.to_ascii_lowercase(), value.trim().to_owned()))
        .collect();
    let rest = &raw[at + 4..];
    let chunked = headers.iter().any(|(name, value)| name == "transfer-encoding" && value == "chunked");
    let body = if chunked { join_chunks(rest) } else { rest.to_vec() };
    Answer { status, headers, body }
}

/// Joins as many chunks as are there; a cut stream gives what had arrived.
pub(crate) fn join_chunks(mut raw: &[u8]) -> Vec<u8> {
    let mut body = Vec::new();
    while let Some(at) = raw.windows(2).position(|window| window == b"\r\n") {
        let size = usize::from_str_radix(std::str::from_utf8(&raw[..at]).unwrap(), 16).unwrap();
        if size == 0 || raw.len() < at + 4 + size {
            break;
        }
        body.extend_from_slice(&raw[at + 2..at + 2 + size]);
        raw = &raw[at + 4 + size..];
    }
    body
}
