//! Model configuration from `config.json` and `generation_config.json`.
//!
//! The rule: a field that changes the arithmetic and that this build does not implement is refused, never ignored.

use serde_json::{Map, Value};

use super::{Family, ModelConfig, RopeLayout, RopeScaling};
use crate::error::{CheckpointError, Result};

impl ModelConfig {
    /// Reads the texts of `config.json` and, where the model has one, `generation_config.json`.
    ///
    /// # Errors
    /// When a text is not a JSON object, or a field is missing, of the wrong type, out of range or unsupported.
    pub fn from_json(config: &str, generation: Option<&str>) -> Result<Self> {
        let fields = Fields::parse("config.json", config)?;
        let generation = generation.map(|text| Fields::parse("generation_config.json", text)).transpose()?;
        let architecture = Family::parse("model_type", fields.str("model_type")?.unwrap_or("missing"))?;
        refuse_unsupported(&fields, architecture)?;
        let hidden = fields.required_size("hidden_size")?;
        let heads = fields.required_size("num_attention_heads")?;
        let head_dim = match fields.size("head_dim")? {
            Some(dim) => dim,
            None => derived_head_dim(hidden, heads)?,
        };
        let mut eos = fields.tokens("eos_token_id")?;
        if let Some(generation) = &generation {
            eos.extend(generation.tokens("eos_token_id")?);
        }
        Self {
            architecture,
            vocab_size: fields.required_size("vocab_size")?,
            hidden,
            layers: fields.required_size("num_hidden_layers")?,
            heads,
            kv_heads: fields.size("num_key_value_heads")?.unwrap_or(heads),
            head_dim,
            intermediate: fields.required_size("intermediate_size")?,
            context: fields.required_size("max_position_embeddings")?,
            rope_theta: rope_theta(&fields)?,
            rope_scaling: rope_scaling(&fields)?,
            rope_layout: RopeLayout::Half,
            rms_eps: fields.float("rms_norm_eps")?.unwrap_or(1e-6) as f32,
            qkv_bias: architecture == Family::Qwen2,
            qk_norm: architecture == Family::Qwen3,
            tied_embeddings: fields.flag("tie_word_embeddings")?.unwrap_or(false),
            bos: fields.tokens("bos_token_id")?.first().copied(),
            eos,
            pad: fields.tokens("pad_token_id")?.first().copied(),
        }
        .validated()
    }
}

fn derived_head_dim(hidden: usize, heads: usize) -> Result<usize> {
    if heads == 0 || !hidden.is_multiple_of(heads) {
        let remedy = format!("it must divide hidden_size, which is {hidden}, where head_dim is not given");
        return Err(CheckpointError::config("num_attention_heads", heads, remedy));
    }
    Ok(hidden / heads)
}

fn refuse_unsupported(fields: &Fields, family: Family) -> Result<()> {
    for field in ["attention_bias", "mlp_bias", "use_sliding_window"] {
        // Qwen2's query, key and value biases are part of the family and not announced by a field.
        if fields.flag(field)? == Some(true) {
            return Err(CheckpointError::config(
                field,
                true,
                format!("only false is supported for {family}"),
            ));
        }
    }
    if let Some(window) = fields.size("sliding_window")?
        && family == Family::Llama
        && fields.size("max_position_embeddings")?.is_some_and(|context| window < context)
    {
        let remedy = "sliding-window attention is not supported; use a model without it";
        return Err(CheckpointError::config("sliding_window", window, remedy));
    }
    if let Some(act) = fields.str("hidden_act")?.filter(|&act| act != "silu") {
        return Err(CheckpointError::config("hidden_act", act.escape_debug(), "only silu is supported"));
    }
    if fields.get("quantization_config").is_some() {
        let remedy = "pre-quantised safetensors are not supported; use the original weights or a gguf file";
        return Err(CheckpointError::config("quantization_config", "present", remedy));
    }
    let partial = fields.float("partial_rotary_factor")?.filter(|&part| (part - 1.0).abs() > 1e-9);
    if let Some(part) = partial {
        return Err(CheckpointError::config("partial_rotary_factor", part, "only 1.0 is supported"));
    }
    Ok(())
}

/// `rope_parameters` (newer files) or `rope_scaling` (older ones).
fn rope_fields(fields: &Fields) -> Result<Option<Fields>> {
    let parameters = fields.object("rope_parameters")?;
    if parameters.is_some() { Ok(parameters) } else { fields.object("rope_scaling") }
}

fn rope_theta(fields: &Fields) -> Result<f64> {
    let nested = rope_fields(fields)?.map(|rope| rope.float("rope_theta")).transpose()?.flatten();
    Ok(nested.or(fields.float("rope_theta")?).unwrap_or(10_000.0))
}

fn rope_scaling(fields: &Fields) -> Result<RopeScaling> {
    let Some(rope) = rope_fields(fields)? else {
        return Ok(RopeScaling::None);
    };
    let kind = rope.str("rope_type")?.or(rope.str("type")?).unwrap_or("default");
    let original_context = || match rope.size("original_max_position_embeddings")? {
        Some(n) => Ok(n),
        None => fields.required_size("max_position_embeddings"),
    };
    Ok(match kind {
        "default" => RopeScaling::None,
        "linear" => RopeScaling::Linear { factor: rope.required_float("factor")? },
        "llama3" => RopeScaling::Llama3 {
            factor: rope.required_float("factor")?,
            low_freq_factor: rope.required_float("low_freq_factor")?,
            high_freq_factor: rope.required_float("high_freq_factor")?,
            original_context: original_context()?,
        },
        "yarn" if rope.get("mscale").is_some() || rope.get("mscale_all_dim").is_some() => {
            let remedy = "yarn with mscale is not supported; use attention_factor";
            return Err(CheckpointError::config("rope_scaling.mscale", "present", remedy));
        }
        "yarn" if rope.flag("truncate")? == Some(false) => {
            return Err(CheckpointError::config("rope_scaling.truncate", false, "only true is supported"));
        }
        "yarn" => RopeScaling::Yarn {
            factor: rope.required_float("factor")?,
            original_context: original_context()?,
            beta_fast: rope.float("beta_fast")?.unwrap_or(32.0),
            beta_slow: rope.float("beta_slow")?.unwrap_or(1.0),
            attention_factor: rope.float("attention_factor")?,
        },
        _ => {
            let remedy = "supported are default, linear, llama3 and yarn";
            return Err(CheckpointError::config("rope_scaling.rope_type", kind.escape_debug(), remedy));
        }
    })
}

/// A JSON object whose fields are read by type; null counts as absent.
struct Fields {
    prefix: String,
    map: Map<String, Value>,
}

impl Fields {
    fn parse(file: &str, text: &str) -> Result<Self> {
        let map = serde_json::from_str(text).map_err(|e| {
            CheckpointError::config(file, "unreadable", format!("it must be a JSON object: {e}"))
        })?;
        Ok(Self { prefix: String::new(), map })
    }

    fn get(&self, field: &str) -> Option<&Value> {
        self.map.get(field).filter(|value| !value.is_null())
    }

    fn wrong(&self, field: &str, value: &Value, expected: &str) -> CheckpointError {
        // A hostile value may be huge; its beginning is enough to recognise it.
        let shown: String = value.to_string().chars().take(60).collect();
        CheckpointError::config(format!("{}{field}", self.prefix), shown, format!("it must be {expected}"))
    }

    fn missing(&self, field: &str) -> CheckpointError {
        CheckpointError::config(
            format!("{}{field}", self.prefix),
            "missing",
            "the model's config.json must give it",
        )
    }

    fn read<'a, T>(
        &'a self,
        field: &str,
        expected: &str,
        get: impl Fn(&'a Value) -> Option<T>,
    ) -> Result<Option<T>> {
        self.get(field).map(|value| get(value).ok_or_else(|| self.wrong(field, value, expected))).transpose()
    }

    fn str(&self, field: &str) -> Result<Option<&str>> {
        self.read(field, "a string", Value::as_str)
    }

    fn flag(&self, field: &str) -> Result<Option<bool>> {
        self.read(field, "true or false", Value::as_bool)
    }

    fn float(&self, field: &str) -> Result<Option<f64>> {
        self.read(field, "a number", Value::as_f64)
    }

    fn required_float(&self, field: &str) -> Result<f64> {
        self.float(field)?.ok_or_else(|| self.missing(field))
    }

    fn size(&self, field: &str) -> Result<Option<usize>> {
        self.read(field, "a whole number", |v| v.as_u64().and_then(|n| usize::try_from(n).ok()))
    }

    fn required_size(&self, field: &str) -> Result<usize> {
        self.size(field)?.ok_or_else(|| self.missing(field))
    }

    fn object(&self, field: &str) -> Result<Option<Self>> {
        let map = self.read(field, "an object", |v| v.as_object().cloned())?;
        Ok(map.map(|map| Self { prefix: format!("{field}."), map }))
    }

    /// A token id or a list of them; absent gives none.
    fn tokens(&self, field: &str) -> Result<Vec<u32>> {
        let id = |v: &Value| v.as_u64().and_then(|n| u32::try_from(n).ok());
        let list = self.read(field, "a token id or a list of token ids", |value| match value {
            Value::Array(items) => items.iter().map(id).collect::<Option<Vec<u32>>>(),
            single => id(single).map(|id| vec![id]),
        })?;
        Ok(list.unwrap_or_default())
    }
}
