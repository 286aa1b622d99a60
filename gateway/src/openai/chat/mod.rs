//! `POST /v1/chat/completions`: from a body to sequences, and from tokens to the reply.
//!
//! The rule: everything that can be wrong with a request is found before the first token, so that errors still have
//! a status.

mod choice;
mod messages;
mod prompt;
mod reply;
mod tool_grammar;
mod tool_text;
mod tools;

#[cfg(test)]
mod tests;

use std::sync::Arc;

use pons_protocol::sampling::MAX_TOP_LOGPROBS;
use serde_json::Value;

use super::fields::Fields;
use super::origin::Origin;
use super::prepared::{Prepared, Reply, SequenceSpec};
use super::sampling::Common;
use super::served::{RequestContext, ServedModel};
use super::structured;
use crate::error::ApiError;
use crate::text::reasoning::{self, ReasoningStart};
use crate::text::tool_calls;
pub(super) use reply::ChatReply;
use reply::Shape;
use tools::{Choice, ToolSet};

pub(super) use prompt::ids_of_messages;

/// Reads a chat request against a model.
///
/// # Errors
/// A 400 that names what is wrong.
pub fn prepare_chat(
    body: Value,
    model: &Arc<ServedModel>,
    ctx: RequestContext,
) -> Result<Prepared, ApiError> {
    let fields = Fields::top(&body)?;
    refuse_unsupported(&fields)?;
    let common = Common::read(&fields, model, &ctx)?;
    let top_logprobs = read_logprobs(&fields)?;
    let tools = tools::read(&fields)?;
    let structure = structured::read(&fields)?;
    let origin = Origin::of_prompt("messages");
    let (grammar, origin) = tool_grammar::grammar(tools.as_ref(), structure.as_ref(), origin)?;
    let origin = Arc::new(origin);
    let asked = read_max_tokens(&fields)?;
    let prompt = prompt::read(&fields, model, tools.as_ref())?;
    let mut ids = prompt.ids;
    common.truncate(&mut ids, model)?;
    let max_tokens = common.budget("messages", model, ids.len(), asked)?;

    let reasoning = match (&grammar, prompt.thinking) {
        // A grammar holds the text from its first token on, which leaves no room for tags.
        (Some(_), _) => ReasoningStart::Off,
        (None, true) => ReasoningStart::Open,
        (None, false) => ReasoningStart::Detect,
    };
    let include_reasoning = fields.bool("include_reasoning")?.unwrap_or(true);
    let kept = kept_tokens(model, reasoning, tools.as_ref());
    let rules = common.text_rules(kept, top_logprobs.is_some(), false);
    let prompt_ids: Arc<[u32]> = ids.into();
    let sequences = (0..common.n)
        .map(|choice| {
            let mut sampling = common.sampling.clone();
            sampling.choice = choice;
            sampling.logprobs = top_logprobs;
            let mut stop = common.stop.clone();
            stop.max_tokens = max_tokens;
            let (prompt, grammar, origin) = (prompt_ids.clone(), grammar.clone(), origin.clone());
            SequenceSpec { prompt, sampling, stop, grammar, origin }
        })
        .collect();
    let shape = Shape {
        tools: tools.map(reply_tools),
        reasoning,
        include_reasoning,
        top_logprobs,
        display: common.display,
    };
    let stream = common.display.stream;
    let reply = ChatReply::new(model, ctx, rules, shape, prompt_ids, common.n as usize);
    Ok(Prepared { sequences, stream, reply: Reply::chat(reply), serving: common.serving })
}

/// What the reply has to know of the tools.
fn reply_tools(set: ToolSet) -> reply::ReplyTools {
    reply::ReplyTools {
        names: set.names(),
        forced: set.is_forced(),
        named: matches!(set.choice, Choice::Named(_)),
        single: !set.parallel || matches!(set.choice, Choice::Named(_)),
        legacy: set.legacy,
    }
}

/// Tags that a parser must see even if the model calls them control tokens.
fn kept_tokens(model: &ServedModel, reasoning: ReasoningStart, tools: Option<&ToolSet>) -> Vec<u32> {
    let thinking = [reasoning::OPEN_TAG, reasoning::CLOSE_TAG];
    let calling = [tool_calls::OPEN_TAG, tool_calls::CLOSE_TAG];
    let thinking = thinking.iter().filter(|_| reasoning != ReasoningStart::Off);
    let calling = calling.iter().filter(|_| tools.is_some());
    thinking.chain(calling).filter_map(|tag| model.tokenizer.id_of(tag)).collect()
}

fn read_max_tokens(fields: &Fields<'_>) -> Result<Option<u32>, ApiError> {
    let newer = fields.count("max_completion_tokens", 1, u32::MAX)?;
    let older = fields.count("max_tokens", 1, u32::MAX)?;
    match (newer, older) {
        (Some(newer), Some(older)) if newer != older => {
            let message = format!(
                "max_tokens ({older}) and max_completion_tokens ({newer}) differ; send only max_completion_tokens"
            );
            Err(ApiError::invalid("max_tokens", message))
        }
        (newer, older) => Ok(newer.or(older)),
    }
}

fn read_logprobs(fields: &Fields<'_>) -> Result<Option<u32>, ApiError> {
    let wanted = fields.bool("logprobs")?.unwrap_or(false);
    let top = fields.count("top_logprobs", 0, MAX_TOP_LOGPROBS)?;
    if top.is_some() && !wanted {
        let message = "top_logprobs is only allowed when logprobs is true; send logprobs: true";
        return Err(ApiError::invalid("top_logprobs", message));
    }
    Ok(wanted.then_some(top.unwrap_or(0)))
}

fn refuse_unsupported(fields: &Fields<'_>) -> Result<(), ApiError> {
    let refuse = |name: &str, why: &str| Err(ApiError::unsupported(name, why));
    if fields.array("modalities")?.is_some_and(|wanted| wanted.iter().any(|modality| *modality != "text")) {
        return refuse("modalities", "the model writes text only; send [\"text\"] or leave it out");
    }
    if fields.string("verbosity")?.is_some_and(|verbosity| verbosity != "medium") {
        return refuse("verbosity", "say in a message how long the answer shall be");
    }
    if fields.bool("echo")?.unwrap_or(false) {
        return refuse("echo", "use continue_final_message, or echo on /v1/completions");
    }
    if fields.integer("best_of", 1, 128)?.is_some_and(|best_of| best_of > 1) {
        return refuse("best_of", "use n");
    }
    for (name, why) in [
        ("audio", "the model writes text only"),
        ("web_search_options", "define a tool instead"),
        ("chat_template", "templates are code; the model's own is used"),
        ("suffix", "use /v1/completions"),
        ("mm_processor_kwargs", "the model reads text only"),
    ] {
        if fields.get(name).is_some() {
            return refuse(name, why);
        }
    }
    Ok(())
}
