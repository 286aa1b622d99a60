//! One served model. The rule: a model has exactly one source, a brain we start or a brain at an address.

use crate::brain::BrainAddress;

use super::{ConfigError, DEFAULT_MODEL, MAX_MODELS};
use serde::{Deserialize, Serialize, Serializer};
use std::path::PathBuf;

/// P99s that are declared where the file declares none, and the largest that can be.
const DEFAULT_P99_TTFT_MS: u32 = 800;
/// See [`DEFAULT_P99_TTFT_MS`].
const DEFAULT_P99_ITL_MS: u32 = 100;
const MOST_TTFT_MS: u32 = 600_000;
const MOST_ITL_MS: u32 = 60_000;

/// A model as the file has it.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RawModel {
    name: Option<String>,
    path: Option<String>,
    brain: Option<String>,
    threads: Option<usize>,
    context: Option<u32>,
    kv_memory: Option<String>,
    max_sequences: Option<u32>,
    step_tokens: Option<u32>,
    max_waiting: Option<u32>,
    packed_cache: Option<bool>,
    packed_dir: Option<PathBuf>,
    p99_ttft_ms: Option<u32>,
    p99_itl_ms: Option<u32>,
    price_prompt: Option<u64>,
    price_cached: Option<u64>,
    price_output: Option<u64>,
}

impl RawModel {
    /// The entry that `--model` makes: a known name, or a path whose last part names the model.
    pub(super) fn named(argument: &str) -> Self {
        let is_path = argument.contains('/') || argument.ends_with(".gguf");
        let name = if is_path {
            let path = PathBuf::from(argument);
            let stem = if argument.ends_with(".gguf") { path.file_stem() } else { path.file_name() };
            stem.map_or_else(|| argument.to_owned(), |stem| stem.to_string_lossy().into_owned())
        } else {
            argument.to_owned()
        };
        Self { name: Some(name), path: Some(argument.to_owned()), ..Self::default() }
    }
}

/// Prices in millionths of the currency's unit for a million tokens.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Prices {
    /// Of prompt tokens that had to be computed.
    #[serde(rename = "price_prompt")]
    pub prompt: u64,
    /// Of prompt tokens found in the prefix cache.
    #[serde(rename = "price_cached")]
    pub cached: u64,
    /// Of generated tokens.
    #[serde(rename = "price_output")]
    pub output: u64,
}

impl Prices {
    /// The price of one request in millionths, rounded up, so that no use is free of charge.
    pub fn of(&self, prompt_tokens: u64, cached_tokens: u64, output_tokens: u64) -> u64 {
        let computed = prompt_tokens.saturating_sub(cached_tokens);
        let part = |tokens: u64, price: u64| u128::from(tokens) * u128::from(price);
        let total = part(computed, self.prompt)
            .saturating_add(part(cached_tokens, self.cached))
            .saturating_add(part(output_tokens, self.output));
        u64::try_from(total.div_ceil(1_000_000)).unwrap_or(u64::MAX)
    }
}

/// A model, every value checked. Absent numbers are the brain's to choose, from the machine it runs on.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ModelConfig {
    /// Name in the API.
    pub name: String,
    /// Known model name, `.gguf` file or model directory. The tokenizer comes from it even if the brain runs
    /// elsewhere.
    pub path: String,
    /// Address of a brain that somebody else runs; without it the gateway starts one.
    #[serde(skip_serializing_if = "Option::is_none", serialize_with = "as_text")]
    pub brain: Option<BrainAddress>,
    /// Compute threads of the brain.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub threads: Option<usize>,
    /// Context limit in tokens.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub context: Option<u32>,
    /// Memory of the KV cache, such as `2GiB`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kv_memory: Option<String>,
    /// Most sequences that run at one time.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_sequences: Option<u32>,
    /// Most tokens of one engine step.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub step_tokens: Option<u32>,
    /// Most sequences that wait.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_waiting: Option<u32>,
    /// Whether the brain keeps packed weights between starts; they take about as much of the disk as the model.
    pub packed_cache: bool,
    /// Where it keeps them; without it beside the model, or else in the platform's cache directory.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub packed_dir: Option<PathBuf>,
    /// Declared P99 of the time to the first token; the brain sizes itself for it.
    pub p99_ttft_ms: u32,
    /// Declared P99 of the time between two tokens.
    pub p99_itl_ms: u32,
    /// What its tokens cost.
    #[serde(flatten)]
    pub prices: Prices,
}

fn as_text<S: Serializer>(address: &Option<BrainAddress>, out: S) -> Result<S::Ok, S::Error> {
    out.collect_str(&address.as_ref().map(BrainAddress::to_string).unwrap_or_default())
}

pub(super) fn resolve(mut raw: Vec<RawModel>) -> Result<Vec<ModelConfig>, ConfigError> {
    if raw.is_empty() {
        raw.push(RawModel::named(DEFAULT_MODEL));
    }
    if raw.len() > MAX_MODELS {
        return Err(ConfigError::bad(
            "model",
            raw.len(),
            format!("at most {MAX_MODELS} models can be served"),
        ));
    }
    let mut models: Vec<ModelConfig> = Vec::new();
    for (index, raw) in raw.into_iter().enumerate() {
        let model = resolve_one(index, raw)?;
        if models.iter().any(|other| other.name == model.name) {
            return Err(ConfigError::bad(
                &format!("model[{index}].name"),
                &model.name,
                "two models have this name; give each its own",
            ));
        }
        models.push(model);
    }
    Ok(models)
}

fn resolve_one(index: usize, raw: RawModel) -> Result<ModelConfig, ConfigError> {
    let field = |name: &str| format!("model[{index}].{name}");
    let name = raw.name.or_else(|| raw.path.as_deref().and_then(|path| RawModel::named(path).name));
    let Some(name) = name else {
        return Err(ConfigError::bad(&field("name"), "", "give the model a name, a path, or both"));
    };
    if name.is_empty() || name.len() > 128 || name.chars().any(|c| c.is_control() || c.is_whitespace()) {
        return Err(ConfigError::bad(&field("name"), &name, "use 1 to 128 bytes without spaces"));
    }
    let brain = match &raw.brain {
        None => None,
        Some(text) => {
            Some(text.parse().map_err(|remedy: String| ConfigError::bad(&field("brain"), text, remedy))?)
        }
    };
    for (key, value) in [
        ("context", raw.context),
        ("max_sequences", raw.max_sequences),
        ("step_tokens", raw.step_tokens),
        ("max_waiting", raw.max_waiting),
    ] {
        if value == Some(0) {
            return Err(ConfigError::bad(&field(key), 0, "it must be at least 1, or absent"));
        }
    }
    for (key, value, most) in
        [("p99_ttft_ms", raw.p99_ttft_ms, MOST_TTFT_MS), ("p99_itl_ms", raw.p99_itl_ms, MOST_ITL_MS)]
    {
        if let Some(value) = value.filter(|value| !(1..=most).contains(value)) {
            return Err(ConfigError::bad(&field(key), value, format!("it must be between 1 and {most}")));
        }
    }
    if raw.packed_dir.as_ref().is_some_and(|dir| dir.as_os_str().is_empty()) {
        return Err(ConfigError::bad(&field("packed_dir"), "empty", "name a folder, or leave it out"));
    }
    if let Some(threads) = raw.threads.filter(|threads| !(1..=1024).contains(threads)) {
        return Err(ConfigError::bad(&field("threads"), threads, "it must be between 1 and 1024"));
    }
    Ok(ModelConfig {
        path: raw.path.unwrap_or_else(|| name.clone()),
        name,
        brain,
        threads: raw.threads,
        context: raw.context,
        kv_memory: raw.kv_memory,
        max_sequences: raw.max_sequences,
        step_tokens: raw.step_tokens,
        max_waiting: raw.max_waiting,
        packed_cache: raw.packed_cache.unwrap_or(true),
        packed_dir: raw.packed_dir,
        p99_ttft_ms: raw.p99_ttft_ms.unwrap_or(DEFAULT_P99_TTFT_MS),
        p99_itl_ms: raw.p99_itl_ms.unwrap_or(DEFAULT_P99_ITL_MS),
        prices: Prices {
            prompt: raw.price_prompt.unwrap_or(0),
            cached: raw.price_cached.unwrap_or(0),
            output: raw.price_output.unwrap_or(0),
        },
    })
}
