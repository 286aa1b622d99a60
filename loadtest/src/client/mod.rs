//! One request over HTTP. The rule: an answer counts as complete only with a finish reason and its end mark, and what
//! is cancelled is cancelled at the server too, by closing its connection.

mod outcome;
mod stream;
mod tls;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper_rustls::HttpsConnector;
use hyper_util::client::legacy::Client as Pool;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use serde_json::{Value, json};

use crate::run::Progress;
use crate::scenario::{Load, Scenario, Turn};
pub use outcome::{End, NOT_SENT, Outcome};
use stream::Reading;
pub use tls::{Tls, TlsError};

/// The most bytes of one answer.
const MOST_BYTES: usize = 64 << 20;
/// The longest that a server may take to list its models.
const LISTING: Duration = Duration::from_secs(10);

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
    /// Further headers of each request, for gateways that are told by them where to go.
    pub headers: Vec<(String, String)>,
}

/// Why a client can't be made, or a server's models are unknown.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// A tenant's key is missing.
    #[error("tenant {tenant}: key_env names {variable}, which is not set; export it")]
    Key {
        /// The tenant.
        tenant: String,
        /// The variable.
        variable: String,
    },
    /// The server lists no model.
    #[error("{url}/v1/models {problem}; give --model, or check the address")]
    Models {
        /// The server.
        url: String,
        /// What happened.
        problem: String,
    },
}

/// Sends requests to one target.
#[derive(Clone, Debug)]
pub struct Client {
    pool: Pool<HttpsConnector<HttpConnector>, Full<Bytes>>,
    target: Target,
    /// Keys of tenants.
    keys: Arc<BTreeMap<String, String>>,
}

/// One request to be sent.
pub(crate) struct Call<'a> {
    pub(crate) load: &'a Load,
    pub(crate) turn: &'a Turn,
    /// All that was said before, and what the user says now.
    pub(crate) messages: &'a [Value],
    /// Whether the answer's text is needed.
    pub(crate) keep_text: bool,
    pub(crate) due: Instant,
    /// Told of its start, its chunks and its end.
    pub(crate) progress: &'a Progress,
}

impl Client {
    /// A client with connections that are kept.
    ///
    /// # Errors
    /// A tenant's key is in a variable that isn't set.
    pub fn new(target: Target, scenario: &Scenario, tls: &Tls) -> Result<Self, ClientError> {
        let mut keys = BTreeMap::new();
        for tenant in &scenario.tenant {
            let from_env = tenant.key_env.as_ref().map(|variable| {
                let missing =
                    |_| ClientError::Key { tenant: tenant.name.clone(), variable: variable.clone() };
                std::env::var(variable).map_err(missing)
            });
            if let Some(key) = tenant.key.clone().map(Ok).or(from_env) {
                keys.insert(tenant.name.clone(), key?);
            }
        }
        let pool = Pool::builder(TokioExecutor::new()).build(tls.connector());
        Ok(Self { pool, target, keys: Arc::new(keys) })
    }

    /// Sends one request, filling its outcome; gives the answer's text where it is needed.
    pub(crate) async fn send(&self, call: &Call<'_>, outcome: &mut Outcome) -> String {
        outcome.lag_s = call.due.elapsed().as_secs_f64();
        let mut text = String::new();
        let deadline = call.due + Duration::from_secs_f64(call.load.deadline_s);
        // Dropping what is under way closes the connection, by which the server learns of it.
        let flight = call.progress.begin();
        let answer = self.answer(call, outcome, &mut text);
        let end = tokio::time::timeout_at(deadline.into(), answer).await;
        outcome.end = end.unwrap_or(End::Failed("deadline"));
        outcome.end_s = call.due.elapsed().as_secs_f64();
        drop(flight);
        call.progress.end(&outcome.end, outcome.chunks_s.len() as u64, outcome.output_tokens);
        text
    }

    async fn answer(&self, call: &Call<'_>, outcome: &mut Outcome, text: &mut String) -> End {
        let Ok(request) = self.request(call, outcome.tenant.as_deref()) else {
            return End::Failed("bad url");
        };
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
        let mut reading = Reading {
            due: call.due,
            progress: call.progress,
            abort_after: call.turn.abort_after,
            outcome,
            text: call.keep_text.then_some(&mut *text),
            finished: false,
            cut_short: false,
        };
        let body = response.into_body();
        let end = if call.load.stream {
            reading.stream(body).await
        } else {
            let Ok(body) = http_body_util::Limited::new(body, MOST_BYTES).collect().await else {
                return End::Failed("cut");
            };
            reading.whole(&body.to_bytes())
        };
        let cut_short = reading.cut_short;
        match &call.load.structured {
            Some(_) if end == End::Done && cut_short => End::Failed("structure: cut at max_tokens"),
            Some(asked) if end == End::Done => asked.conforms(text).map_or_else(End::Failed, |()| end),
            _ => end,
        }
    }

    fn request(&self, call: &Call<'_>, tenant: Option<&str>) -> http::Result<http::Request<Full<Bytes>>> {
        let load = call.load;
        let mut body = load.body.clone();
        body.insert("model".into(), json!(self.target.model));
        body.insert("messages".into(), json!(call.messages));
        body.insert("max_tokens".into(), json!(call.turn.output_tokens));
        body.insert("stream".into(), json!(load.stream));
        if load.stream {
            body.insert("stream_options".into(), json!({ "include_usage": true }));
        }
        if let Some(asked) = &load.structured {
            body.insert("response_format".into(), asked.response_format());
        }
        let mut request = http::Request::post(format!("{}/v1/chat/completions", self.target.url))
            .header("content-type", "application/json");
        let own = tenant.and_then(|tenant| self.keys.get(tenant));
        if let Some(key) = own.or(self.target.key.as_ref()) {
            request = request.header("authorization", format!("Bearer {key}"));
        }
        for (name, value) in &self.target.headers {
            request = request.header(name, value);
        }
        request.body(Full::new(Bytes::from(Value::Object(body).to_string())))
    }
}

/// The first model that a server lists.
///
/// # Errors
/// It can't be reached, or lists none.
pub async fn first_model(url: &str, key: Option<&str>, tls: &Tls) -> Result<String, ClientError> {
    let failed = |problem: String| ClientError::Models { url: url.to_owned(), problem };
    let pool: Pool<_, Full<Bytes>> = Pool::builder(TokioExecutor::new()).build(tls.connector());
    let mut request = http::Request::get(format!("{url}/v1/models"));
    if let Some(key) = key {
        request = request.header("authorization", format!("Bearer {key}"));
    }
    let request = request.body(Full::default()).map_err(|error| failed(error.to_string()))?;
    let listing = async {
        let response = pool.request(request).await.map_err(|error| failed(chain(&error)))?;
        let body = http_body_util::Limited::new(response.into_body(), 1 << 20).collect().await;
        Ok(body.map_err(|error| failed(error.to_string()))?.to_bytes())
    };
    let listed = tokio::time::timeout(LISTING, listing).await;
    let body = listed.map_err(|_| failed(format!("did not answer within {LISTING:?}")))??;
    let models: Value = serde_json::from_slice(&body).map_err(|_| failed("did not answer in JSON".into()))?;
    let id = models["data"][0]["id"].as_str();
    id.map(str::to_owned).ok_or_else(|| failed("lists no model".into()))
}

/// An error and what lies behind it: the outermost says little of why a connection failed.
fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(inner) = source {
        text += &format!(": {inner}");
        source = inner.source();
    }
    text
}
