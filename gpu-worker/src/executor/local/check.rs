//! Checks of a step plan. The rule: whatever a plan says, computing it can't read or write outside the arena, the
//! vocabulary or the slots; a plan that could is refused with the place and the value.

use std::collections::{HashMap, HashSet};

use super::slot::Slots;
use crate::executor::{ExecutorLimits, PlanItem, SlotId, StepPlan};
use crate::kv::BLOCK_TOKENS;

/// Refuses a plan that breaks the limits.
pub(super) fn plan(plan: &StepPlan, limits: &ExecutorLimits, slots: &Slots) -> Result<(), String> {
    let mut released = HashSet::new();
    for &slot in &plan.released {
        match slots.is_live(slot) {
            Some(true) if released.insert(slot) => {}
            _ => return Err(format!("released slot {slot} holds no sequence")),
        }
    }
    let mut admitted: HashMap<SlotId, u32> = HashMap::new();
    for sequence in &plan.admitted {
        let slot = sequence.slot;
        let live = slots
            .is_live(slot)
            .ok_or_else(|| format!("admitted slot {slot} is not below the limit of {}", limits.slots))?;
        if (live && !released.contains(&slot))
            || admitted.insert(slot, sequence.generated.len() as u32).is_some()
        {
            return Err(format!("admitted slot {slot} holds a sequence already; release it first"));
        }
        tokens("generated", &sequence.generated, limits)?;
    }
    let mut seen = HashSet::new();
    let mut rows = 0usize;
    for planned in &plan.items {
        let slot = planned.slot;
        let kept = slots.find(slot).filter(|_| !released.contains(&slot)).map(|s| s.generated());
        let generated = admitted.get(&slot).copied().or(kept);
        let Some(generated) = generated else {
            return Err(format!("slot {slot} has work but holds no sequence"));
        };
        if !seen.insert(slot) {
            return Err(format!("slot {slot} appears twice in a step"));
        }
        if let Some(position) = planned.sample
            && position != generated
        {
            return Err(format!("slot {slot} samples output position {position} but has {generated} tokens"));
        }
        item(planned, limits)?;
        rows += planned.tokens.len();
    }
    if rows > limits.step_tokens as usize {
        return Err(format!("step has {rows} tokens; at most {} fit", limits.step_tokens));
    }
    Ok(())
}

fn item(item: &PlanItem, limits: &ExecutorLimits) -> Result<(), String> {
    let slot = item.slot;
    if item.tokens.is_empty() {
        return Err(format!("slot {slot} has an item without tokens"));
    }
    tokens("planned", &item.tokens, limits)?;
    let end = item.start as usize + item.tokens.len();
    if end > limits.context_tokens as usize {
        return Err(format!("slot {slot} reaches position {end}; the context is {}", limits.context_tokens));
    }
    let needed = end.div_ceil(BLOCK_TOKENS as usize);
    if item.blocks.len() < needed {
        return Err(format!("slot {slot} has {} blocks; {needed} are needed", item.blocks.len()));
    }
    if let Some(block) = item.blocks.iter().find(|&&b| b >= limits.blocks) {
        return Err(format!("slot {slot} names block {block}; there are {}", limits.blocks));
    }
    if let Some(prompt) = item.prompt_logprobs {
        tokens("next prompt", prompt.next.as_slice(), limits)?;
    }
    Ok(())
}

fn tokens(what: &str, tokens: &[u32], limits: &ExecutorLimits) -> Result<(), String> {
    match tokens.iter().find(|&&t| t >= limits.vocab_size) {
        Some(token) => {
            Err(format!("{what} token {token} is not below the vocabulary of {}", limits.vocab_size))
        }
        None => Ok(()),
    }
}
