//! What the routes do. The rule: a handler gets a request that passed every check, and turns whatever goes
//! wrong into an [`ApiError`].

mod admin;
mod embeddings;
mod generate;
mod models;
mod operations;
pub(crate) use operations::is_ready;
mod tokens;

use crate::app::App;
use crate::error::ApiError;
use crate::layer::body;
use crate::reply_body::Reply;
use crate::routes::Endpoint;
use crate::stack::Call;
use bytes::Bytes;
use hyper::body::Incoming;
use std::sync::Arc;

/// Bodies above this size are parsed and tokenized off the network's threads.
const INLINE_BODY_BYTES: usize = 8 << 10;

pub(crate) async fn handle(call: Call<'_>, incoming: &mut Option<Incoming>) -> Result<Reply, ApiError> {
    match call.route.endpoint {
        Endpoint::Chat | Endpoint::Completions => generate::handle(call, incoming).await,
        Endpoint::Embeddings => embeddings::handle(&call, incoming).await,
        Endpoint::Models => Ok(models::list(&call)),
        Endpoint::Model => models::one(&call),
        Endpoint::Tokenize => tokens::tokenize(&call, incoming).await,
        Endpoint::Detokenize => tokens::detokenize(&call, incoming).await,
        Endpoint::TokenizerInfo => tokens::info(&call),
        Endpoint::Health => Ok(operations::health()),
        Endpoint::Ready => Ok(operations::ready(&call.app)),
        Endpoint::Ping => Ok(operations::ping()),
        Endpoint::Version => Ok(operations::version()),
        Endpoint::Metrics => Ok(operations::metrics(&call.app)),
        Endpoint::AdminKeys => admin::list_keys(&call).await,
        Endpoint::AdminKeyCreate => admin::create_key(&call, incoming).await,
        Endpoint::AdminKey => admin::revoke_key(&call).await,
        Endpoint::AdminLedger => admin::ledger_list(&call).await,
        Endpoint::AdminLedgerSum => admin::ledger_sum(&call).await,
    }
}

/// Reads the body within the limits of size, time and memory.
async fn read_body(call: &Call<'_>, incoming: &mut Option<Incoming>) -> Result<Bytes, ApiError> {
    body::read(&call.app, call.headers, incoming).await
}

/// Runs work whose time grows with the body: small ones here, large ones on a bounded number of other threads,
/// so that neither a health check nor a stream waits behind somebody's long prompt.
async fn compute<T: Send + 'static>(
    app: &Arc<App>,
    body_bytes: usize,
    work: impl FnOnce() -> Result<T, ApiError> + Send + 'static,
) -> Result<T, ApiError> {
    if body_bytes <= INLINE_BODY_BYTES {
        return work();
    }
    let permit = Arc::clone(&app.compute).acquire_owned().await;
    let joined = tokio::task::spawn_blocking(move || {
        let _permit = permit;
        work()
    });
    joined.await.unwrap_or_else(|_| Err(ApiError::internal("the request could not be prepared")))
}

/// One value of the query; `+` and escapes are decoded.
fn query_value(query: &str, name: &str) -> Option<String> {
    form_pairs(query).find(|(key, _)| key == name).map(|(_, value)| value)
}

fn form_pairs(query: &str) -> impl Iterator<Item = (String, String)> + '_ {
    query.split('&').filter(|pair| !pair.is_empty()).map(|pair| {
        let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
        (decoded(key), decoded(value))
    })
}

fn decoded(text: &str) -> String {
    let text = text.replace('+', " ");
    crate::routes::percent_decoded(&text).unwrap_or(text)
}
