//! Attention against the oracle.

use pons_kernels::{AttentionSeq, BLOCK, Isa, KvArena, KvFormat, KvRow, Pool, ops, scalar};
use proptest::prelude::*;

use crate::numbers::Numbers;

/// Weights sum to one and values are at most one in magnitude. Without rounding of weights, what is left is the
/// rounding of scores (up to `dim · 3` large) and of the exponential, some 1e-6 each; rounded to bfloat16, each
/// weight is off by up to 2^-9 of itself, and so is their sum.
fn tolerance(isa: Isa) -> f32 {
    if matches!(isa, Isa::Portable | Isa::Avx2) { 3e-5 } else { 1.0 / 256.0 }
}

fn check(format: KvFormat, group: usize, kv_heads: usize, dim: usize, lengths: &[(usize, usize)], seed: u64) {
    let heads = group * kv_heads;
    let mut numbers = Numbers(seed);
    let blocks: usize = lengths.iter().map(|(start, rows)| (start + rows).div_ceil(BLOCK)).sum();
    let mut arena = KvArena::new(1, kv_heads, dim, blocks, format).expect("the sizes are in bounds");
    let mut next = blocks as u32;
    let (mut tables, mut rows_in_all) = (Vec::new(), 0);
    for (start, rows) in lengths {
        let len = start + rows;
        let table: Vec<u32> = (0..len.div_ceil(BLOCK))
            .map(|_| {
                next -= 1;
                next
            })
            .collect();
        let places: Vec<KvRow> =
            (0..len).map(|p| KvRow { block: table[p / BLOCK], slot: (p % BLOCK) as u32 }).collect();
        let (k, v) = (numbers.units(len * kv_heads * dim), numbers.units(len * kv_heads * dim));
        arena.write(&Pool::new(1), Isa::detect(), 0, &places, &k, &v);
        tables.push(table);
        rows_in_all += rows;
    }
    let mut first_row = 0;
    let seqs: Vec<AttentionSeq<'_>> = lengths
        .iter()
        .zip(&tables)
        .map(|(&(start, rows), table)| {
            first_row += rows;
            AttentionSeq { first_row: first_row - rows, rows, start: start as u32, table }
        })
        .collect();
    // Queries that bfloat16 holds exactly: the oracle does not round them.
    let q: Vec<f32> = numbers
        .units(rows_in_all * heads * dim)
        .into_iter()
        .map(|q| half::bf16::from_f32(q * 3.0).to_f32())
        .collect();
    let scale = 1.0 / (dim as f32).sqrt();
    let mut expected = vec![0.0; q.len()];
    scalar::attention(&arena, 0, &q, heads, &seqs, scale, &mut expected);
    for isa in Isa::usable() {
        let mut out = vec![f32::NAN; q.len()];
        ops::attention(&Pool::new(2), isa, &arena, 0, &q, heads, &seqs, scale, &mut out);
        for (index, (got, want)) in out.iter().zip(&expected).enumerate() {
            let near = (got - want).abs() <= tolerance(isa);
            assert!(near, "{format:?} {isa:?} {lengths:?} at {index}: {got} for {want}");
        }
        let errors = out.iter().zip(&expected).map(|(got, want)| f64::from(got - want));
        let mean = errors.sum::<f64>() / out.len() as f64;
        assert!(mean.abs() <= 2e-4, "{format:?} {isa:?}: {mean} off on average");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn any_shape_agrees_with_the_oracle(
        group in 1_usize..9,
        kv_heads in 1_usize..4,
        dim in 1_usize..140,
        lengths in proptest::collection::vec((0_usize..70, 1_usize..40), 1..4),
        eight_bit: bool,
        seed: u64,
    ) {
        let format = if eight_bit { KvFormat::Int8 } else { KvFormat::Bf16 };
        check(format, group, kv_heads, dim, &lengths, seed);
    }
}

#[test]
fn the_shapes_of_known_models_agree_with_the_oracle() {
    for (group, kv_heads, dim) in [(3, 3, 64), (7, 2, 64), (6, 2, 128), (4, 8, 128), (1, 2, 256)] {
        for format in [KvFormat::Bf16, KvFormat::Int8] {
            check(format, group, kv_heads, dim, &[(300, 1), (0, 50), (15, 1), (16, 1), (31, 2)], 9);
        }
    }
}

#[test]
fn groups_and_dims_on_both_sides_of_a_segment_agree_with_the_oracle() {
    for format in [KvFormat::Bf16, KvFormat::Int8] {
        for (index, dim) in [40, 64, 80, 128].into_iter().enumerate() {
            for group in [1 + index, 8 - index] {
                let lengths = [(255, 1), (256, 1), (240, 40), (511, 3), (1000, 1), (0, 33)];
                check(format, group, 2, dim, &lengths, 77 + index as u64);
            }
        }
    }
}

#[test]
fn rows_of_no_sequence_are_left_alone() {
    let mut arena = KvArena::new(1, 1, 16, 1, KvFormat::Bf16).expect("the sizes are in bounds");
    arena.write(&Pool::new(1), Isa::detect(), 0, &[KvRow { block: 0, slot: 0 }], &[1.0; 16], &[2.0; 16]);
    for isa in Isa::usable() {
        let mut out = vec![7.0; 3 * 16];
        let seq = AttentionSeq { first_row: 1, rows: 1, start: 0, table: &[0] };
        ops::attention(&Pool::new(1), isa, &arena, 0, &[1.0; 48], 1, &[seq], 1.0, &mut out);
        assert_eq!(out, [[7.0; 16], [2.0; 16], [7.0; 16]].concat());
    }
}

fn attend(seq: AttentionSeq<'_>) {
    let arena = KvArena::new(1, 1, 16, 2, KvFormat::Bf16).expect("the sizes are in bounds");
    ops::attention(&Pool::new(1), Isa::detect(), &arena, 0, &[0.0; 32], 1, &[seq], 1.0, &mut [0.0; 32]);
}

#[test]
#[should_panic(expected = "names block")]
fn a_block_that_is_not_there_is_refused() {
    attend(AttentionSeq { first_row: 0, rows: 1, start: 16, table: &[0, 2] });
}

#[test]
#[should_panic(expected = "2 are needed")]
fn a_table_that_is_too_short_is_refused() {
    attend(AttentionSeq { first_row: 0, rows: 2, start: 15, table: &[0] });
}

#[test]
#[should_panic(expected = "exceed the batch")]
fn rows_past_the_batch_are_refused() {
    attend(AttentionSeq { first_row: 1, rows: 2, start: 0, table: &[0] });
}
