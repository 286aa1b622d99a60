//! What the scheduler is told at start. The rule: every bound of the scheduler is in here or in the executor's
//! limits.

use pons_protocol::id::TokenId;

use crate::kv::PrefixKey;

/// What a token costs in a tenant's virtual counter. Only the ratios count.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CostWeights {
    /// A prompt token that has to be computed.
    pub prompt: u64,
    /// A prompt token found in the cache.
    pub cached: u64,
    /// A generated token.
    pub output: u64,
}

impl Default for CostWeights {
    /// A generated token reads all weights for one row where a prompt token shares them with its chunk.
    fn default() -> Self {
        Self { prompt: 8, cached: 1, output: 24 }
    }
}

/// Settings of a scheduler.
#[derive(Clone, Debug)]
pub struct SchedulerConfig {
    /// The model's end tokens.
    pub eos_token_ids: Vec<TokenId>,
    /// Most tokens of a step; the executor's limit is a further bound.
    pub step_tokens: u32,
    /// Time between two tokens of a sequence that prefill chunks should leave intact, in microseconds; 0 leaves
    /// the budget at `step_tokens`.
    pub itl_target_us: u64,
    /// Time to the first token that is promised, in microseconds: a step of prompts alone takes half of it at most,
    /// so that whoever arrives meanwhile keeps the other half. 0 leaves it at four inter-token targets.
    pub ttft_target_us: u64,
    /// Most KV blocks in use; the executor's are a further bound.
    pub max_blocks: u32,
    /// Most sequences that run; the executor's slots are a further bound.
    pub max_running: u32,
    /// Most sequences that wait beyond those that could start at once.
    pub max_waiting: u32,
    /// Most prompt tokens that wait beyond those there are blocks for. One sequence may always wait, however long.
    pub max_waiting_tokens: u64,
    /// Share of all blocks, in percent, above which a tenant loses its own cached blocks before others do.
    pub quota_percent: u32,
    /// Costs of tokens.
    pub weights: CostWeights,
    /// Secret of the prefix index.
    pub prefix_key: PrefixKey,
}

impl Default for SchedulerConfig {
    fn default() -> Self {
        Self {
            eos_token_ids: Vec::new(),
            step_tokens: 2048,
            itl_target_us: 0,
            ttft_target_us: 0,
            max_blocks: u32::MAX,
            max_running: 256,
            max_waiting: 1024,
            max_waiting_tokens: 4 << 20,
            quota_percent: 50,
            weights: CostWeights::default(),
            prefix_key: PrefixKey::random(),
        }
    }
}
