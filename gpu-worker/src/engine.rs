//! Scheduler and executor as one thing that steps.
//!
//! The rule: one thread owns it and nothing in it takes a lock. A step is planned, submitted, collected and
//! committed; commands may come in between submitting and collecting.

use pons_protocol::capacity::Capacity;
use pons_protocol::id::SequenceId;
use pons_protocol::inference::{Rejection, SequenceOutput, StepOutput, Submit};

use crate::executor::{ExecutorError, ModelExecutor, Ticket};
use crate::grammar::GrammarMatcher;
use crate::scheduler::{Scheduler, SchedulerConfig};

/// A scheduler bound to its executor.
pub struct Engine<E> {
    scheduler: Scheduler,
    executor: E,
    in_flight: Option<(Ticket, u64)>,
}

impl<E: ModelExecutor> Engine<E> {
    /// An engine without sequences.
    pub fn new(executor: E, config: SchedulerConfig) -> Self {
        Self { scheduler: Scheduler::new(executor.limits(), config), executor, in_flight: None }
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
        if self.in_flight.is_none()
            && let Some(plan) = self.scheduler.plan(now_us)
        {
            let step = plan.step;
            self.in_flight = Some((self.executor.submit(plan)?, step));
        }
        Ok(self.in_flight.is_some())
    }

    /// Waits for the step in flight and commits it. The clock is read after the wait.
    pub fn finish_step(&mut self, now_us: impl Fn() -> u64) -> Result<Option<StepOutput>, ExecutorError> {
        let mut outputs: Vec<SequenceOutput> = self.scheduler.take_ready();
        let Some((ticket, step)) = self.in_flight.take() else {
            let output = StepOutput {
                step: self.scheduler.steps(),
                outputs,
                capacity: self.scheduler.capacity(now_us()),
            };
            return Ok((!output.outputs.is_empty()).then_some(output));
        };
        let result = self.executor.collect(ticket)?;
        let now_us = now_us();
        outputs.extend(self.scheduler.commit(result, now_us));
        Ok(Some(StepOutput { step, outputs, capacity: self.scheduler.capacity(now_us) }))
    }

    /// Sequences that were refused since the last call although they had been accepted.
    pub fn take_rejections(&mut self) -> Vec<Rejection> {
        self.scheduler.take_rejections()
    }

    /// Load and counters.
    pub fn capacity(&self, now_us: u64) -> Capacity {
        self.scheduler.capacity(now_us)
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
