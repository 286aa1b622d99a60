use super::*;

const A: TenantId = TenantId(1);
const B: TenantId = TenantId(2);

fn held(pool: &BlockPool, blocks: &[BlockId]) -> Result<(), String> {
    let mut refs = vec![0; pool.counts().total as usize];
    for block in blocks {
        refs[*block as usize] += 1;
    }
    pool.audit(&refs)
}

/// Takes blocks, makes them findable and gives them back, the tail first.
fn fill_cache(pool: &mut BlockPool, tenant: TenantId, count: usize) -> Vec<BlockId> {
    let blocks: Vec<_> = (0..count).map(|_| pool.allocate(tenant).unwrap().block).collect();
    for block in &blocks {
        pool.mark_indexed(*block, None);
    }
    for block in blocks.iter().rev() {
        pool.release(*block);
    }
    blocks
}

#[test]
fn a_block_moves_between_free_held_and_cached_and_the_counts_follow() {
    let mut pool = BlockPool::new(3, 3);
    let block = pool.allocate(A).unwrap().block;
    assert_eq!(pool.counts(), BlockCounts { free: 2, cached: 0, held: 1, total: 3 });
    pool.retain(block);
    pool.mark_indexed(block, None);
    pool.release(block);
    assert_eq!(held(&pool, &[block]), Ok(()));
    pool.release(block);
    assert_eq!(pool.counts(), BlockCounts { free: 2, cached: 1, held: 0, total: 3 });
    pool.retain(block);
    assert_eq!(pool.counts(), BlockCounts { free: 2, cached: 0, held: 1, total: 3 });
    pool.unmark_indexed(block);
    pool.release(block);
    assert_eq!(pool.counts(), BlockCounts { free: 3, cached: 0, held: 0, total: 3 });
    assert_eq!(held(&pool, &[]), Ok(()));
}

#[test]
fn free_blocks_go_before_cached_ones_and_the_tail_before_its_head() {
    let mut pool = BlockPool::new(4, 4);
    let chain = fill_cache(&mut pool, A, 3);
    assert!(!pool.allocate(B).unwrap().evicted, "one block is still free");
    for expected in chain.iter().rev() {
        let taken = pool.allocate(B).unwrap();
        assert_eq!((taken.block, taken.evicted), (*expected, true));
    }
    assert_eq!(pool.allocate(B), None, "all blocks are held");
}

#[test]
fn a_block_used_again_becomes_the_last_to_be_evicted() {
    let mut pool = BlockPool::new(2, 2);
    let first = fill_cache(&mut pool, A, 1)[0];
    let second = fill_cache(&mut pool, A, 1)[0];
    pool.retain(first);
    pool.release(first);
    assert_eq!(pool.allocate(A).unwrap().block, second);
    assert_eq!(pool.allocate(A).unwrap().block, first);
}

#[test]
fn a_flood_evicts_its_own_blocks_and_leaves_those_of_others() {
    let mut pool = BlockPool::new(10, 5);
    let quiet = fill_cache(&mut pool, A, 4);
    fill_cache(&mut pool, B, 6);
    for _ in 0..40 {
        let block = pool.allocate(B).unwrap().block;
        assert!(!quiet.contains(&block), "the flood took a block of the quiet tenant");
        pool.mark_indexed(block, None);
        pool.release(block);
    }
    assert_eq!((pool.cached_of(A), pool.cached_of(B)), (4, 6));
    assert_eq!(held(&pool, &[]), Ok(()));
}

#[test]
fn a_tenant_over_its_quota_takes_its_own_blocks_even_if_another_is_further_over() {
    let mut pool = BlockPool::new(10, 2);
    fill_cache(&mut pool, A, 6);
    let own = fill_cache(&mut pool, B, 4);
    assert!(own.contains(&pool.allocate(B).unwrap().block));
    assert_eq!((pool.cached_of(A), pool.cached_of(B)), (6, 3));
}

#[test]
fn a_tenant_within_its_quota_takes_from_the_one_most_over_its_own() {
    let mut pool = BlockPool::new(10, 4);
    let old = fill_cache(&mut pool, A, 2);
    let many = fill_cache(&mut pool, B, 8);
    let taken = pool.allocate(A).unwrap().block;
    assert!(many.contains(&taken), "block {taken} was older, but its tenant is within its quota: {old:?}");
}

#[test]
fn without_rivals_a_tenant_may_cache_in_all_blocks() {
    let mut pool = BlockPool::new(8, 2);
    fill_cache(&mut pool, A, 8);
    assert_eq!(pool.counts().cached, 8);
}

#[test]
#[should_panic(expected = "released more often")]
fn releasing_a_free_block_is_noticed() {
    let mut pool = BlockPool::new(1, 1);
    let block = pool.allocate(A).unwrap().block;
    pool.release(block);
    pool.release(block);
}

#[test]
fn the_audit_notices_a_reference_nobody_knows_of() {
    let mut pool = BlockPool::new(2, 2);
    pool.allocate(A).unwrap();
    assert!(held(&pool, &[]).is_err());
}
