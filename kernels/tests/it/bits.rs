//! Bit for bit: a row's result has nothing to do with its company, the threads, or where a chunk starts.

use pons_kernels::{AttentionSeq, BLOCK, Isa, KvArena, KvFormat, KvRow, Pool, Precision, ops};
use proptest::prelude::*;

use crate::numbers::{FORMATS, Numbers, matrix};

fn bits(numbers: &[f32]) -> Vec<u32> {
    numbers.iter().map(|number| number.to_bits()).collect()
}

#[test]
fn a_row_of_a_product_is_the_same_alone_and_in_any_company() {
    for precision in [Precision::Eight, Precision::Fifteen] {
        any_company(precision);
    }
}

fn any_company(precision: Precision) {
    let (rows, cols, most) = (100, 700, 40);
    for format in FORMATS {
        let w = matrix(format, rows, cols, 11).with_precision(precision);
        let x = Numbers(12).units(most * cols);
        let bias = Numbers(13).units(rows);
        for isa in Isa::usable() {
            let product = |pool: &Pool, first: usize, m: usize| {
                let mut out = vec![0.0; m * rows];
                let x = &x[first * cols..][..m * cols];
                ops::matmul_bias(pool, isa, x, m, &w, Some(&bias), &mut out);
                bits(&out)
            };
            let alone = Pool::new(1);
            let each: Vec<u32> = (0..most).flat_map(|row| product(&alone, row, 1)).collect();
            for threads in [1, 2, 5] {
                let pool = Pool::new(threads);
                for m in (1..=14).chain([24, 25, 39, 40]) {
                    let first = (m * 7) % (most - m + 1);
                    let together = product(&pool, first, m);
                    assert!(
                        together == each[first * rows..(first + m) * rows],
                        "{format:?} {isa:?} {m} {threads}"
                    );
                }
            }
        }
    }
}

#[test]
fn rows_past_one_part_are_the_same_too() {
    // Several panels, and both few and many strips a part.
    for (rows, cols) in [(40, 64), (70, 600), (1100, 300)] {
        past_one_part(rows, cols);
    }
}

fn past_one_part(rows: usize, cols: usize) {
    let m = 400;
    for format in FORMATS {
        let w = matrix(format, rows, cols, 21);
        let x = Numbers(22).units(m * cols);
        for isa in Isa::usable() {
            let mut out = vec![0.0; m * rows];
            ops::matmul(&Pool::new(3), isa, &x, m, &w, &mut out);
            for row in [0, 191, 192, 200, 399] {
                let mut one = vec![0.0; rows];
                ops::matmul(&Pool::new(1), isa, &x[row * cols..][..cols], 1, &w, &mut one);
                assert_eq!(bits(&one), bits(&out[row * rows..][..rows]), "{format:?} {isa:?} {row}");
            }
        }
    }
}

/// A sequence of `len` tokens in an arena with shuffled blocks, and all its queries.
struct Story {
    arena: KvArena,
    table: Vec<u32>,
    q: Vec<f32>,
    heads: usize,
    dim: usize,
    len: usize,
}

fn story(format: KvFormat, heads: usize, kv_heads: usize, dim: usize, len: usize, seed: u64) -> Story {
    let mut numbers = Numbers(seed);
    let used = len.div_ceil(BLOCK);
    let mut arena = KvArena::new(2, kv_heads, dim, used + 3, format).expect("the sizes are in bounds");
    let mut table: Vec<u32> = (0..used as u32 + 3).collect();
    for index in (1..table.len()).rev() {
        table.swap(index, (numbers.next_u64() % (index as u64 + 1)) as usize);
    }
    // Whatever was left behind must not show: poison everything first.
    for block in 0..arena.blocks() as u32 {
        let rows: Vec<KvRow> = (0..BLOCK as u32).map(|slot| KvRow { block, slot }).collect();
        let poison = vec![f32::NAN; BLOCK * kv_heads * dim];
        arena.write(&Pool::new(1), Isa::detect(), 1, &rows, &poison, &poison);
    }
    let place = |position: usize| KvRow { block: table[position / BLOCK], slot: (position % BLOCK) as u32 };
    let rows: Vec<KvRow> = (0..len).map(place).collect();
    let (k, v) = (numbers.units(len * kv_heads * dim), numbers.units(len * kv_heads * dim));
    arena.write(&Pool::new(1), Isa::detect(), 1, &rows, &k, &v);
    let q = numbers.units(len * heads * dim).into_iter().map(|q| q * 3.0).collect();
    table.truncate(used);
    Story { arena, table, q, heads, dim, len }
}

impl Story {
    /// Rows `first..first + rows` as one chunk.
    fn chunk(&self, pool: &Pool, isa: Isa, first: usize, rows: usize) -> Vec<u32> {
        let width = self.heads * self.dim;
        let mut out = vec![0.0; rows * width];
        let q = &self.q[first * width..][..rows * width];
        let seq = AttentionSeq { first_row: 0, rows, start: first as u32, table: &self.table };
        ops::attention(pool, isa, &self.arena, 1, q, self.heads, &[seq], 0.125, &mut out);
        assert!(out.iter().all(|value| value.is_finite()), "something left behind in a block shows");
        bits(&out)
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn attention_is_the_same_in_any_chunks(
        group in 1_usize..8,
        kv_heads in 1_usize..4,
        dim in 1_usize..130,
        len in prop_oneof![3 => 1_usize..120, 1 => 230_usize..600],
        eight_bit: bool,
        cuts in proptest::collection::vec(0.0_f64..1.0, 0..5),
        threads in 1_usize..4,
        seed: u64,
    ) {
        let format = if eight_bit { KvFormat::Int8 } else { KvFormat::Bf16 };
        let story = story(format, group * kv_heads, kv_heads, dim, len, seed);
        let pool = Pool::new(threads);
        let mut ends: Vec<usize> = cuts.iter().map(|cut| (cut * len as f64) as usize).collect();
        ends.extend([0, len]);
        ends.sort_unstable();
        for isa in Isa::usable() {
            let whole = story.chunk(&pool, isa, 0, story.len);
            let pieces: Vec<u32> =
                ends.windows(2).flat_map(|cut| story.chunk(&pool, isa, cut[0], cut[1] - cut[0])).collect();
            prop_assert!(whole == pieces, "{isa:?} {ends:?}");
        }
    }
}

#[test]
fn attention_is_the_same_alone_and_among_other_sequences() {
    let (heads, kv_heads, dim) = (6, 2, 64);
    let story = story(KvFormat::Bf16, heads, kv_heads, dim, 100, 5);
    let width = heads * dim;
    let pool = Pool::new(3);
    // Row counts and starts of several "sequences" that read the same blocks.
    let runs = [(0, 3), (17, 1), (40, 30), (99, 1), (5, 11)];
    let rows: usize = runs.iter().map(|run| run.1).sum();
    for isa in Isa::usable() {
        let (mut q, mut seqs, mut expected) = (Vec::new(), Vec::new(), Vec::new());
        for (start, count) in runs {
            let first_row = q.len() / width;
            q.extend_from_slice(&story.q[start * width..][..count * width]);
            seqs.push(AttentionSeq { first_row, rows: count, start: start as u32, table: &story.table });
            expected.extend(story.chunk(&Pool::new(1), isa, start, count));
        }
        let mut out = vec![0.0; rows * width];
        ops::attention(&pool, isa, &story.arena, 1, &q, heads, &seqs, 0.125, &mut out);
        assert!(bits(&out) == expected, "{isa:?}");
    }
}

#[test]
fn one_long_row_is_the_same_on_any_number_of_threads_and_as_part_of_a_chunk() {
    for format in [KvFormat::Bf16, KvFormat::Int8] {
        for (group, kv_heads, dim) in [(3, 3, 64), (7, 1, 80), (1, 2, 40), (6, 1, 128)] {
            let len = 1500;
            let story = story(format, group * kv_heads, kv_heads, dim, len, 31);
            for isa in Isa::usable() {
                let width = story.heads * dim;
                let first = len - 70;
                let chunk = story.chunk(&Pool::new(1), isa, first, 70);
                for threads in [1, 2, 3, 8] {
                    let pool = Pool::new(threads);
                    for row in [first, 1470, len - 1] {
                        let alone = story.chunk(&pool, isa, row, 1);
                        let among = &chunk[(row - first) * width..][..width];
                        assert!(alone == among, "{format:?} {isa:?} {threads} {row} {dim}");
                    }
                }
            }
        }
    }
}

#[test]
fn a_later_token_that_is_no_number_does_not_reach_an_earlier_row() {
    for format in [KvFormat::Bf16, KvFormat::Int8] {
        let mut story = story(format, 6, 2, 64, 300, 8);
        for isa in Isa::usable() {
            let before = story.chunk(&Pool::new(2), isa, 0, 270);
            for position in 270..300 {
                let place = KvRow { block: story.table[position / BLOCK], slot: (position % BLOCK) as u32 };
                let broken = [f32::INFINITY; 128];
                story.arena.write(&Pool::new(1), isa, 1, &[place], &broken, &broken);
            }
            let width = 6 * 64;
            let mut out = vec![0.0; 300 * width];
            let seq = AttentionSeq { first_row: 0, rows: 300, start: 0, table: &story.table };
            ops::attention(&Pool::new(2), isa, &story.arena, 1, &story.q, 6, &[seq], 0.125, &mut out);
            assert!(bits(&out[..270 * width]) == before, "{format:?} {isa:?}");
            assert!(out[299 * width..].iter().all(|value| !value.is_finite()), "{format:?} {isa:?}");
        }
    }
}
