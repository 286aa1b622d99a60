//! Decides what each step computes. It knows sequences, tenants and block ids, and no tensor.
//!
//! The rule: it is a pure state machine. Time comes in as a value, a plan goes out, a result comes back; the
//! same calls give the same plans, and whatever it decides, the tokens of a sequence stay the same.

mod admission;
mod audit;
pub mod budget;
mod commit;
mod config;
mod planning;
mod preempt;
pub mod queue;
mod validate;

use std::collections::{BTreeSet, HashMap};

use pons_protocol::capacity::Capacity;
use pons_protocol::id::SequenceId;
use pons_protocol::inference::{FinishReason, RejectReason, Rejection, SequenceOutput, Submit};

use crate::executor::{ExecutorLimits, SlotId};
use crate::grammar::GrammarMatcher;
use crate::kv::{BLOCK_TOKENS, BlockCache, ChainHash};
use crate::sequence::{Arrival, Sequence};
use budget::StepMeter;
use queue::{Place, WaitingQueue};

pub use config::{CostWeights, SchedulerConfig};

/// Schedules sequences on one executor.
pub struct Scheduler {
    limits: ExecutorLimits,
    config: SchedulerConfig,
    cache: BlockCache,
    sequences: HashMap<Arrival, Sequence>,
    by_id: HashMap<SequenceId, Arrival>,
    queue: WaitingQueue,
    /// Sequences with a slot, in order of admission.
    running: Vec<Arrival>,
    /// Waiting sequences that give up at a moment.
    deadlines: BTreeSet<(u64, Arrival)>,
    waiting_tokens: u64,
    free_slots: Vec<SlotId>,
    released: Vec<SlotId>,
    /// Blocks that running sequences are about to compute, and how many of them do.
    computing: HashMap<ChainHash, u32>,
    in_flight: Option<planning::InFlight>,
    ready: Vec<SequenceOutput>,
    rejections: Vec<Rejection>,
    meter: StepMeter,
    next_arrival: u64,
    draining: bool,
    totals: Totals,
}

/// Counters since the start.
#[derive(Clone, Copy, Debug, Default)]
struct Totals {
    steps: u64,
    last_step_end_us: u64,
    busy_since_us: u64,
    last_step_us: u64,
    last_step_tokens: u32,
    prompt_tokens: u64,
    cached_tokens: u64,
    output_tokens: u64,
    preemptions: u64,
}

impl Scheduler {
    /// A scheduler for an executor with these limits.
    pub fn new(mut limits: ExecutorLimits, mut config: SchedulerConfig) -> Self {
        limits.blocks = limits.blocks.min(config.max_blocks.max(1));
        config.step_tokens = config.step_tokens.clamp(1, limits.step_tokens.max(1));
        // Every running sequence must be able to decode in the same step.
        config.max_running = config.max_running.min(limits.slots).min(config.step_tokens).max(1);
        let quota = u64::from(limits.blocks) * u64::from(config.quota_percent.min(100)) / 100;
        let quota_blocks = u32::try_from(quota).unwrap_or(limits.blocks);
        Self {
            cache: BlockCache::new(limits.blocks, quota_blocks, config.prefix_key),
            free_slots: (0..config.max_running).rev().collect(),
            limits,
            config,
            sequences: HashMap::new(),
            by_id: HashMap::new(),
            queue: WaitingQueue::default(),
            running: Vec::new(),
            deadlines: BTreeSet::new(),
            waiting_tokens: 0,
            released: Vec::new(),
            computing: HashMap::new(),
            in_flight: None,
            ready: Vec::new(),
            rejections: Vec::new(),
            meter: StepMeter::default(),
            next_arrival: 0,
            draining: false,
            totals: Totals::default(),
        }
    }

    /// Takes in a sequence whose grammar, if any, is compiled. It runs when a later plan admits it.
    pub fn submit(
        &mut self,
        submit: Submit,
        grammar: Option<GrammarMatcher>,
        now_us: u64,
    ) -> Result<(), Rejection> {
        self.check_room(&submit)?;
        validate::check(&submit, self.limits.vocab_size, self.capacity_tokens())?;
        let arrival = Arrival(self.next_arrival);
        self.next_arrival += 1;
        let eos = &self.config.eos_token_ids;
        let mut sequence = Sequence::new(submit, grammar, eos, arrival, now_us);
        if let Some(reason) = sequence.end_by_tokens(eos, self.capacity_tokens()) {
            // The earlier run came to its end; only its last message was lost.
            self.ready.push(ended(&sequence, reason, now_us));
            return Ok(());
        }
        self.extend_hashes(&mut sequence);
        if self.sequences.is_empty() {
            self.totals.busy_since_us = now_us;
        }
        if let Some(start_by_us) = sequence.times.start_by_us {
            self.deadlines.insert((start_by_us, arrival));
        }
        self.waiting_tokens += u64::from(sequence.prompt_tokens());
        self.queue.arrive(place_of(&sequence));
        self.by_id.insert(sequence.id, arrival);
        self.sequences.insert(arrival, sequence);
        Ok(())
    }

    /// Forgets a sequence at once, in whatever state it is, also while a step with it is in flight: its blocks
    /// are not handed out before that step is committed, and what the step brings for it is dropped.
    pub fn abort(&mut self, sequence: SequenceId) {
        if let Some(arrival) = self.by_id.get(&sequence).copied() {
            self.remove(arrival);
        }
    }

    /// Accepts nothing from now on; what is there goes on.
    pub fn drain(&mut self) {
        self.draining = true;
    }

    /// Whether there is nothing to do.
    pub fn is_idle(&self) -> bool {
        self.sequences.is_empty() && self.ready.is_empty()
    }

    /// Sequences that were refused after they had been accepted: they waited too long.
    pub fn take_rejections(&mut self) -> Vec<Rejection> {
        std::mem::take(&mut self.rejections)
    }

    /// Outputs that need no step: continuations that had already ended.
    pub fn take_ready(&mut self) -> Vec<SequenceOutput> {
        std::mem::take(&mut self.ready)
    }

    /// Number of the last planned step.
    pub fn steps(&self) -> u64 {
        self.totals.steps
    }

    /// Sets the most tokens of a step, within the executor's limit and not below one for each running sequence.
    pub fn set_step_budget(&mut self, step_tokens: u32) {
        self.config.step_tokens = step_tokens.min(self.limits.step_tokens).max(self.config.max_running);
    }

    /// Starts the running means of the budget from a calibration.
    pub fn calibrate(&mut self, meter: StepMeter) {
        self.meter = meter;
    }

    /// Most tokens of one sequence: the context, or the whole KV cache if that is smaller.
    pub fn capacity_tokens(&self) -> u32 {
        self.limits.context_tokens.min(self.limits.blocks.saturating_mul(BLOCK_TOKENS))
    }

    /// Load and counters.
    pub fn capacity(&self, now_us: u64) -> Capacity {
        let blocks = self.cache.counts();
        let totals = &self.totals;
        // Idle time is no age: a step is late only since there was something to do.
        let since_us = totals.last_step_end_us.max(totals.busy_since_us);
        let age_us = if self.sequences.is_empty() { 0 } else { now_us.saturating_sub(since_us) };
        Capacity {
            running: u32::try_from(self.running.len()).unwrap_or(u32::MAX),
            waiting: self.queue.len(),
            waiting_tokens: self.waiting_tokens,
            blocks_free: blocks.free,
            blocks_cached: blocks.cached,
            blocks_held: blocks.held,
            blocks_total: blocks.total,
            steps: totals.steps,
            step_age_ms: age_us / 1000,
            step_us: totals.last_step_us,
            step_tokens: totals.last_step_tokens,
            prompt_tokens_total: totals.prompt_tokens,
            cached_tokens_total: totals.cached_tokens,
            output_tokens_total: totals.output_tokens,
            preemptions_total: totals.preemptions,
            // The engine knows where time goes.
            ..Capacity::default()
        }
    }

    fn check_room(&self, submit: &Submit) -> Result<(), Rejection> {
        let refuse = |reason, message| Err(Rejection { sequence: submit.sequence, reason, message });
        if self.draining {
            return refuse(
                RejectReason::Draining,
                "the worker is draining; send the request to another".into(),
            );
        }
        if self.by_id.contains_key(&submit.sequence) {
            let message = format!("sequence {} is live already; choose another id", submit.sequence);
            return refuse(RejectReason::BadParameter, message);
        }
        let (waiting, limit) = (self.queue.len(), self.config.max_waiting);
        let can_start = u32::try_from(self.free_slots.len()).unwrap_or(u32::MAX);
        if waiting >= limit.saturating_add(can_start) {
            let message = format!("{waiting} sequences wait, the limit is {limit}; retry later");
            return refuse(RejectReason::QueueFull, message);
        }
        let tokens = self.waiting_tokens + submit.prompt.len() as u64;
        let limit = self.config.max_waiting_tokens;
        // After a restart everything that ran comes back at once and finds all blocks free.
        let can_start = u64::from(self.cache.available()) * u64::from(BLOCK_TOKENS);
        if tokens > limit.saturating_add(can_start) && waiting > 0 {
            let message = format!("{tokens} prompt tokens would wait, the limit is {limit}; retry later");
            return refuse(RejectReason::QueueFull, message);
        }
        Ok(())
    }

    /// Takes a sequence out of everything; its computed blocks stay in the cache.
    fn remove(&mut self, arrival: Arrival) -> Option<Sequence> {
        self.leave_waiting(arrival);
        self.unload(arrival);
        let sequence = self.sequences.remove(&arrival)?;
        self.queue.depart(place_of(&sequence));
        self.by_id.remove(&sequence.id);
        Some(sequence)
    }

    /// Takes a sequence out of the queue, if it waits there.
    fn leave_waiting(&mut self, arrival: Arrival) {
        let Some(sequence) = self.sequences.get(&arrival) else { return };
        if let Some(start_by_us) = sequence.times.start_by_us {
            self.deadlines.remove(&(start_by_us, arrival));
        }
        if self.queue.take(place_of(sequence)) {
            self.waiting_tokens -= u64::from(sequence.prompt_tokens());
        }
    }

    /// Hashes the full blocks of all tokens there are.
    fn extend_hashes(&self, sequence: &mut Sequence) {
        let full_blocks = (sequence.total_tokens() / BLOCK_TOKENS) as usize;
        let mut hashes = std::mem::take(&mut sequence.progress.hashes);
        self.cache.extend_hashes(
            &mut hashes,
            &sequence.salt,
            |block| sequence.block_tokens(block),
            full_blocks,
        );
        sequence.progress.hashes = hashes;
    }
}

fn place_of(sequence: &Sequence) -> Place {
    Place { priority: sequence.priority, tenant: sequence.tenant, arrival: sequence.arrival }
}

/// The last output of a sequence that got no new token.
fn ended(sequence: &Sequence, reason: FinishReason, now_us: u64) -> SequenceOutput {
    SequenceOutput {
        cached_tokens: sequence.cached_tokens,
        sequence: sequence.id,
        position: sequence.output_tokens(),
        tokens: Vec::new(),
        logprobs: Vec::new(),
        prompt_logprobs: Vec::new(),
        finish: Some(sequence.finish(reason, now_us)),
    }
}

#[cfg(test)]
mod tests;
