//! `POST /v1/completions`: from a body to sequences, and from tokens to the reply.
//!
//! The rule: prompts are taken as they are; choice `j` of prompt `i` is number `i * n + j`, whatever was drawn.

mod choice;
mod prompt;
mod reply;

#[cfg(test)]
mod tests;

use std::sync::Arc;

use serde_json::Value;

use super::fields::Fields;
use super::origin::Origin;
use super::prepared::{Prepared, Reply, SequenceSpec};
use super::sampling::{Common, MAX_CHOICES};
use super::served::{RequestContext, ServedModel};
use super::structured;
use crate::error::ApiError;
use prompt::Prompt;
pub(super) use reply::CompletionReply;
use reply::Shape;

pub(super) use prompt::ids_of_text;

/// Tokens generated when the client doesn't say.
const DEFAULT_MAX_TOKENS: u32 = 16;
/// Most alternatives of the legacy log probabilities.
const MAX_LOGPROBS: u32 = 5;

/// Reads a completion request against a model.
///
/// # Errors
/// A 400 that names what is wrong.
pub fn prepare_completion(
    body: Value,
    model: &Arc<ServedModel>,
    ctx: RequestContext,
) -> Result<Prepared, ApiError> {
    let fields = Fields::top(&body)?;
    refuse_unsupported(&fields)?;
    let common = Common::read(&fields, model, &ctx)?;
    let structure = structured::read(&fields)?;
    let echo = fields.bool("echo")?.unwrap_or(false);
    let logprobs = fields.count("logprobs", 0, MAX_LOGPROBS)?;
    let asked = fields.count("max_tokens", 0, u32::MAX)?.unwrap_or(DEFAULT_MAX_TOKENS);
    if asked == 0 && !echo {
        let message = "max_tokens may be 0 only when echo is true; ask for at least 1 token";
        return Err(ApiError::invalid("max_tokens", message));
    }
    let best_of = read_best_of(&fields, &common)?;
    let prompts = read_prompts(&fields, model, &common, asked)?;
    if prompts.len() * best_of > model.limits.max_sequences {
        let most = model.limits.max_sequences;
        let asked = prompts.len() * best_of;
        let message =
            format!("prompt: this request asks for {asked} sequences, but at most {most} are allowed");
        return Err(ApiError::invalid("prompt", message));
    }
    let mut origin = Origin::of_prompt("prompt");
    if let Some(asked) = &structure {
        origin = origin.with_grammar(&asked.field);
    }
    let origin = Arc::new(origin);
    let grammar = structure.map(|asked| asked.structure.grammar());
    let ranked = best_of > common.n as usize;
    let mut sequences = Vec::with_capacity(prompts.len() * best_of);
    for (number, prompt) in prompts.iter().enumerate() {
        for candidate in 0..best_of {
            let mut sampling = common.sampling.clone();
            sampling.choice = candidate as u32;
            sampling.seed = common.seed_of_prompt(number);
            // Candidates are compared by their mean log probability.
            sampling.logprobs = logprobs.or(ranked.then_some(0));
            sampling.prompt_logprobs = logprobs.filter(|_| echo);
            let mut stop = common.stop.clone();
            stop.max_tokens = asked;
            sequences.push(SequenceSpec {
                prompt: prompt.ids.clone(),
                sampling,
                stop,
                grammar: grammar.clone(),
                origin: origin.clone(),
            });
        }
    }
    let rules = common.text_rules(Vec::new(), logprobs.is_some() || ranked, true);
    let shape = Shape { n: common.n as usize, best_of, echo, logprobs, display: common.display };
    let reply = CompletionReply::new(model, &ctx, &rules, shape, prompts);
    let stream = common.display.stream;
    Ok(Prepared { sequences, stream, reply: Reply::completion(reply), serving: common.serving })
}

fn read_best_of(fields: &Fields<'_>, common: &Common) -> Result<usize, ApiError> {
    let Some(best_of) = fields.count("best_of", 1, MAX_CHOICES)? else { return Ok(common.n as usize) };
    if best_of < common.n {
        let message = format!("best_of ({best_of}) must be at least n ({})", common.n);
        return Err(ApiError::invalid("best_of", message));
    }
    if best_of > common.n && common.display.stream {
        let message = "best_of can't be streamed, since candidates are compared at their end; use n";
        return Err(ApiError::invalid("best_of", message));
    }
    Ok(best_of as usize)
}

fn read_prompts(
    fields: &Fields<'_>,
    model: &ServedModel,
    common: &Common,
    asked: u32,
) -> Result<Vec<Prompt>, ApiError> {
    let add_special = fields.bool("add_special_tokens")?.unwrap_or(true);
    let mut prompts = Vec::new();
    for mut raw in prompt::read(fields, model, add_special)? {
        let whole = raw.ids.len();
        common.truncate(&mut raw.ids, model)?;
        if raw.ids.len() < whole {
            // The text that belonged to the ids is gone with them.
            raw.text = None;
        }
        common.budget("prompt", model, raw.ids.len(), Some(asked))?;
        prompts.push(Prompt::new(raw, model));
    }
    Ok(prompts)
}

fn refuse_unsupported(fields: &Fields<'_>) -> Result<(), ApiError> {
    if fields.string("suffix")?.is_some_and(|suffix| !suffix.is_empty()) {
        return Err(ApiError::unsupported("suffix", "the model can't fill in the middle; leave it out"));
    }
    if fields.get("prompt_embeds").is_some() {
        return Err(ApiError::unsupported("prompt_embeds", "send the prompt as text or token ids"));
    }
    for name in ["tools", "messages"] {
        if fields.get(name).is_some_and(|value| value.as_array().is_none_or(|items| !items.is_empty())) {
            return Err(ApiError::unsupported(name, "use /v1/chat/completions"));
        }
    }
    Ok(())
}
