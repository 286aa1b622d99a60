//! The model list, and the name a request asks for.
//!
//! The rule: a missing name is a 400, an unknown one is the router's 404.

use std::sync::Arc;

use serde_json::{Value, json};

use super::fields::Fields;
use super::served::ServedModel;
use crate::error::ApiError;

/// The `model` of a body.
///
/// # Errors
/// 400 if the body is no object, or the name is absent, empty or no string.
pub fn model_name(body: &Value) -> Result<&str, ApiError> {
    let fields = Fields::top(body)?;
    fields.string("model")?.filter(|name| !name.is_empty()).ok_or_else(|| ApiError::missing("model"))
}

/// One model as `GET /v1/models/{id}` shows it.
pub fn model_object(model: &ServedModel) -> Value {
    json!({
        "id": model.name,
        "object": "model",
        "created": model.created,
        "owned_by": "pons",
        "root": model.name,
        "parent": null,
        "max_model_len": model.context_tokens,
        "permission": [],
    })
}

/// The answer of `GET /v1/models`.
pub fn models_list(models: &[Arc<ServedModel>]) -> Value {
    let data: Vec<Value> = models.iter().map(|model| model_object(model)).collect();
    json!({"object": "list", "data": data})
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn c_error_shape_03_a_missing_model_is_a_400_that_names_it() {
        for body in [json!({"messages": []}), json!({"model": null}), json!({"model": ""})] {
            let error = model_name(&body).unwrap_err();
            assert_eq!(error.status.as_u16(), 400);
            assert_eq!(error.param.as_deref(), Some("model"));
            assert_eq!(error.code.as_deref(), Some("missing_required_parameter"));
        }
        assert_eq!(model_name(&json!({"model": 7})).unwrap_err().code.as_deref(), Some("invalid_type"));
        assert_eq!(model_name(&json!({"model": "org/model:13b"})).unwrap(), "org/model:13b");
        assert_eq!(model_name(&json!([])).unwrap_err().status.as_u16(), 400);
    }

    #[test]
    fn c_http_surface_02_a_name_with_slash_and_colon_is_listed_as_it_is() {
        let mut rig = crate::openai::testing::Rig::plain();
        Arc::get_mut(&mut rig.model).unwrap().name = "org/model:13b".to_owned();
        let list = models_list(&[rig.model.clone()]);
        assert_eq!(list["object"], "list");
        assert_eq!(list["data"][0], model_object(&rig.model));
        assert_eq!(list["data"][0]["id"], "org/model:13b");
        assert_eq!(list["data"][0]["object"], "model");
        assert!(list["data"][0]["created"].is_u64() && list["data"][0]["owned_by"].is_string());
    }
}
