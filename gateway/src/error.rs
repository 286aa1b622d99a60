//! The one error that a client of the HTTP surface can see, and how refusals become it.
//!
//! The rule: an error names the field, the value and the remedy, carries all four keys of the OpenAI error
//! object, and a mistake of the client is never answered with a 5xx, which SDKs would retry.

use std::borrow::Cow;
use std::fmt;

use bytes::Bytes;
use http::StatusCode;
use pons_protocol::inference::RejectReason;
use serde_json::json;

/// `type` of everything that the client has to change.
pub const INVALID_REQUEST: &str = "invalid_request_error";
/// `type` of everything that is not the client's fault.
pub const SERVER_ERROR: &str = "server_error";

/// Seconds after which a refused request may be sent again, where nothing better is known.
const DEFAULT_RETRY_AFTER_S: u32 = 1;

/// An error as OpenAI clients know it, with its HTTP status and retry hints.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ApiError {
    /// HTTP status.
    pub status: StatusCode,
    /// The error object's `type`.
    pub kind: &'static str,
    /// The error object's `code`; a string or null, never a number.
    pub code: Option<Cow<'static, str>>,
    /// The request's field that is wrong, as a path such as `messages[0].content`.
    pub param: Option<String>,
    /// What is wrong and what to do; never empty.
    pub message: String,
    /// Value of `retry-after` in seconds.
    pub retry_after_s: Option<u32>,
}

impl fmt::Display for ApiError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for ApiError {}

impl ApiError {
    fn new(status: StatusCode, kind: &'static str, code: &'static str, message: impl Into<String>) -> Self {
        Self {
            status,
            kind,
            code: Some(Cow::Borrowed(code)),
            param: None,
            message: message.into(),
            retry_after_s: None,
        }
    }

    fn bad_request(code: &'static str, message: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, INVALID_REQUEST, code, message)
    }

    fn bad(code: &'static str, param: impl Into<String>, message: impl Into<String>) -> Self {
        Self::bad_request(code, message).with_param(param)
    }

    /// The same error with another `param`.
    #[must_use]
    pub fn with_param(mut self, param: impl Into<String>) -> Self {
        self.param = Some(param.into());
        self
    }

    /// The same error with another `code`.
    #[must_use]
    pub fn with_code(mut self, code: impl Into<Cow<'static, str>>) -> Self {
        self.code = Some(code.into());
        self
    }

    /// The same error with a `retry-after` of so many seconds, at least one.
    #[must_use]
    pub fn with_retry_after(mut self, retry_after_s: u32) -> Self {
        self.retry_after_s = Some(retry_after_s.max(1));
        self
    }

    /// 400: a field has a value that can't be served.
    pub fn invalid(param: impl Into<String>, message: impl Into<String>) -> Self {
        Self::bad("invalid_value", param, message)
    }

    /// 400: a field has the wrong JSON type.
    pub fn invalid_type(param: impl Into<String>, expected: &str, found: &str) -> Self {
        let param = param.into();
        let message = format!("{param} must be {expected}, but is {found}");
        Self::bad("invalid_type", param, message)
    }

    /// 400: the body is no JSON that this server accepts.
    pub fn invalid_json(message: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, INVALID_REQUEST, "invalid_json", message)
    }

    /// 400: a required field is absent.
    pub fn missing(param: impl Into<String>) -> Self {
        let param = param.into();
        let message = format!("you must provide the parameter {param}");
        Self::bad("missing_required_parameter", param, message)
    }

    /// 400: a field asks for something this server doesn't do.
    pub fn unsupported(param: impl Into<String>, why: &str) -> Self {
        let param = param.into();
        let message = format!("{param} is not supported by this server: {why}");
        Self::bad("unsupported_parameter", param, message)
    }

    /// 400: a schema or grammar can't be enforced.
    pub fn invalid_schema(param: impl Into<String>, message: impl Into<String>) -> Self {
        Self::bad("invalid_json_schema", param, message)
    }

    /// 400: prompt and output don't fit the model's context.
    pub fn context_length(
        param: &'static str,
        context: u32,
        prompt_tokens: usize,
        max_tokens: Option<u32>,
    ) -> Self {
        let message = match max_tokens {
            Some(asked) if prompt_tokens < context as usize => format!(
                "this model's maximum context length is {context} tokens, but you requested {} tokens \
                 ({prompt_tokens} in the prompt, {asked} for the completion); ask for fewer completion tokens \
                 or shorten the prompt",
                prompt_tokens as u64 + u64::from(asked)
            ),
            _ => format!(
                "this model's maximum context length is {context} tokens, but your prompt has {prompt_tokens} \
                 tokens and leaves no room for a completion; shorten the prompt"
            ),
        };
        Self::bad("context_length_exceeded", param, message)
    }

    /// 401: no key, or one that is not known.
    pub fn invalid_api_key() -> Self {
        Self::new(
            StatusCode::UNAUTHORIZED,
            INVALID_REQUEST,
            "invalid_api_key",
            "missing or incorrect API key; send it as `Authorization: Bearer KEY`",
        )
    }

    /// 403: the key may not do this.
    pub fn forbidden(code: &'static str, message: impl Into<String>) -> Self {
        Self::new(StatusCode::FORBIDDEN, "permission_error", code, message)
    }

    /// 404: no such model, or none that this key may use.
    pub fn model_not_found(name: &str) -> Self {
        let shown: String = name.chars().take(200).collect();
        Self::new(
            StatusCode::NOT_FOUND,
            INVALID_REQUEST,
            "model_not_found",
            format!("the model {shown:?} does not exist or you do not have access to it; see GET /v1/models"),
        )
        .with_param("model")
    }

    /// 404: no such route.
    pub fn not_found(path: &str) -> Self {
        let shown: String = path.chars().take(200).collect();
        Self::new(StatusCode::NOT_FOUND, INVALID_REQUEST, "not_found", format!("no such route: {shown}"))
    }

    /// 405: the route exists, this verb doesn't.
    pub fn method_not_allowed(method: &str, allowed: &str) -> Self {
        let shown: String = method.chars().take(32).collect();
        let message = format!("method {shown} is not allowed here; use {allowed}");
        Self::new(StatusCode::METHOD_NOT_ALLOWED, INVALID_REQUEST, "method_not_allowed", message)
    }

    /// 413: the body exceeds the limit.
    pub fn too_large(limit_bytes: u64) -> Self {
        let message =
            format!("the request body exceeds the limit of {limit_bytes} bytes; send a smaller one");
        Self::new(StatusCode::PAYLOAD_TOO_LARGE, INVALID_REQUEST, "request_too_large", message)
    }

    /// 415: a content type or content coding that isn't read here.
    pub fn unsupported_media_type(found: &str) -> Self {
        let shown: String = found.chars().take(100).collect();
        Self::new(
            StatusCode::UNSUPPORTED_MEDIA_TYPE,
            INVALID_REQUEST,
            "unsupported_media_type",
            format!("{shown:?} is not supported; send application/json, plain or gzip-coded"),
        )
    }

    /// 503: no room now; come back after so many seconds.
    pub fn overloaded(message: impl Into<String>, retry_after_s: u32) -> Self {
        Self::new(StatusCode::SERVICE_UNAVAILABLE, SERVER_ERROR, "service_unavailable", message)
            .with_retry_after(retry_after_s)
    }

    /// 504: it took longer than allowed.
    pub fn timeout(message: impl Into<String>) -> Self {
        Self::new(StatusCode::GATEWAY_TIMEOUT, SERVER_ERROR, "timeout", message)
    }

    /// 502: the brain failed and the request could not be continued.
    pub fn brain_failed(message: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_GATEWAY, SERVER_ERROR, "upstream_error", message)
    }

    /// 500: a fault of this server. The message must hold nothing that only the log may know.
    pub fn internal(message: impl Into<String>) -> Self {
        Self::new(StatusCode::INTERNAL_SERVER_ERROR, SERVER_ERROR, "internal_error", message)
    }

    /// A brain's refusal of one sequence, with the brain's own words. Which field is to blame is known to the
    /// sequence's [`Origin`](crate::openai::Origin).
    pub fn rejected(reason: RejectReason, message: impl Into<String>) -> Self {
        let message = message.into();
        match reason {
            RejectReason::QueueFull | RejectReason::Draining => {
                Self::overloaded(message, DEFAULT_RETRY_AFTER_S)
            }
            RejectReason::QueueTimeout => Self::timeout(message).with_retry_after(DEFAULT_RETRY_AFTER_S),
            RejectReason::TooLong => Self::bad_request("context_length_exceeded", message),
            RejectReason::BadGrammar => Self::bad_request("invalid_json_schema", message),
            RejectReason::BadParameter => Self::bad_request("invalid_value", message),
        }
    }

    /// The error object's JSON without a line end: `{"error":{…}}`.
    pub fn body(&self) -> Bytes {
        let message = if self.message.is_empty() { "unknown error" } else { self.message.as_str() };
        let body = json!({"error": {
            "message": message,
            "type": self.kind,
            "param": self.param,
            "code": self.code,
        }});
        Bytes::from(body.to_string())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all() -> Vec<ApiError> {
        vec![
            ApiError::missing("messages"),
            ApiError::invalid("seed", "seed must be an integer"),
            ApiError::invalid_api_key(),
            ApiError::model_not_found("no-such-model"),
            ApiError::not_found("/v1/nothing"),
            ApiError::method_not_allowed("PUT", "POST"),
            ApiError::too_large(10),
            ApiError::unsupported_media_type("text/plain"),
            ApiError::overloaded("the queue is full", 2),
            ApiError::timeout("too slow"),
            ApiError::brain_failed("the brain died"),
            ApiError::internal(""),
        ]
    }

    #[test]
    fn c_error_shape_02_every_error_has_all_four_keys_and_a_string_code() {
        for error in all() {
            let body: serde_json::Value = serde_json::from_slice(&error.body()).unwrap();
            let object = body["error"].as_object().unwrap();
            let keys: Vec<_> = object.keys().map(String::as_str).collect();
            assert_eq!(keys, ["message", "type", "param", "code"]);
            assert!(!object["message"].as_str().unwrap().is_empty());
            assert!(object["code"].is_string() || object["code"].is_null());
            assert!(object["param"].is_string() || object["param"].is_null());
        }
    }

    #[test]
    fn c_error_shape_01_an_unknown_model_is_a_404_that_names_the_parameter() {
        let error = ApiError::model_not_found("no-such-model");
        assert_eq!(error.status, StatusCode::NOT_FOUND);
        assert_eq!(error.code.as_deref(), Some("model_not_found"));
        assert_eq!(error.param.as_deref(), Some("model"));
        assert_eq!(error.kind, INVALID_REQUEST);
    }

    #[test]
    fn a_refusal_of_the_brain_maps_to_the_status_of_whose_fault_it_is() {
        let of = |reason| ApiError::rejected(reason, "why").status.as_u16();
        assert_eq!(of(RejectReason::QueueFull), 503);
        assert_eq!(of(RejectReason::Draining), 503);
        assert_eq!(of(RejectReason::QueueTimeout), 504);
        assert_eq!(of(RejectReason::TooLong), 400);
        assert_eq!(of(RejectReason::BadGrammar), 400);
        assert_eq!(of(RejectReason::BadParameter), 400);
        assert_eq!(ApiError::rejected(RejectReason::QueueFull, "why").retry_after_s, Some(1));
    }
}
