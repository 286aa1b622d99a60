//! The blocks of one sequence, from position 0 on.
//!
//! The rule: entry `i` holds positions `16 i .. 16 i + 16`; the table has no holes and owns one reference to
//! each of its blocks.

use super::{BLOCK_TOKENS, blocks_for};
use crate::executor::BlockId;

/// A sequence's block list.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct BlockTable {
    blocks: Vec<BlockId>,
}

impl BlockTable {
    /// A table that starts with blocks found in the cache, whose references it takes over.
    pub fn starting_with(blocks: Vec<BlockId>) -> Self {
        Self { blocks }
    }

    /// The blocks in order.
    pub fn as_slice(&self) -> &[BlockId] {
        &self.blocks
    }

    /// Number of blocks.
    pub fn len(&self) -> u32 {
        u32::try_from(self.blocks.len()).expect("a table is bounded by the pool, whose size is a u32")
    }

    /// Whether it has no block.
    pub fn is_empty(&self) -> bool {
        self.blocks.is_empty()
    }

    /// Tokens that fit the blocks there are.
    pub fn room_tokens(&self) -> u32 {
        self.len().saturating_mul(BLOCK_TOKENS)
    }

    /// Blocks that must be added so that `tokens` tokens fit.
    pub fn missing_for(&self, tokens: u32) -> u32 {
        blocks_for(tokens).saturating_sub(self.len())
    }

    /// Adds a block, with its reference.
    pub fn push(&mut self, block: BlockId) {
        self.blocks.push(block);
    }

    /// Puts another block with the same content in place of the one at `index`, which is returned.
    pub fn replace(&mut self, index: usize, block: BlockId) -> BlockId {
        std::mem::replace(&mut self.blocks[index], block)
    }

    /// Empties the table and hands out the blocks, with their references.
    pub fn take(&mut self) -> Vec<BlockId> {
        std::mem::take(&mut self.blocks)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn missing_blocks_are_counted_in_whole_blocks() {
        let mut table = BlockTable::default();
        assert_eq!(table.missing_for(0), 0);
        assert_eq!(table.missing_for(1), 1);
        assert_eq!(table.missing_for(16), 1);
        assert_eq!(table.missing_for(17), 2);
        table.push(7);
        assert_eq!(table.missing_for(16), 0);
        assert_eq!(table.missing_for(17), 1);
        assert_eq!(table.room_tokens(), 16);
    }

    #[test]
    fn replacing_returns_the_old_block_and_taking_empties_the_table() {
        let mut table = BlockTable::starting_with(vec![1, 2, 3]);
        assert_eq!(table.replace(1, 9), 2);
        assert_eq!(table.take(), vec![1, 9, 3]);
        assert!(table.is_empty());
    }
}
