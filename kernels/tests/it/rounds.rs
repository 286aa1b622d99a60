//! What a step does in one round or plans once has the bits of the same work done one by one.

use pons_kernels::ops::{self, AttentionPlan, Rotated};
use pons_kernels::{AttentionSeq, BLOCK, Isa, KvArena, KvFormat, KvRow, Pool, Rope, RopeLayout, RopeScaling};

use crate::numbers::Numbers;

const HEADS: usize = 6;
const KV_HEADS: usize = 2;
const DIM: usize = 40;
const LAYERS: usize = 2;

fn rope(layout: RopeLayout) -> Rope {
    Rope::new(DIM, 32, 1000, 10_000.0, RopeScaling::None, layout)
}

fn arena(blocks: usize, format: KvFormat) -> KvArena {
    KvArena::new(LAYERS, KV_HEADS, DIM, blocks, format).expect("the sizes are in bounds")
}

fn bits(numbers: &[f32]) -> Vec<u32> {
    numbers.iter().map(|number| number.to_bits()).collect()
}

/// Keys, values and queries of `rows` tokens from position 0 on, written in both ways; the queries that came out,
/// and what they see in each layer.
fn both_ways(pool: &Pool, isa: Isa, format: KvFormat, layout: RopeLayout, rows: usize) -> [Vec<u32>; 2] {
    let rope = rope(layout);
    let blocks = rows.div_ceil(BLOCK);
    let table: Vec<u32> = (0..blocks as u32).rev().collect();
    let positions: Vec<u32> = (0..rows as u32).collect();
    let place = |position: usize| KvRow { block: table[position / BLOCK], slot: (position % BLOCK) as u32 };
    let places: Vec<KvRow> = (0..rows).map(place).collect();
    let seq = AttentionSeq { first_row: 0, rows, start: 0, table: &table };
    let mut arenas = [arena(blocks, format), arena(blocks, format)];
    let mut seen: [Vec<u32>; 2] = Default::default();
    let mut plan = AttentionPlan::default();
    plan.renew(pool, &arenas[1], HEADS, &[seq]);
    for layer in 0..LAYERS {
        let mut numbers = Numbers(layer as u64 + 7);
        let (k, v) = (numbers.units(rows * KV_HEADS * DIM), numbers.units(rows * KV_HEADS * DIM));
        let q = numbers.units(rows * HEADS * DIM);
        let mut out = vec![0.0; q.len()];

        let (mut turned_q, mut turned_k) = (q.clone(), k.clone());
        ops::rope(pool, isa, &mut turned_q, rows, HEADS, &rope, &positions);
        ops::rope(pool, isa, &mut turned_k, rows, KV_HEADS, &rope, &positions);
        arenas[0].write(pool, isa, layer, &places, &turned_k, &v);
        ops::attention(pool, isa, &arenas[0], layer, &turned_q, HEADS, &[seq], 0.2, &mut out);
        seen[0].extend(bits(&turned_q).into_iter().chain(bits(&out)));

        let mut q = q;
        let of = Rotated { rope: &rope, positions: &positions, q: &mut q, heads: HEADS, k: &k, v: &v };
        ops::rotate_and_store(pool, isa, &mut arenas[1], layer, &places, of);
        ops::attend(pool, isa, &arenas[1], layer, &q, &mut plan, 0.2, &mut out);
        seen[1].extend(bits(&q).into_iter().chain(bits(&out)));
    }
    seen
}

#[test]
fn a_fused_rotation_and_a_kept_plan_have_the_bits_of_single_operations() {
    // Few rows, enough for all threads, and so many that their segments are split.
    for rows in [1, 5, 90, 700] {
        for (format, layout) in
            [(KvFormat::Bf16, RopeLayout::Half), (KvFormat::Int8, RopeLayout::Interleaved)]
        {
            for isa in Isa::usable() {
                for threads in [1, 3] {
                    let [single, fused] = both_ways(&Pool::new(threads), isa, format, layout, rows);
                    assert!(
                        single == fused,
                        "{rows} rows, {format:?}, {layout:?}, {isa:?}, {threads} threads"
                    );
                }
            }
        }
    }
}

#[test]
fn a_plan_that_is_renewed_forgets_what_it_was_for() {
    let (pool, arena) = (Pool::new(2), arena(64, KvFormat::Bf16));
    let long: Vec<u32> = (0..64).collect();
    let q = Numbers(3).units(3 * HEADS * DIM);
    let mut plan = AttentionPlan::default();
    plan.renew(&pool, &arena, HEADS, &[AttentionSeq { first_row: 0, rows: 1, start: 1000, table: &long }]);
    let mut out = vec![1.0; q.len()];
    ops::attend(&pool, Isa::detect(), &arena, 0, &q, &mut plan, 0.2, &mut out);
    assert!(out[..HEADS * DIM].iter().all(|&x| x == 0.0), "the values of an empty arena are zero");
    assert!(out[HEADS * DIM..].iter().all(|&x| x == 1.0), "rows of no sequence are left as they are");
    plan.renew(&pool, &arena, HEADS, &[AttentionSeq { first_row: 2, rows: 1, start: 0, table: &long[..1] }]);
    out.fill(1.0);
    ops::attend(&pool, Isa::detect(), &arena, 0, &q, &mut plan, 0.2, &mut out);
    assert!(out[..2 * HEADS * DIM].iter().all(|&x| x == 1.0));
    assert!(out[2 * HEADS * DIM..].iter().all(|&x| x == 0.0));
}

#[test]
#[should_panic(expected = "rows up to 3 of a sequence exceed the batch of 2")]
fn queries_that_a_plan_does_not_fit_are_refused() {
    let (pool, arena) = (Pool::new(1), arena(1, KvFormat::Bf16));
    let mut plan = AttentionPlan::default();
    plan.renew(&pool, &arena, HEADS, &[AttentionSeq { first_row: 2, rows: 1, start: 0, table: &[0] }]);
    let q = vec![0.0; 2 * HEADS * DIM];
    ops::attend(&pool, Isa::detect(), &arena, 0, &q, &mut plan, 0.2, &mut vec![0.0; q.len()]);
}
