//! Embeddings. The rule: no served model has an embedding head, and the answer says so instead of inventing
//! vectors from hidden states.

use super::{compute, read_body};
use crate::error::ApiError;
use crate::openai;
use crate::reply_body::Reply;
use crate::stack::Call;
use hyper::body::Incoming;
use serde_json::Value;
use std::sync::Arc;

/// Most inputs of one request.
const MAX_INPUTS: usize = 2048;

pub(super) async fn handle(call: &Call<'_>, incoming: &mut Option<Incoming>) -> Result<Reply, ApiError> {
    let body = read_body(call, incoming).await?;
    let (app, arrival) = (Arc::clone(&call.app), call.arrival.clone());
    compute(&call.app, body.len(), move || {
        let value = openai::json::parse(&body)?;
        let name = openai::model_name(&value)?;
        arrival.set_model(name);
        app.model(name)?;
        check_input(value.get("input").unwrap_or(&Value::Null))?;
        let message = format!("the model '{name}' generates text and does not serve embeddings");
        Err(ApiError::invalid("model", message).with_code("unsupported_model"))
    })
    .await
}

fn check_input(input: &Value) -> Result<(), ApiError> {
    let empty = |value: &Value| match value {
        Value::String(text) => text.is_empty(),
        Value::Array(items) => items.is_empty(),
        _ => false,
    };
    match input {
        Value::Null => Err(ApiError::missing("input")),
        value if empty(value) => Err(ApiError::invalid("input", "input must not be empty")),
        Value::Array(items) if items.len() > MAX_INPUTS => Err(ApiError::invalid(
            "input",
            format!("input has {} items; send at most {MAX_INPUTS}", items.len()),
        )),
        Value::Array(items) => match items.iter().position(empty) {
            Some(at) => Err(ApiError::invalid(format!("input[{at}]"), "an input must not be empty")),
            None => Ok(()),
        },
        Value::String(_) => Ok(()),
        _ => Err(ApiError::invalid(
            "input",
            "input must be a string, a list of strings or a list of token ids",
        )),
    }
}
