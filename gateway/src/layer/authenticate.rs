//! Who is asking. The rule: access comes from the route table; on loopback, while no key was ever made, everybody
//! is the default tenant (SDKs can't send no key, so whatever they send counts as none); otherwise a missing or
//! wrong key is a 401 everywhere.

use crate::app::App;
use crate::error::ApiError;
use crate::routes::Access;
use crate::store::Caller;
use http::{HeaderMap, header};
use std::net::SocketAddr;
use std::sync::Arc;

/// The caller of a route with this access; `None` on routes that have none.
pub fn authenticate(
    app: &App,
    access: Access,
    peer: SocketAddr,
    headers: &HeaderMap,
) -> Result<Option<Arc<Caller>>, ApiError> {
    match access {
        Access::Public => Ok(None),
        Access::Tenant => tenant(app, headers).map(Some),
        Access::Operator if is_local(peer, headers) => Ok(None),
        Access::Operator => admin(app, headers),
        Access::Admin if is_local(peer, headers) => admin(app, headers),
        Access::Admin => Err(ApiError::invalid_api_key()),
    }
}

fn tenant(app: &App, headers: &HeaderMap) -> Result<Arc<Caller>, ApiError> {
    let keys = app.keys();
    if app.config.listen.ip().is_loopback() && !keys.ever_created() {
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
