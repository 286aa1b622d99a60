//! Paged KV cache bookkeeping: block ids only, never memory.
//!
//! The rule: every block is in exactly one state (free, cached, held), and a block is found again only by a
//! sequence whose salt and tokens are equal to those it was computed from.

pub mod block_table;
pub mod cache;
pub mod pool;
pub mod prefix_index;

pub use block_table::BlockTable;
pub use cache::BlockCache;
pub use pool::{BlockCounts, BlockPool};
pub use prefix_index::{ChainHash, PrefixIndex, PrefixKey};

/// Tokens of one block.
pub const BLOCK_TOKENS: u32 = 16;

/// Blocks that `tokens` tokens take.
pub fn blocks_for(tokens: u32) -> u32 {
    tokens.div_ceil(BLOCK_TOKENS)
}
