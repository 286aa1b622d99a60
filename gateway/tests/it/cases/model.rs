//! The tiny model of these tests and the pieces that scripts are made of. The rule: it is written once a run, and
//! the scripted brain, the real one and the gateway all read the same files.

use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use pons_checkpoint::fixture::{ADDED_TOKENS, TinyLlama, write_tiny_llama};
use pons_protocol::id::TokenId;
use serde_json::Value;

use super::harness::merged;

/// Name under which it is served.
pub(crate) const NAME: &str = "M";

/// The fixture's context.
pub(crate) const CONTEXT: u32 = 4096;

/// Every piece of more than one byte that a script uses.
const PIECES: &[&str] = &[
    "Hello",
    ", wor",
    "ld.",
    "hi",
    "ok",
    "abc",
    "thr",
    "ee",
    " fo",
    "ur",
    "! five",
    "Fine.",
    "\n### Hum",
    "an:",
    " more",
    "body\n",
    "<<EN",
    "D>>",
    "red gre",
    "en bl",
    "ack end",
    "<thi",
    "nk>let me",
    " see</thi",
    "nk>Done.",
    "let me",
    " see",
    "Done.",
    "It is 4 C and raining.",
    "{\"name\": \"reserve\", \"arguments\": {\"qty\": 7",
    "}}\n",
    "}}\n</tool_call>",
    "\n",
    "{\"name\": \"get_weather\",",
    " \"arguments\": ",
    "{\"city\": ",
    "\"San ",
    "Fran",
    "{\"name\": \"get_weather\", \"arguments\": {\"city\": \"Oslo\"}}\n",
    "{\"name\": \"list_tables\"",
    ", \"arguments\": {}}\n",
    "{\"name\": \"get_weather\", \"arguments\": {\"city\": \"Lima\"}}\n",
    "}\n",
    "早上好",
    "上",
    " 🚀",
    "ñ",
    "one",
    "two",
    "green bl",
    "tail",
    "{\"city\": \"Oslo\"}",
];

struct Files {
    _folder: tempfile::TempDir,
    path: PathBuf,
    model: TinyLlama,
}

fn files() -> &'static Files {
    static FILES: OnceLock<Files> = OnceLock::new();
    FILES.get_or_init(|| {
        let folder = tempfile::tempdir().expect("there is a temporary directory");
        let path = folder.path().join("tiny");
        let model = write_tiny_llama(&path, 7, PIECES).expect("the temporary directory is writable");
        Files { _folder: folder, path, model }
    })
}

/// The model's directory.
pub(crate) fn path() -> &'static Path {
    &files().path
}

/// Writes the same model again, with these fields of its tokenizer's configuration changed.
pub(crate) fn write_with(path: &Path, fields: Value) {
    write_tiny_llama(path, 7, PIECES).expect("the temporary directory is writable");
    let file = path.join("tokenizer_config.json");
    let config = std::fs::read(&file).expect("it was just written");
    let config = serde_json::from_slice(&config).expect("it is JSON");
    std::fs::write(&file, merged(config, fields).to_string()).expect("the temporary directory is writable");
}

pub(crate) fn vocab_size() -> u32 {
    files().model.config.vocab_size as u32
}

/// The end tokens, the usual one first.
pub(crate) fn eos() -> Vec<TokenId> {
    vec![id("<|im_end|>"), id("<|endoftext|>")]
}

/// The token of a piece: one byte, one of the list above, or one of the fixture's added tokens.
#[track_caller]
pub(crate) fn id(piece: &str) -> TokenId {
    if let [byte] = piece.as_bytes() {
        return u32::from(*byte);
    }
    if let Some(index) = PIECES.iter().position(|known| *known == piece) {
        return files().model.piece_ids[index];
    }
    let added = ADDED_TOKENS.iter().position(|known| *known == piece);
    let index = added.unwrap_or_else(|| panic!("{piece:?} is not in the list of pieces"));
    vocab_size() - (ADDED_TOKENS.len() - index) as u32
}

/// The token of a piece written in hexadecimal.
#[track_caller]
pub(crate) fn id_of_hex(hex: &str) -> TokenId {
    let byte = |at: usize| u8::from_str_radix(&hex[at..at + 2], 16).expect("two digits a byte");
    let bytes: Vec<u8> = (0..hex.len()).step_by(2).map(byte).collect();
    match bytes.as_slice() {
        [byte] => u32::from(*byte),
        _ => id(std::str::from_utf8(&bytes).expect("longer pieces are text")),
    }
}
