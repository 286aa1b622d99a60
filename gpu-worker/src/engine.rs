//! Scheduler and executor as one thing that steps.
//!
//! The rule: one thread owns it and nothing in it takes a lock. A step is planned, submitted, collected and
//! committed; commands may come in between submitting and collecting.

use std::time::{Duration, Instant};

use pons_protocol::capacity::Capacity;
use pons_protocol::id::SequenceId;
use pons_protocol::inference::{Rejection, SequenceOutput, StepOutput, Submit};

use crate::executor::{ExecutorError, ModelExecutor, StepTimes, Ticket};
use crate::grammar::GrammarMatcher;
use crate::scheduler::{Scheduler, SchedulerConfig};

/// A submitted step.
struct InFlight {
    ticket: Ticket,
    step: u64,
    /// What planning took.
    plan: Duration,
    /// What submitting took.
    submit: Duration,
}

/// A scheduler bound to its executor.
pub struct Engine<E> {
    scheduler: Scheduler,
    executor: E,
    in_flight: Option<InFlight>,
    spent: Spent,
}

/// Where the time of all steps went so far. Nothing that is computed depends on it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Spent {
    /// Planning, building the batch, and committing.
    pub schedule: Duration,
    /// The model.
    pub forward: Duration,
    /// Waiting for grammar masks that were late; a part of `sample`.
    pub masks: Duration,
    /// From logits to tokens.
    pub sample: Duration,
    /// Framing outputs and handing them to the links.
    pub send: Duration,
}

impl Spent {
    /// Notes a step of which `outside` was spent outside the executor, `submit` inside.
    fn add(&mut self, outside: Duration, submit: Duration, times: StepTimes) {
        let StepTimes { forward, masks, sample, .. } = times;
        self.forward += forward;
        self.masks += masks;
        self.sample += masks + sample;
        self.schedule += outside + submit.saturating_sub(forward + masks + sample);
    }

    /// As the sums that a brain reports.
    fn fill(&self, capacity: &mut Capacity) {
        let us = |time: Duration| u64::try_from(time.as_micros()).unwrap_or(u64::MAX);
        capacity.schedule_us_total = us(self.schedule);
        capacity.forward_us_total = us(self.forward);
        capacity.sample_us_total = us(self.sample);
        capacity.send_us_total = us(self.send);
    }
}

impl<E: ModelExecutor> Engine<E> {
    /// An engine without sequences.
    pub fn new(executor: E, config: SchedulerConfig) -> Self {
        Self {
            scheduler: Scheduler::new(executor.limits(), config),
            executor,
            in_flight: None,
            spent: Spent::default(),
        }
    }

    /// Takes in a sequence. See [`Scheduler::submit`].
    pub fn submit(
        &mut self,
        submit: Submit,
        grammar: Option<GrammarMatcher>,
        now_us: u64,
    ) -> Result<(), Rejection> {
        self.scheduler.submit(submit, grammar, now_us)
    }

    /// Forgets a sequence; its blocks are free at once. Allowed at any moment.
    pub fn abort(&mut self, sequence: SequenceId) {
        self.scheduler.abort(sequence);
    }

    /// Accepts nothing from now on.
    pub fn drain(&mut self) {
        self.scheduler.drain();
    }

    /// Whether a step would do nothing.
    pub fn is_idle(&self) -> bool {
        self.in_flight.is_none() && self.scheduler.is_idle()
    }

    /// Does one step. `None` if there was nothing to do. Ask for [`Engine::take_rejections`] afterwards.
    pub fn step(&mut self, now_us: impl Fn() -> u64) -> Result<Option<StepOutput>, ExecutorError> {
        self.start_step(now_us())?;
        self.finish_step(now_us)
    }

    /// Plans and submits a step. Returns whether one is in flight.
    pub fn start_step(&mut self, now_us: u64) -> Result<bool, ExecutorError> {
        if self.in_flight.is_none() {
            let begun = Instant::now();
            if let Some(plan) = self.scheduler.plan(now_us) {
                let (step, planned) = (plan.step, Instant::now());
                let ticket = self.executor.submit(plan)?;
                let (plan, submit) = (planned - begun, planned.elapsed());
                self.in_flight = Some(InFlight { ticket, step, plan, submit });
            }
        }
        Ok(self.in_flight.is_some())
    }

    /// Waits for the step in flight and commits it. The clock is read after the wait.
    pub fn finish_step(&mut self, now_us: impl Fn() -> u64) -> Result<Option<StepOutput>, ExecutorError> {
        let mut outputs: Vec<SequenceOutput> = self.scheduler.take_ready();
        let Some(InFlight { ticket, step, plan, submit }) = self.in_flight.take() else {
            let capacity = self.capacity(now_us());
            let output = StepOutput { step: self.scheduler.steps(), outputs, capacity };
            return Ok((!output.outputs.is_empty()).then_some(output));
        };
        let waited = Instant::now();
        let result = self.executor.collect(ticket)?;
        let (now_us, collected) = (now_us(), Instant::now());
        let times = result.times;
        outputs.extend(self.scheduler.commit(result, now_us));
        self.spent.add(plan + collected.elapsed(), submit + (collected - waited), times);
        Ok(Some(StepOutput { step, outputs, capacity: self.capacity(now_us) }))
    }

    /// Sequences that were refused since the last call although they had been accepted.
    pub fn take_rejections(&mut self) -> Vec<Rejection> {
        self.scheduler.take_rejections()
    }

    /// Load and counters.
    pub fn capacity(&self, now_us: u64) -> Capacity {
        let mut capacity = self.scheduler.capacity(now_us);
        self.spent.fill(&mut capacity);
        capacity
    }

    /// Where the time of all steps went so far.
    pub fn spent(&self) -> Spent {
        self.spent
    }

    /// Notes that handing out a step's outputs took so long.
    pub fn note_send(&mut self, took: Duration) {
        self.spent.send += took;
    }

    /// The scheduler, to look at.
    pub fn scheduler(&self) -> &Scheduler {
        &self.scheduler
    }

    /// The scheduler, to adjust (step budget, calibration).
    pub fn scheduler_mut(&mut self) -> &mut Scheduler {
        &mut self.scheduler
    }

    /// The executor, to look at.
    pub fn executor(&self) -> &E {
        &self.executor
    }
}
