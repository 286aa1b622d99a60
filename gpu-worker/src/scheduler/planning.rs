//! Builds the plan of one step.
//!
//! The rule: decodes first, one token each, then prefill chunks of running sequences, then new sequences, all
//! under the step's token budget. Chunks are only marked while deciding; the plan is written down at the end,
//! from those that still run.

use pons_protocol::inference::{RejectReason, Rejection};

use super::Scheduler;
use super::budget::StepTargets;
use super::preempt::Reach;
use crate::executor::plan::PromptLogprobs;
use crate::executor::{NewSequence, PlanItem, StepPlan};
use crate::kv::BLOCK_TOKENS;
use crate::sequence::{Arrival, Sequence};

/// What was planned, until it is committed.
#[derive(Debug, Default)]
pub(super) struct InFlight {
    pub(super) items: Vec<InFlightItem>,
    pub(super) planned_us: u64,
    pub(super) decode_rows: u32,
    pub(super) tokens: u32,
}

/// One planned item.
#[derive(Clone, Copy, Debug)]
pub(super) struct InFlightItem {
    pub(super) arrival: Arrival,
    pub(super) tokens: u32,
    pub(super) samples: bool,
}

impl Scheduler {
    /// The next step, if there is something to compute. The step must be committed before the next is planned.
    pub fn plan(&mut self, now_us: u64) -> Option<StepPlan> {
        assert!(self.in_flight.is_none(), "a step is planned while another is in flight");
        self.expire(now_us);
        let order = self.seniority();
        let decode_rows = self.mark_decodes(&order);
        let left = self.prefill_room(decode_rows);
        let left = self.mark_prefills(&order, left);
        self.admit(left, now_us);
        let plan = self.write_down(now_us);
        debug_assert_eq!(self.audit(), Ok(()));
        plan
    }

    /// Refuses those that waited longer than they wanted to.
    fn expire(&mut self, now_us: u64) {
        while let Some((start_by_us, arrival)) = self.deadlines.first().copied() {
            if start_by_us > now_us {
                break;
            }
            self.deadlines.pop_first();
            if let Some(sequence) = self.remove(arrival) {
                let waited_ms = now_us.saturating_sub(sequence.times.received_us) / 1000;
                let message =
                    format!("waited {waited_ms} ms, longer than queue_timeout_ms allows; retry later");
                let reason = RejectReason::QueueTimeout;
                self.rejections.push(Rejection { sequence: sequence.id, reason, message });
            }
        }
    }

    /// Running sequences, the one that may never be preempted first.
    pub(super) fn seniority(&self) -> Vec<Arrival> {
        let mut order = self.running.clone();
        order.sort_by_cached_key(|arrival| self.rank(*arrival));
        order
    }

    /// Gives each decoding sequence its token and the block for it.
    fn mark_decodes(&mut self, order: &[Arrival]) -> u32 {
        for arrival in order {
            let Some(sequence) = self.running_sequence(*arrival).filter(|s| s.is_decoding()) else {
                continue;
            };
            let upto = sequence.progress.computed + 1;
            if self.make_room(*arrival, upto, Reach::Everyone) {
                self.mark(*arrival, 1);
            }
        }
        let marked =
            order.iter().filter(|a| self.running_sequence(**a).is_some_and(|s| s.progress.chunk == 1));
        u32::try_from(marked.count()).unwrap_or(u32::MAX)
    }

    /// Tokens left for prefill. At least one: running sequences are never more than the step's tokens.
    fn prefill_room(&self, decode_rows: u32) -> u32 {
        let limit = self.config.step_tokens.saturating_sub(decode_rows);
        let targets = StepTargets::new(self.config.itl_target_us, self.config.ttft_target_us);
        self.meter.prefill_budget(targets, decode_rows, limit)
    }

    /// Gives running sequences the next chunks of their prompts.
    fn mark_prefills(&mut self, order: &[Arrival], mut left: u32) -> u32 {
        for (rank, arrival) in order.iter().enumerate() {
            let Some(sequence) = self.running_sequence(*arrival).filter(|s| s.progress.chunk == 0) else {
                continue;
            };
            let computed = sequence.progress.computed;
            let wanted = sequence.remaining().min(left);
            if wanted == 0 {
                continue;
            }
            // The first of all may take from anybody, so that somebody always gets on.
            let reach = if rank == 0 { Reach::Everyone } else { Reach::LowerPriorities };
            let chunk = if self.make_room(*arrival, computed + wanted, reach) {
                wanted
            } else {
                self.take_what_fits(*arrival, wanted)
            };
            self.mark(*arrival, chunk);
            left -= chunk;
        }
        left
    }

    /// Tokens of a chunk for which there are blocks, which the sequence gets.
    fn take_what_fits(&mut self, arrival: Arrival, wanted: u32) -> u32 {
        let available = self.cache.available();
        let Some(sequence) = self.running_sequence(arrival) else { return 0 };
        let room =
            sequence.progress.table.room_tokens().saturating_add(available.saturating_mul(BLOCK_TOKENS));
        let chunk = wanted.min(room.saturating_sub(sequence.progress.computed));
        let upto = sequence.progress.computed + chunk;
        if chunk > 0 && self.grow(arrival, upto) { chunk } else { 0 }
    }

    pub(super) fn mark(&mut self, arrival: Arrival, chunk: u32) {
        if let Some(sequence) = self.sequences.get_mut(&arrival) {
            sequence.progress.chunk = chunk;
        }
    }

    pub(super) fn running_sequence(&self, arrival: Arrival) -> Option<&Sequence> {
        self.sequences.get(&arrival).filter(|sequence| sequence.progress.slot.is_some())
    }

    fn write_down(&mut self, now_us: u64) -> Option<StepPlan> {
        let mut in_flight = InFlight { planned_us: now_us, ..InFlight::default() };
        let (mut admitted, mut decodes, mut prefills) = (Vec::new(), Vec::new(), Vec::new());
        let (mut decode_rows, mut prefill_rows) = (Vec::new(), Vec::new());
        for arrival in &self.running {
            let Some(sequence) = self.sequences.get_mut(arrival) else { continue };
            let Some(slot) = sequence.progress.slot.filter(|_| sequence.progress.chunk > 0) else { continue };
            if std::mem::take(&mut sequence.progress.fresh) {
                admitted.push(new_sequence(sequence, slot));
            }
            let item = plan_item(sequence, slot);
            let row = InFlightItem {
                arrival: *arrival,
                tokens: sequence.progress.chunk,
                samples: item.sample.is_some(),
            };
            in_flight.tokens += row.tokens;
            if sequence.is_decoding() {
                in_flight.decode_rows += 1;
                decodes.push(item);
                decode_rows.push(row);
            } else {
                prefills.push(item);
                prefill_rows.push(row);
            }
            sequence.progress.chunk = 0;
        }
        decodes.append(&mut prefills);
        decode_rows.append(&mut prefill_rows);
        if decodes.is_empty() {
            debug_assert!(self.sequences.is_empty(), "sequences are live but nothing can be computed");
            return None;
        }
        in_flight.items = decode_rows;
        self.in_flight = Some(in_flight);
        self.totals.steps += 1;
        let released = std::mem::take(&mut self.released);
        Some(StepPlan { step: self.totals.steps, released, admitted, items: decodes })
    }
}

fn new_sequence(sequence: &Sequence, slot: u32) -> NewSequence {
    NewSequence {
        slot,
        sampling: sequence.sampling.clone(),
        stop: sequence.stop.clone(),
        end_tokens: sequence.end_tokens.clone(),
        prompt: sequence.prompt.clone(),
        generated: sequence.generated.clone(),
        grammar: sequence.grammar.clone(),
    }
}

fn plan_item(sequence: &Sequence, slot: u32) -> PlanItem {
    let start = sequence.progress.computed;
    let end = start + sequence.progress.chunk;
    let last_chunk = end == sequence.total_tokens();
    let prompt_logprobs = sequence.sampling.prompt_logprobs.filter(|_| sequence.owes_prompt_logprobs());
    PlanItem {
        slot,
        tokens: sequence.tokens(start..end),
        start,
        blocks: sequence.progress.table.as_slice().to_vec(),
        sample: (last_chunk && sequence.wants_token()).then(|| sequence.output_tokens()),
        prompt_logprobs: prompt_logprobs.map(|top| PromptLogprobs { top, next: sequence.token_at(end) }),
    }
}
