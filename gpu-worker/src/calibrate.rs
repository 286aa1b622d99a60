//! Measures an executor before it serves: how long a decode step takes and how fast prompts are computed.
//!
//! The rule: it takes about a second at most and shapes time only, never tokens. It works in the last slot, which
//! is left to it, and gives every other one back.

use std::sync::Arc;
use std::time::{Duration, Instant};

use pons_protocol::sampling::{SamplingParams, StopParams};

use crate::executor::{ExecutorError, ModelExecutor, NewSequence, PlanItem, SlotId, StepPlan};
use crate::kv::BLOCK_TOKENS;

/// Time that the measured prompt chunk should take about.
const CHUNK_S: f64 = 0.2;
/// Time after which no further decode step is begun.
const DECODE_LIMIT: Duration = Duration::from_millis(300);
/// Tokens of the chunk that tells how long the measured one may be.
const PROBE_TOKENS: u32 = 16;
/// Most tokens of the measured chunk.
const CHUNK_TOKENS: u32 = 256;
/// Rows of the measured decode step: a few streams side by side.
const DECODE_ROWS: u32 = 8;
/// Decode steps measured; the fastest counts, since all noise is on one side.
const DECODE_STEPS: u32 = 8;

/// What was measured.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Calibration {
    /// Fastest decode step of [`Self::decode_rows`] rows, in microseconds.
    pub decode_us: u64,
    /// Rows of that step.
    pub decode_rows: u32,
    /// Prompt tokens per second.
    pub prefill_tokens_per_s: f64,
}

/// Measures. `None` where the executor is too small to tell anything.
///
/// # Errors
/// The device failed.
pub fn measure<E: ModelExecutor>(executor: &mut E) -> Result<Option<Calibration>, ExecutorError> {
    let limits = executor.limits();
    let most = limits.step_tokens.min(limits.context_tokens).min(limits.blocks.saturating_mul(BLOCK_TOKENS));
    let own_slot = limits.slots.saturating_sub(1);
    let rows = DECODE_ROWS.min(own_slot).min(limits.step_tokens).min(limits.blocks);
    if most < PROBE_TOKENS.max(DECODE_STEPS) || rows == 0 {
        return Ok(None);
    }
    let mut bench = Bench { executor, own_slot, vocab_size: limits.vocab_size, steps: 0 };
    // The first step touches every weight for the first time and is not what a running server does.
    bench.prefill(PROBE_TOKENS)?;
    let probe_us = bench.prefill(PROBE_TOKENS)?;
    let affordable = f64::from(PROBE_TOKENS) / probe_us as f64 * 1e6 * CHUNK_S;
    let chunk = (affordable as u32).clamp(PROBE_TOKENS, CHUNK_TOKENS.min(most));
    let chunk_us = bench.prefill(chunk)?;
    let decode_us = bench.decode(rows)?;
    Ok(Some(Calibration {
        decode_us,
        decode_rows: rows,
        prefill_tokens_per_s: f64::from(chunk) * 1e6 / chunk_us as f64,
    }))
}

struct Bench<'a, E> {
    executor: &'a mut E,
    own_slot: SlotId,
    vocab_size: u32,
    steps: u64,
}

impl<E: ModelExecutor> Bench<'_, E> {
    /// Computes a prompt chunk in the own slot.
    fn prefill(&mut self, tokens: u32) -> Result<u64, ExecutorError> {
        self.prefill_and_release(tokens, Vec::new())
    }

    fn prefill_and_release(&mut self, tokens: u32, mut released: Vec<SlotId>) -> Result<u64, ExecutorError> {
        if self.steps > 0 {
            released.push(self.own_slot);
        }
        let item = PlanItem {
            slot: self.own_slot,
            tokens: (0..tokens).map(|position| position * 7 % self.vocab_size).collect(),
            start: 0,
            blocks: (0..tokens.div_ceil(BLOCK_TOKENS)).collect(),
            sample: None,
            prompt_logprobs: None,
        };
        self.run(released, vec![new_sequence(self.own_slot)], vec![item])
    }

    /// Lets a few sequences decode side by side from their first position on, sampling included; the context is
    /// short, so that this is the time of the weights.
    fn decode(&mut self, rows: u32) -> Result<u64, ExecutorError> {
        let began = Instant::now();
        let mut fastest_us = u64::MAX;
        let mut admitted = (0..rows).map(new_sequence).collect();
        for position in 0..DECODE_STEPS {
            let items = (0..rows).map(|row| decode_item(row, position)).collect();
            fastest_us = fastest_us.min(self.run(Vec::new(), std::mem::take(&mut admitted), items)?);
            if began.elapsed() > DECODE_LIMIT {
                break;
            }
        }
        // A step has work; the smallest carries the releases.
        self.prefill_and_release(1, (0..rows).collect())?;
        Ok(fastest_us)
    }

    fn run(
        &mut self,
        released: Vec<SlotId>,
        admitted: Vec<NewSequence>,
        items: Vec<PlanItem>,
    ) -> Result<u64, ExecutorError> {
        self.steps += 1;
        let plan = StepPlan { step: self.steps, released, admitted, items };
        let began = Instant::now();
        let ticket = self.executor.submit(plan)?;
        self.executor.collect(ticket)?;
        Ok(u64::try_from(began.elapsed().as_micros()).unwrap_or(u64::MAX).max(1))
    }
}

/// Row `row` has block `row` and nothing else.
fn decode_item(row: SlotId, position: u32) -> PlanItem {
    PlanItem {
        slot: row,
        tokens: vec![0],
        start: position,
        blocks: vec![row],
        sample: Some(position),
        prompt_logprobs: None,
    }
}

fn new_sequence(slot: SlotId) -> NewSequence {
    NewSequence {
        slot,
        sampling: Arc::new(SamplingParams::default()),
        stop: Arc::new(StopParams::default()),
        end_tokens: Arc::from([]),
        prompt: Arc::from([0]),
        generated: Vec::new(),
        grammar: None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::executor::ExecutorLimits;
    use crate::executor::fake::FakeExecutor;

    const LIMITS: ExecutorLimits =
        ExecutorLimits { blocks: 32, slots: 4, step_tokens: 64, context_tokens: 256, vocab_size: 100 };

    #[test]
    fn a_calibration_respects_the_limits_and_leaves_nothing_behind() {
        let mut executor = FakeExecutor::new(LIMITS);
        let first = measure(&mut executor).expect("plans are valid").expect("large enough");
        assert_eq!(first.decode_rows, 3);
        assert!(first.decode_us > 0 && first.prefill_tokens_per_s > 0.0);
        assert_eq!(executor.occupied_slots(), 1, "its own");
    }

    #[test]
    fn an_executor_that_is_too_small_is_not_measured() {
        let mut executor = FakeExecutor::new(ExecutorLimits { step_tokens: 4, ..LIMITS });
        assert_eq!(measure(&mut executor).expect("nothing is run"), None);
    }
}
