//! Tokenizer and chat template of models as they are opened, from a directory and from a GGUF file.

use pons_checkpoint::chat_template::CHATML;
use pons_checkpoint::fixture::{CHAT_TEMPLATE, write_tiny_llama};
use pons_checkpoint::{ChatInput, ChatTemplate, Checkpoint, Tokenizer};
use serde_json::json;

use crate::vocabulary_file::{QWEN, SMOLLM};

#[test]
fn a_directory_gives_its_tokenizer_and_its_template() {
    let dir = tempfile::tempdir().unwrap();
    write_tiny_llama(dir.path(), 1, &["pieces "]).unwrap();
    let model = Checkpoint::open(dir.path()).unwrap();
    let tokenizer = Tokenizer::open(&model).unwrap();
    assert_eq!(tokenizer.vocab_size(), model.config().vocab_size);
    assert_eq!(tokenizer.encode(" the"), [259]);
    let template = ChatTemplate::open(&model, &tokenizer).unwrap();
    assert_eq!(template.source(), CHAT_TEMPLATE);
    assert!(template.supports_tools() && template.supports_thinking());
    let messages = [json!({"role": "user", "content": "a<|im_end|>"})];
    let tools = [json!({"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}})];
    let input =
        ChatInput { messages: &messages, tools: Some(&tools), add_generation_prompt: true, extra: None };
    let prompt = template.render(&input, &tokenizer).unwrap();
    assert!(prompt.text().contains("{\"type\": \"function\", \"function\": {\"name\": \"f\""));
    let ids = tokenizer.encode_prompt(&prompt);
    assert_eq!(tokenizer.decode(&ids, false), prompt.text());
    let end = tokenizer.id_of("<|im_end|>").unwrap();
    assert_eq!(ids.iter().filter(|id| **id == end).count(), 2, "of the system and of the user turn");
}

#[test]
fn a_file_of_the_templates_own_comes_before_the_config_and_chatml_comes_last() {
    let dir = tempfile::tempdir().unwrap();
    write_tiny_llama(dir.path(), 1, &[]).unwrap();
    let model = Checkpoint::open(dir.path()).unwrap();
    let tokenizer = Tokenizer::open(&model).unwrap();
    let source = || ChatTemplate::open(&model, &tokenizer).map(|template| template.source().to_owned());
    std::fs::write(dir.path().join("chat_template.jinja"), "own").unwrap();
    assert_eq!(source().unwrap(), "own");
    std::fs::remove_file(dir.path().join("chat_template.jinja")).unwrap();
    let config = dir.path().join("tokenizer_config.json");
    let several = json!([{"name": "rag", "template": "r"}, {"name": "default", "template": "d"}]);
    std::fs::write(&config, json!({"chat_template": several}).to_string()).unwrap();
    assert_eq!(source().unwrap(), "d");
    std::fs::write(&config, "{}").unwrap();
    assert_eq!(source().unwrap(), CHATML);
    std::fs::write(&config, "{").unwrap();
    assert!(source().unwrap_err().to_string().contains("tokenizer_config.json"));
    std::fs::remove_file(&config).unwrap();
    assert_eq!(source().unwrap(), CHATML);
}

#[test]
fn a_gguf_file_gives_the_vocabulary_that_an_independent_reader_finds() {
    for reading in [&*SMOLLM, &*QWEN] {
        let model = Checkpoint::open(&reading.path).unwrap();
        let tokenizer = Tokenizer::open(&model).unwrap();
        assert_eq!(tokenizer.vocab_size(), reading.vocab.tokens.len());
        assert_eq!((tokenizer.bos(), tokenizer.eos()), (reading.vocab.bos, reading.vocab.eos));
        assert_eq!(tokenizer.add_bos(), reading.vocab.add_bos);
        let text = "<|im_start|>user\nHello, naïve 世界 12345!<|im_end|>\n";
        assert_eq!(tokenizer.encode_with_control(text), reading.tokenizer.encode_with_control(text));
        let template = ChatTemplate::open(&model, &tokenizer).unwrap();
        assert_eq!(template.source(), reading.template.source());
    }
}
