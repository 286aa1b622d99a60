//! The machine's floor: a bare hyper server with one answer. The rule: it sends the very bytes that the gateway
//! sent, and does nothing else, so that the difference is what the gateway adds.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;

use anyhow::Context;
use bytes::Bytes;
use futures_util::stream;
use http::{Request, Response, header};
use http_body::Frame;
use http_body_util::combinators::BoxBody;
use http_body_util::{BodyExt, Full, StreamBody};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use tokio::net::{TcpListener, TcpStream};

/// What the floor answers.
#[derive(Debug)]
pub struct Canned {
    plain: Bytes,
    events: Vec<Bytes>,
}

impl Canned {
    /// Takes a whole body and the bytes of a whole event stream.
    pub fn new(plain: Vec<u8>, stream: &[u8]) -> Self {
        let mut events = Vec::new();
        let mut begin = 0;
        for at in 1..stream.len() {
            if stream[at - 1..=at] == *b"\n\n" {
                events.push(Bytes::copy_from_slice(&stream[begin..=at]));
                begin = at + 1;
            }
        }
        Self { plain: plain.into(), events }
    }
}

/// A floor that listens.
#[derive(Debug)]
pub struct Floor {
    listener: TcpListener,
    canned: Arc<Canned>,
}

impl Floor {
    /// Binds a free port of the loopback interface.
    ///
    /// # Errors
    /// When there is none.
    pub async fn bind(canned: Canned) -> anyhow::Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0").await.context("the floor can't listen")?;
        Ok(Self { listener, canned: Arc::new(canned) })
    }

    /// Where it listens.
    ///
    /// # Errors
    /// When the system does not say.
    pub fn address(&self) -> anyhow::Result<SocketAddr> {
        self.listener.local_addr().context("the floor has no address")
    }

    /// Serves until it is dropped or the listener fails.
    ///
    /// # Errors
    /// When no more connections can be accepted.
    pub async fn serve(self) -> anyhow::Result<()> {
        loop {
            let (stream, _) = self.listener.accept().await.context("the floor can't accept a connection")?;
            tokio::spawn(connection(stream, Arc::clone(&self.canned)));
        }
    }
}

async fn connection(stream: TcpStream, canned: Arc<Canned>) {
    let _ = stream.set_nodelay(true);
    let service = service_fn(move |request| answer(Arc::clone(&canned), request));
    // A client that leaves ends its connection; there is nothing to tell.
    let _ = hyper::server::conn::http1::Builder::new().serve_connection(TokioIo::new(stream), service).await;
}

type Answer = Response<BoxBody<Bytes, Infallible>>;

async fn answer(canned: Arc<Canned>, request: Request<Incoming>) -> Result<Answer, hyper::Error> {
    let body = request.into_body().collect().await?.to_bytes();
    let streamed = body.windows(STREAMED.len()).any(|window| window == STREAMED);
    let (media_type, body) = if streamed {
        let frames = (0..canned.events.len()).map(move |at| Ok(Frame::data(canned.events[at].clone())));
        ("text/event-stream", BodyExt::boxed(StreamBody::new(stream::iter(frames))))
    } else {
        ("application/json", Full::new(canned.plain.clone()).boxed())
    };
    let mut answer = Response::new(body);
    answer.headers_mut().insert(header::CONTENT_TYPE, header::HeaderValue::from_static(media_type));
    Ok(answer)
}

/// How the request bodies of this crate ask for a stream.
const STREAMED: &[u8] = b"\"stream\":true";
