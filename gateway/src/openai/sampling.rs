//! Reads the parameters that chat and completions share: sampling, stopping, serving.
//!
//! The rule: each is honoured or refused by name, with its range checked here, since a bad value in the brain
//! would reach a batch that other tenants share.

use std::sync::Arc;

use pons_protocol::sampling::{MAX_LOGIT_BIAS, MAX_STOP_TOKEN_IDS, SamplingParams, StopParams};
use serde_json::Value;

use super::fields::{Fields, as_integer, type_name};
use super::frame::UsageFrames;
use super::served::{RequestContext, ServedModel};
use super::token_text::TextRules;
use crate::error::ApiError;
use crate::text::stop::StopStrings;

/// Most choices of a request.
pub(super) const MAX_CHOICES: u32 = 128;
/// Most stop strings.
const MAX_STOPS: usize = 4;
/// Longest stop string in bytes.
const MAX_STOP_BYTES: usize = 1024;
/// Most pairs of `metadata`.
const MAX_METADATA: usize = 16;
/// Temperatures below this are greedy; dividing by them would leave nothing else.
const GREEDY_BELOW: f64 = 1e-5;

/// What the client wants to see beyond the text.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Display {
    pub(super) stream: bool,
    pub(super) usage: UsageFrames,
    pub(super) token_ids: bool,
    pub(super) tokens_as_ids: bool,
}

/// Hints for those that schedule the request.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Serving {
    /// Lower runs first; to be clamped by the tenant's rights.
    pub priority: i32,
    /// `prompt_cache_key` and `cache_salt`; only ever used together with the tenant's secret.
    pub cache_salt: Option<String>,
}

/// Everything shared, read and checked.
#[derive(Debug)]
pub(super) struct Common {
    pub(super) n: u32,
    pub(super) sampling: SamplingParams,
    /// The client chose the seed, and the same seed gives the same text for each equal prompt of a request.
    pub(super) seeded: bool,
    pub(super) stop: StopParams,
    pub(super) stops: Arc<StopStrings>,
    pub(super) include_stop: bool,
    pub(super) skip_special: bool,
    pub(super) display: Display,
    pub(super) serving: Serving,
    pub(super) truncate_prompt_tokens: Option<i64>,
}

impl Common {
    /// Reads everything but `max_tokens` and log probabilities, which differ between the routes.
    pub(super) fn read(
        fields: &Fields<'_>,
        model: &ServedModel,
        ctx: &RequestContext,
    ) -> Result<Self, ApiError> {
        refuse_unsupported(fields)?;
        check_metadata(fields)?;
        let min_tokens = fields.count("min_tokens", 0, u32::MAX)?.unwrap_or(0);
        Ok(Self {
            n: fields.count("n", 1, MAX_CHOICES)?.unwrap_or(1),
            sampling: read_sampling(fields, model, ctx)?,
            seeded: fields.get("seed").is_some(),
            stop: StopParams {
                max_tokens: 0,
                min_tokens,
                ignore_eos: fields.bool("ignore_eos")?.unwrap_or(false),
                stop_token_ids: token_ids(fields, "stop_token_ids", model, MAX_STOP_TOKEN_IDS)?,
            },
            stops: Arc::new(StopStrings::new(read_stop(fields)?)),
            include_stop: fields.bool("include_stop_str_in_output")?.unwrap_or(false),
            skip_special: fields.bool("skip_special_tokens")?.unwrap_or(true),
            display: read_display(fields)?,
            serving: read_serving(fields)?,
            truncate_prompt_tokens: fields.integer("truncate_prompt_tokens", -1, i64::from(u32::MAX))?,
        })
    }

    /// The rules for the text of all choices.
    pub(super) fn text_rules(&self, kept: Vec<u32>, entries: bool, end_entry: bool) -> Arc<TextRules> {
        Arc::new(TextRules {
            skip_special: self.skip_special,
            include_stop: self.include_stop,
            stops: self.stops.clone(),
            min_tokens: self.stop.min_tokens,
            kept,
            entries,
            end_entry,
        })
    }

    /// The seed for one of the request's prompts. Without one of the client's, equal prompts draw different texts.
    pub(super) fn seed_of_prompt(&self, prompt: usize) -> u64 {
        if self.seeded {
            return self.sampling.seed;
        }
        // The odd constant of Fibonacci hashing: a product that differs in its high bits for each prompt.
        self.sampling.seed ^ (prompt as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15)
    }

    /// Cuts a prompt to the length asked for, keeping its end.
    pub(super) fn truncate(&self, prompt: &mut Vec<u32>, model: &ServedModel) -> Result<(), ApiError> {
        let keep = match self.truncate_prompt_tokens {
            None => return Ok(()),
            Some(-1) => model.context_tokens.saturating_sub(1) as usize,
            Some(0) => {
                let message = "truncate_prompt_tokens must be -1 or at least 1, but is 0";
                return Err(ApiError::invalid("truncate_prompt_tokens", message));
            }
            Some(keep) => usize::try_from(keep).unwrap_or(usize::MAX),
        };
        prompt.drain(..prompt.len().saturating_sub(keep));
        Ok(())
    }

    /// Checks a prompt and the tokens asked for against the context, and says how many may be generated.
    pub(super) fn budget(
        &self,
        param: &'static str,
        model: &ServedModel,
        prompt_tokens: usize,
        asked: Option<u32>,
    ) -> Result<u32, ApiError> {
        let context = model.context_tokens;
        let too_long = || ApiError::context_length(param, context, prompt_tokens, asked);
        let prompt = u32::try_from(prompt_tokens).ok().filter(|prompt| *prompt <= context);
        let prompt = prompt.ok_or_else(too_long)?;
        if let Some(limit) = model.limits.max_prompt_tokens.filter(|limit| prompt > *limit) {
            let error = ApiError::context_length(param, limit, prompt_tokens, None);
            return Err(error);
        }
        let left = context - prompt;
        let most = model.limits.max_output_tokens.unwrap_or(u32::MAX);
        let granted = match asked {
            Some(asked) if asked > left => return Err(too_long()),
            Some(asked) if asked > most => {
                let message = format!("max_tokens must be at most {most} on this server, but is {asked}");
                return Err(ApiError::invalid("max_tokens", message));
            }
            Some(asked) => asked,
            None if left == 0 => return Err(too_long()),
            None => left.min(most),
        };
        if self.stop.min_tokens > granted {
            let min = self.stop.min_tokens;
            let message = format!("min_tokens must be at most max_tokens ({granted}), but is {min}");
            return Err(ApiError::invalid("min_tokens", message));
        }
        Ok(granted)
    }
}

fn read_sampling(
    fields: &Fields<'_>,
    model: &ServedModel,
    ctx: &RequestContext,
) -> Result<SamplingParams, ApiError> {
    let temperature = fields.number("temperature", 0.0, 2.0)?.unwrap_or(1.0);
    let top_p = fields.number("top_p", 0.0, 1.0)?.unwrap_or(1.0) as f32;
    let top_k = fields.integer("top_k", -1, i64::from(u32::MAX))?.unwrap_or(0).max(0);
    let seed = fields.integer("seed", i64::MIN, i64::MAX)?;
    Ok(SamplingParams {
        temperature: if temperature < GREEDY_BELOW { 0.0 } else { temperature as f32 },
        // A nucleus without mass still holds the best token.
        top_p: top_p.max(f32::MIN_POSITIVE),
        top_k: u32::try_from(top_k).unwrap_or(u32::MAX).min(model.vocab_size),
        min_p: fields.number("min_p", 0.0, 1.0)?.unwrap_or(0.0) as f32,
        repetition_penalty: fields.number("repetition_penalty", 0.01, 100.0)?.unwrap_or(1.0) as f32,
        presence_penalty: fields.number("presence_penalty", -2.0, 2.0)?.unwrap_or(0.0) as f32,
        frequency_penalty: fields.number("frequency_penalty", -2.0, 2.0)?.unwrap_or(0.0) as f32,
        seed: seed.map_or(ctx.entropy, i64::cast_unsigned),
        choice: 0,
        logit_bias: read_logit_bias(fields, model)?,
        allowed_token_ids: token_ids(fields, "allowed_token_ids", model, model.vocab_size as usize)?,
        logprobs: None,
        prompt_logprobs: None,
    })
}

fn read_logit_bias(fields: &Fields<'_>, model: &ServedModel) -> Result<Vec<(u32, f32)>, ApiError> {
    let Some(map) = fields.object("logit_bias")? else { return Ok(Vec::new()) };
    let wrong = |message: String| ApiError::invalid("logit_bias", message);
    if map.len() > MAX_LOGIT_BIAS {
        return Err(wrong(format!("logit_bias must have at most {MAX_LOGIT_BIAS} entries; send fewer")));
    }
    map.iter()
        .map(|(key, value)| {
            let shown: String = key.chars().take(40).collect();
            // Only the usual spelling, so that no token can have two biases.
            let token = key.parse::<u32>().ok().filter(|token| token.to_string() == *key);
            let token = token.filter(|token| *token < model.vocab_size).ok_or_else(|| {
                let last = model.vocab_size.saturating_sub(1);
                wrong(format!(
                    "logit_bias: {shown:?} is no token id of this model; ids are 0 to {last}, without signs or \
                     leading zeros"
                ))
            })?;
            let bias = value.as_f64().filter(|bias| (-100.0..=100.0).contains(bias));
            let bias = bias.ok_or_else(|| {
                wrong(format!("logit_bias: the value of {shown:?} must be a number between -100 and 100"))
            })?;
            Ok((token, bias as f32))
        })
        .collect()
}

/// A list of token ids, each within the vocabulary.
pub(super) fn token_ids(
    fields: &Fields<'_>,
    name: &str,
    model: &ServedModel,
    most: usize,
) -> Result<Vec<u32>, ApiError> {
    let Some(items) = fields.array(name)? else { return Ok(Vec::new()) };
    if items.len() > most {
        let message = format!("{name} must have at most {most} entries, but has {}", items.len());
        return Err(ApiError::invalid(name, message));
    }
    items.iter().enumerate().map(|(index, item)| token_id(item, &format!("{name}[{index}]"), model)).collect()
}

/// One token id within the vocabulary.
pub(super) fn token_id(value: &Value, path: &str, model: &ServedModel) -> Result<u32, ApiError> {
    let number =
        as_integer(value).ok_or_else(|| ApiError::invalid_type(path, "a token id", type_name(value)))?;
    u32::try_from(number).ok().filter(|id| *id < model.vocab_size).ok_or_else(|| {
        let last = model.vocab_size.saturating_sub(1);
        ApiError::invalid(path, format!("{path}: {number} is no token id of this model; ids are 0 to {last}"))
    })
}

fn read_stop(fields: &Fields<'_>) -> Result<Vec<String>, ApiError> {
    let texts: Vec<&Value> = match fields.get("stop") {
        None => return Ok(Vec::new()),
        Some(Value::Array(items)) => items.iter().collect(),
        Some(single) => vec![single],
    };
    if texts.len() > MAX_STOPS {
        let message = format!("stop must have at most {MAX_STOPS} strings, but has {}", texts.len());
        return Err(ApiError::invalid("stop", message));
    }
    texts
        .into_iter()
        .map(|value| match value.as_str() {
            None => Err(ApiError::invalid_type("stop", "a string or an array of strings", type_name(value))),
            Some("") => Err(ApiError::invalid("stop", "stop must not hold an empty string; leave it out")),
            Some(text) if text.len() > MAX_STOP_BYTES => {
                let message =
                    format!("each stop string must have at most {MAX_STOP_BYTES} bytes; shorten it");
                Err(ApiError::invalid("stop", message))
            }
            Some(text) => Ok(text.to_owned()),
        })
        .collect()
}

fn read_display(fields: &Fields<'_>) -> Result<Display, ApiError> {
    let stream = fields.bool("stream")?.unwrap_or(false);
    let mut usage = UsageFrames::Off;
    if let Some(value) = fields.get("stream_options") {
        let options = Fields::of(value, "stream_options")?;
        if !stream {
            let message = "stream_options is only allowed when stream is true; leave it out";
            return Err(ApiError::invalid("stream_options", message));
        }
        options.bool("include_obfuscation")?;
        let each = options.bool("continuous_usage_stats")?.unwrap_or(false);
        if options.bool("include_usage")?.unwrap_or(false) {
            usage = if each { UsageFrames::Each } else { UsageFrames::Last };
        }
    }
    Ok(Display {
        stream,
        usage,
        token_ids: fields.bool("return_token_ids")?.unwrap_or(false),
        tokens_as_ids: fields.bool("return_tokens_as_token_ids")?.unwrap_or(false),
    })
}

fn read_serving(fields: &Fields<'_>) -> Result<Serving, ApiError> {
    let priority = fields.integer("priority", i64::MIN, i64::MAX)?.unwrap_or(0);
    // Labels of the client's own: their form is checked, and nothing here needs them.
    for (name, most_chars) in
        [("user", 512), ("safety_identifier", 64), ("session_id", 512), ("request_id", 512)]
    {
        fields.short_string(name, most_chars)?;
    }
    let salt = fields.short_string("cache_salt", 1024)?;
    if salt == Some("") {
        return Err(ApiError::invalid("cache_salt", "cache_salt must not be empty; leave it out"));
    }
    let key = fields.short_string("prompt_cache_key", 1024)?.filter(|key| !key.is_empty());
    fields.one_of("service_tier", &["auto", "default", "flex", "scale", "priority", "fast"])?;
    let cache_salt = match (key, salt) {
        (None, None) => None,
        // The length keeps two different pairs from reading the same.
        (key, salt) => {
            let key = key.unwrap_or_default();
            Some(format!("{}:{key}{}", key.len(), salt.unwrap_or_default()))
        }
    };
    Ok(Serving { priority: priority.clamp(i64::from(i32::MIN), i64::from(i32::MAX)) as i32, cache_salt })
}

fn check_metadata(fields: &Fields<'_>) -> Result<(), ApiError> {
    let Some(map) = fields.object("metadata")? else { return Ok(()) };
    if map.len() > MAX_METADATA {
        let message = format!("metadata must have at most {MAX_METADATA} pairs, but has {}", map.len());
        return Err(ApiError::invalid("metadata", message));
    }
    for (key, value) in map {
        if key.chars().nth(64).is_some() {
            return Err(ApiError::invalid("metadata", "each metadata key must have at most 64 characters"));
        }
        let path = format!("metadata.{key}");
        let text =
            value.as_str().ok_or_else(|| ApiError::invalid_type(&*path, "a string", type_name(value)))?;
        if text.chars().nth(512).is_some() {
            return Err(ApiError::invalid(path, "each metadata value must have at most 512 characters"));
        }
    }
    Ok(())
}

/// Parameters that this server knows and doesn't do, unless they hold the value that changes nothing.
fn refuse_unsupported(fields: &Fields<'_>) -> Result<(), ApiError> {
    let refuse = |name: &str, why: &str| Err(ApiError::unsupported(name, why));
    if fields.bool("store")?.unwrap_or(false) {
        return refuse("store", "completions are not kept; leave it out or send false");
    }
    if fields.bool("use_beam_search")?.unwrap_or(false) {
        return refuse("use_beam_search", "sample instead");
    }
    if fields.array("bad_words")?.is_some_and(|words| !words.is_empty()) {
        return refuse("bad_words", "use logit_bias with the tokens' ids");
    }
    if fields.number("length_penalty", -1e9, 1e9)?.is_some_and(|penalty| penalty != 1.0) {
        return refuse("length_penalty", "it belongs to beam search; leave it out or send 1");
    }
    if fields.integer("stream_interval", 1, i64::from(u32::MAX))?.is_some_and(|tokens| tokens != 1) {
        return refuse("stream_interval", "text is sent as soon as it is settled; leave it out or send 1");
    }
    fields.bool("spaces_between_special_tokens")?;
    for (name, why) in [
        ("prompt_logprobs", "use /v1/completions with echo and logprobs"),
        ("logprob_token_ids", "use top_logprobs"),
        ("kv_transfer_params", "the prefix cache is managed by the server"),
        ("thinking_token_budget", "use max_completion_tokens"),
        ("guided_whitespace_pattern", "white space is fixed"),
        ("logits_processors", "use logit_bias"),
    ] {
        if fields.get(name).is_some() {
            return refuse(name, why);
        }
    }
    Ok(())
}
