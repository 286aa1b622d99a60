//! The one error an HTTP client ever sees. The rule it keeps: all four keys, and `code` is a string or null.
use bytes::Bytes;
use std::borrow::Cow;

/// An error on its way to the client.
#[derive(Clone, Debug, PartialEq)]
pub struct ApiError {
    /// HTTP status.
    pub status: http::StatusCode,
    /// `type`.
    pub kind: &'static str,
    /// `code`.
    pub code: Option<Cow<'static, str>>,
    /// `param`.
    pub param: Option<String>,
    /// `message`.
    pub message: String,
    /// `retry-after`.
    pub retry_after_s: Option<u32>,
    /// `x-should-retry`.
    pub should_retry: Option<bool>,
}

impl ApiError {
    /// The JSON body.
    pub fn body(&self) -> Bytes {
        let value = serde_json::json!({"error": {"message": self.message, "type": self.kind,
            "param": self.param, "code": self.code}});
        Bytes::from(value.to_string())
    }
}
