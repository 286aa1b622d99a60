//! The body of every answer: whole, or a stream of frames. The rule: a stream is polled by the connection and
//! runs nowhere else, so a slow reader slows it down and dropping it ends the work behind it.

use bytes::Bytes;
use futures_util::Stream;
use http::{HeaderValue, Response, StatusCode, header};
use http_body::{Body, Frame, SizeHint};
use serde::Serialize;
use std::convert::Infallible;
use std::pin::Pin;
use std::task::{Context, Poll};

mod patience;

pub use patience::Patience;
use patience::Watched;

type Frames = Pin<Box<dyn Stream<Item = Bytes> + Send>>;

/// An answer on its way out.
pub type Reply = Response<ReplyBody>;

/// See the module.
pub struct ReplyBody(Kind);

enum Kind {
    Whole(Bytes),
    Frames(Frames),
    Watched(Watched),
}

impl std::fmt::Debug for ReplyBody {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match &self.0 {
            Kind::Whole(bytes) => write!(f, "ReplyBody of {} bytes", bytes.len()),
            Kind::Frames(_) | Kind::Watched(_) => f.write_str("ReplyBody of frames"),
        }
    }
}

impl ReplyBody {
    /// No bytes.
    pub fn empty() -> Self {
        Self(Kind::Whole(Bytes::new()))
    }

    /// These bytes.
    pub fn whole(bytes: impl Into<Bytes>) -> Self {
        Self(Kind::Whole(bytes.into()))
    }

    /// Frames as they come.
    pub fn frames(stream: impl Stream<Item = Bytes> + Send + 'static) -> Self {
        Self(Kind::Frames(Box::pin(stream)))
    }

    /// The same body; a stream is let go when its reader pauses too long, and `hold` is dropped when it ends,
    /// however it ends. Must be called inside the runtime.
    pub fn watched(self, hold: impl Send + 'static, patience: Patience) -> Self {
        match self.0 {
            Kind::Frames(frames) => Self(Kind::Watched(Watched::new(frames, Box::new(hold), patience))),
            other => Self(other),
        }
    }

    /// Length, if it is known.
    pub fn length(&self) -> Option<usize> {
        match &self.0 {
            Kind::Whole(bytes) => Some(bytes.len()),
            Kind::Frames(_) | Kind::Watched(_) => None,
        }
    }
}

impl Body for ReplyBody {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        match &mut self.0 {
            Kind::Whole(bytes) if bytes.is_empty() => Poll::Ready(None),
            Kind::Whole(bytes) => Poll::Ready(Some(Ok(Frame::data(std::mem::take(bytes))))),
            Kind::Frames(stream) => {
                stream.as_mut().poll_next(cx).map(|frame| frame.map(|bytes| Ok(Frame::data(bytes))))
            }
            Kind::Watched(watched) => {
                watched.poll_next(cx).map(|frame| frame.map(|bytes| Ok(Frame::data(bytes))))
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        matches!(&self.0, Kind::Whole(bytes) if bytes.is_empty())
    }

    fn size_hint(&self) -> SizeHint {
        match &self.0 {
            Kind::Whole(bytes) => SizeHint::with_exact(bytes.len() as u64),
            Kind::Frames(_) | Kind::Watched(_) => SizeHint::default(),
        }
    }
}

/// A whole answer of this type.
pub fn whole(status: StatusCode, content_type: &'static str, body: impl Into<Bytes>) -> Reply {
    let mut reply = Response::new(ReplyBody::whole(body));
    *reply.status_mut() = status;
    reply.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static(content_type));
    reply
}

/// A whole JSON answer.
pub fn json(value: &impl Serialize) -> Reply {
    let body = serde_json::to_vec(value).expect("answers are made of strings, numbers and their containers");
    whole(StatusCode::OK, "application/json", body)
}

/// An answer without a body.
pub fn empty(status: StatusCode) -> Reply {
    let mut reply = Response::new(ReplyBody::empty());
    *reply.status_mut() = status;
    reply
}

/// Server-sent events.
pub fn events(stream: impl Stream<Item = Bytes> + Send + 'static) -> Reply {
    let mut reply = Response::new(ReplyBody::frames(stream));
    let headers = reply.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("text/event-stream; charset=utf-8"));
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-cache, no-transform"));
    headers.insert("x-accel-buffering", HeaderValue::from_static("no"));
    reply
}
