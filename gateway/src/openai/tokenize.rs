//! `/tokenize`, `/detokenize` and `/tokenizer_info`.
//!
//! The rule: the same ids, limits and vocabulary checks as for inference.

use serde_json::{Value, json};

use super::chat::ids_of_messages;
use super::completion::ids_of_text;
use super::fields::Fields;
use super::sampling::token_ids;
use super::served::ServedModel;
use crate::error::ApiError;

/// Most ids of one request.
const MAX_IDS: usize = 1 << 20;

/// Answers `{model, prompt | messages, add_special_tokens, return_token_strs}`.
///
/// # Errors
/// A 400 that names what is wrong.
pub fn tokenize(body: &Value, model: &ServedModel) -> Result<Value, ApiError> {
    let fields = Fields::top(body)?;
    let ids = match (fields.string("prompt")?, fields.get("messages")) {
        (Some(_), Some(_)) => {
            let message = "prompt and messages can't be used together; send one of them";
            return Err(ApiError::invalid("messages", message));
        }
        (Some(text), None) => {
            let add_special = fields.bool("add_special_tokens")?.unwrap_or(true);
            // Unlike a prompt that runs, no text may be no tokens here.
            match add_special && model.tokenizer.add_bos() {
                true => ids_of_text(model, text, true),
                false => model.tokenizer.encode(text),
            }
        }
        (None, Some(_)) => ids_of_messages(&fields, model)?,
        (None, None) => return Err(ApiError::missing("prompt")),
    };
    let mut reply = json!({"count": ids.len(), "max_model_len": model.context_tokens, "tokens": ids});
    if fields.bool("return_token_strs")?.unwrap_or(false) {
        let text = |id: &u32| model.tokenizer.token_text(*id).unwrap_or_default().to_owned();
        reply["token_strs"] = ids.iter().map(text).collect::<Vec<_>>().into();
    } else {
        reply["token_strs"] = Value::Null;
    }
    Ok(reply)
}

/// Answers `{model, tokens}`.
///
/// # Errors
/// A 400 that names what is wrong.
pub fn detokenize(body: &Value, model: &ServedModel) -> Result<Value, ApiError> {
    let fields = Fields::top(body)?;
    if fields.get("tokens").is_none() {
        return Err(ApiError::missing("tokens"));
    }
    let ids = token_ids(&fields, "tokens", model, MAX_IDS)?;
    Ok(json!({"prompt": model.tokenizer.decode(&ids, false)}))
}

/// What evaluation harnesses ask of a remote tokenizer.
pub fn tokenizer_info(model: &ServedModel) -> Value {
    let text = |id: Option<u32>| id.and_then(|id| model.tokenizer.token_text(id));
    let eos = model.eos.first().copied().or(model.tokenizer.eos());
    json!({
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": text(model.tokenizer.bos()),
        "eos_token": text(eos),
        "pad_token": null,
        "add_bos_token": model.tokenizer.add_bos(),
        "model_max_length": model.context_tokens,
        "vocab_size": model.vocab_size,
        "chat_template": model.template.source(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::openai::testing::Rig;
    use pons_checkpoint::chat_template::CHATML;

    #[test]
    fn c_prompt_and_context_04_an_empty_text_is_no_tokens_or_bos_alone() {
        let plain = tokenize(&json!({"prompt": ""}), &Rig::plain().model).unwrap();
        assert_eq!((&plain["count"], &plain["tokens"]), (&json!(0), &json!([])));
        let rig = Rig::new(&[], CHATML, true);
        assert_eq!(tokenize(&json!({"prompt": ""}), &rig.model).unwrap()["tokens"], json!([rig.bos]));
        let bare = tokenize(&json!({"prompt": "hi", "add_special_tokens": false}), &rig.model).unwrap();
        assert_eq!(bare["tokens"], json!([104, 105]));
    }

    #[test]
    fn messages_are_tokenized_as_a_chat_would_be() {
        let rig = Rig::plain();
        let body = json!({"messages": [{"role": "user", "content": "hi"}], "return_token_strs": true});
        let reply = tokenize(&body, &rig.model).unwrap();
        assert_eq!(reply["tokens"], json!(rig.chat(&body).unwrap().sequences[0].prompt.to_vec()));
        assert_eq!(reply["token_strs"][0], "<|im_start|>");
        assert_eq!(reply["max_model_len"], 4096);
        for (body, param) in [
            (json!({}), "prompt"),
            (json!({"prompt": 5}), "prompt"),
            (json!({"prompt": "a", "messages": []}), "messages"),
        ] {
            assert_eq!(tokenize(&body, &rig.model).unwrap_err().param.as_deref(), Some(param));
        }
    }

    #[test]
    fn ids_read_back_as_text_and_unknown_ones_are_refused() {
        let rig = Rig::plain();
        let reply = detokenize(&json!({"tokens": [104, 105, 258]}), &rig.model).unwrap();
        assert_eq!(reply, json!({"prompt": "hi<|im_end|>"}));
        for (body, param) in [
            (json!({}), "tokens"),
            (json!({"tokens": "x"}), "tokens"),
            (json!({"tokens": [1, 99_999]}), "tokens[1]"),
            (json!({"tokens": [-1]}), "tokens[0]"),
        ] {
            assert_eq!(detokenize(&body, &rig.model).unwrap_err().param.as_deref(), Some(param));
        }
        assert_eq!(tokenizer_info(&rig.model)["eos_token"], "<|im_end|>");
    }
}
