//! The tokenizer with a tiny vocabulary of its own, in both file forms.

use serde_json::{Value, json};

use super::{GgufVocab, Tokenizer};
use crate::chat_template::{ChatInput, ChatTemplate};

/// The GPT-2 character of each byte, spelled out here once more so that the tests don't trust the code.
fn byte_texts() -> Vec<String> {
    let mut next = 256;
    (0..=255u32)
        .map(|byte| {
            let printable = (33..=126).contains(&byte) || (161..=172).contains(&byte) || byte >= 174;
            let code = if printable {
                byte
            } else {
                next += 1;
                next - 1
            };
            char::from_u32(code).unwrap().to_string()
        })
        .collect()
}

/// All bytes, a few merges, and the usual marks.
pub(crate) fn tiny_vocab() -> GgufVocab {
    let mut tokens = byte_texts();
    let mut token_types = vec![1; 256];
    let merges: Vec<String> = ["h e", "l l", "he ll", "hell o", "Ġ hello"].map(str::to_owned).to_vec();
    for merge in &merges {
        tokens.push(merge.replace(' ', ""));
        token_types.push(1);
    }
    for (text, kind) in
        [("<s>", 3), ("<|im_start|>", 3), ("<|im_end|>", 3), ("<think>", 4), ("</think>", 4), ("[PAD]", 5)]
    {
        tokens.push(text.to_owned());
        token_types.push(kind);
    }
    GgufVocab {
        model: "gpt2".into(),
        pre: "qwen2".into(),
        tokens,
        token_types,
        merges,
        bos: Some(261),
        eos: Some(263),
        add_bos: false,
    }
}

pub(crate) fn tiny() -> Tokenizer {
    Tokenizer::from_gguf_vocab(tiny_vocab()).unwrap()
}

/// The same vocabulary as a tokenizer.json.
fn tiny_json() -> Value {
    let vocab = tiny_vocab();
    let model: serde_json::Map<String, Value> =
        vocab.tokens[..261].iter().enumerate().map(|(id, text)| (text.clone(), json!(id))).collect();
    let added: Vec<Value> = (261..266)
        .map(|id| json!({"id": id, "content": vocab.tokens[id], "special": vocab.token_types[id] == 3}))
        .collect();
    let bytes =
        json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": false, "use_regex": true});
    json!({
        "added_tokens": added, "normalizer": null, "pre_tokenizer": bytes, "decoder": bytes,
        "model": {"type": "BPE", "vocab": model, "merges": vocab.merges},
    })
}

fn from_json(json: &Value, config: &Value) -> Result<Tokenizer, super::TokenizerError> {
    Tokenizer::from_json(json.to_string().as_bytes(), Some(config.to_string().as_bytes()))
}

#[test]
fn merges_apply_in_their_order_within_words() {
    let tokenizer = tiny();
    assert_eq!(tokenizer.encode("hello hello"), [259, 260]);
    assert_eq!(tokenizer.encode("hell"), [258]);
    assert!(tokenizer.encode("").is_empty());
    assert_eq!(tokenizer.decode(&[259, 260], true), "hello hello");
}

#[test]
fn control_text_is_a_token_only_where_it_may_be() {
    let tokenizer = tiny();
    assert_eq!(tokenizer.encode_with_control("<|im_start|>hello<|im_end|>"), [262, 259, 263]);
    assert!(!tokenizer.encode("<|im_start|>hello<|im_end|>").iter().any(|id| tokenizer.is_added(*id)));
}

#[test]
fn each_kind_of_token_is_told_apart() {
    let tokenizer = tiny();
    assert_eq!(tokenizer.vocab_size(), 267);
    assert!(tokenizer.is_control(262) && tokenizer.is_special(262) && tokenizer.is_added(262));
    assert!(!tokenizer.is_control(264) && !tokenizer.is_special(264) && tokenizer.is_added(264));
    assert!(!tokenizer.is_control(266) && tokenizer.is_special(266) && !tokenizer.is_added(266));
    assert!(!tokenizer.is_control(u32::MAX) && !tokenizer.is_special(u32::MAX));
    assert_eq!(tokenizer.token_bytes(260), Some(&b" hello"[..]));
    assert_eq!(tokenizer.token_bytes(262), Some(&b"<|im_start|>"[..]));
    assert_eq!(tokenizer.token_bytes(267), None);
    assert_eq!(tokenizer.token_text(260), Some("Ġhello"));
    assert_eq!(tokenizer.id_of("<think>"), Some(264));
}

#[test]
fn decoding_skips_control_tokens_only_when_asked_and_never_fails() {
    let tokenizer = tiny();
    assert_eq!(tokenizer.decode(&[262, 259, 264, 263], true), "hello<think>");
    assert_eq!(tokenizer.decode(&[262, 259], false), "<|im_start|>hello");
    assert_eq!(tokenizer.decode(&[0xE4, u32::MAX, 266], false), "\u{FFFD}");
}

#[test]
fn both_file_forms_give_the_same_ids() {
    let json = from_json(&tiny_json(), &json!({})).unwrap();
    let gguf = tiny();
    for text in
        ["hello hello", "<|im_start|>system\nhello<think>", "naïve café", "\0\u{10FFFF}", "a  b\n\n c"]
    {
        assert_eq!(json.encode(text), gguf.encode(text), "{text:?}");
        assert_eq!(json.encode_with_control(text), gguf.encode_with_control(text), "{text:?}");
    }
    assert_eq!(json.vocab_size(), 266, "padding is no token of a tokenizer.json");
}

#[test]
fn bos_comes_from_the_post_processor_or_from_the_config() {
    let plain = from_json(&tiny_json(), &json!({"bos_token": "<s>", "eos_token": {"content": "<|im_end|>"}}))
        .unwrap();
    assert_eq!((plain.bos(), plain.eos(), plain.add_bos()), (Some(261), Some(263), false));
    let asked =
        from_json(&tiny_json(), &json!({"bos_token": {"content": "<s>"}, "add_bos_token": true})).unwrap();
    assert!(asked.add_bos());
    let mut json = tiny_json();
    let template =
        json!({"type": "TemplateProcessing", "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}}]});
    json["post_processor"] = json!({"type": "Sequence", "processors": [template]});
    let prepended = from_json(&json, &json!({})).unwrap();
    assert_eq!((prepended.bos(), prepended.add_bos()), (Some(261), true));
}

#[test]
fn c_roles_and_templates_01_a_prompt_begins_with_exactly_one_bos() {
    let tokenizer = Tokenizer::from_gguf_vocab(GgufVocab { add_bos: true, ..tiny_vocab() }).unwrap();
    let messages = [json!({"role": "user", "content": "Say hello."})];
    let input = ChatInput { messages: &messages, ..ChatInput::default() };
    for source in ["{{ bos_token }}{{ messages[0].content }}", "{{ messages[0].content }}"] {
        let prompt = ChatTemplate::new(source, "<s>", "").unwrap().render(&input, &tokenizer).unwrap();
        let ids = tokenizer.encode_prompt(&prompt);
        assert_eq!(ids[0], 261, "{source}");
        assert_eq!(ids.iter().filter(|id| **id == 261).count(), 1, "{source}");
    }
    let plain = tokenizer.with_bos(tokenizer.encode("hello"));
    assert_eq!(plain, [261, 259]);
    assert_eq!(tokenizer.with_bos(plain), [261, 259]);
    assert_eq!(tiny().with_bos(vec![259]), [259], "a tokenizer that adds none");
}

#[test]
fn an_unknown_pre_tokenizer_is_refused_by_name() {
    let error = Tokenizer::from_gguf_vocab(GgufVocab { pre: "klingon".into(), ..tiny_vocab() }).unwrap_err();
    assert!(error.to_string().contains("klingon") && error.to_string().contains("qwen2"), "{error}");
    let error = Tokenizer::from_gguf_vocab(GgufVocab { model: "t5".into(), ..tiny_vocab() }).unwrap_err();
    assert!(error.to_string().contains("tokenizer.ggml.model is \"t5\""), "{error}");
}

#[test]
fn every_supported_pre_tokenizer_encodes_what_it_decodes() {
    for pre in ["gpt-2", "default", "smollm", "llama-bpe", "smaug-bpe", "tekken", "deepseek-r1-qwen"] {
        let tokenizer = Tokenizer::from_gguf_vocab(GgufVocab { pre: pre.into(), ..tiny_vocab() }).unwrap();
        let text = "Hello hello 12345 don't\r\n\n  naïve 中文 <|im_end|>\t";
        assert_eq!(tokenizer.decode(&tokenizer.encode(text), false), text, "{pre}");
    }
}

#[test]
fn a_vocabulary_that_contradicts_itself_is_an_error_and_no_panic() {
    let broken = |change: fn(&mut GgufVocab)| {
        let mut vocab = tiny_vocab();
        change(&mut vocab);
        Tokenizer::from_gguf_vocab(vocab).unwrap_err().to_string()
    };
    assert!(broken(|v| v.merges.push("x".into())).contains("\"x\""));
    assert!(broken(|v| v.merges.push("z z".into())).contains("\"zz\""));
    assert!(broken(|v| v.merges.push(format!("{} a", "q".repeat(99)))).contains("no token"));
    assert!(broken(|v| v.token_types.truncate(3)).contains("3 types"));
    assert!(broken(|v| v.token_types[0] = 9).contains("9 is no token type"));
    assert!(
        broken(|v| *v = GgufVocab { model: "gpt2".into(), pre: "gpt-2".into(), ..GgufVocab::default() })
            .contains("empty")
    );
}

#[test]
fn a_broken_tokenizer_json_is_an_error_and_no_panic() {
    let broken = |pointer: &str, value: Value| {
        let mut json = tiny_json();
        *json.pointer_mut(pointer).unwrap() = value;
        from_json(&json, &json!({})).unwrap_err().to_string()
    };
    assert!(broken("/model/type", json!("Unigram")).contains("Unigram"));
    assert!(broken("/model/merges", json!([["h", "zzz"]])).contains("zzz"));
    assert!(broken("/model/merges", json!(["h e l"])).contains("h e l"));
    assert!(broken("/model/vocab", json!({"a": 4_000_000_000u32})).contains("4000000000"));
    assert!(broken("/added_tokens/0/id", json!(4_000_000_000u32)).contains("4000000000"));
    assert!(broken("/normalizer", json!({"type": "Spell"})).contains("normalizer"));
    assert!(Tokenizer::from_json(b"{", None).is_err());
    assert!(
        Tokenizer::from_json_file("/nowhere/tokenizer.json").unwrap_err().to_string().contains("/nowhere")
    );
}

#[test]
fn llama_two_style_vocabularies_fall_back_to_bytes() {
    let mut vocab = serde_json::Map::new();
    for (id, text) in ["<unk>", "<s>", "▁", "a", "▁a"].into_iter().enumerate() {
        vocab.insert(text.into(), json!(id));
    }
    for byte in 0..=255u32 {
        vocab.insert(format!("<0x{byte:02X}>"), json!(5 + byte));
    }
    let json = json!({
        "added_tokens": [{"id": 0, "content": "<unk>", "special": true}, {"id": 1, "content": "<s>", "special": true}],
        "normalizer": {"type": "Sequence", "normalizers": [
            {"type": "Prepend", "prepend": "▁"},
            {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}]},
        "decoder": {"type": "Sequence", "decoders": [{"type": "Strip", "content": " ", "start": 1, "stop": 0}]},
        "model": {"type": "BPE", "unk_token": "<unk>", "fuse_unk": true, "byte_fallback": true,
                  "vocab": vocab, "merges": [["▁", "a"]]},
    });
    let tokenizer = from_json(&json, &json!({})).unwrap();
    assert_eq!(tokenizer.encode("a aé"), [4, 4, 5 + 0xC3, 5 + 0xA9]);
    assert_eq!(tokenizer.decode(&[4, 4, 5 + 0xC3, 5 + 0xA9], true), "a aé");
    assert_eq!(tokenizer.token_bytes(5 + 10), Some(&b"\n"[..]));
    assert!(!tokenizer.encode("<s><unk>").contains(&1));
}

#[test]
fn one_tokenizer_serves_many_threads() {
    let tokenizer = tiny();
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| assert_eq!(tokenizer.encode("hello hello"), [259, 260]));
        }
    });
}
