//! Pool and prefix index together: taking, sharing, indexing and giving back blocks.
//!
//! The rule: a full block that was computed is held by its indexed copy. Whoever computed the same content a
//! second time swaps its copy for the indexed one, so a sequence that holds a block holds all blocks before
//! it in the index, and a cached block never has a held child.

use std::borrow::Cow;

use pons_protocol::id::{TenantId, TokenId};

use super::prefix_index::BlockContent;
use super::{BLOCK_TOKENS, BlockCounts, BlockPool, BlockTable, ChainHash, PrefixIndex, PrefixKey};
use crate::executor::BlockId;

/// Bookkeeping of the whole KV cache.
#[derive(Debug)]
pub struct BlockCache {
    pool: BlockPool,
    index: PrefixIndex,
}

/// A full block that was just computed.
#[derive(Clone, Copy, Debug)]
pub struct ComputedBlock<'a> {
    /// Its place in the sequence's table.
    pub position: usize,
    /// Chain hash up to it.
    pub hash: ChainHash,
    /// Tenant's salt.
    pub salt: [u8; 16],
    /// Its tokens.
    pub tokens: &'a [TokenId],
}

impl BlockCache {
    /// A cache of `total` blocks, all free.
    pub fn new(total: u32, quota_blocks: u32, key: PrefixKey) -> Self {
        Self { pool: BlockPool::new(total, quota_blocks), index: PrefixIndex::new(key) }
    }

    /// Blocks in each state.
    pub fn counts(&self) -> BlockCounts {
        self.pool.counts()
    }

    /// Blocks that can be handed out.
    pub fn available(&self) -> u32 {
        self.pool.available()
    }

    /// The pool, to look at.
    pub fn pool(&self) -> &BlockPool {
        &self.pool
    }

    /// The index, to look at.
    pub fn index(&self) -> &PrefixIndex {
        &self.index
    }

    /// Extends a list of chain hashes over all full blocks of `tokens`.
    pub fn extend_hashes<'a>(
        &self,
        hashes: &mut Vec<ChainHash>,
        salt: &[u8; 16],
        tokens: impl Fn(usize) -> Cow<'a, [TokenId]>,
        full_blocks: usize,
    ) {
        while hashes.len() < full_blocks {
            let hash = self.index.chain(salt, hashes.last().copied(), &tokens(hashes.len()));
            hashes.push(hash);
        }
    }

    /// Leading blocks of a sequence that are in the cache, at most as many as there are hashes. No reference is
    /// taken.
    pub fn find_prefix<'a>(
        &self,
        salt: [u8; 16],
        hashes: &[ChainHash],
        tokens: impl Fn(usize) -> Cow<'a, [TokenId]>,
    ) -> Vec<BlockId> {
        let mut found = Vec::new();
        for (position, hash) in hashes.iter().enumerate() {
            let tokens = tokens(position);
            let content = BlockContent { salt, parent: found.last().copied(), tokens: &tokens };
            match self.index.find(*hash, content) {
                Some(block) => found.push(block),
                None => break,
            }
        }
        found
    }

    /// Takes a reference to each block.
    pub fn retain_all(&mut self, blocks: &[BlockId]) {
        for block in blocks {
            self.pool.retain(*block);
        }
    }

    /// Gives blocks back, the tail first, so that it is evicted first.
    pub fn release_all(&mut self, blocks: Vec<BlockId>) {
        for block in blocks.into_iter().rev() {
            self.pool.release(block);
        }
    }

    /// Adds blocks to a table until `tokens` tokens fit. All or nothing: false if there are not enough.
    pub fn grow(&mut self, table: &mut BlockTable, tokens: u32, owner: TenantId) -> bool {
        let missing = table.missing_for(tokens);
        if missing > self.pool.available() {
            return false;
        }
        for _ in 0..missing {
            let taken = self.pool.allocate(owner).expect("the pool has the blocks it just counted");
            if taken.evicted {
                self.index.remove(taken.block);
            }
            table.push(taken.block);
        }
        true
    }

    /// Makes a computed block findable, or swaps it for the equal one that already is. Returns false if neither
    /// is possible; then no later block of the sequence can be found either.
    pub fn index_block(&mut self, table: &mut BlockTable, computed: ComputedBlock<'_>) -> bool {
        debug_assert_eq!(computed.tokens.len(), BLOCK_TOKENS as usize);
        let own = table.as_slice()[computed.position];
        let parent = computed.position.checked_sub(1).map(|before| table.as_slice()[before]);
        let content = BlockContent { salt: computed.salt, parent, tokens: computed.tokens };
        match self.index.find(computed.hash, content) {
            Some(known) if known == own => true,
            Some(known) => {
                self.pool.retain(known);
                table.replace(computed.position, known);
                self.pool.release(own);
                true
            }
            None => {
                let inserted = self.index.insert(own, computed.hash, content);
                if inserted {
                    let chain_owner = parent.and_then(|parent| self.pool.owner(parent));
                    self.pool.mark_indexed(own, chain_owner);
                }
                inserted
            }
        }
    }

    /// Gives a table back and forgets the content of the blocks from `first` on that nobody else uses, because
    /// it can't be trusted.
    pub fn discard(&mut self, table: &mut BlockTable, first: usize) {
        for (position, block) in table.take().into_iter().enumerate().rev() {
            let alone = self.pool.refs(block) == 1 && self.index.children(block) == 0;
            if position >= first && alone && self.pool.is_indexed(block) {
                self.index.remove(block);
                self.pool.unmark_indexed(block);
            }
            self.pool.release(block);
        }
    }

    /// Checks every count against the tables of all sequences; says what is wrong.
    pub fn audit<'a>(&self, tables: impl Iterator<Item = &'a BlockTable>) -> Result<(), String> {
        let mut held = vec![0; self.pool.counts().total as usize];
        for block in tables.flat_map(BlockTable::as_slice) {
            held[*block as usize] += 1;
        }
        self.pool.audit(&held)?;
        let indexed = (0..self.pool.counts().total).filter(|block| self.pool.is_indexed(*block)).count();
        if indexed != self.index.len() {
            return Err(format!(
                "{indexed} blocks are marked as indexed, the index knows {}",
                self.index.len()
            ));
        }
        for (block, content) in self.index.contents() {
            if !self.pool.is_indexed(block) {
                return Err(format!("block {block} is in the index but not marked"));
            }
            if let Some(parent) = content.parent {
                let orphan = !self.pool.is_indexed(parent);
                let stray = self.pool.refs(block) > 0 && self.pool.refs(parent) == 0;
                if orphan || stray {
                    return Err(format!("block {block} outlives its parent {parent}"));
                }
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SALT: [u8; 16] = [1; 16];

    fn text(block: usize) -> Cow<'static, [TokenId]> {
        let first = u32::try_from(block).unwrap() * BLOCK_TOKENS;
        Cow::Owned((first..first + BLOCK_TOKENS).collect())
    }

    /// Extends a table by one computed block.
    fn compute(cache: &mut BlockCache, table: &mut BlockTable, tenant: TenantId, hashes: &[ChainHash]) {
        let position = table.len() as usize;
        assert!(cache.grow(table, (table.len() + 1) * BLOCK_TOKENS, tenant));
        let tokens = text(position);
        let computed = ComputedBlock { position, hash: hashes[position], salt: SALT, tokens: &tokens };
        assert!(cache.index_block(table, computed));
    }

    #[test]
    fn a_chain_that_two_tenants_computed_leaves_from_the_tail_whoever_is_over_its_quota() {
        let (first, second) = (TenantId(1), TenantId(2));
        let mut cache = BlockCache::new(3, 0, PrefixKey::fixed([5; 16]));
        let mut hashes = Vec::new();
        cache.extend_hashes(&mut hashes, &SALT, text, 2);
        let mut table = BlockTable::default();
        compute(&mut cache, &mut table, first, &hashes);
        compute(&mut cache, &mut table, second, &hashes);
        let chain = table.take();
        cache.release_all(chain.clone());
        let mut other = BlockTable::default();
        assert!(cache.grow(&mut other, 2 * BLOCK_TOKENS, first));
        assert!(!other.as_slice().contains(&chain[0]), "the head left before its tail");
        assert_eq!(cache.find_prefix(SALT, &hashes, text), chain[..1]);
        assert_eq!(cache.audit(std::iter::once(&other)), Ok(()));
    }

    #[test]
    fn a_table_grows_whole_or_not_at_all() {
        let mut cache = BlockCache::new(3, 3, PrefixKey::fixed([5; 16]));
        let mut table = BlockTable::default();
        assert!(!cache.grow(&mut table, 4 * BLOCK_TOKENS, TenantId(1)));
        assert!(table.is_empty());
        assert!(cache.grow(&mut table, 3 * BLOCK_TOKENS, TenantId(1)));
        assert_eq!(cache.audit(std::iter::once(&table)), Ok(()));
        assert!(cache.audit(std::iter::empty()).is_err(), "three references belong to no table");
    }

    #[test]
    fn discarding_spares_the_blocks_before_and_those_others_hold() {
        let tenant = TenantId(1);
        let mut cache = BlockCache::new(4, 4, PrefixKey::fixed([5; 16]));
        let mut hashes = Vec::new();
        cache.extend_hashes(&mut hashes, &SALT, text, 3);
        let mut table = BlockTable::default();
        for _ in 0..3 {
            compute(&mut cache, &mut table, tenant, &hashes);
        }
        let shared = table.as_slice()[..2].to_vec();
        cache.retain_all(&shared);
        cache.discard(&mut table, 1);
        assert_eq!(
            cache.find_prefix(SALT, &hashes, text),
            shared,
            "only the block nobody else holds is gone"
        );
        assert_eq!(cache.audit(std::iter::once(&BlockTable::starting_with(shared))), Ok(()));
    }
}
