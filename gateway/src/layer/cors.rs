//! Cross-origin headers. The rule: they are on every answer, errors too, and no cookie is ever involved, so any
//! origin may read what its key may read. The routes of the operator and of the admin have none: no page has
//! any business there.

use crate::reply_body::{self, Reply};
use crate::routes::Access;
use http::{HeaderMap, HeaderName, HeaderValue, StatusCode, header};

/// Longest list of asked-for headers that is granted as it is.
const MAX_ASKED_BYTES: usize = 2048;

const EXPOSED: &str = "x-request-id, retry-after, retry-after-ms, x-should-retry, openai-processing-ms, \
     openai-version, x-ratelimit-limit-requests, x-ratelimit-limit-tokens, x-ratelimit-remaining-requests, \
     x-ratelimit-remaining-tokens, x-ratelimit-reset-requests, x-ratelimit-reset-tokens";

const ALLOWED: &str = "authorization, content-type, openai-organization, openai-project, x-request-id, \
     traceparent, x-stainless-arch, x-stainless-lang, x-stainless-os, \
     x-stainless-package-version, x-stainless-retry-count, x-stainless-runtime, x-stainless-runtime-version, \
     x-stainless-timeout, x-stainless-read-timeout, x-stainless-async, x-stainless-helper-method";

/// Whether pages of any origin may read the answers of a path; `None` is a path that leads nowhere.
pub fn is_shared(access: Option<Access>) -> bool {
    !matches!(access, Some(Access::Operator | Access::Admin))
}

/// The answer to `OPTIONS`, on every path. Without the headers of [`expose`] it grants nothing.
pub fn preflight(headers: &HeaderMap) -> Reply {
    let mut reply = reply_body::empty(StatusCode::NO_CONTENT);
    let asked = headers.get(header::ACCESS_CONTROL_REQUEST_HEADERS);
    let allowed = asked
        .filter(|value| value.len() <= MAX_ASKED_BYTES && value.to_str().is_ok_and(is_name_list))
        .cloned()
        .unwrap_or_else(|| HeaderValue::from_static(ALLOWED));
    let out = reply.headers_mut();
    out.insert(header::ACCESS_CONTROL_ALLOW_HEADERS, allowed);
    out.insert(
        header::ACCESS_CONTROL_ALLOW_METHODS,
        HeaderValue::from_static("GET, HEAD, POST, DELETE, OPTIONS"),
    );
    out.insert(header::ACCESS_CONTROL_MAX_AGE, HeaderValue::from_static("600"));
    out.insert(header::VARY, HeaderValue::from_static("access-control-request-headers"));
    reply
}

/// The headers of every answer to a page.
pub fn expose(headers: &mut HeaderMap) {
    headers.insert(header::ACCESS_CONTROL_ALLOW_ORIGIN, HeaderValue::from_static("*"));
    headers.insert(header::ACCESS_CONTROL_EXPOSE_HEADERS, HeaderValue::from_static(EXPOSED));
}

fn is_name_list(text: &str) -> bool {
    text.split(',').all(|name| HeaderName::try_from(name.trim()).is_ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_header_is_offered_that_nothing_here_reads() {
        let reply = preflight(&HeaderMap::new());
        let allowed = reply.headers()[header::ACCESS_CONTROL_ALLOW_HEADERS].to_str().unwrap();
        assert!(allowed.contains("authorization") && !allowed.contains("idempotency-key"), "{allowed}");
    }
}
