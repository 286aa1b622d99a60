//! Paged KV cache bookkeeping: block ids only, never memory.

/// Tokens of one block.
pub const BLOCK_TOKENS: u32 = 16;
