//! The block pool: which blocks are free, cached or held, and which cached one goes first.
//!
//! The rule: free + cached + held = total after every call. A block without references is cached if it can be
//! found through the prefix index, else free. Cached blocks leave in the order in which they lost their last
//! reference; a sequence gives its blocks back from the tail, so children leave before their parents.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use pons_protocol::id::TenantId;

use crate::executor::BlockId;

/// How many blocks are in each state.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct BlockCounts {
    /// Nobody uses them and nobody can find them.
    pub free: u32,
    /// Nobody uses them, but a prompt may find them.
    pub cached: u32,
    /// In a sequence's table.
    pub held: u32,
    /// All.
    pub total: u32,
}

/// A block handed out. The caller must forget what the index knew of it when `evicted` is set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Allocation {
    /// The block, with one reference.
    pub block: BlockId,
    /// It was cached until now.
    pub evicted: bool,
}

#[derive(Clone, Debug, Default)]
struct Block {
    refs: u32,
    indexed: bool,
    owner: Option<TenantId>,
    /// When it became cached; its place in the order of eviction.
    stamp: u64,
}

#[derive(Debug, Default)]
struct Owner {
    /// Blocks of this tenant that are not free.
    footprint: u32,
    cached: BTreeMap<u64, BlockId>,
}

/// All blocks of a device.
#[derive(Debug)]
pub struct BlockPool {
    blocks: Vec<Block>,
    free: Vec<BlockId>,
    cached: BTreeMap<u64, BlockId>,
    owners: HashMap<TenantId, Owner>,
    /// Owners by footprint, so that the one most over its quota is found without a scan.
    by_footprint: BTreeSet<(u32, TenantId)>,
    quota_blocks: u32,
    next_stamp: u64,
}

impl BlockPool {
    /// A pool of `total` free blocks. A tenant whose blocks exceed `quota_blocks` loses its own cached blocks
    /// before anybody else loses one.
    pub fn new(total: u32, quota_blocks: u32) -> Self {
        Self {
            blocks: vec![Block::default(); total as usize],
            free: (0..total).rev().collect(),
            cached: BTreeMap::new(),
            owners: HashMap::new(),
            by_footprint: BTreeSet::new(),
            quota_blocks,
            next_stamp: 0,
        }
    }

    /// Blocks in each state.
    pub fn counts(&self) -> BlockCounts {
        let total = to_u32(self.blocks.len());
        let (free, cached) = (to_u32(self.free.len()), to_u32(self.cached.len()));
        BlockCounts { free, cached, held: total - free - cached, total }
    }

    /// Blocks that can be handed out: free and cached.
    pub fn available(&self) -> u32 {
        to_u32(self.free.len() + self.cached.len())
    }

    /// References to a block.
    pub fn refs(&self, block: BlockId) -> u32 {
        self.blocks[block as usize].refs
    }

    /// Whether a prompt may find the block.
    pub fn is_indexed(&self, block: BlockId) -> bool {
        self.blocks[block as usize].indexed
    }

    /// Blocks of a tenant that are cached.
    pub fn cached_of(&self, owner: TenantId) -> u32 {
        self.owners.get(&owner).map_or(0, |o| to_u32(o.cached.len()))
    }

    /// Hands out a block with one reference: a free one, else the cached one that should go first.
    pub fn allocate(&mut self, owner: TenantId) -> Option<Allocation> {
        if let Some(block) = self.free.pop() {
            self.claim(block, owner);
            return Some(Allocation { block, evicted: false });
        }
        let block = self.eviction_choice(owner)?;
        self.uncache(block);
        self.disown(block);
        self.blocks[block as usize].indexed = false;
        self.claim(block, owner);
        Some(Allocation { block, evicted: true })
    }

    /// Adds a reference to a block that is held or cached.
    pub fn retain(&mut self, block: BlockId) {
        debug_assert!(self.refs(block) > 0 || self.is_indexed(block), "block {block} is free");
        if self.refs(block) == 0 {
            self.uncache(block);
        }
        self.blocks[block as usize].refs += 1;
    }

    /// Gives a reference back. The last one makes the block cached if it is indexed, else free.
    pub fn release(&mut self, block: BlockId) {
        let entry = &mut self.blocks[block as usize];
        assert!(entry.refs > 0, "block {block} was released more often than it was handed out");
        entry.refs -= 1;
        if entry.refs > 0 {
            return;
        }
        if entry.indexed {
            self.cache(block);
        } else {
            self.disown(block);
            self.free.push(block);
        }
    }

    /// Notes that a held block can be found. Its owner becomes `owner`, that of its parent, so that a chain has
    /// one owner and leaves from the tail.
    pub fn mark_indexed(&mut self, block: BlockId, owner: Option<TenantId>) {
        debug_assert!(self.refs(block) > 0, "block {block} is indexed while nobody holds it");
        self.blocks[block as usize].indexed = true;
        if let Some(owner) = owner {
            self.disown(block);
            self.own(block, owner);
        }
    }

    /// Notes that a held block can't be found any more.
    pub fn unmark_indexed(&mut self, block: BlockId) {
        debug_assert!(self.refs(block) > 0, "a cached block leaves the index only by eviction");
        self.blocks[block as usize].indexed = false;
    }

    /// The tenant that a block counts for.
    pub fn owner(&self, block: BlockId) -> Option<TenantId> {
        self.blocks[block as usize].owner
    }

    /// Which cached block goes: the requester's own if it is over its quota, else one of the tenant most over
    /// its own, else the oldest of all.
    fn eviction_choice(&self, requester: TenantId) -> Option<BlockId> {
        let oldest = |owner: &Owner| owner.cached.first_key_value().map(|(_, block)| *block);
        if let Some(own) = self.owners.get(&requester)
            && own.footprint >= self.quota_blocks
            && let Some(block) = oldest(own)
        {
            return Some(block);
        }
        self.by_footprint
            .iter()
            .rev()
            .take_while(|(footprint, _)| *footprint > self.quota_blocks)
            .find_map(|(_, tenant)| self.owners.get(tenant).and_then(oldest))
            .or_else(|| self.cached.first_key_value().map(|(_, block)| *block))
    }

    fn claim(&mut self, block: BlockId, owner: TenantId) {
        self.blocks[block as usize].refs = 1;
        self.own(block, owner);
    }

    fn cache(&mut self, block: BlockId) {
        let stamp = self.next_stamp;
        self.next_stamp += 1;
        let entry = &mut self.blocks[block as usize];
        entry.stamp = stamp;
        self.cached.insert(stamp, block);
        if let Some(owner) = entry.owner.and_then(|owner| self.owners.get_mut(&owner)) {
            owner.cached.insert(stamp, block);
        }
    }

    fn uncache(&mut self, block: BlockId) {
        let entry = &self.blocks[block as usize];
        self.cached.remove(&entry.stamp);
        if let Some(owner) = entry.owner.and_then(|owner| self.owners.get_mut(&owner)) {
            owner.cached.remove(&entry.stamp);
        }
    }

    fn own(&mut self, block: BlockId, tenant: TenantId) {
        self.blocks[block as usize].owner = Some(tenant);
        let owner = self.owners.entry(tenant).or_default();
        self.by_footprint.remove(&(owner.footprint, tenant));
        owner.footprint += 1;
        self.by_footprint.insert((owner.footprint, tenant));
    }

    fn disown(&mut self, block: BlockId) {
        let Some(tenant) = self.blocks[block as usize].owner.take() else { return };
        let Some(owner) = self.owners.get_mut(&tenant) else { return };
        self.by_footprint.remove(&(owner.footprint, tenant));
        owner.footprint -= 1;
        if owner.footprint == 0 {
            self.owners.remove(&tenant);
        } else {
            self.by_footprint.insert((owner.footprint, tenant));
        }
    }

    /// Recounts everything from scratch and says what does not add up. `held` tells the references that the
    /// callers know of, one number a block.
    pub fn audit(&self, held: &[u32]) -> Result<(), String> {
        let mut counts = BlockCounts { total: to_u32(self.blocks.len()), ..BlockCounts::default() };
        let mut footprints: HashMap<TenantId, u32> = HashMap::new();
        for (id, block) in self.blocks.iter().enumerate() {
            if block.refs != held[id] {
                return Err(format!("block {id} has {} references, tables hold {}", block.refs, held[id]));
            }
            match (block.refs, block.indexed) {
                (0, false) => counts.free += 1,
                (0, true) => counts.cached += 1,
                _ => counts.held += 1,
            }
            if (block.refs == 0 && !block.indexed) != block.owner.is_none() {
                return Err(format!("block {id} is free and owned, or used and not owned"));
            }
            if let Some(owner) = block.owner {
                *footprints.entry(owner).or_default() += 1;
            }
        }
        if counts != self.counts() {
            return Err(format!("blocks add up to {counts:?}, the pool says {:?}", self.counts()));
        }
        if counts.free + counts.cached + counts.held != counts.total {
            return Err(format!("{counts:?}: free, cached and held are not all blocks"));
        }
        let kept: HashMap<TenantId, u32> = self.owners.iter().map(|(t, o)| (*t, o.footprint)).collect();
        if kept != footprints || self.by_footprint.len() != kept.len() {
            return Err(format!("footprints are {footprints:?}, the pool says {kept:?}"));
        }
        Ok(())
    }
}

fn to_u32(count: usize) -> u32 {
    u32::try_from(count).expect("the number of blocks is a u32")
}

#[cfg(test)]
mod tests;
