//! How a command reaches the state: through the running server, or, if there is none, by opening the file.
//! The rule: never both, since the file has one owner.

use crate::config::ResolvedConfig;
use crate::server::AdminFile;
use crate::store::{Store, StoreError};
use anyhow::{Context, anyhow, bail};
use bytes::Bytes;
use http::{Method, Request, header};
use http_body_util::{BodyExt, Full, Limited};
use hyper_util::rt::TokioIo;
use serde_json::Value;
use std::net::SocketAddr;
use std::time::Duration;

/// Largest answer that is read.
const MAX_ANSWER_BYTES: usize = 256 << 20;

/// Longest wait for an answer.
const MAX_WAIT: Duration = Duration::from_secs(60);

/// Ledger slots of a store that only a command uses.
const COMMAND_SLOTS: usize = 1;

/// The state, one way or the other.
pub(super) enum Link {
    /// A server runs on this state directory.
    Server(ServerLink),
    /// No server does; the file is ours for as long as the command runs.
    File(Store),
}

pub(super) struct ServerLink {
    address: SocketAddr,
    token: String,
}

impl Link {
    pub(super) fn open(config: &ResolvedConfig) -> anyhow::Result<Self> {
        match Store::open(&config.state_dir, COMMAND_SLOTS) {
            Ok(store) => Ok(Self::File(store)),
            Err(error @ StoreError::InUse { .. }) => match AdminFile::read(&config.state_dir) {
                Some((address, token)) => Ok(Self::Server(ServerLink { address, token })),
                None => Err(error).context("and its admin file can't be read"),
            },
            Err(error) => Err(error.into()),
        }
    }
}

impl ServerLink {
    pub(super) async fn call(
        &self,
        method: Method,
        path: &str,
        body: Option<Value>,
    ) -> anyhow::Result<Value> {
        let call = tokio::time::timeout(MAX_WAIT, self.exchange(method, path, body));
        call.await.map_err(|_| anyhow!("the server at {} did not answer in time", self.address))?
    }

    async fn exchange(&self, method: Method, path: &str, body: Option<Value>) -> anyhow::Result<Value> {
        let unreachable = || format!("the server at {} can't be reached", self.address);
        let stream = tokio::net::TcpStream::connect(self.address).await.with_context(unreachable)?;
        let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await?;
        let connection = tokio::spawn(connection);
        let body = body.map(|value| value.to_string()).unwrap_or_default();
        let request = Request::builder()
            .method(method)
            .uri(path)
            .header(header::HOST, self.address.to_string())
            .header(header::AUTHORIZATION, format!("Bearer {}", self.token))
            .header(header::CONTENT_TYPE, "application/json")
            .header(header::CONNECTION, "close")
            .body(Full::new(Bytes::from(body)))?;
        let answer = sender.send_request(request).await.with_context(unreachable)?;
        let status = answer.status();
        let limited = Limited::new(answer.into_body(), MAX_ANSWER_BYTES);
        let bytes = limited.collect().await.map_err(|error| anyhow!("{error}"))?.to_bytes();
        connection.abort();
        let value: Value = serde_json::from_slice(&bytes).context("the server's answer is not JSON")?;
        if !status.is_success() {
            bail!("{}", value["error"]["message"].as_str().unwrap_or("the server refused"));
        }
        Ok(value)
    }
}

/// Runs a short piece of asynchronous work.
pub(super) fn block_on<T>(work: impl Future<Output = anyhow::Result<T>>) -> anyhow::Result<T> {
    tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(work)
}
