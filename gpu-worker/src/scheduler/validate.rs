//! Whether a submitted sequence can be run at all.
//!
//! The rule: a parameter is honoured or refused by name. The gateway checks first; the brain trusts nobody.

use pons_protocol::id::TokenId;
use pons_protocol::inference::{RejectReason, Rejection, Submit};
use pons_protocol::sampling::{MAX_LOGIT_BIAS, MAX_STOP_TOKEN_IDS, MAX_TOP_LOGPROBS, SamplingParams};

/// Checks a sequence against the vocabulary and the most tokens one sequence can have.
pub(super) fn check(submit: &Submit, vocab_size: u32, capacity_tokens: u32) -> Result<(), Rejection> {
    let refuse = |reason, message| Err(Rejection { sequence: submit.sequence, reason, message });
    if let Err(message) = parameters(submit, vocab_size) {
        return refuse(RejectReason::BadParameter, message);
    }
    let tokens = submit.prompt.len() as u64 + submit.generated.len() as u64;
    let wants_more = submit.generated.len() < submit.stop.max_tokens as usize;
    let needed = tokens + u64::from(wants_more && submit.generated.is_empty());
    if needed > u64::from(capacity_tokens) {
        let message = format!(
            "prompt of {tokens} tokens leaves no room for output within {capacity_tokens} tokens; shorten it"
        );
        return refuse(RejectReason::TooLong, message);
    }
    Ok(())
}

fn parameters(submit: &Submit, vocab_size: u32) -> Result<(), String> {
    if submit.prompt.is_empty() {
        return Err("prompt is empty; it needs at least one token".into());
    }
    if submit.stop.stop_token_ids.len() > MAX_STOP_TOKEN_IDS {
        let found = submit.stop.stop_token_ids.len();
        return Err(format!("stop_token_ids has {found} entries; use at most {MAX_STOP_TOKEN_IDS}"));
    }
    sampling(&submit.sampling)?;
    let bias = || submit.sampling.logit_bias.iter().map(|(token, _)| token);
    in_vocabulary("prompt", submit.prompt.iter(), vocab_size)?;
    in_vocabulary("generated", submit.generated.iter(), vocab_size)?;
    in_vocabulary("stop_token_ids", submit.stop.stop_token_ids.iter(), vocab_size)?;
    in_vocabulary("logit_bias", bias(), vocab_size)?;
    in_vocabulary("allowed_token_ids", submit.sampling.allowed_token_ids.iter(), vocab_size)
}

fn sampling(sampling: &SamplingParams) -> Result<(), String> {
    let within = |name: &str, value: f32, holds: bool, range: &str| {
        if value.is_finite() && holds { Ok(()) } else { Err(format!("{name} is {value}; use {range}")) }
    };
    let s = sampling;
    within("temperature", s.temperature, s.temperature >= 0.0, "a number from 0 on")?;
    within("top_p", s.top_p, s.top_p > 0.0 && s.top_p <= 1.0, "a number above 0 and at most 1")?;
    within("min_p", s.min_p, (0.0..=1.0).contains(&s.min_p), "a number from 0 to 1")?;
    within("repetition_penalty", s.repetition_penalty, s.repetition_penalty > 0.0, "a number above 0")?;
    within("presence_penalty", s.presence_penalty, true, "a finite number")?;
    within("frequency_penalty", s.frequency_penalty, true, "a finite number")?;
    for (name, count) in [("logprobs", s.logprobs), ("prompt_logprobs", s.prompt_logprobs)] {
        if let Some(count) = count.filter(|count| *count > MAX_TOP_LOGPROBS) {
            return Err(format!("{name} is {count}; use at most {MAX_TOP_LOGPROBS}"));
        }
    }
    if s.logit_bias.len() > MAX_LOGIT_BIAS {
        return Err(format!("logit_bias has {} entries; use at most {MAX_LOGIT_BIAS}", s.logit_bias.len()));
    }
    match s.logit_bias.iter().find(|(_, bias)| !bias.is_finite()) {
        Some((token, bias)) => Err(format!("logit_bias of token {token} is {bias}; use a finite number")),
        None => Ok(()),
    }
}

fn in_vocabulary<'a>(
    field: &str,
    mut tokens: impl Iterator<Item = &'a TokenId>,
    vocab_size: u32,
) -> Result<(), String> {
    match tokens.find(|token| **token >= vocab_size) {
        Some(token) => Err(format!("{field} holds token {token}; ids are below {vocab_size}")),
        None => Ok(()),
    }
}
