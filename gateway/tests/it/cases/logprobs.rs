//! Log probabilities: their two shapes, and that neither mode loses any.

use serde_json::{Value, json};

use super::harness::{CHAT, COMPLETIONS, Stack, chat, completion};
use super::reading::Reading;
use super::scripted::Script;

/// Arrays of one length, each with one entry a token.
#[track_caller]
fn check_legacy(logprobs: &Value, entries: usize) {
    let keys = logprobs.as_object().unwrap_or_else(|| panic!("{logprobs} is no object"));
    assert!(!keys.contains_key("content"), "{logprobs}");
    for key in ["tokens", "token_logprobs", "top_logprobs", "text_offset"] {
        let list = logprobs[key].as_array().unwrap_or_else(|| panic!("{key} in {logprobs}"));
        assert_eq!(list.len(), entries, "{key} in {logprobs}");
    }
}

/// Every number of a JSON text, however deep, is one that JSON has and is no lower than the floor.
#[track_caller]
pub(super) fn check_finite(logprobs: &Value) {
    match logprobs {
        Value::Number(number) => assert!(number.as_f64().is_some_and(|value| value >= -9999.0), "{number}"),
        Value::Array(values) => values.iter().for_each(check_finite),
        Value::Object(fields) => fields.values().for_each(check_finite),
        _ => {}
    }
}

#[tokio::test]
async fn c_logprobs_01_completions_keeps_the_legacy_shape() {
    let stack = Stack::start().await;
    let fields = json!({"logprobs": 3, "max_tokens": 4, "temperature": 0});
    let reading = stack.agree(COMPLETIONS, &completion(fields)).await;
    check_legacy(&reading.only().logprobs, 4);
    let mut seen = 0;
    for frame in &reading.frames {
        let logprobs = &frame["choices"][0]["logprobs"];
        if frame["choices"][0]["text"].as_str().is_some_and(|text| !text.is_empty()) {
            let entries = logprobs["tokens"].as_array().expect("each chunk carries its tokens").len();
            check_legacy(logprobs, entries);
            seen += entries;
        }
    }
    assert!(seen >= 3, "{seen}");
    let first = &reading.only().logprobs["top_logprobs"][0];
    assert!(first.as_object().is_some_and(|top| (3..=4).contains(&top.len())), "{first}");
    assert_eq!(reading.only().logprobs["text_offset"][1], 5);
}

#[tokio::test]
async fn c_logprobs_02_zero_alternatives_is_not_off() {
    let stack = Stack::start().await;
    for fields in [json!({"logprobs": true, "top_logprobs": 0}), json!({"logprobs": true})] {
        let reading = stack.agree(CHAT, &chat(fields)).await;
        let entries = reading.only().logprobs.as_array().unwrap();
        // One entry a token; whether the end token has one is the same in both modes.
        assert!((3..=4).contains(&entries.len()), "{entries:?}");
        for entry in entries {
            assert!(entry["logprob"].is_f64(), "{entry}");
            assert_eq!(entry["top_logprobs"], json!([]));
        }
    }
    let reading = stack.agree(COMPLETIONS, &completion(json!({"logprobs": 0}))).await;
    let values = reading.only().logprobs["token_logprobs"].as_array().unwrap();
    assert!(values.len() >= 3 && values.iter().all(Value::is_f64), "{values:?}");
}

#[tokio::test]
async fn c_logprobs_03_streamed_equal_unstreamed() {
    let stack = Stack::start().await;
    for (script, text) in [
        (Script::default(), "Hello, world."),
        (Script::burst(&["早上好", " 🚀", "ñ", "ok"]), "早上好 🚀ñok"),
        (Script::hex(&["6869", "f0", "9f", "9a", "80", "21"]), "hi🚀!"),
    ] {
        stack.brain.always(script);
        for stop in [json!(null), json!(["rx", "!?"])] {
            let fields = json!({"logprobs": true, "top_logprobs": 2, "max_tokens": 8, "temperature": 0, "seed": 7, "stop": stop});
            let reading = stack.agree(CHAT, &chat(fields)).await;
            assert_eq!(reading.only().text, text);
            let entries = reading.only().logprobs.as_array().unwrap();
            let bytes: Vec<u8> = entries
                .iter()
                .flat_map(|entry| entry["bytes"].as_array().expect("bytes are told"))
                .map(|byte| u8::try_from(byte.as_u64().unwrap()).unwrap())
                .collect();
            assert!(String::from_utf8_lossy(&bytes).starts_with(text), "{bytes:?}");
            entries.iter().for_each(|entry| assert!(entry["token"].is_string(), "{entry}"));
        }
    }
}

#[tokio::test]
async fn c_logprobs_04_echoed_prompt_for_likelihood_scoring() {
    let stack = Stack::start().await;
    let prompt = "The capital of France is Paris";
    let fields = json!({"prompt": prompt, "echo": true, "max_tokens": 1, "logprobs": 1, "temperature": 0, "seed": 1234});
    let reading = stack.agree(COMPLETIONS, &completion(fields)).await;
    let logprobs = &reading.only().logprobs;
    check_legacy(logprobs, stack.brain.last_submit().prompt.len() + 1);
    assert!(logprobs["token_logprobs"][0].is_null() && logprobs["top_logprobs"][0].is_null());
    assert!(reading.only().text.starts_with(prompt));
    let tokens = logprobs["tokens"].as_array().unwrap();
    let mut offset = 0;
    for (at, token) in tokens.iter().enumerate() {
        let token = token.as_str().unwrap();
        assert_eq!(logprobs["text_offset"][at], offset);
        offset += token.chars().count();
        if at > 0 {
            assert_eq!(logprobs["top_logprobs"][at][token], logprobs["token_logprobs"][at], "{token}");
        }
    }
}

/// The scripted brain makes everything but the chosen token impossible; the grammar of the case is in the tests
/// of the real one.
#[tokio::test]
async fn c_logprobs_05_minus_infinity_in_alternatives() {
    let stack = Stack::start().await;
    let fields =
        json!({"prompt": "seven green bottles", "echo": true, "logprobs": 5, "temperature": 1, "top_k": 1});
    let reading = stack.agree(COMPLETIONS, &completion(fields)).await;
    check_finite(&reading.only().logprobs);
    let reading = stack.agree(CHAT, &chat(json!({"logprobs": true, "top_logprobs": 20}))).await;
    check_finite(&reading.only().logprobs);
    assert_eq!(reading.only().logprobs[0]["top_logprobs"].as_array().unwrap().len(), 20);
    assert_eq!(Reading::of(&stack.chat(json!({})).await).only().logprobs, Value::Null);
}
