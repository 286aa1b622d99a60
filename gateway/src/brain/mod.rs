//! Brains as the gateway sees them: links to worker processes, and generations that outlive a worker's death.
//!
//! The rule: a stream that has begun is continued, never broken. Each [`Generation`] keeps what it takes to go
//! on elsewhere, so a lost link costs time and nothing else.

pub mod address;
mod generation;
mod link;
mod pool;
#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::time::Duration;

use pons_protocol::capacity::Capacity;
use pons_protocol::id::TenantId;
use pons_protocol::inference::{BrainHello, SequenceOutput};

use crate::error::ApiError;
use crate::openai::SequenceSpec;

pub use address::BrainAddress;
pub use generation::Generation;
pub use pool::{BrainPool, BrainSource};

/// What one HTTP request asks of a brain: a sequence for each choice.
pub struct GenerateRequest {
    /// For fairness and quotas.
    pub tenant: TenantId,
    /// Secret part of the prefix-cache key, derived from the authenticated tenant.
    pub cache_salt: [u8; 16],
    /// Lower runs first.
    pub priority: i32,
    /// One for each choice, in order. Never empty.
    pub sequences: Vec<SequenceSpec>,
    /// Own limits of every wait.
    pub timeouts: Timeouts,
}

/// Limits of the waits of one generation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timeouts {
    /// From the call to the first token.
    pub first_token: Duration,
    /// Between two outputs of a generation that has begun.
    pub inter_token: Duration,
    /// From the call to the end.
    pub total: Duration,
}

/// What a generation yields.
#[derive(Debug)]
pub enum GenerationEvent {
    /// New tokens of one choice.
    Output {
        /// Which choice.
        choice: usize,
        /// Its tokens.
        output: SequenceOutput,
    },
    /// The end of the whole generation, by a fault.
    Failed(ApiError),
}

/// State of one brain, for `/ready` and `/metrics`.
#[derive(Clone, Debug)]
pub struct BrainStatus {
    /// Configured model name.
    pub model: String,
    /// Whether the link is up and the handshake done.
    pub connected: bool,
    /// Last reported load.
    pub capacity: Capacity,
    /// Milliseconds since anything was heard; `u64::MAX` before the first time.
    pub last_heard_age_ms: u64,
    /// What the brain said of itself, its limits among it; none until the first link.
    pub hello: Option<Arc<BrainHello>>,
}

/// Why a brain could not do what was asked.
#[derive(Debug, thiserror::Error)]
pub enum BrainError {
    /// The brain refused a sequence.
    #[error("{0}")]
    Refused(ApiError),
    /// No link came up in time.
    #[error("no brain of model {model} is connected; it is starting or has failed, try again shortly")]
    Unavailable {
        /// The model.
        model: String,
    },
    /// A wait passed its own limit.
    #[error("the model gave no {awaited} within {limit_ms} ms")]
    Timeout {
        /// What was waited for.
        awaited: &'static str,
        /// The limit.
        limit_ms: u128,
    },
    /// The same generation lost its brain too often; it may be the cause.
    #[error("the model's worker failed {losses} times while it served this request")]
    LostTooOften {
        /// How often.
        losses: u32,
    },
    /// More than a brain is sent at once.
    #[error(
        "the choices of this request take {bytes} bytes to hand to the model, more than {limit}; ask for fewer \
         choices (n) or use a smaller schema, grammar or prompt"
    )]
    TooLarge {
        /// All choices together.
        bytes: usize,
        /// The limit.
        limit: usize,
    },
    /// The brain broke the protocol or another model answers at its address.
    #[error("the model's worker answered out of order: {0}")]
    Inconsistent(String),
    /// The client reads slower than the brain writes, past the bound.
    #[error("the reader of this stream fell {events} events behind and was dropped")]
    SlowReader {
        /// Size of the buffer that overflowed.
        events: usize,
    },
}

impl From<BrainError> for ApiError {
    fn from(error: BrainError) -> ApiError {
        let message = error.to_string();
        match error {
            BrainError::Refused(error) => error,
            BrainError::TooLarge { .. } => ApiError::invalid("n", message),
            BrainError::Unavailable { .. } => ApiError::overloaded(message, 1),
            BrainError::Timeout { .. } | BrainError::SlowReader { .. } => ApiError::timeout(message),
            BrainError::LostTooOften { .. } | BrainError::Inconsistent(_) => ApiError::brain_failed(message),
        }
    }
}
