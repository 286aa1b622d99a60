//! Request id, trace and the moment of arrival. The rule: an id that a client sends is echoed only if it can
//! stand in a log line and a header as it is.

use crate::app::{now_ms, random_id};
use http::request::Parts;
use http::{HeaderMap, Method};
use std::sync::{Arc, OnceLock};
use std::time::Instant;
use tokio::sync::Notify;

/// Longest request id that is echoed.
const MAX_ID_BYTES: usize = 128;

/// What is known of a request when its head is there. A clone means the same request.
#[derive(Clone, Debug)]
pub struct Arrival {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    request_id: String,
    trace_id: String,
    parent_span_id: String,
    method: Method,
    at: Instant,
    time_ms: u64,
    route: OnceLock<&'static str>,
    model: OnceLock<String>,
    last_answer: LastAnswer,
}

/// Says to a connection that the answer being written is its last. Put into a request's extensions by whoever owns
/// the connection; a clone is the same connection.
#[derive(Clone, Debug, Default)]
pub struct LastAnswer(Arc<Notify>);

impl LastAnswer {
    /// Ready once it was said, also if that was before the call.
    pub async fn said(&self) {
        self.0.notified().await;
    }
}

impl Arrival {
    /// Takes the time and settles the ids.
    pub fn of(head: &Parts) -> Self {
        let headers = &head.headers;
        let (trace_id, parent_span_id) = trace(headers).unwrap_or_else(|| (random_hex(), String::new()));
        let request_id = client_id(headers).unwrap_or_else(|| format!("req_{}", random_id(24)));
        Self {
            inner: Arc::new(Inner {
                request_id,
                trace_id,
                parent_span_id,
                method: head.method.clone(),
                last_answer: head.extensions.get().cloned().unwrap_or_default(),
                at: Instant::now(),
                time_ms: now_ms(),
                route: OnceLock::new(),
                model: OnceLock::new(),
            }),
        }
    }

    /// After a stream that broke, the connection closes: its end is then as plain as its error frame.
    pub fn end_connection(&self) {
        self.inner.last_answer.0.notify_one();
    }

    /// `x-request-id`.
    pub fn request_id(&self) -> &str {
        &self.inner.request_id
    }

    /// Trace id, the caller's if it sent one.
    pub fn trace_id(&self) -> &str {
        &self.inner.trace_id
    }

    /// The caller's span; empty if it sent none.
    pub fn parent_span_id(&self) -> &str {
        &self.inner.parent_span_id
    }

    /// The verb.
    pub fn method(&self) -> &Method {
        &self.inner.method
    }

    /// When it arrived.
    pub fn at(&self) -> Instant {
        self.inner.at
    }

    /// When it arrived, in milliseconds since 1970.
    pub fn time_ms(&self) -> u64 {
        self.inner.time_ms
    }

    /// Names the route; the first name stays.
    pub fn set_route(&self, route: &'static str) {
        let _ = self.inner.route.set(route);
    }

    /// Name of the route, `none` if there is none.
    pub fn route(&self) -> &'static str {
        self.inner.route.get().copied().unwrap_or("none")
    }

    /// Names the model that was asked for; the first name stays.
    pub fn set_model(&self, model: &str) {
        let _ = self.inner.model.set(model.to_owned());
    }

    /// The model that was asked for; empty if none was.
    pub fn model(&self) -> &str {
        self.inner.model.get().map_or("", String::as_str)
    }
}

fn client_id(headers: &HeaderMap) -> Option<String> {
    let id = headers.get("x-request-id")?.to_str().ok()?;
    let sane = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.' | ':');
    (!id.is_empty() && id.len() <= MAX_ID_BYTES && id.chars().all(sane)).then(|| id.to_owned())
}

/// Trace and parent span of a W3C `traceparent`.
fn trace(headers: &HeaderMap) -> Option<(String, String)> {
    let value = headers.get("traceparent")?.to_str().ok()?;
    let mut parts = value.split('-');
    let (version, trace, span) = (parts.next()?, parts.next()?, parts.next()?);
    let hex = |text: &str, length: usize| {
        text.len() == length
            && text.bytes().all(|b| b.is_ascii_digit() || (b'a'..=b'f').contains(&b))
            && text.bytes().any(|b| b != b'0')
    };
    (version.len() == 2 && hex(trace, 32) && hex(span, 16)).then(|| (trace.to_owned(), span.to_owned()))
}

fn random_hex() -> String {
    format!("{:032x}", rand::random::<u128>())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn arrival(name: &'static str, value: &'static str) -> Arrival {
        let request = http::Request::builder().header(name, value).body(());
        Arrival::of(&request.expect("the header is sound").into_parts().0)
    }

    #[test]
    fn a_sane_client_id_is_echoed_and_any_other_is_replaced() {
        assert_eq!(arrival("x-request-id", "abc-1.2:3_4").request_id(), "abc-1.2:3_4");
        for id in ["", "a b", "a\"b", "<script>"] {
            assert!(arrival("x-request-id", id).request_id().starts_with("req_"), "{id}");
        }
    }

    #[test]
    fn the_callers_trace_goes_on() {
        let arrival = arrival("traceparent", "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01");
        assert_eq!(arrival.trace_id(), "0af7651916cd43dd8448eb211c80319c");
        assert_eq!(arrival.parent_span_id(), "b7ad6b7169203331");
    }
}
