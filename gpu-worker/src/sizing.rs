//! Computes the limits of a brain from what was measured and from the declared P99s.
//!
//! The rule: it is one pure function; each number comes with its reason in words, a given setting wins, and every
//! result lies within the executor's limits.

use crate::calibrate::Calibration;
use crate::executor::ExecutorLimits;
use crate::kv::BLOCK_TOKENS;
use crate::scheduler::budget::MIN_BUDGET_TOKENS;

/// Most sequences that a limit is computed for; slots cost little, but more rows than this gain nothing on a CPU.
pub const MOST_SEQUENCES: u32 = 256;
/// Sequences where nothing was measured.
const UNMEASURED_SEQUENCES: u32 = 64;
/// Fewest sequences that a target may bring the limit to: where not even these keep to it, fewer would leave the
/// device idle between rows and help only those that are not waiting.
pub const FEWEST_SEQUENCES: u32 = 8;
/// Most tokens of one step: more rows than this add nothing on a CPU but memory.
pub const MOST_STEP_TOKENS: u32 = 2048;
/// Fewest computed step tokens.
const FEWEST_STEP_TOKENS: u32 = 256;
/// Percent of the inter-token target that a mean step may take, so that the slowest hundredth stays within it.
const MEAN_PERCENT: u64 = 80;
/// How many first-token targets of prompt work may wait: whoever would wait longer is better refused at once.
const WAITING_TARGETS: u64 = 75;
/// Bounds of the prompt tokens that may wait.
const FEWEST_WAITING_TOKENS: u64 = 65_536;
const MOST_WAITING_TOKENS: u64 = 2_000_000;
/// Times the running sequences' full contexts that the KV cache may hold: as much again for prefixes to be found.
const CACHE_FACTOR: u64 = 2;

/// The latencies that are promised.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Targets {
    /// P99 of the time to the first token, in microseconds.
    pub ttft_us: u64,
    /// P99 of the time between two tokens, in microseconds.
    pub itl_us: u64,
}

/// Limits that the user gave; each wins over what would be computed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Given {
    /// Most sequences.
    pub max_sequences: Option<u32>,
    /// Most tokens of a step.
    pub step_tokens: Option<u32>,
    /// Whether the memory of the KV cache was given.
    pub kv_memory: bool,
    /// Most prompt tokens that wait.
    pub max_waiting_tokens: Option<u64>,
}

/// The limits of a brain and why they are so.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sizes {
    /// Most sequences that run.
    pub max_sequences: u32,
    /// Why.
    pub sequences_reason: String,
    /// Most tokens of a step.
    pub step_tokens: u32,
    /// Why.
    pub step_reason: String,
    /// Blocks of the KV cache in use.
    pub kv_blocks: u32,
    /// Why.
    pub kv_reason: String,
    /// Most prompt tokens that wait.
    pub max_waiting_tokens: u64,
    /// Why.
    pub waiting_reason: String,
}

/// Computes the limits. `limits` is what the executor has room for: its blocks follow from the memory.
pub fn derive(
    measured: Option<&Calibration>,
    targets: Targets,
    given: Given,
    limits: &ExecutorLimits,
) -> Sizes {
    let (max_sequences, sequences_reason) = sequences(measured, targets, given, limits);
    let (step_tokens, step_reason) = step(measured, targets, given, limits, max_sequences);
    let (kv_blocks, kv_reason) = blocks(given, limits, max_sequences);
    let (max_waiting_tokens, waiting_reason) = waiting(measured, targets, given);
    Sizes {
        max_sequences,
        sequences_reason,
        step_tokens,
        step_reason,
        kv_blocks,
        kv_reason,
        max_waiting_tokens,
        waiting_reason,
    }
}

fn sequences(
    measured: Option<&Calibration>,
    targets: Targets,
    given: Given,
    limits: &ExecutorLimits,
) -> (u32, String) {
    // All of them decode in one step, and each needs a block.
    let room = limits.slots.min(limits.step_tokens).min(limits.blocks).max(1);
    let room = given.step_tokens.map_or(room, |tokens| room.min(tokens.max(1)));
    if let Some(count) = given.max_sequences {
        return (count.clamp(1, room), "given".to_owned());
    }
    let Some(measured) = measured else {
        return (UNMEASURED_SEQUENCES.min(room), "nothing was measured".to_owned());
    };
    let usable_us = targets.itl_us / 100 * MEAN_PERCENT;
    let chunk_us = measured.prefill_us(MIN_BUDGET_TOKENS);
    let fits = |spare_us: u64| measured.most_rows(usable_us.saturating_sub(spare_us), MOST_SEQUENCES);
    let (rows, mut reason) = match (fits(chunk_us), fits(0)) {
        (0, 0) => {
            let us = measured.decode_us(1);
            (
                0,
                format!(
                    "one row takes {us} us already, more than {MEAN_PERCENT} % of the inter-token target"
                ),
            )
        }
        // A target that is missed beside prompts anyway isn't worth an idle device.
        (beside, rows) if beside < FEWEST_SEQUENCES => (
            rows,
            format!(
                "a decode step of {rows} takes {} us of the {usable_us} us that are usable; a chunk of \
                 {MIN_BUDGET_TOKENS} prompt tokens takes {chunk_us} us and does not fit beside {FEWEST_SEQUENCES}",
                measured.decode_us(rows)
            ),
        ),
        (rows, _) => (
            rows,
            format!(
                "a decode step of {rows} takes {} us and a chunk of {MIN_BUDGET_TOKENS} prompt tokens {chunk_us} \
                 us, within the {usable_us} us that are usable",
                measured.decode_us(rows)
            ),
        ),
    };
    let least = FEWEST_SEQUENCES.min(room);
    if rows < least {
        reason.push_str("; raised to the fewest that keep the device busy");
    } else if rows > room {
        reason.push_str("; lowered to what the executor has room for");
    }
    (rows.clamp(least, room), reason)
}

fn step(
    measured: Option<&Calibration>,
    targets: Targets,
    given: Given,
    limits: &ExecutorLimits,
    max_sequences: u32,
) -> (u32, String) {
    let most = limits.step_tokens.max(1);
    let least = max_sequences.min(most);
    if let Some(tokens) = given.step_tokens {
        return (tokens.clamp(least, most), "given".to_owned());
    }
    let Some(measured) = measured else {
        return (MOST_STEP_TOKENS.clamp(least, most), "nothing was measured".to_owned());
    };
    let half_us = targets.ttft_us / 2;
    let computed = measured.prefill_tokens_per_s * (half_us as f64 / 1e6);
    let least = least.saturating_add(MIN_BUDGET_TOKENS).max(FEWEST_STEP_TOKENS).min(most);
    let top = MOST_STEP_TOKENS.max(least).min(most);
    let reason = format!(
        "{} prompt tokens take half the first-token target at {} tokens/s, within {least} to {top}",
        computed as u32, measured.prefill_tokens_per_s as u64
    );
    ((computed as u32).clamp(least, top), reason)
}

fn blocks(given: Given, limits: &ExecutorLimits, max_sequences: u32) -> (u32, String) {
    if given.kv_memory {
        return (limits.blocks, "the memory was given".to_owned());
    }
    let context_blocks = limits.context_tokens.div_ceil(BLOCK_TOKENS);
    let useful = u64::from(context_blocks) * u64::from(max_sequences) * CACHE_FACTOR;
    match u32::try_from(useful) {
        Ok(useful) if useful < limits.blocks => {
            (useful.max(1), format!("{CACHE_FACTOR} times {max_sequences} full contexts are of use"))
        }
        _ => (limits.blocks, "as many as the share of the available memory holds".to_owned()),
    }
}

fn waiting(measured: Option<&Calibration>, targets: Targets, given: Given) -> (u64, String) {
    if let Some(tokens) = given.max_waiting_tokens {
        return (tokens, "given".to_owned());
    }
    let Some(measured) = measured else {
        return (MOST_WAITING_TOKENS, "nothing was measured".to_owned());
    };
    let wait_us = targets.ttft_us.saturating_mul(WAITING_TARGETS);
    let computed = (measured.prefill_tokens_per_s * (wait_us as f64 / 1e6)) as u64;
    let reason = format!(
        "{computed} prompt tokens take {} ms, {WAITING_TARGETS} first-token targets, within \
         {FEWEST_WAITING_TOKENS} to {MOST_WAITING_TOKENS}",
        wait_us / 1000
    );
    (computed.clamp(FEWEST_WAITING_TOKENS, MOST_WAITING_TOKENS), reason)
}

#[cfg(test)]
mod tests;
