//! Keys and the ledger, for the command line of this machine. The rule: the text of a key leaves the process
//! once, in the answer that created it.

use super::{query_value, read_body};
use crate::error::ApiError;
use crate::openai::{self, fields::Fields};
use crate::reply_body::{self, Reply};
use crate::stack::Call;
use crate::store::{LedgerFilter, MAX_LISTED, Store, StoreError};
use http::StatusCode;
use hyper::body::Incoming;
use serde_json::json;

impl From<StoreError> for ApiError {
    fn from(error: StoreError) -> Self {
        match &error {
            StoreError::BadTenantName { .. } => Self::invalid("tenant", error.to_string()),
            StoreError::NoSuchKey { .. } => {
                let mut refusal = Self::invalid("id", error.to_string()).with_code("not_found");
                refusal.status = StatusCode::NOT_FOUND;
                refusal
            }
            _ => Self::internal(error.to_string()),
        }
    }
}

/// Reads go to the disk, so they run where waiting harms nobody.
async fn reading<T: Send + 'static>(
    call: &Call<'_>,
    read: impl FnOnce(&Store) -> Result<T, StoreError> + Send + 'static,
) -> Result<T, ApiError> {
    let store = call.app.store.clone();
    match tokio::task::spawn_blocking(move || read(&store)).await {
        Ok(result) => Ok(result?),
        Err(_) => Err(ApiError::internal("the state could not be read")),
    }
}

pub(super) async fn list_keys(call: &Call<'_>) -> Result<Reply, ApiError> {
    let keys = reading(call, Store::list_keys).await?;
    Ok(reply_body::json(&json!({"data": keys})))
}

pub(super) async fn create_key(call: &Call<'_>, incoming: &mut Option<Incoming>) -> Result<Reply, ApiError> {
    let body = read_body(call, incoming).await?;
    let value = openai::json::parse(&body)?;
    let tenant = Fields::top(&value)?.string("tenant")?.ok_or_else(|| ApiError::missing("tenant"))?;
    let key = call.app.store.create_key(tenant).await?;
    Ok(reply_body::json(&key))
}

pub(super) async fn revoke_key(call: &Call<'_>) -> Result<Reply, ApiError> {
    let info = call.app.store.revoke_key(&call.rest).await?;
    Ok(reply_body::json(&info))
}

pub(super) async fn ledger_list(call: &Call<'_>) -> Result<Reply, ApiError> {
    let filter = filter(&call.query)?;
    let records = reading(call, move |store| store.ledger_list(&filter)).await?;
    Ok(reply_body::json(&json!({"data": records})))
}

pub(super) async fn ledger_sum(call: &Call<'_>) -> Result<Reply, ApiError> {
    let filter = filter(&call.query)?;
    let sums = reading(call, move |store| store.ledger_sum(&filter)).await?;
    Ok(reply_body::json(&json!({"data": sums})))
}

fn filter(query: &str) -> Result<LedgerFilter, ApiError> {
    let number = |name: &str| match query_value(query, name) {
        None => Ok(None),
        Some(text) => text
            .parse::<u64>()
            .map(Some)
            .map_err(|_| ApiError::invalid(name, format!("{name} is {text:?}; it must be a whole number"))),
    };
    Ok(LedgerFilter {
        tenant: query_value(query, "tenant"),
        model: query_value(query, "model"),
        since_ms: number("since_ms")?,
        limit: number("limit")?.map_or(100, |limit| usize::try_from(limit).unwrap_or(MAX_LISTED)),
    })
}
