//! Measures an executor before it serves: how long a decode step takes by its rows and how fast prompts are computed.
//!
//! The rule: it takes a second at most on a device that can serve, and shapes time only, never tokens. It works in
//! the last slot, which is left to it, and gives every other one back.

pub mod store;

use std::sync::Arc;
use std::time::{Duration, Instant};

use pons_protocol::sampling::{SamplingParams, StopParams};
use serde::{Deserialize, Serialize};

use crate::executor::{ExecutorError, ModelExecutor, NewSequence, PlanItem, SlotId, StepPlan};
use crate::kv::BLOCK_TOKENS;

/// Time that the longest measured prompt chunk should take at most.
const CHUNK_S: f64 = 0.2;
/// Time after which no further decode step is begun, from the first of them.
const DECODE_LIMIT: Duration = Duration::from_millis(400);
/// Tokens of the chunk that is computed first, which touches the weights.
const WARM_TOKENS: u32 = 16;
/// Tokens of the chunk that tells how long the longest may be.
const PROBE_TOKENS: u32 = 64;
/// Most tokens of the longest chunk.
const CHUNK_TOKENS: u32 = 512;
/// Tokens before the one that is decoded, where the longest chunk has so many.
const CONTEXT_TOKENS: u32 = 256;
/// Steps of each number of rows; the fastest counts, since all noise is on one side.
const DECODE_STEPS: u32 = 3;
/// Most rows measured.
const MOST_ROWS: u32 = 256;
/// A measurement whose second best time is so many times its best was disturbed.
const CALM_RATIO: f64 = 1.4;
/// Longest believable step.
const MOST_STEP_US: u64 = 600_000_000;

/// Duration of a decode step of some rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DecodeTime {
    /// Rows.
    pub rows: u32,
    /// Microseconds.
    pub step_us: u64,
}

/// What was measured.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Calibration {
    /// Prompt tokens per second.
    pub prefill_tokens_per_s: f64,
    /// Decode steps by rows, rising in both.
    decode: Vec<DecodeTime>,
}

impl Calibration {
    /// A measurement, if it is one that a device can give. Times that fall with more rows are noise and are lifted.
    pub fn new(prefill_tokens_per_s: f64, mut decode: Vec<DecodeTime>) -> Option<Self> {
        let rising = decode.windows(2).all(|pair| pair[0].rows < pair[1].rows);
        let sensible = decode.iter().all(|time| time.rows > 0 && (1..=MOST_STEP_US).contains(&time.step_us));
        if !rising || !sensible || decode.is_empty() || decode.len() > 64 {
            return None;
        }
        if !(prefill_tokens_per_s.is_finite() && (1e-3..=1e10).contains(&prefill_tokens_per_s)) {
            return None;
        }
        let mut slowest = 0;
        for time in &mut decode {
            slowest = slowest.max(time.step_us);
            time.step_us = slowest;
        }
        Some(Self { prefill_tokens_per_s, decode })
    }

    /// Duration of a decode step of these rows in microseconds: between two measured ones on the line between them,
    /// beyond the last on the line through the last two.
    pub fn decode_us(&self, rows: u32) -> u64 {
        let after = self.decode.iter().position(|time| time.rows >= rows);
        let origin = DecodeTime { rows: 0, step_us: 0 };
        let (from, to) = match (after, self.decode.as_slice()) {
            // Fewer rows than the fewest measured read the same weights.
            (Some(0), times) => return times[0].step_us,
            (Some(index), times) => (times[index - 1], times[index]),
            (None, [.., from, to]) => (*from, *to),
            (None, [only]) => (origin, *only),
            (None, []) => return 0,
        };
        let slope = (to.step_us - from.step_us) as f64 / f64::from(to.rows - from.rows);
        to.step_us.saturating_add_signed(((f64::from(rows) - f64::from(to.rows)) * slope) as i64)
    }

    /// Duration of a prompt chunk in microseconds.
    pub fn prefill_us(&self, tokens: u32) -> u64 {
        (f64::from(tokens) / self.prefill_tokens_per_s * 1e6) as u64
    }

    /// Most rows whose step takes no longer than this; 0 where one row does.
    pub fn most_rows(&self, step_us: u64, limit: u32) -> u32 {
        (1..=limit).take_while(|rows| self.decode_us(*rows) <= step_us).last().unwrap_or(0)
    }

    /// As it is told to gateways.
    pub fn to_wire(&self) -> pons_protocol::inference::Calibration {
        pons_protocol::inference::Calibration {
            prefill_tokens_per_s: self.prefill_tokens_per_s as u32,
            decode_us_1: self.decode_us(1),
            decode_us_8: self.decode_us(8),
            decode_us_32: self.decode_us(32),
        }
    }
}

/// A measurement and whether it may be kept.
#[derive(Clone, Debug, PartialEq)]
pub struct Measured {
    /// What was measured.
    pub calibration: Calibration,
    /// Whether repeated steps agreed; a disturbed measurement serves this run and is not kept for the next.
    pub calm: bool,
}

/// Measures. `None` where the executor is too small to tell anything. No more rows are tried once a step takes
/// longer than `enough_us`.
///
/// # Errors
/// The device failed.
pub fn measure<E: ModelExecutor>(
    executor: &mut E,
    enough_us: u64,
) -> Result<Option<Measured>, ExecutorError> {
    let limits = executor.limits();
    let own_slot = limits.slots.saturating_sub(1);
    // The last block is left to the first decode row, whatever the chunk.
    let cells = limits.blocks.saturating_sub(1).saturating_mul(BLOCK_TOKENS);
    // One more position than the chunk has is decoded.
    let context = limits.context_tokens.saturating_sub(BLOCK_TOKENS);
    let most = limits.step_tokens.min(context).min(cells);
    if most < WARM_TOKENS || own_slot == 0 {
        return Ok(None);
    }
    let mut bench = Bench { executor, own_slot, vocab_size: limits.vocab_size, steps: 0 };
    // The first step touches every weight for the first time and is not what a running server does.
    bench.prefill(WARM_TOKENS)?;
    let probe = PROBE_TOKENS.min(most);
    let probe_us = bench.prefill(probe)?;
    let mut rate = f64::from(probe) * 1e6 / probe_us as f64;
    let chunk = ((rate * CHUNK_S) as u32).clamp(probe, CHUNK_TOKENS.min(most));
    let chunk_us = bench.prefill(chunk)?;
    rate = rate.max(f64::from(chunk) * 1e6 / chunk_us as f64);
    let context = chunk.min(CONTEXT_TOKENS) / BLOCK_TOKENS;
    let rows = own_slot.min(limits.step_tokens).min(limits.blocks - context).min(MOST_ROWS);
    let (decode, calm) = bench.decode_curve(rows, context, enough_us)?;
    Ok(Calibration::new(rate, decode).map(|calibration| Measured { calibration, calm }))
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

    /// Times of decode steps of 1, 2, 4 … rows, sampling included, each row behind the blocks that the chunk
    /// before has filled. Says too whether repeated steps agreed.
    fn decode_curve(
        &mut self,
        most_rows: u32,
        context_blocks: u32,
        enough_us: u64,
    ) -> Result<(Vec<DecodeTime>, bool), ExecutorError> {
        let began = Instant::now();
        let (mut times, mut calm) = (Vec::new(), true);
        let (mut rows, mut live) = (1, Vec::<u32>::new());
        loop {
            let mut admitted: Vec<_> = (live.len() as u32..rows).map(new_sequence).collect();
            live.resize(rows as usize, 0);
            let mut each_us = Vec::new();
            for _ in 0..DECODE_STEPS {
                let items = (0..rows).map(|row| decode_item(row, context_blocks, live[row as usize]));
                let items = items.collect();
                each_us.push(self.run(Vec::new(), std::mem::take(&mut admitted), items)?);
                live.iter_mut().for_each(|sampled| *sampled += 1);
                if began.elapsed() > DECODE_LIMIT {
                    break;
                }
            }
            each_us.sort_unstable();
            let step_us = each_us[0];
            calm &= each_us.get(1).is_none_or(|second| *second as f64 <= step_us as f64 * CALM_RATIO);
            times.push(DecodeTime { rows, step_us });
            // Twice the rows take twice the time at most.
            let next_ends = began.elapsed() + Duration::from_micros(2 * step_us);
            if rows >= most_rows || step_us > enough_us || next_ends > DECODE_LIMIT {
                break;
            }
            rows = (rows * 2).min(most_rows);
        }
        // A step has work; the smallest carries the releases.
        self.prefill_and_release(1, (0..rows).collect())?;
        Ok((times, calm))
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
        Ok(u64::try_from(began.elapsed().as_micros()).unwrap_or(u64::MAX).clamp(1, MOST_STEP_US))
    }
}

/// Row `row` reads the shared blocks and writes its own; after a block's worth of tokens it begins again.
fn decode_item(row: SlotId, context_blocks: u32, sampled: u32) -> PlanItem {
    PlanItem {
        slot: row,
        tokens: vec![0],
        start: context_blocks * BLOCK_TOKENS + sampled % BLOCK_TOKENS,
        blocks: (0..context_blocks).chain([context_blocks + row]).collect(),
        sample: Some(sampled),
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
        ExecutorLimits { blocks: 32, slots: 8, step_tokens: 64, context_tokens: 256, vocab_size: 100 };

    #[test]
    fn a_calibration_respects_the_limits_and_leaves_nothing_behind() {
        let mut executor = FakeExecutor::new(LIMITS);
        let measured = measure(&mut executor, u64::MAX).expect("plans are valid").expect("large enough");
        let rows: Vec<u32> = measured.calibration.decode.iter().map(|time| time.rows).collect();
        assert_eq!(rows, [1, 2, 4, 7]);
        assert!(measured.calibration.prefill_tokens_per_s > 0.0);
        assert_eq!(executor.occupied_slots(), 1, "its own");
    }

    #[test]
    fn no_more_rows_are_measured_than_the_target_allows() {
        let mut executor = FakeExecutor::new(LIMITS);
        let measured = measure(&mut executor, 0).expect("plans are valid").expect("large enough");
        assert_eq!(measured.calibration.decode.len(), 1);
    }

    #[test]
    fn an_executor_that_is_too_small_is_not_measured() {
        let mut executor = FakeExecutor::new(ExecutorLimits { step_tokens: 4, ..LIMITS });
        assert_eq!(measure(&mut executor, u64::MAX).expect("nothing is run"), None);
    }

    #[test]
    fn times_between_and_beyond_the_measured_rows_lie_on_lines() {
        let time = |rows, step_us| DecodeTime { rows, step_us };
        let curve = vec![time(1, 1000), time(4, 4000), time(8, 3900), time(16, 8000)];
        let calibration = Calibration::new(100.0, curve).expect("a sensible device");
        assert_eq!([1, 2, 4, 8, 12].map(|rows| calibration.decode_us(rows)), [1000, 2000, 4000, 4000, 6000]);
        assert_eq!(calibration.decode_us(32), 16_000);
        assert_eq!(calibration.most_rows(5999, 100), 11);
        assert_eq!((calibration.most_rows(999, 100), calibration.most_rows(1 << 40, 100)), (0, 100));
        let one = Calibration::new(100.0, vec![time(1, 1000)]).expect("a sensible device");
        assert_eq!(one.decode_us(3), 3000, "nothing is known to be shared");
    }

    #[test]
    fn what_no_device_can_give_is_no_calibration() {
        let time = |rows, step_us| DecodeTime { rows, step_us };
        assert!(Calibration::new(f64::NAN, vec![time(1, 1)]).is_none());
        assert!(Calibration::new(1.0, Vec::new()).is_none());
        assert!(Calibration::new(1.0, vec![time(2, 1), time(1, 2)]).is_none());
        assert!(Calibration::new(1.0, vec![time(1, 0)]).is_none());
    }
}
