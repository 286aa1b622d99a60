//! One request over HTTP. The rule: nothing is computed between two reads of a stream but what tells a token's
//! arrival, and an answer counts as complete only with a finish reason and its end mark.

use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper_util::client::legacy::Client as Pool;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use serde_json::{Value, json};

use crate::live::Progress;
use crate::scenario::{Planned, Scenario};

/// The most bytes of one answer.
const MOST_BYTES: usize = 64 << 20;
/// The most bytes of one event of a stream.
const MOST_EVENT: usize = 1 << 20;

/// A server under test.
#[derive(Clone, Debug)]
pub struct Target {
    /// Name in reports.
    pub name: String,
    /// Address, such as `http://127.0.0.1:8080`.
    pub url: String,
    /// Model to ask for.
    pub model: String,
    /// Key to send.
    pub key: Option<String>,
}

/// How a request ended.
#[derive(Clone, Debug, PartialEq)]
pub enum End {
    /// Complete.
    Done,
    /// The client went away as planned.
    Aborted,
    /// The server had no room and said so: 429 or 503.
    Refused(u16),
    /// Anything else, by kind.
    Failed(&'static str),
}

/// What a request took, in seconds after it was due.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// How it ended.
    pub end: End,
    /// Seconds from the start of the run to when it was due.
    pub due_s: f64,
    /// From due to sent.
    pub lag_s: f64,
    /// Whether it was sent twice, since its connection was closed before an answer began.
    pub again: bool,
    /// From due to each chunk with output.
    pub chunks_s: Vec<f64>,
    /// From due to the end.
    pub end_s: f64,
    /// From the server's usage.
    pub prompt_tokens: u64,
    /// From the server's usage.
    pub output_tokens: u64,
    /// Of the prompt's, those found in a cache.
    pub cached_tokens: u64,
}

/// Sends requests to one target.
#[derive(Clone, Debug)]
pub struct Client {
    pool: Pool<HttpConnector, Full<Bytes>>,
    target: Target,
    progress: Arc<Progress>,
}

impl Client {
    /// A client with connections that are kept.
    pub fn new(target: Target) -> Self {
        let mut connector = HttpConnector::new();
        connector.set_nodelay(true);
        let pool = Pool::builder(TokioExecutor::new()).build(connector);
        Self { pool, target, progress: Arc::default() }
    }

    /// The same client, whose requests are counted as they go.
    pub fn watched(self, progress: Arc<Progress>) -> Self {
        Self { progress, ..self }
    }

    /// Sends one request that was due at `due`.
    pub async fn send(
        &self,
        scenario: &Scenario,
        planned: &Planned,
        start: Instant,
        due: Instant,
    ) -> Outcome {
        let mut outcome = Outcome {
            end: End::Failed("no answer"),
            due_s: due.duration_since(start).as_secs_f64(),
            lag_s: due.elapsed().as_secs_f64(),
            again: false,
            chunks_s: Vec::with_capacity(planned.output_tokens as usize + 2),
            end_s: 0.0,
            prompt_tokens: 0,
            output_tokens: 0,
            cached_tokens: 0,
        };
        let deadline = Duration::from_secs_f64(scenario.deadline_s);
        let _flight = self.progress.begin();
        let answer = self.answer(scenario, planned, due, &mut outcome);
        let end = tokio::time::timeout(deadline, answer).await;
        outcome.end = end.unwrap_or(End::Failed("deadline"));
        outcome.end_s = due.elapsed().as_secs_f64();
        self.progress.end(&outcome.end, outcome.chunks_s.len() as u64, outcome.output_tokens);
        outcome
    }

    async fn answer(
        &self,
        scenario: &Scenario,
        planned: &Planned,
        due: Instant,
        outcome: &mut Outcome,
    ) -> End {
        let Ok(request) = self.request(scenario, planned) else { return End::Failed("bad url") };
        let mut response = self.pool.request(request.clone()).await;
        // A server may close a kept connection just as a request goes out on it; every SDK then sends it again.
        if response.as_ref().is_err_and(|error| !error.is_connect()) {
            outcome.again = true;
            response = self.pool.request(request).await;
        }
        let response = match response {
            Ok(response) => response,
            Err(error) if error.is_connect() => return End::Failed("connect"),
            Err(_) => return End::Failed("reset"),
        };
        let status = response.status().as_u16();
        match status {
            200 => {}
            429 | 503 => return End::Refused(status),
            500.. => return End::Failed("5xx"),
            _ => return End::Failed("4xx"),
        }
        let body = response.into_body();
        if scenario.stream {
            return read_stream(body, planned.abort_after, due, outcome, &self.progress).await;
        }
        let Ok(body) = http_body_util::Limited::new(body, MOST_BYTES).collect().await else {
            return End::Failed("cut");
        };
        outcome.chunks_s.push(due.elapsed().as_secs_f64());
        self.progress.chunk(&outcome.chunks_s);
        let Ok(answer) = serde_json::from_slice::<Value>(&body.to_bytes()) else {
            return End::Failed("not JSON");
        };
        outcome.usage(&answer["usage"]);
        if answer["choices"][0]["finish_reason"].is_string() { End::Done } else { End::Failed("cut") }
    }

    fn request(&self, scenario: &Scenario, planned: &Planned) -> http::Result<http::Request<Full<Bytes>>> {
        let mut body = scenario.body.clone();
        body.insert("model".into(), json!(self.target.model));
        body.insert("messages".into(), json!([{ "role": "user", "content": planned.prompt }]));
        body.insert("max_tokens".into(), json!(planned.output_tokens));
        body.insert("stream".into(), json!(scenario.stream));
        if scenario.stream {
            body.insert("stream_options".into(), json!({ "include_usage": true }));
        }
        let mut request = http::Request::post(format!("{}/v1/chat/completions", self.target.url))
            .header("content-type", "application/json");
        if let Some(key) = &self.target.key {
            request = request.header("authorization", format!("Bearer {key}"));
        }
        request.body(Full::new(Bytes::from(Value::Object(body).to_string())))
    }
}

impl Outcome {
    fn usage(&mut self, usage: &Value) {
        let number = |value: &Value| value.as_u64().unwrap_or(0);
        self.prompt_tokens = number(&usage["prompt_tokens"]);
        self.output_tokens = number(&usage["completion_tokens"]);
        self.cached_tokens = number(&usage["prompt_tokens_details"]["cached_tokens"]);
    }
}

/// Reads server-sent events up to their end mark.
async fn read_stream(
    mut body: hyper::body::Incoming,
    abort_after: Option<u32>,
    due: Instant,
    outcome: &mut Outcome,
    progress: &Progress,
) -> End {
    let mut rest: Vec<u8> = Vec::new();
    let (mut finished, mut bytes) = (false, 0);
    while let Some(frame) = body.frame().await {
        let Ok(frame) = frame else { return End::Failed("cut") };
        let Some(data) = frame.data_ref() else { continue };
        let now_s = due.elapsed().as_secs_f64();
        bytes += data.len();
        rest.extend_from_slice(data);
        if bytes > MOST_BYTES || rest.len() > MOST_EVENT {
            return End::Failed("too long");
        }
        let mut read = 0;
        while let Some(length) = rest[read..].windows(2).position(|pair| pair == b"\n\n") {
            let event = &rest[read..read + length];
            read += length + 2;
            let Some(data) = event.strip_prefix(b"data:") else { continue };
            let data = data.trim_ascii();
            if data == b"[DONE]" {
                return if finished { End::Done } else { End::Failed("no finish reason") };
            }
            let Ok(chunk) = serde_json::from_slice::<Value>(data) else { return End::Failed("not JSON") };
            if !chunk["error"].is_null() {
                return End::Failed("error in stream");
            }
            if chunk["usage"].is_object() {
                outcome.usage(&chunk["usage"]);
            }
            let choice = &chunk["choices"][0];
            finished |= choice["finish_reason"].is_string();
            let delta = &choice["delta"];
            let text = |field: &str| delta[field].as_str().is_some_and(|text| !text.is_empty());
            if text("content") || text("reasoning_content") || delta["tool_calls"].is_array() {
                outcome.chunks_s.push(now_s);
                progress.chunk(&outcome.chunks_s);
            }
        }
        rest.drain(..read);
        if abort_after.is_some_and(|tokens| outcome.chunks_s.len() >= tokens as usize) {
            return End::Aborted;
        }
    }
    End::Failed("cut")
}
