//! The tiny model's tokenizer and template, held against the libraries that would read a real one.

use pons_checkpoint::fixture::{ADDED_TOKENS, CHAT_TEMPLATE, write_tiny_llama};
use serde_json::{Value, json};
use tokenizers::Tokenizer;

const PIECES: [&str; 3] = ["{\"name\": ", "naïve ", "ll"];

fn tokenizer() -> (Tokenizer, Vec<u32>) {
    let dir = tempfile::tempdir().unwrap();
    let written = write_tiny_llama(dir.path(), 1, &PIECES).unwrap();
    let tokenizer = Tokenizer::from_file(dir.path().join("tokenizer.json")).unwrap();
    assert_eq!(tokenizer.get_vocab_size(true), written.config.vocab_size);
    (tokenizer, written.piece_ids)
}

#[test]
fn ids_below_256_are_bytes_and_merges_follow() {
    let (tokenizer, _) = tokenizer();
    let ids = |text: &str| tokenizer.encode_fast(text, false).unwrap().get_ids().to_vec();
    assert_eq!(ids("xyz"), [120, 121, 122]);
    assert_eq!(ids("\n\u{e9}"), [10, 0xc3, 0xa9]);
    assert_eq!(ids(" the"), [259]);
    assert_eq!(ids(" in"), [32, 258]);
    assert_eq!(ids("all"), [97, 263]);
}

#[test]
fn any_text_survives_encoding_and_decoding() {
    let (tokenizer, _) = tokenizer();
    for text in ["", "plain the words all in", "naïve {\"name\": 1}", "日本語 🦀\u{0}\r\n\t end  "] {
        let ids = tokenizer.encode_fast(text, false).unwrap().get_ids().to_vec();
        assert_eq!(tokenizer.decode(&ids, false).unwrap(), text);
    }
}

#[test]
fn pieces_are_decoded_but_never_encoded() {
    let (tokenizer, pieces) = tokenizer();
    // The last piece equals the result of a merge and has its id.
    assert_eq!(pieces, [264, 265, 263]);
    for (piece, id) in PIECES.iter().zip(&pieces).take(2) {
        assert_eq!(tokenizer.decode(&[*id], false).unwrap(), *piece);
        assert!(!tokenizer.encode_fast(*piece, false).unwrap().get_ids().contains(id));
    }
}

#[test]
fn added_tokens_have_the_last_ids() {
    let (tokenizer, _) = tokenizer();
    for (n, token) in ADDED_TOKENS.iter().enumerate() {
        let ids = tokenizer.encode_fast(*token, false).unwrap().get_ids().to_vec();
        assert_eq!(ids, [266 + n as u32], "{token}");
    }
}

fn to_template(json: &Value) -> minijinja::Value {
    match json {
        Value::Null => ().into(),
        Value::Bool(b) => (*b).into(),
        Value::Number(n) => n.as_i64().unwrap().into(),
        Value::String(s) => s.as_str().into(),
        Value::Array(items) => items.iter().map(to_template).collect::<Vec<_>>().into(),
        Value::Object(map) => {
            minijinja::Value::from_pairs(map.iter().map(|(key, value)| (key.as_str(), to_template(value))))
        }
    }
}

fn render(input: &Value) -> String {
    let mut environment = minijinja::Environment::new();
    environment.set_unknown_method_callback(minijinja_contrib::pycompat::unknown_method_callback);
    environment.render_str(CHAT_TEMPLATE, to_template(input)).unwrap()
}

#[test]
fn a_plain_chat_is_rendered_as_chatml() {
    let messages = json!([{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"}]);
    let want =
        "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n";
    assert_eq!(render(&json!({ "messages": messages, "add_generation_prompt": true })), want);
    let silent =
        render(&json!({ "messages": messages, "add_generation_prompt": true, "enable_thinking": false }));
    assert_eq!(silent, format!("{want}<think>\n\n</think>\n\n"));
    assert!(!render(&json!({ "messages": messages })).contains("assistant"));
}

#[test]
fn tools_their_calls_and_their_results_are_rendered() {
    let tool = json!({"type": "function", "function": {"name": "add"}});
    let call =
        |arguments: Value| json!({"type": "function", "function": {"name": "add", "arguments": arguments}});
    let messages = json!([
        {"role": "user", "content": "1+2 and 3+4?"},
        {"role": "assistant", "content": null, "tool_calls": [call(json!({"a": 1})), call(json!("{\"a\": 3}"))]},
        {"role": "tool", "content": "3"},
        {"role": "tool", "content": "7"},
    ]);
    let text = render(&json!({ "messages": messages, "tools": [tool], "add_generation_prompt": true }));
    let (system, rest) = text.split_once("<|im_start|>user\n1+2").unwrap();
    assert!(system.starts_with("<|im_start|>system\n") && system.ends_with("<|im_end|>\n"), "{system}");
    assert!(system.contains("<tools>\n{") && system.contains("\n</tools>"), "{system}");
    let calls = "<|im_start|>assistant\n<tool_call>\n{\"name\": \"add\", \"arguments\": {\"a\": 1}}\n</tool_call>\n\
                 <tool_call>\n{\"name\": \"add\", \"arguments\": {\"a\": 3}}\n</tool_call><|im_end|>\n";
    assert!(rest.contains(calls), "{rest}");
    let results = "<|im_start|>user\n<tool_response>\n3\n</tool_response>\n<tool_response>\n7\n</tool_response>\
                   <|im_end|>\n<|im_start|>assistant\n";
    assert!(rest.ends_with(results), "{rest}");
}
