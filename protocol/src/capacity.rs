//! A brain's load as it reports it with every step and heartbeat.

/// Load and health. Invariant: `blocks_free + blocks_cached + blocks_held == blocks_total`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Capacity {
    /// Sequences that have blocks.
    pub running: u32,
    /// Sequences that wait for blocks or for their turn.
    pub waiting: u32,
    /// Prompt tokens of those that wait.
    pub waiting_tokens: u64,
    /// Blocks nobody uses.
    pub blocks_free: u32,
    /// Blocks whose content may be found by a later prompt and which can be taken at any time.
    pub blocks_cached: u32,
    /// Blocks of running sequences.
    pub blocks_held: u32,
    /// All blocks.
    pub blocks_total: u32,
    /// Steps so far.
    pub steps: u64,
    /// Milliseconds since the last step ended; 0 when there is nothing to do.
    pub step_age_ms: u64,
    /// Duration of the last step in microseconds.
    pub step_us: u64,
    /// Tokens of the last step.
    pub step_tokens: u32,
    /// Prompt tokens computed so far.
    pub prompt_tokens_total: u64,
    /// Prompt tokens found in the prefix cache so far.
    pub cached_tokens_total: u64,
    /// Tokens generated so far.
    pub output_tokens_total: u64,
    /// Preemptions so far.
    pub preemptions_total: u64,
    /// Microseconds of all steps so far in which the next step was decided and the last one's outcome noted.
    pub schedule_us_total: u64,
    /// Microseconds of all steps so far in which the model ran.
    pub forward_us_total: u64,
    /// Microseconds of all steps so far from logits to tokens, waiting for grammars included.
    pub sample_us_total: u64,
    /// Microseconds of all steps so far in which outputs were framed and handed to the links.
    pub send_us_total: u64,
}
