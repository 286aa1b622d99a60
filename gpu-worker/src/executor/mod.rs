//! The seam between deciding and computing. Three verbs: what can you do, do this step, what came out.
//!
//! The rule: the scheduler never sees a tensor, the executor never sees a tenant or a queue, and everything
//! that crosses is plain data.

pub mod fake;
pub mod local;
pub mod output;
pub mod plan;

pub use local::{LocalConfig, LocalExecutor};
pub use output::{RowOutput, StepResult, StepTimes};
pub use plan::{BlockId, NewSequence, PlanItem, PromptLogprobs, SlotId, StepPlan};

/// What an executor can hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExecutorLimits {
    /// KV blocks of [`crate::kv::BLOCK_TOKENS`] tokens.
    pub blocks: u32,
    /// Most sequences with state in the executor at the same time; slots are below it.
    pub slots: u32,
    /// Most tokens of one step.
    pub step_tokens: u32,
    /// Most tokens of one sequence.
    pub context_tokens: u32,
    /// Size of the output layer.
    pub vocab_size: u32,
}

/// Names a submitted step until it is collected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ticket(pub u64);

/// Fault of a whole step. A fault of one sequence travels in its [`RowOutput`] instead.
#[derive(Debug, thiserror::Error)]
pub enum ExecutorError {
    /// The plan breaks the executor's limits; a bug of the scheduler.
    #[error("step plan is invalid: {0}")]
    InvalidPlan(String),
    /// The device failed; the worker ends and is started again.
    #[error("device failed: {0}")]
    Device(String),
}

/// Runs step plans on one device.
pub trait ModelExecutor {
    /// What it can hold. Constant.
    fn limits(&self) -> ExecutorLimits;
    /// Starts a step. At most one step is in flight.
    fn submit(&mut self, plan: StepPlan) -> Result<Ticket, ExecutorError>;
    /// Waits for a step and returns what it produced.
    fn collect(&mut self, ticket: Ticket) -> Result<StepResult, ExecutorError>;
}
