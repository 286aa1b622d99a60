//! A server whose behaviour is known. The rule: it does what it is told to the millisecond, and keeps what it was
//! asked.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use bytes::Bytes;
use http_body_util::combinators::BoxBody;
use http_body_util::{BodyExt, Full, StreamBody};
use hyper::body::{Frame, Incoming};
use hyper_util::rt::TokioIo;
use serde_json::{Value, json};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::mpsc;

type Answer = http::Response<BoxBody<Bytes, std::io::Error>>;

/// What a mock server does.
#[derive(Clone, Debug)]
pub(crate) struct Behaviour {
    /// Before the first chunk.
    pub(crate) first: Duration,
    /// Before each further chunk.
    pub(crate) between: Duration,
    /// Chunks of an answer; each is a token.
    pub(crate) chunks: Vec<String>,
    /// Chunks after which the connection ends.
    pub(crate) cut: Option<usize>,
    pub(crate) status: u16,
    /// From and to when, after the first request came, nothing at all is sent.
    pub(crate) frozen: Option<(Duration, Duration)>,
    /// Whether a prompt of more than a thousand words takes a second to its first chunk.
    pub(crate) slow_when_long: bool,
    pub(crate) finish_reason: &'static str,
}

impl Default for Behaviour {
    fn default() -> Self {
        Self {
            first: Duration::ZERO,
            between: Duration::ZERO,
            chunks: vec!["x".into(); 8],
            cut: None,
            status: 200,
            frozen: None,
            slow_when_long: false,
            finish_reason: "stop",
        }
    }
}

/// A request as it came.
#[derive(Clone, Debug)]
pub(crate) struct Seen {
    pub(crate) body: Value,
    pub(crate) key: Option<String>,
}

/// A running mock.
#[derive(Clone)]
pub(crate) struct Mock {
    behaviour: Arc<Behaviour>,
    first_at: Arc<Mutex<Option<Instant>>>,
    seen: Arc<Mutex<Vec<Seen>>>,
    /// Streams whose client went away before their end.
    gone: Arc<AtomicUsize>,
    connections: Arc<AtomicUsize>,
}

impl Mock {
    pub(crate) fn new(behaviour: Behaviour) -> Self {
        Self {
            behaviour: Arc::new(behaviour),
            first_at: Arc::default(),
            seen: Arc::default(),
            gone: Arc::default(),
            connections: Arc::default(),
        }
    }

    /// Listens on a free port of the loopback.
    pub(crate) async fn serve(&self) -> SocketAddr {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("loopback");
        let address = listener.local_addr().expect("bound");
        let mock = self.clone();
        tokio::spawn(async move {
            while let Ok((socket, _)) = listener.accept().await {
                mock.connections.fetch_add(1, Ordering::SeqCst);
                socket.set_nodelay(true).expect("a loopback socket takes the option");
                tokio::spawn(mock.clone().connection(socket));
            }
        });
        address
    }

    /// Serves one connection.
    pub(crate) async fn connection(self, socket: impl AsyncRead + AsyncWrite + Unpin + Send + 'static) {
        let service = hyper::service::service_fn(move |request| {
            let mock = self.clone();
            async move { Ok::<_, Infallible>(mock.answer(request).await) }
        });
        // A client may go away at any time, which is no concern of the mock's.
        let _ =
            hyper::server::conn::http1::Builder::new().serve_connection(TokioIo::new(socket), service).await;
    }

    pub(crate) fn seen(&self) -> Vec<Seen> {
        self.seen.lock().expect("nobody panicked").clone()
    }

    pub(crate) fn gone(&self) -> usize {
        self.gone.load(Ordering::SeqCst)
    }

    /// Connections that were accepted.
    pub(crate) fn connections(&self) -> usize {
        self.connections.load(Ordering::SeqCst)
    }

    async fn answer(&self, request: http::Request<Incoming>) -> Answer {
        let key =
            request.headers().get("authorization").and_then(|value| value.to_str().ok()).map(str::to_owned);
        if request.uri().path() == "/v1/models" {
            return whole(200, &json!({ "data": [{ "id": "mock-model" }] }));
        }
        let body = request.into_body().collect().await.expect("a whole request").to_bytes();
        let body: Value = serde_json::from_slice(&body).expect("JSON");
        let long = body["messages"][0]["content"].as_str().map_or(0, |text| text.split(' ').count()) > 1_000;
        let streamed = body["stream"] == true;
        self.seen.lock().expect("nobody panicked").push(Seen { body, key });
        let first_at = *self.first_at.lock().expect("nobody panicked").get_or_insert_with(Instant::now);
        if self.behaviour.status != 200 {
            return whole(self.behaviour.status, &json!({}));
        }
        let mut first = self.behaviour.first;
        if long && self.behaviour.slow_when_long {
            first = Duration::from_secs(1);
        }
        if streamed { self.clone().stream(first, first_at) } else { self.complete(first).await }
    }

    async fn complete(&self, first: Duration) -> Answer {
        tokio::time::sleep(first).await;
        let content = self.behaviour.chunks.concat();
        let message = json!({ "role": "assistant", "content": content });
        let choice = json!({ "message": message, "finish_reason": self.behaviour.finish_reason });
        whole(200, &json!({ "choices": [choice], "usage": self.usage() }))
    }

    fn usage(&self) -> Value {
        json!({ "prompt_tokens": 32, "completion_tokens": self.behaviour.chunks.len() })
    }

    fn stream(self, first: Duration, first_at: Instant) -> Answer {
        let (sender, mut receiver) = mpsc::channel(1);
        tokio::spawn(async move {
            if self.events(first, first_at, &sender).await.is_err() {
                self.gone.fetch_add(1, Ordering::SeqCst);
            }
        });
        let frames = futures_util::stream::poll_fn(move |context| receiver.poll_recv(context));
        http::Response::new(BodyExt::boxed(StreamBody::new(frames)))
    }

    /// Sends everything; fails when the client is gone.
    async fn events(
        &self,
        first: Duration,
        first_at: Instant,
        sender: &mpsc::Sender<std::io::Result<Frame<Bytes>>>,
    ) -> Result<(), ()> {
        let event = |value: &str| Ok(Frame::data(Bytes::from(format!("data: {value}\n\n"))));
        for (number, text) in self.behaviour.chunks.iter().enumerate() {
            if self.behaviour.cut == Some(number) {
                let _ = sender.send(Err(std::io::Error::other("cut"))).await;
                return Ok(());
            }
            let wait = if number == 0 { first } else { self.behaviour.between };
            // A client that goes away drops the body, and the channel with it.
            tokio::select! {
                () = sender.closed() => return Err(()),
                () = self.pause(wait, first_at) => {}
            }
            let choice = json!({ "delta": { "content": text }, "finish_reason": null });
            sender.send(event(&json!({ "choices": [choice] }).to_string())).await.map_err(|_| ())?;
        }
        let last = json!({ "choices": [{ "delta": {}, "finish_reason": self.behaviour.finish_reason }] });
        let usage = json!({ "choices": [], "usage": self.usage() });
        for text in [last.to_string(), usage.to_string(), "[DONE]".into()] {
            sender.send(event(&text)).await.map_err(|_| ())?;
        }
        Ok(())
    }

    /// Waits, and on while the server is frozen.
    async fn pause(&self, wait: Duration, first_at: Instant) {
        if !wait.is_zero() {
            tokio::time::sleep(wait).await;
        }
        if let Some((from, to)) = self.behaviour.frozen
            && (from..to).contains(&first_at.elapsed())
        {
            tokio::time::sleep_until((first_at + to).into()).await;
        }
    }
}

fn whole(status: u16, body: &Value) -> Answer {
    let body = Full::new(Bytes::from(body.to_string())).map_err(|never| match never {}).boxed();
    http::Response::builder().status(status).body(body).expect("a response")
}
