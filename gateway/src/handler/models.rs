//! The models. The rule: only models that can answer are listed.

use crate::error::ApiError;
use crate::openai;
use crate::reply_body::{self, Reply};
use crate::stack::Call;

pub(super) fn list(call: &Call<'_>) -> Reply {
    reply_body::json(&openai::models_list(&call.app.pool().models()))
}

pub(super) fn one(call: &Call<'_>) -> Result<Reply, ApiError> {
    let model = call.app.pool().find(&call.rest).ok_or_else(|| ApiError::model_not_found(&call.rest))?;
    Ok(reply_body::json(&openai::model_object(&model)))
}
