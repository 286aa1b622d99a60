//! Who is asking. The rule: access comes from the route table; on loopback, while no key was ever made, everybody
//! is the default tenant (SDKs can't send no key, so whatever they send counts as none); otherwise a missing or
//! wrong key is a 401 everywhere. Where no key is asked for, only what this machine made itself gets in: a page
//! from elsewhere that a browser on this machine shows is a stranger.

use crate::app::App;
use crate::error::ApiError;
use crate::routes::Access;
use crate::store::Caller;
use http::uri::Authority;
use http::{HeaderMap, Uri, header};
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

/// The caller of a route with this access; `None` on routes that have none.
pub fn authenticate(
    app: &App,
    access: Access,
    peer: SocketAddr,
    uri: &Uri,
    headers: &HeaderMap,
) -> Result<Option<Arc<Caller>>, ApiError> {
    match access {
        Access::Public => Ok(None),
        Access::Tenant => tenant(app, uri, headers).map(Some),
        Access::Operator if is_local(peer, headers) => refuse_strange_pages(app, uri, headers).map(|()| None),
        Access::Operator => admin(app, headers),
        Access::Admin if is_local(peer, headers) => admin(app, headers),
        Access::Admin => Err(ApiError::invalid_api_key()),
    }
}

fn tenant(app: &App, uri: &Uri, headers: &HeaderMap) -> Result<Arc<Caller>, ApiError> {
    let keys = app.keys();
    if app.config.listen.ip().is_loopback() && !keys.ever_created() {
        refuse_strange_pages(app, uri, headers)?;
        return Ok(keys.anonymous());
    }
    bearer(headers)?.and_then(|key| keys.find(key)).ok_or_else(ApiError::invalid_api_key)
}

fn admin(app: &App, headers: &HeaderMap) -> Result<Option<Arc<Caller>>, ApiError> {
    match bearer(headers)? {
        Some(token) if app.is_admin_token(token) => Ok(None),
        _ => Err(ApiError::invalid_api_key()),
    }
}

/// The key of the one `Authorization` header. Several headers, or another scheme, are a wrong key.
fn bearer(headers: &HeaderMap) -> Result<Option<&str>, ApiError> {
    let mut values = headers.get_all(header::AUTHORIZATION).iter();
    let Some(value) = values.next() else { return Ok(None) };
    if values.next().is_some() {
        return Err(ApiError::invalid_api_key());
    }
    let text = value.to_str().map_err(|_| ApiError::invalid_api_key())?;
    let (scheme, key) = text.split_once(' ').ok_or_else(ApiError::invalid_api_key)?;
    let key = key.trim();
    if !scheme.eq_ignore_ascii_case("bearer") || key.is_empty() {
        return Err(ApiError::invalid_api_key());
    }
    Ok(Some(key))
}

/// Whether the request was made on this machine. One that a proxy passed on was not, wherever the proxy runs.
fn is_local(peer: SocketAddr, headers: &HeaderMap) -> bool {
    let forwarded = ["forwarded", "x-forwarded-for", "x-real-ip", "via"];
    peer.ip().to_canonical().is_loopback() && !forwarded.iter().any(|name| headers.contains_key(*name))
}

/// Without a key, a request must name this machine, and a page that sends it must come from this machine. The
/// name is what a rebound DNS entry can't forge, the origin what a page can't.
fn refuse_strange_pages(app: &App, uri: &Uri, headers: &HeaderMap) -> Result<(), ApiError> {
    let listen = app.config.listen.ip();
    let named = headers.get_all(header::HOST).iter().map(|value| value.to_str().ok());
    for name in named.chain(uri.authority().map(|authority| Some(authority.as_str()))) {
        if !name.is_some_and(|name| is_this_machine(name, listen)) {
            return Err(stranger("Host", name.unwrap_or("unreadable")));
        }
    }
    for origin in headers.get_all(header::ORIGIN) {
        let origin = origin.to_str().unwrap_or("unreadable");
        let local = match origin.split_once("://") {
            Some(("http" | "https", host)) => is_this_machine(host, listen),
            // An application's own scheme is none that a page from the web can have.
            Some(_) => true,
            None => false,
        };
        if !local {
            return Err(stranger("Origin", origin));
        }
    }
    Ok(())
}

fn is_this_machine(authority: &str, listen: IpAddr) -> bool {
    let Ok(authority) = authority.parse::<Authority>() else { return false };
    let host = authority.host();
    let bare = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host);
    host.eq_ignore_ascii_case("localhost")
        || bare.parse::<IpAddr>().is_ok_and(|ip| ip.to_canonical().is_loopback() || ip == listen)
}

fn stranger(header: &str, value: &str) -> ApiError {
    let shown: String = value.chars().take(100).collect();
    ApiError::forbidden(
        "key_required",
        format!(
            "{header} is {shown:?}, and without a key only requests to and from this machine are answered; \
             make a key with `pons key create`, or send the request to localhost"
        ),
    )
}
