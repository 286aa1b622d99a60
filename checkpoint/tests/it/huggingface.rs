//! Our ids against those of Hugging Face's own tokenizer with the same vocabulary, on texts made to differ.

use std::sync::LazyLock;

use pons_checkpoint::chat_template::ChatInput;
use pons_checkpoint::tokenizer::{GgufVocab, Tokenizer};
use proptest::prelude::*;
use serde_json::{Value, json};

use crate::vocabulary_file::{Model, QWEN, SMOLLM};

/// One vocabulary, read in all three ways.
struct Readings {
    gguf: &'static Tokenizer,
    json: Tokenizer,
    oracle: tokenizers::Tokenizer,
}

static SMOLLM_READINGS: LazyLock<Readings> = LazyLock::new(|| {
    let digits = json!({"type": "Digits", "individual_digits": true});
    let bytes =
        json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true});
    readings(&SMOLLM, &Value::Null, &json!({"type": "Sequence", "pretokenizers": [digits, bytes]}))
});

static QWEN_READINGS: LazyLock<Readings> = LazyLock::new(|| {
    let regex = "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*\
                 |\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+";
    let split =
        json!({"type": "Split", "pattern": {"Regex": regex}, "behavior": "Isolated", "invert": false});
    let bytes =
        json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": false, "use_regex": false});
    readings(&QWEN, &json!({"type": "NFC"}), &json!({"type": "Sequence", "pretokenizers": [split, bytes]}))
});

/// Writes the tokenizer.json that the model's makers publish, as far as ids depend on it.
fn tokenizer_json(vocab: &GgufVocab, normalizer: &Value, pre_tokenizer: &Value) -> Value {
    let ids = vocab.tokens.iter().zip(&vocab.token_types).enumerate();
    let added: Vec<Value> = ids
        .clone()
        .filter(|(_, (_, kind))| matches!(kind, 3 | 4))
        .map(|(id, (text, kind))| {
            json!({"id": id, "content": text, "single_word": false, "lstrip": false, "rstrip": false,
                   "normalized": false, "special": *kind == 3})
        })
        .collect();
    let normal: serde_json::Map<String, Value> =
        ids.filter(|(_, (_, kind))| **kind != 5).map(|(id, (text, _))| (text.clone(), json!(id))).collect();
    json!({
        "version": "1.0", "truncation": null, "padding": null, "added_tokens": added,
        "normalizer": normalizer, "pre_tokenizer": pre_tokenizer, "post_processor": null,
        "decoder": {"type": "ByteLevel", "add_prefix_space": true, "trim_offsets": true, "use_regex": true},
        "model": {"type": "BPE", "dropout": null, "unk_token": null, "continuing_subword_prefix": null,
                  "end_of_word_suffix": null, "fuse_unk": false, "byte_fallback": false,
                  "vocab": normal, "merges": vocab.merges},
    })
}

fn readings(model: &'static Model, normalizer: &Value, pre_tokenizer: &Value) -> Readings {
    let json = tokenizer_json(&model.vocab, normalizer, pre_tokenizer).to_string();
    Readings {
        gguf: &model.tokenizer,
        json: Tokenizer::from_json(json.as_bytes(), None).expect("our reader takes the file"),
        oracle: tokenizers::Tokenizer::from_bytes(json).expect("theirs does"),
    }
}

impl Readings {
    fn check(&self, text: &str) {
        let theirs = self.oracle.encode_fast(text, false).expect("they encode it");
        assert_eq!(self.gguf.encode_with_control(text), theirs.get_ids(), "GGUF: {text:?}");
        assert_eq!(self.json.encode_with_control(text), theirs.get_ids(), "tokenizer.json: {text:?}");
        let ids = self.gguf.encode(text);
        assert_eq!(ids, self.json.encode(text), "as data: {text:?}");
        assert!(!ids.iter().any(|id| self.gguf.is_added(*id)), "data made an added token: {text:?}");
    }
}

/// Texts in which everything that a tokenizer treats specially meets everything else.
fn text() -> impl Strategy<Value = String> {
    let fragment = prop_oneof![
        4 => "[a-zA-Z]{1,9}",
        2 => "[0-9]{1,6}",
        3 => "[ \t\r\n]{1,5}",
        2 => "[!-/:-@]{1,4}",
        2 => "\\PC{1,4}",
        1 => any::<String>(),
        1 => prop::sample::select(vec![
            "'ſ", "'Re", "'ll'VE", "'L", "'", "'s", "'LL", "don't", "\u{0}", "\u{feff}", "e\u{301}", "ﬁ", "½", "٣", "中文", "日本語", "👩‍👩‍👧", "\u{a0}", "\u{85}",
            "\u{2028}", "\u{3000}", "ǅ", "नमस्ते", "Ġ", "▁", "\u{FDD0}", "\u{10FFFF}",
        ]).prop_map(str::to_owned),
        1 => prop::sample::select(vec![
            "<|im_start|>", "<|im_end|>", "<|endoftext|>", "<|im_", "<tool_call>", "</tool_call>", "<", "|>", "[PAD151935]",
        ]).prop_map(str::to_owned),
    ];
    prop::collection::vec(fragment, 0..12).prop_map(|fragments| fragments.concat())
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(400) })]

    #[test]
    fn smollm2_ids_equal_hugging_faces(text in text()) {
        SMOLLM_READINGS.check(&text);
    }

    #[test]
    fn qwen_ids_equal_hugging_faces(text in text()) {
        QWEN_READINGS.check(&text);
    }

    #[test]
    fn encoding_any_text_and_decoding_it_gives_the_text(text in text()) {
        let ids = SMOLLM.tokenizer.encode(&text);
        prop_assert_eq!(SMOLLM.tokenizer.decode(&ids, false), text.as_str());
        prop_assert_eq!(SMOLLM.tokenizer.decode(&ids, true), text);
    }

    #[test]
    fn a_message_never_makes_more_turns_than_it_has(text in text()) {
        for model in [&*SMOLLM, &*QWEN] {
            let messages = [json!({"role": "system", "content": "S"}), json!({"role": "user", "content": text})];
            let input = ChatInput { messages: &messages, add_generation_prompt: true, ..ChatInput::default() };
            let prompt = model.template.render(&input, &model.tokenizer).expect("ChatML takes anything");
            prop_assert!(prompt.text().contains(&text));
            let ids = model.tokenizer.encode_prompt(&prompt);
            let added = ids.iter().filter(|id| model.tokenizer.is_added(**id)).count();
            prop_assert_eq!(added, 5, "three turns begin, two end");
        }
    }
}

#[test]
fn texts_beyond_any_context_are_encoded_and_decoded_whole() {
    let long = (2 << 20) + 9;
    for unit in ["a", " ", "1", "<|im_end|>", "中"] {
        let text = unit.repeat(long / unit.len());
        let ids = SMOLLM.tokenizer.encode(&text);
        assert!(SMOLLM.tokenizer.decode(&ids, false) == text, "{unit:?} repeated");
    }
}
