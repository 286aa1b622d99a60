//! Finds computed blocks by what they were computed from.
//!
//! The rule: the hash only leads to a candidate; a hit is a hit because salt, parent block and tokens are
//! equal. The hash is keyed with a secret, so that nobody can build collisions.

use std::collections::HashMap;
use std::hash::{BuildHasher, Hasher, RandomState};

use pons_protocol::id::TokenId;
use siphasher::sip128::{Hasher128, SipHasher13};

use super::BLOCK_TOKENS;
use crate::executor::BlockId;

/// Hash of a block and everything before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ChainHash(u128);

/// Secret of the hash.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct PrefixKey([u8; 16]);

impl PrefixKey {
    /// A fixed key, for runs that must repeat.
    pub fn fixed(bytes: [u8; 16]) -> Self {
        Self(bytes)
    }

    /// A key nobody knows, from the entropy with which the standard library seeds its own tables.
    pub fn random() -> Self {
        let half = || RandomState::new().build_hasher().finish().to_le_bytes();
        let mut bytes = [0; 16];
        bytes[..8].copy_from_slice(&half());
        bytes[8..].copy_from_slice(&half());
        Self(bytes)
    }
}

impl std::fmt::Debug for PrefixKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("PrefixKey(secret)")
    }
}

/// What a block was computed from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockContent<'a> {
    /// Tenant's salt.
    pub salt: [u8; 16],
    /// Block before it; none for the first.
    pub parent: Option<BlockId>,
    /// Its tokens, as many as a block holds.
    pub tokens: &'a [TokenId],
}

#[derive(Debug)]
struct Entry {
    hash: ChainHash,
    salt: [u8; 16],
    parent: Option<BlockId>,
    tokens: Box<[TokenId]>,
    children: u32,
}

/// The index. It holds no reference to a block: the pool says when one leaves.
#[derive(Debug)]
pub struct PrefixIndex {
    key: PrefixKey,
    by_hash: HashMap<ChainHash, BlockId>,
    entries: HashMap<BlockId, Entry>,
}

impl PrefixIndex {
    /// An empty index.
    pub fn new(key: PrefixKey) -> Self {
        Self { key, by_hash: HashMap::new(), entries: HashMap::new() }
    }

    /// Hash of a full block after the one with hash `parent`.
    pub fn chain(&self, salt: &[u8; 16], parent: Option<ChainHash>, tokens: &[TokenId]) -> ChainHash {
        debug_assert_eq!(tokens.len(), BLOCK_TOKENS as usize, "only full blocks are hashed");
        let mut hasher = SipHasher13::new_with_key(&self.key.0);
        hasher.write(salt);
        match parent {
            None => hasher.write(&[0]),
            Some(ChainHash(hash)) => {
                hasher.write(&[1]);
                hasher.write(&hash.to_le_bytes());
            }
        }
        for token in tokens {
            hasher.write(&token.to_le_bytes());
        }
        ChainHash(hasher.finish128().as_u128())
    }

    /// The block with this hash, if its content is the one asked for.
    pub fn find(&self, hash: ChainHash, content: BlockContent<'_>) -> Option<BlockId> {
        let block = *self.by_hash.get(&hash)?;
        let entry = self.entries.get(&block)?;
        let same =
            entry.salt == content.salt && entry.parent == content.parent && *entry.tokens == *content.tokens;
        same.then_some(block)
    }

    /// Adds a block. Returns false, and does nothing, if the hash leads to a block already.
    pub fn insert(&mut self, block: BlockId, hash: ChainHash, content: BlockContent<'_>) -> bool {
        if self.by_hash.contains_key(&hash) || self.entries.contains_key(&block) {
            return false;
        }
        if let Some(parent) = content.parent {
            match self.entries.get_mut(&parent) {
                Some(entry) => entry.children += 1,
                // Nobody could find a block whose parent can't be found.
                None => return false,
            }
        }
        self.by_hash.insert(hash, block);
        let (salt, parent, tokens) = (content.salt, content.parent, content.tokens.into());
        self.entries.insert(block, Entry { hash, salt, parent, tokens, children: 0 });
        true
    }

    /// Forgets a block without children.
    pub fn remove(&mut self, block: BlockId) {
        let Some(entry) = self.entries.remove(&block) else { return };
        debug_assert_eq!(entry.children, 0, "block {block} leaves the index before its children");
        self.by_hash.remove(&entry.hash);
        if let Some(parent) = entry.parent.and_then(|parent| self.entries.get_mut(&parent)) {
            parent.children -= 1;
        }
    }

    /// Blocks in the index that follow this one.
    pub fn children(&self, block: BlockId) -> u32 {
        self.entries.get(&block).map_or(0, |entry| entry.children)
    }

    /// Number of blocks.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether it knows no block.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// All blocks with what they were computed from, in no order.
    pub fn contents(&self) -> impl Iterator<Item = (BlockId, BlockContent<'_>)> {
        self.entries
            .iter()
            .map(|(block, e)| (*block, BlockContent { salt: e.salt, parent: e.parent, tokens: &e.tokens }))
    }
}

#[cfg(test)]
mod tests;
