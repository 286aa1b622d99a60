//! Bookkeeping of the KV cache: handing out blocks, and finding a long prompt. The rule: counts are audited and
//! what is found is compared before it is timed; the rivals are a bare stack with counts, an index in the standard map,
//! and the plain comparison of the same tokens.

use std::borrow::Cow;
use std::collections::HashMap;
use std::hint::black_box;

use pons_benches::suite::{Case, Suite};
use pons_gpu_worker::kv::cache::ComputedBlock;
use pons_gpu_worker::kv::{BLOCK_TOKENS, BlockCache, BlockTable, ChainHash, PrefixKey};
use pons_protocol::id::{TenantId, TokenId};

const SALT: [u8; 16] = [3; 16];
/// Tokens of a block.
const BLOCK: usize = BLOCK_TOKENS as usize;
const TENANT: TenantId = TenantId(1);

fn main() -> anyhow::Result<()> {
    let mut suite = Suite::start("kv")?;
    let blocks = if suite.is_small() { 16 } else { 256 };
    allocation(&mut suite, blocks);
    prefix(&mut suite, blocks * BLOCK_TOKENS);
    suite.finish()
}

/// A table grows to so many blocks and gives them back.
fn allocation(suite: &mut Suite, blocks: u32) {
    let mut cache = BlockCache::new(2 * blocks, 2 * blocks, PrefixKey::fixed([5; 16]));
    let mut table = BlockTable::default();
    assert!(cache.grow(&mut table, blocks * BLOCK_TOKENS, TENANT), "there is room");
    assert_eq!((table.len(), cache.counts().held, cache.available()), (blocks, blocks, blocks));
    let mut seen = table.as_slice().to_vec();
    seen.sort_unstable();
    seen.dedup();
    assert_eq!(seen.len(), blocks as usize, "no block is given twice");
    assert_eq!(cache.audit([&table].into_iter()), Ok(()));
    cache.release_all(table.take());
    assert_eq!(cache.available(), 2 * blocks);

    let (group, handles) = (format!("blocks_{blocks}"), blocks as usize);
    suite.time(Case::new(&group, "grow_release").handles(handles).beside("bare_stack"), |bencher| {
        bencher.iter(|| {
            cache.grow(&mut table, black_box(blocks) * BLOCK_TOKENS, TENANT);
            cache.release_all(table.take());
        });
    });
    // The least that an allocator with shared blocks can do: a stack of free ones, and a count for each.
    let (mut free, mut refs) = ((0..2 * blocks).collect::<Vec<u32>>(), vec![0_u32; 2 * handles]);
    suite.time(Case::new(&group, "bare_stack").handles(handles), |bencher| {
        bencher.iter(|| {
            let mut taken = Vec::new();
            for _ in 0..black_box(blocks) {
                let Some(block) = free.pop() else { break };
                refs[block as usize] += 1;
                taken.push(block);
            }
            for block in taken.into_iter().rev() {
                refs[block as usize] -= 1;
                if refs[block as usize] == 0 {
                    free.push(block);
                }
            }
        });
    });
}

/// A prompt of so many tokens that is in the cache.
fn prefix(suite: &mut Suite, prompt_tokens: u32) {
    let prompt: Vec<TokenId> = (0..prompt_tokens).map(|at| at.wrapping_mul(2_654_435_761) >> 8).collect();
    let block = |at: usize| Cow::Borrowed(&prompt[at * BLOCK..][..BLOCK]);
    let blocks = prompt_tokens / BLOCK_TOKENS;
    let mut cache = BlockCache::new(2 * blocks, 2 * blocks, PrefixKey::fixed([5; 16]));
    let mut table = BlockTable::default();
    assert!(cache.grow(&mut table, prompt_tokens, TENANT), "there is room");
    let mut hashes: Vec<ChainHash> = Vec::new();
    cache.extend_hashes(&mut hashes, &SALT, block, blocks as usize);
    for (position, hash) in hashes.iter().enumerate() {
        let computed = ComputedBlock { position, hash: *hash, salt: SALT, tokens: &block(position) };
        assert!(cache.index_block(&mut table, computed));
    }
    let expected = table.as_slice().to_vec();
    cache.release_all(table.take());
    assert_eq!(cache.counts().cached, blocks);
    assert_eq!(cache.find_prefix(SALT, &hashes, block), expected, "the whole prompt is found");
    assert!(cache.find_prefix([4; 16], &hashes, block).is_empty(), "another tenant finds nothing");
    let mut other = prompt.clone();
    other[5 * BLOCK] ^= 1;
    let changed = |at: usize| Cow::Borrowed(&other[at * BLOCK..][..BLOCK]);
    assert_eq!(cache.find_prefix(SALT, &hashes, changed), expected[..5], "the tokens count, not the hashes");

    let (group, handles) = (format!("prefix_{prompt_tokens}"), prompt_tokens as usize);
    let case = |name: &str| Case::new(&group, name).handles(handles);
    suite.time(case("hash").beside("compare"), |bencher| {
        bencher.iter(|| {
            let mut hashes = Vec::with_capacity(blocks as usize);
            cache.extend_hashes(&mut hashes, black_box(&SALT), block, blocks as usize);
            hashes
        });
    });
    suite.time(case("find").beside("compare"), |bencher| {
        bencher.iter(|| cache.find_prefix(SALT, black_box(&hashes), block));
    });
    suite.time(case("hash_find").beside("std_map"), |bencher| {
        bencher.iter(|| {
            let mut hashes = Vec::with_capacity(blocks as usize);
            cache.extend_hashes(&mut hashes, black_box(&SALT), block, blocks as usize);
            cache.find_prefix(SALT, &hashes, block)
        });
    });
    let map = StdMap::new(&prompt, &expected);
    assert_eq!(map.find(&prompt), expected);
    assert_eq!(map.find(&other), expected[..5]);
    suite.time(case("std_map"), |bencher| {
        bencher.iter(|| map.find(black_box(&prompt)));
    });
    // What no look-up can do without that trusts no hash: reading both texts once.
    let known = prompt.clone();
    suite.time(case("compare"), |bencher| {
        bencher.iter(|| black_box(&known) == black_box(&prompt));
    });
}

/// Salt, block before, tokens.
type Key = ([u8; 16], Option<u32>, [TokenId; BLOCK]);

/// The obvious index: the standard map, from salt, block before and tokens to the block.
struct StdMap {
    blocks: HashMap<Key, u32>,
}

impl StdMap {
    fn new(prompt: &[TokenId], blocks: &[u32]) -> Self {
        let parents = std::iter::once(None).chain(blocks.iter().copied().map(Some));
        let keys = parents.zip(prompt.as_chunks().0);
        let keys = keys.map(|(parent, tokens)| (SALT, parent, *tokens));
        Self { blocks: keys.zip(blocks.iter().copied()).collect() }
    }

    fn find(&self, prompt: &[TokenId]) -> Vec<u32> {
        let mut found: Vec<u32> = Vec::new();
        for tokens in prompt.as_chunks().0 {
            let key = (SALT, found.last().copied(), *tokens);
            let Some(block) = self.blocks.get(&key) else { break };
            found.push(*block);
        }
        found
    }
}
