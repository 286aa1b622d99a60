//! Model configuration from GGUF metadata (`llama.*`, `qwen2.*`, `qwen3.*`, `tokenizer.ggml.*`).
//!
//! The rule: what the metadata leaves open is decided by which tensors the file has, never by a guess.

use super::{Family, ModelConfig, RopeLayout, RopeScaling, bounds};
use crate::error::{CheckpointError, Result};
use crate::gguf::{Gguf, Metadata, Value};

/// Texts of control tokens that end a turn or a document in the models of these families. GGUF names only one
/// end-of-sequence token, though chat models stop at several.
const END_TEXTS: [&str; 6] =
    ["<|im_end|>", "<|endoftext|>", "<|eot_id|>", "<|eom_id|>", "<|end_of_text|>", "</s>"];
/// The number GGUF gives to control tokens in `tokenizer.ggml.token_type`.
const CONTROL_TYPE: i64 = 3;

impl ModelConfig {
    /// Reads a parsed GGUF file; `bytes` are those it was parsed from (for `rope_freqs.weight`).
    ///
    /// # Errors
    /// When a key is missing, of the wrong type, out of range or unsupported.
    pub fn from_gguf(gguf: &Gguf, bytes: &[u8]) -> Result<Self> {
        let keys = Keys::new(gguf.metadata())?;
        let family = keys.family;
        keys.refuse_unsupported()?;
        let hidden = keys.required_size("embedding_length")?;
        let heads = keys.required_size("attention.head_count")?;
        let head_dim = match keys.size("attention.key_length")? {
            Some(dim) => dim,
            None if heads > 0 && hidden.is_multiple_of(heads) => hidden / heads,
            None => return Err(keys.wrong("attention.head_count", &heads, "a divisor of embedding_length")),
        };
        keys.refuse_other_head_dims(head_dim)?;
        let config = Self {
            architecture: family,
            vocab_size: keys.vocab_size()?,
            hidden,
            layers: keys.required_size("block_count")?,
            heads,
            kv_heads: keys.size("attention.head_count_kv")?.unwrap_or(heads),
            head_dim,
            intermediate: keys.required_size("feed_forward_length")?,
            context: keys.required_size("context_length")?,
            rope_theta: keys.float("rope.freq_base")?.unwrap_or(10_000.0),
            rope_scaling: rope_scaling(&keys, gguf, bytes)?,
            rope_layout: if family == Family::Llama { RopeLayout::Interleaved } else { RopeLayout::Half },
            rms_eps: keys
                .float("attention.layer_norm_rms_epsilon")?
                .ok_or_else(|| keys.missing("attention.layer_norm_rms_epsilon"))? as f32,
            qkv_bias: gguf.has_tensor("blk.0.attn_q.bias"),
            qk_norm: gguf.has_tensor("blk.0.attn_q_norm.weight"),
            tied_embeddings: !gguf.has_tensor("output.weight"),
            bos: keys.token("bos_token_id")?,
            eos: keys.end_tokens()?,
            pad: keys.token("padding_token_id")?,
        };
        config.validated()
    }
}

fn rope_scaling(keys: &Keys<'_>, gguf: &Gguf, bytes: &[u8]) -> Result<RopeScaling> {
    if gguf.has_tensor("rope_freqs.weight") {
        let tensor = gguf.tensor(bytes, "rope_freqs.weight")?;
        if tensor.rows != 1 || tensor.cols > bounds::HEAD_DIM {
            let value = format!("of {} x {} elements", tensor.rows, tensor.cols);
            return Err(CheckpointError::config(
                "rope_freqs.weight",
                value,
                "it must have head_dim / 2 elements",
            ));
        }
        return Ok(RopeScaling::Divisors(tensor.to_f32()));
    }
    let kind = keys.string("rope.scaling.type")?.unwrap_or("none");
    let factor = || keys.float("rope.scaling.factor")?.ok_or_else(|| keys.missing("rope.scaling.factor"));
    Ok(match kind {
        "none" => RopeScaling::None,
        "linear" => RopeScaling::Linear { factor: factor()? },
        "yarn" => RopeScaling::Yarn {
            factor: factor()?,
            original_context: match keys.size("rope.scaling.original_context_length")? {
                Some(n) => n,
                None => keys.required_size("context_length")?,
            },
            beta_fast: keys.float("rope.scaling.yarn_beta_fast")?.unwrap_or(32.0),
            beta_slow: keys.float("rope.scaling.yarn_beta_slow")?.unwrap_or(1.0),
            // In GGUF this factor comes on top of the usual one.
            attention_factor: match keys.float("rope.scaling.attn_factor")? {
                Some(extra) => Some(extra * (0.1 * factor()?.ln() + 1.0)),
                None => None,
            },
        },
        _ => {
            let kind = format!("`{}`", kind.escape_debug());
            return Err(keys.wrong("rope.scaling.type", &kind, "one of none, linear, yarn"));
        }
    })
}

/// Metadata read under the architecture's prefix.
struct Keys<'a> {
    metadata: &'a Metadata,
    family: Family,
}

impl<'a> Keys<'a> {
    fn new(metadata: &'a Metadata) -> Result<Self> {
        let name = metadata.str("general.architecture").unwrap_or("missing");
        let family = Family::parse("general.architecture", name)?;
        Ok(Self { metadata, family })
    }

    fn full(&self, key: &str) -> String {
        format!("{}.{key}", self.family.name())
    }

    fn missing(&self, key: &str) -> CheckpointError {
        CheckpointError::config(
            self.full(key),
            "missing",
            "the gguf metadata must give it; convert the model anew",
        )
    }

    fn wrong(&self, key: &str, value: &dyn std::fmt::Display, expected: &str) -> CheckpointError {
        CheckpointError::config(self.full(key), value, format!("it must be {expected}"))
    }

    fn read<T>(&self, key: &str, expected: &str, get: impl Fn(&'a Value) -> Option<T>) -> Result<Option<T>> {
        let value = self.metadata.get(&self.full(key));
        value.map(|v| get(v).ok_or_else(|| self.wrong(key, &describe(v), expected))).transpose()
    }

    fn size(&self, key: &str) -> Result<Option<usize>> {
        self.read(key, "a whole number", |v| v.as_u64().and_then(|n| usize::try_from(n).ok()))
    }

    fn required_size(&self, key: &str) -> Result<usize> {
        self.size(key)?.ok_or_else(|| self.missing(key))
    }

    fn float(&self, key: &str) -> Result<Option<f64>> {
        self.read(key, "a number", Value::as_f64)
    }

    fn string(&self, key: &str) -> Result<Option<&'a str>> {
        self.read(key, "a string", Value::as_str)
    }

    fn token(&self, key: &str) -> Result<Option<u32>> {
        let key = format!("tokenizer.ggml.{key}");
        let value = self.metadata.get(&key);
        value
            .map(|v| {
                v.as_u64()
                    .and_then(|n| u32::try_from(n).ok())
                    .ok_or_else(|| CheckpointError::config(key, describe(v), "it must be a token id"))
            })
            .transpose()
    }

    fn end_tokens(&self) -> Result<Vec<u32>> {
        let named = ["eos_token_id", "eot_token_id", "eom_token_id"];
        let mut ends = Vec::new();
        for key in named {
            ends.extend(self.token(key)?);
        }
        let tokens = self.metadata.strings("tokenizer.ggml.tokens").unwrap_or_default();
        let types = self.metadata.integers("tokenizer.ggml.token_type").unwrap_or_default();
        for (id, (text, kind)) in tokens.iter().zip(types).enumerate() {
            if *kind == CONTROL_TYPE
                && END_TEXTS.contains(&text.as_str())
                && let Ok(id) = u32::try_from(id)
                && ends.len() < 2 * END_TEXTS.len()
            {
                ends.push(id);
            }
        }
        Ok(ends)
    }

    fn vocab_size(&self) -> Result<usize> {
        match self.metadata.strings("tokenizer.ggml.tokens") {
            Some(tokens) => Ok(tokens.len()),
            None => self.required_size("vocab_size"),
        }
    }

    fn refuse_unsupported(&self) -> Result<()> {
        for key in ["expert_count", "attention.sliding_window"] {
            if let Some(n) = self.size(key)?.filter(|&n| n != 0) {
                return Err(self.wrong(key, &n, "absent or 0; the feature is not supported"));
            }
        }
        for key in ["rope.scaling.yarn_ext_factor", "rope.scaling.yarn_attn_factor"] {
            if let Some(n) = self.float(key)?.filter(|n| (n - 1.0).abs() > 1e-6) {
                return Err(self.wrong(key, &n, "absent or 1; other values are not supported"));
            }
        }
        Ok(())
    }

    fn refuse_other_head_dims(&self, head_dim: usize) -> Result<()> {
        for key in ["attention.value_length", "rope.dimension_count"] {
            if let Some(n) = self.size(key)?.filter(|&n| n != head_dim) {
                return Err(self.wrong(key, &n, &format!("the head dimension, which is {head_dim}")));
            }
        }
        Ok(())
    }
}

/// A value for an error message; arrays may be huge, so only their kind is told.
fn describe(value: &Value) -> String {
    match value {
        Value::String(s) => format!("\"{}\"", s.chars().take(60).collect::<String>().escape_debug()),
        Value::Integers(_) | Value::Floats(_) | Value::Bools(_) | Value::Strings(_) | Value::Arrays(_) => {
            "an array".to_owned()
        }
        scalar => format!("{scalar:?}"),
    }
}
