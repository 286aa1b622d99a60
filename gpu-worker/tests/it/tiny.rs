//! Writes tiny models of every family. The rule: a file on disk, so that tests load it as any other model.

use std::fmt::Write as _;
use std::path::Path;

use pons_checkpoint::{ModelConfig, Role};

/// A tiny configuration of a family in the format of Hugging Face.
fn config_json(model_type: &str, vocab: usize) -> String {
    let tied = model_type != "llama";
    let head_dim = if model_type == "qwen3" { 24 } else { 16 };
    serde_json::json!({
        "model_type": model_type, "vocab_size": vocab, "hidden_size": 64, "num_hidden_layers": 2,
        "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": head_dim, "intermediate_size": 96,
        "max_position_embeddings": 256, "rope_theta": 10000.0, "rms_norm_eps": 1e-6, "hidden_act": "silu",
        "tie_word_embeddings": tied, "eos_token_id": 0, "use_sliding_window": false,
    })
    .to_string()
}

/// Numbers between −1 and 1 without structure.
struct Random(u64);

impl Random {
    fn next(&mut self) -> f32 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 40) as f32 / (1 << 23) as f32 - 1.0
    }
}

/// How a tensor is written: its name in safetensors, and its values as bytes.
pub(crate) type Encode = fn(f32) -> Vec<u8>;

pub(crate) fn write_model(dir: &Path, model_type: &str, dtype: &str, encode: Encode) {
    write_changed(dir, model_type, dtype, encode, &|_, _, value| value);
}

/// As [`write_model`], with each weight passed through `change(role, index, weight)`.
pub(crate) fn write_changed(
    dir: &Path,
    model_type: &str,
    dtype: &str,
    encode: Encode,
    change: &dyn Fn(Role, usize, f32) -> f32,
) {
    let config_text = config_json(model_type, 256);
    let config = ModelConfig::from_json(&config_text, None).expect("the fixture's configuration is valid");
    std::fs::write(dir.join("config.json"), &config_text).expect("the directory is writable");
    let mut random = Random(7);
    let (mut header, mut data) = (String::from("{"), Vec::new());
    for role in Role::all(&config).filter(|r| !(config.tied_embeddings && *r == Role::Head)) {
        let (rows, cols) = role.shape(&config);
        let start = data.len();
        // Norm weights lie around one, all else is scaled so that activations keep their size.
        let centre = if rows == 1 { 1.0 } else { 0.0 };
        let scale = if rows == 1 { 0.3 } else { 1.5 / (cols as f32).sqrt() };
        let centre =
            if matches!(role, Role::QBias(_) | Role::KBias(_) | Role::VBias(_)) { 0.0 } else { centre };
        for index in 0..rows * cols {
            data.extend(encode(change(role, index, centre + scale * random.next())));
        }
        let shape = if rows == 1 { format!("[{cols}]") } else { format!("[{rows},{cols}]") };
        let comma = if header.len() > 1 { "," } else { "" };
        let name = role.safetensors_name();
        let end = data.len();
        write!(
            header,
            r#"{comma}"{name}":{{"dtype":"{dtype}","shape":{shape},"data_offsets":[{start},{end}]}}"#
        )
        .expect("a string takes everything");
    }
    header.push('}');
    while header.len() % 8 != 0 {
        header.push(' ');
    }
    let mut file = (header.len() as u64).to_le_bytes().to_vec();
    file.extend_from_slice(header.as_bytes());
    file.extend_from_slice(&data);
    std::fs::write(dir.join("model.safetensors"), file).expect("the directory is writable");
}

pub(crate) fn f32_bytes(x: f32) -> Vec<u8> {
    x.to_le_bytes().to_vec()
}

pub(crate) fn f16_bytes(x: f32) -> Vec<u8> {
    half::f16::from_f32(x).to_le_bytes().to_vec()
}

pub(crate) fn bf16_bytes(x: f32) -> Vec<u8> {
    half::bf16::from_f32(x).to_le_bytes().to_vec()
}
