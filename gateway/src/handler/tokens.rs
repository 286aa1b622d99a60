//! Tokenizer routes. The rule: same key, same limits and same checks as inference.

use super::{compute, query_value, read_body};
use crate::error::ApiError;
use crate::openai::{self, ServedModel};
use crate::reply_body::{self, Reply};
use crate::stack::Call;
use hyper::body::Incoming;
use serde_json::Value;
use std::sync::Arc;

type Answer = fn(&Value, &ServedModel) -> Result<Value, ApiError>;

pub(super) async fn tokenize(call: &Call<'_>, incoming: &mut Option<Incoming>) -> Result<Reply, ApiError> {
    answer(call, incoming, openai::tokenize).await
}

pub(super) async fn detokenize(call: &Call<'_>, incoming: &mut Option<Incoming>) -> Result<Reply, ApiError> {
    answer(call, incoming, openai::detokenize).await
}

async fn answer(call: &Call<'_>, incoming: &mut Option<Incoming>, answer: Answer) -> Result<Reply, ApiError> {
    let body = read_body(call, incoming).await?;
    let (app, arrival) = (Arc::clone(&call.app), call.arrival.clone());
    let value = compute(&call.app, body.len(), move || {
        let value = openai::json::parse(&body)?;
        let name = openai::model_name(&value)?;
        arrival.set_model(name);
        let model = app.model(name)?;
        answer(&value, &model)
    })
    .await?;
    Ok(reply_body::json(&value))
}

/// `?model=` chooses; without it the first model answers, since probes know no name.
pub(super) fn info(call: &Call<'_>) -> Result<Reply, ApiError> {
    let model = match query_value(&call.query, "model") {
        Some(name) => call.app.model(&name)?,
        None => {
            let first = call.app.config.models.first().map_or("", |model| &model.name);
            call.app.model(first)?
        }
    };
    Ok(reply_body::json(&openai::tokenizer_info(&model)))
}
