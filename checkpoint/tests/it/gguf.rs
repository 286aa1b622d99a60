//! Opening GGUF models: a tiny file of each family, built here.

use std::path::PathBuf;

use pons_checkpoint::{Checkpoint, Family, ModelConfig, Role, RopeLayout, RopeScaling};

fn text(s: &str) -> Vec<u8> {
    [&(s.len() as u64).to_le_bytes()[..], s.as_bytes()].concat()
}

fn pair(key: &str, kind: u32, value: &[u8]) -> Vec<u8> {
    [&text(key)[..], &kind.to_le_bytes(), value].concat()
}

/// What a tiny model is made of; tests change it before it is written.
struct Tiny {
    family: &'static str,
    numbers: Vec<(&'static str, u32)>,
    roles: Vec<(String, usize, usize)>,
}

const TOKENS: [(&str, u32); 6] =
    [("a", 1), ("b", 1), ("<|endoftext|>", 3), ("<|im_end|>", 3), ("</s>", 1), ("<|im_start|>", 3)];

impl Tiny {
    fn new(family: Family) -> Self {
        let numbers = vec![
            ("block_count", 2),
            ("context_length", 128),
            ("embedding_length", 32),
            ("feed_forward_length", 64),
            ("attention.head_count", 4),
            ("attention.head_count_kv", 2),
        ];
        let config = ModelConfig {
            architecture: family,
            vocab_size: TOKENS.len(),
            hidden: 32,
            layers: 2,
            heads: 4,
            kv_heads: 2,
            head_dim: 8,
            intermediate: 64,
            context: 128,
            rope_theta: 10_000.0,
            rope_scaling: RopeScaling::None,
            rope_layout: RopeLayout::Half,
            rms_eps: 1e-5,
            qkv_bias: family == Family::Qwen2,
            qk_norm: family == Family::Qwen3,
            tied_embeddings: false,
            bos: None,
            eos: Vec::new(),
            pad: None,
        };
        let role = |role: Role| {
            let (rows, cols) = role.shape(&config);
            (role.gguf_name(), rows, cols)
        };
        Self { family: family.name(), numbers, roles: Role::all(&config).map(role).collect() }
    }

    fn write(&self, dir: &std::path::Path) -> PathBuf {
        let tokens: Vec<u8> = TOKENS.iter().flat_map(|(token, _)| text(token)).collect();
        let types: Vec<u8> = TOKENS.iter().flat_map(|(_, kind)| kind.to_le_bytes()).collect();
        let list = |kind: u32, items: &[u8]| {
            [&kind.to_le_bytes()[..], &(TOKENS.len() as u64).to_le_bytes(), items].concat()
        };
        let mut pairs = vec![
            pair("general.architecture", 8, &text(self.family)),
            pair(&format!("{}.attention.layer_norm_rms_epsilon", self.family), 6, &1e-5_f32.to_le_bytes()),
            pair("tokenizer.ggml.tokens", 9, &list(8, &tokens)),
            pair("tokenizer.ggml.token_type", 9, &list(4, &types)),
            pair("tokenizer.ggml.eos_token_id", 4, &3_u32.to_le_bytes()),
        ];
        for (key, number) in &self.numbers {
            pairs.push(pair(&format!("{}.{key}", self.family), 4, &number.to_le_bytes()));
        }
        let (mut table, mut data) = (Vec::new(), Vec::new());
        for (name, rows, cols) in &self.roles {
            let dims: Vec<u8> = if *rows == 1 {
                [&1_u32.to_le_bytes()[..], &(*cols as u64).to_le_bytes()].concat()
            } else {
                [&2_u32.to_le_bytes()[..], &(*cols as u64).to_le_bytes(), &(*rows as u64).to_le_bytes()]
                    .concat()
            };
            table.extend(text(name));
            table.extend(dims);
            table.extend(0_u32.to_le_bytes());
            table.extend((data.len() as u64).to_le_bytes());
            data.extend((0..rows * cols).flat_map(|n| (1.0 + n as f32).to_le_bytes()));
            data.resize(data.len().next_multiple_of(32), 0);
        }
        let mut file = b"GGUF\x03\0\0\0".to_vec();
        file.extend((self.roles.len() as u64).to_le_bytes());
        file.extend((pairs.len() as u64).to_le_bytes());
        file.extend(pairs.concat());
        file.extend(table);
        file.resize(file.len().next_multiple_of(32), 0);
        file.extend(data);
        let path = dir.join("tiny-model.Q0.gguf");
        std::fs::write(&path, file).unwrap();
        path
    }

    fn open(&self) -> pons_checkpoint::Result<Checkpoint> {
        let dir = tempfile::tempdir().unwrap();
        Checkpoint::open(&self.write(dir.path()))
    }
}

#[test]
fn every_family_opens_with_its_own_conventions() {
    for family in Family::ALL {
        let model = Tiny::new(family).open().unwrap();
        let config = model.config();
        assert_eq!(config.architecture, family);
        assert_eq!(config.qkv_bias, family == Family::Qwen2);
        assert_eq!(config.qk_norm, family == Family::Qwen3);
        let layout = if family == Family::Llama { RopeLayout::Interleaved } else { RopeLayout::Half };
        assert_eq!(config.rope_layout, layout);
        assert!(!config.tied_embeddings);
        for role in Role::all(config) {
            let tensor = model.tensor(role).unwrap();
            assert_eq!((tensor.rows, tensor.cols), role.shape(config));
            assert_eq!(tensor.name, role.gguf_name());
        }
        let row = model.tensor(Role::Down(1)).unwrap();
        assert_eq!(row.to_f32()[64..66], [65.0, 66.0]);
    }
}

#[test]
fn control_tokens_that_end_a_turn_join_the_named_one() {
    let model = Tiny::new(Family::Qwen2).open().unwrap();
    // Token 4 has the text of an ending but is an ordinary word here.
    assert_eq!(model.config().eos, [3, 2]);
}

#[test]
fn the_name_is_the_files_and_metadata_is_at_hand() {
    let model = Tiny::new(Family::Llama).open().unwrap();
    assert_eq!(model.name(), "tiny-model.Q0");
    let tokens = model.gguf_metadata().unwrap().strings("tokenizer.ggml.tokens").unwrap();
    assert_eq!(tokens.len(), 6);
}

#[test]
fn without_an_output_tensor_the_head_is_the_embedding() {
    let mut tiny = Tiny::new(Family::Llama);
    tiny.roles.retain(|(name, ..)| name != "output.weight");
    let model = tiny.open().unwrap();
    assert!(model.config().tied_embeddings);
    assert_eq!(model.tensor(Role::Head).unwrap().name, "token_embd.weight");
}

#[test]
fn frequency_divisors_in_the_file_become_the_rope_scaling() {
    let mut tiny = Tiny::new(Family::Llama);
    tiny.roles.push(("rope_freqs.weight".to_owned(), 1, 4));
    let model = tiny.open().unwrap();
    assert_eq!(model.config().rope_scaling, RopeScaling::Divisors(vec![1.0, 2.0, 3.0, 4.0]));
    for (rows, cols) in [(1, 5), (2, 4), (1, 5_000)] {
        let last = tiny.roles.last_mut().unwrap();
        (last.1, last.2) = (rows, cols);
        assert!(tiny.open().unwrap_err().to_string().contains("rope_freqs.weight"), "{rows} x {cols}");
    }
}

#[test]
fn a_missing_or_misshapen_tensor_is_named() {
    let mut tiny = Tiny::new(Family::Qwen3);
    tiny.roles.retain(|(name, ..)| name != "blk.1.attn_k_norm.weight");
    assert!(tiny.open().unwrap_err().to_string().contains("`blk.1.attn_k_norm.weight` is missing"));
    let mut tiny = Tiny::new(Family::Llama);
    tiny.roles[0].1 += 1;
    assert!(tiny.open().unwrap_err().to_string().contains("token_embd.weight"));
}

#[test]
fn metadata_that_asks_for_the_unsupported_is_refused_by_key() {
    for (key, value) in [
        ("expert_count", 8),
        ("attention.sliding_window", 64),
        ("rope.dimension_count", 4),
        ("attention.value_length", 16),
    ] {
        let mut tiny = Tiny::new(Family::Llama);
        tiny.numbers.push((key, value));
        let error = tiny.open().unwrap_err().to_string();
        assert!(error.contains(&format!("`llama.{key}`")), "{error}");
    }
    for missing in ["block_count", "embedding_length", "context_length"] {
        let mut tiny = Tiny::new(Family::Llama);
        tiny.numbers.retain(|(key, _)| *key != missing);
        let error = tiny.open().unwrap_err().to_string();
        assert!(error.contains(missing) && error.contains("missing"), "{error}");
    }
    let mut tiny = Tiny::new(Family::Llama);
    tiny.family = "rwkv";
    assert!(tiny.open().unwrap_err().to_string().contains("supported are llama, qwen2 and qwen3"));
}
