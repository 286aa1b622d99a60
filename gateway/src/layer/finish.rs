//! What every answer gets on its way out. The rule: an error is the JSON error object with its headers,
//! whoever made it, and each request is logged and counted exactly once.

use crate::app::App;
use crate::error::ApiError;
use crate::layer::arrival::Arrival;
use crate::layer::cors;
use crate::reply_body::{self, Reply, ReplyBody};
use crate::stack::Stop;
use crate::telemetry::RequestSample;
use bytes::Bytes;
use futures_util::FutureExt;
use http::{HeaderValue, Method, StatusCode, header};
use std::panic::AssertUnwindSafe;

/// Mark on an answer that is logged and counted when its body ends, by whoever writes the body.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CountedAtItsEnd;

/// Turns a panic into a 500; the connection and every other request go on.
pub(crate) async fn catch_panic(path: impl Future<Output = Result<Reply, Stop>>) -> Result<Reply, Stop> {
    match AssertUnwindSafe(path).catch_unwind().await {
        Ok(result) => result,
        Err(_) => Err(panicked().into()),
    }
}

/// The whole answer that a generation becomes. Its account counts it, and settles a panic too, so a panic ends
/// here and not where it would be counted again.
pub(crate) async fn whole_answer(body: impl Future<Output = Result<Bytes, ApiError>>) -> Reply {
    let body = AssertUnwindSafe(body).catch_unwind().await;
    let mut reply = match body.unwrap_or_else(|_| Err(panicked())) {
        Ok(body) => reply_body::whole(StatusCode::OK, "application/json", body),
        Err(error) => error_reply(&error),
    };
    reply.extensions_mut().insert(CountedAtItsEnd);
    reply
}

fn panicked() -> ApiError {
    ApiError::internal("an internal error occurred; the request may be sent again")
}

/// Completes an answer, logs it and counts it.
///
/// `shared` says whether pages of any origin may read it.
pub(crate) fn dress(app: &App, arrival: &Arrival, shared: bool, result: Result<Reply, Stop>) -> Reply {
    let mut reply = match result {
        Ok(reply) => reply,
        Err(Stop::Answered(reply)) => *reply,
        Err(Stop::Refused(error)) => {
            tracing::debug!(request_id = arrival.request_id(), message = error.message, "refused");
            error_reply(&error)
        }
    };
    let elapsed = arrival.at().elapsed();
    let headers = reply.headers_mut();
    if shared {
        cors::expose(headers);
    }
    if let Ok(id) = HeaderValue::from_str(arrival.request_id()) {
        headers.insert("x-request-id", id);
    }
    headers.insert("openai-processing-ms", HeaderValue::from(elapsed.as_millis() as u64));
    headers.insert("openai-version", HeaderValue::from_static("2020-10-01"));
    headers.insert("openai-organization", HeaderValue::from_static("pons"));
    if arrival.method() == Method::HEAD {
        without_body(&mut reply);
    }
    if reply.extensions().get::<CountedAtItsEnd>().is_none() {
        count(app, arrival, reply.status());
    }
    reply
}

fn count(app: &App, arrival: &Arrival, status: StatusCode) {
    let elapsed = arrival.at().elapsed();
    app.metrics.request_ended(RequestSample {
        route: arrival.route(),
        model: arrival.model(),
        status: status.as_u16(),
        seconds: elapsed.as_secs_f64(),
    });
    tracing::info!(
        request_id = arrival.request_id(),
        trace_id = arrival.trace_id(),
        parent_span_id = arrival.parent_span_id(),
        route = arrival.route(),
        status = status.as_u16(),
        ms = elapsed.as_millis() as u64,
        "answered"
    );
}

/// The answer that an error is.
pub(crate) fn error_reply(error: &ApiError) -> Reply {
    let mut reply = reply_body::whole(error.status, "application/json", error.body());
    let headers = reply.headers_mut();
    if let Some(seconds) = error.retry_after_s {
        headers.insert(header::RETRY_AFTER, HeaderValue::from(seconds.max(1)));
    }
    if error.status == StatusCode::UNAUTHORIZED {
        headers.insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
    }
    reply
}

/// A 405 with its `Allow`.
pub(crate) fn method_not_allowed(method: &Method, allow: &str) -> Reply {
    let mut reply = error_reply(&ApiError::method_not_allowed(method.as_str(), allow));
    if let Ok(value) = HeaderValue::from_str(allow) {
        reply.headers_mut().insert(header::ALLOW, value);
    }
    reply
}

/// `HEAD` has the headers of `GET`, its length included, and no body.
fn without_body(reply: &mut Reply) {
    if let Some(length) = reply.body().length() {
        reply.headers_mut().insert(header::CONTENT_LENGTH, HeaderValue::from(length));
    }
    *reply.body_mut() = ReplyBody::empty();
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_panic_in_a_generation_is_counted_by_its_account_alone() {
        let reply = whole_answer(async { panic!("a fault of ours") }).await;
        assert_eq!(reply.status(), StatusCode::INTERNAL_SERVER_ERROR);
        assert!(reply.extensions().get::<CountedAtItsEnd>().is_some());
    }
}
