//! The tokenizer and chat template of a real model file, read independently of the crate's own GGUF reader.
//!
//! Only the metadata at the front of the file is read, so a test costs megabytes and not the whole model.

use std::collections::HashMap;
use std::fs::File;
use std::io::{BufReader, Read};
use std::path::PathBuf;
use std::sync::LazyLock;

use pons_checkpoint::chat_template::ChatTemplate;
use pons_checkpoint::tokenizer::{GgufVocab, Tokenizer};

/// A metadata value, as far as vocabularies need it.
enum Value {
    Integer(i64),
    Text(String),
    Texts(Vec<String>),
    Integers(Vec<i64>),
    Other,
}

/// A model's tokenizer and template.
pub(crate) struct Model {
    pub(crate) tokenizer: Tokenizer,
    pub(crate) template: ChatTemplate,
    pub(crate) vocab: GgufVocab,
    pub(crate) path: PathBuf,
}

/// SmolLM2's.
pub(crate) static SMOLLM: LazyLock<Model> =
    LazyLock::new(|| open("smollm2-135m", "SmolLM2-135M-Instruct.Q4_1.gguf"));

/// Qwen2.5-Coder's, the same for every size.
pub(crate) static QWEN: LazyLock<Model> =
    LazyLock::new(|| open("qwen2.5-coder-0.5b", "qwen2.5-coder-0.5b-instruct-q4_k_m.gguf"));

/// Where the model file is, or how to get it.
fn path(name: &str, published_as: &str) -> PathBuf {
    let cache = std::env::var_os("XDG_CACHE_HOME")
        .map(PathBuf::from)
        .or_else(|| std::env::var_os("HOME").map(|home| PathBuf::from(home).join(".cache")));
    let folders = [
        std::env::var_os("PONS_MODELS").map(PathBuf::from),
        cache.map(|cache| cache.join("pons").join("models")),
    ];
    let names = [format!("{name}.gguf"), published_as.to_owned()];
    folders
        .iter()
        .flatten()
        .flat_map(|folder| names.iter().map(|name| folder.join(name)))
        .find(|path| path.is_file())
        .unwrap_or_else(|| {
            panic!(
                "the golden tests need the model file of {name}: run `cargo xtask model {name}`, \
                 or point PONS_MODELS at the folder that holds {name}.gguf"
            )
        })
}

/// Reads a model's tokenizer and template.
fn open(name: &str, published_as: &str) -> Model {
    let path = path(name, published_as);
    let mut file = BufReader::new(File::open(&path).expect("the file exists"));
    assert_eq!(&take::<4>(&mut file), b"GGUF", "{} is no GGUF file", path.display());
    let _version = u32::from_le_bytes(take(&mut file));
    let _tensors = u64::from_le_bytes(take(&mut file));
    let entries = u64::from_le_bytes(take(&mut file));
    let mut metadata: HashMap<String, Value> = (0..entries)
        .map(|_| {
            let key = text(&mut file);
            let kind = u32::from_le_bytes(take(&mut file));
            (key, value(&mut file, kind))
        })
        .collect();
    let mut texts = |key: &str| match metadata.remove(key) {
        Some(Value::Texts(texts)) => texts,
        _ => panic!("{key} is missing"),
    };
    let tokens = texts("tokenizer.ggml.tokens");
    let merges = texts("tokenizer.ggml.merges");
    let string = |key: &str| match metadata.get(key) {
        Some(Value::Text(text)) => text.clone(),
        _ => panic!("{key} is missing"),
    };
    let integer = |key: &str| match metadata.get(key) {
        Some(Value::Integer(number)) => Some(*number as u32),
        _ => None,
    };
    let token_types = match metadata.get("tokenizer.ggml.token_type") {
        Some(Value::Integers(types)) => types.iter().map(|kind| *kind as i32).collect(),
        _ => Vec::new(),
    };
    let vocab = GgufVocab {
        model: string("tokenizer.ggml.model"),
        pre: string("tokenizer.ggml.pre"),
        tokens,
        token_types,
        merges,
        bos: integer("tokenizer.ggml.bos_token_id"),
        eos: integer("tokenizer.ggml.eos_token_id"),
        add_bos: integer("tokenizer.ggml.add_bos_token") == Some(1),
    };
    let tokenizer = Tokenizer::from_gguf_vocab(vocab.clone()).expect("the vocabulary is sound");
    let named = |id: Option<u32>| id.and_then(|id| tokenizer.token_text(id)).unwrap_or_default();
    let template =
        ChatTemplate::new(&string("tokenizer.chat_template"), named(tokenizer.bos()), named(tokenizer.eos()))
            .expect("the template is sound");
    Model { template, tokenizer, vocab, path }
}

fn take<const N: usize>(file: &mut impl Read) -> [u8; N] {
    let mut bytes = [0; N];
    file.read_exact(&mut bytes).expect("the file is whole");
    bytes
}

fn text(file: &mut impl Read) -> String {
    let length = u64::from_le_bytes(take(file));
    let mut bytes = Vec::new();
    file.take(length).read_to_end(&mut bytes).expect("the file is whole");
    String::from_utf8(bytes).expect("metadata is UTF-8")
}

fn value(file: &mut impl Read, kind: u32) -> Value {
    match kind {
        0 | 1 | 7 => Value::Integer(i64::from(take::<1>(file)[0])),
        2 | 3 => Value::Integer(i64::from(u16::from_le_bytes(take(file)))),
        4 => Value::Integer(i64::from(u32::from_le_bytes(take(file)))),
        5 => Value::Integer(i64::from(i32::from_le_bytes(take(file)))),
        6 => {
            let _float: [u8; 4] = take(file);
            Value::Other
        }
        8 => Value::Text(text(file)),
        9 => {
            let kind = u32::from_le_bytes(take(file));
            let length = u64::from_le_bytes(take(file));
            if kind == 8 {
                return Value::Texts((0..length).map(|_| text(file)).collect());
            }
            let items = (0..length).map(|_| value(file, kind));
            Value::Integers(
                items
                    .map(|item| match item {
                        Value::Integer(number) => number,
                        _ => -1,
                    })
                    .collect(),
            )
        }
        10..=12 => Value::Integer(i64::from_le_bytes(take(file))),
        unknown => panic!("metadata type {unknown} is unknown"),
    }
}
