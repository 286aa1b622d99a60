//! The arena: what is written is what is read, and sizes.

use super::*;
use crate::{Isa, Pool};

/// Two rows of two heads of five, written by each set on one thread and on several.
fn written(format: KvFormat, check: impl Fn(&KvArena, &[f32], &[f32])) {
    let k: Vec<f32> = (0..20).map(|i| i as f32 + 0.5).collect();
    let v: Vec<f32> = (0..20).map(|i| -(i as f32)).collect();
    for isa in Isa::usable() {
        for threads in [1, 3] {
            let mut arena = KvArena::new(2, 2, 5, 3, format).unwrap();
            let rows = [KvRow { block: 2, slot: 15 }, KvRow { block: 0, slot: 3 }];
            arena.write(&Pool::new(threads), isa, 1, &rows, &k, &v);
            check(&arena, &k, &v);
        }
    }
}

/// Calls `check` with each element's stored and original key and value, and the largest of its head's.
fn each_element(arena: &KvArena, k: &[f32], v: &[f32], check: &dyn Fn(f32, f32, f32)) {
    for (row, (block, slot)) in [(2, 15), (0, 3)].into_iter().enumerate() {
        for head in 0..2 {
            let stored = arena.head_block(1, block, head);
            let at = row * 10 + head * 5;
            let most = |x: &[f32]| x[at..at + 5].iter().fold(0.0_f32, |most, x| most.max(x.abs()));
            for dim in 0..5 {
                check(stored.key(slot, dim), k[at + dim], most(k));
                check(stored.value(slot, dim, 5), v[at + dim], most(v));
            }
        }
    }
}

#[test]
fn what_is_written_is_read_back_rounded_to_bfloat16() {
    written(KvFormat::Bf16, |arena, k, v| {
        each_element(arena, k, v, &|stored, original, _| {
            assert_eq!(stored, bf16::from_f32(original).to_f32());
        });
    });
}

#[test]
fn eight_bit_elements_are_within_half_a_step_of_the_largest_of_their_head() {
    written(KvFormat::Int8, |arena, k, v| {
        each_element(arena, k, v, &|stored, original, most| {
            assert!((stored - original).abs() <= most / 127.0 * 0.500_01, "{stored} for {original}");
        });
    });
}

#[test]
fn nothing_but_the_rows_named_is_written() {
    for format in [KvFormat::Bf16, KvFormat::Int8] {
        written(format, |arena, _, _| {
            for (layer, block, slot) in [(0, 2, 15), (1, 1, 15), (1, 2, 14), (1, 0, 2), (1, 0, 4)] {
                for head in 0..2 {
                    let stored = arena.head_block(layer, block, head);
                    let zero = |dim| stored.key(slot, dim) == 0.0 && stored.value(slot, dim, 5) == 0.0;
                    assert!((0..5).all(zero), "{format:?} {layer} {block} {slot}");
                }
            }
        });
    }
}

#[test]
fn padding_stays_zero_so_that_it_never_counts() {
    written(KvFormat::Bf16, |arena, _, _| {
        let HeadBlock::Bf16 { keys, values } = arena.head_block(1, 2, 1) else { unreachable!() };
        assert_eq!(keys[key_at(15, 5)], 0);
        assert!((5..16).all(|dim| values[value_at(15, dim, 5)] == 0));
    });
}

#[test]
fn many_rows_on_many_threads_are_written_as_few_on_one() {
    let (heads, dim, count) = (3, 40, 300);
    let number = |i: usize| ((i * 7919) % 1013) as f32 / 64.0 - 7.0;
    let k: Vec<f32> = (0..count * heads * dim).map(number).collect();
    let v: Vec<f32> = k.iter().map(|k| 1.0 - k).collect();
    let rows: Vec<KvRow> = (0..count as u32).map(|p| KvRow { block: 18 - p / 16, slot: p % 16 }).collect();
    for format in [KvFormat::Bf16, KvFormat::Int8] {
        let mut one = KvArena::new(1, heads, dim, 19, format).unwrap();
        let alone = Pool::new(1);
        for (row, place) in rows.iter().enumerate() {
            let at = row * heads * dim..(row + 1) * heads * dim;
            one.write(&alone, Isa::Portable, 0, std::slice::from_ref(place), &k[at.clone()], &v[at]);
        }
        for isa in Isa::usable() {
            let mut all = KvArena::new(1, heads, dim, 19, format).unwrap();
            all.write(&Pool::new(3), isa, 0, &rows, &k, &v);
            for (block, head, slot, at) in
                (0..19).flat_map(|b| (0..heads).flat_map(move |h| (0..16).map(move |s| (b, h, s, 0))))
            {
                let (a, b) = (one.head_block(0, block, head), all.head_block(0, block, head));
                for dim_at in at..dim {
                    assert_eq!(a.key(slot, dim_at).to_bits(), b.key(slot, dim_at).to_bits());
                    let value = |block: HeadBlock<'_>| block.value(slot, dim_at, dim).to_bits();
                    assert_eq!(value(a), value(b), "{format:?} {isa:?} {block} {head} {slot} {dim_at}");
                }
            }
        }
    }
}

#[test]
fn sizes_that_cannot_be_are_refused_by_name() {
    for format in [KvFormat::Bf16, KvFormat::Int8] {
        let error = KvArena::new(0, 1, 64, 1, format).unwrap_err();
        assert!(error.to_string().starts_with("layers is 0"), "{error}");
        let error = KvArena::new(1 << 16, 1 << 16, 512, u32::MAX as usize, format).unwrap_err();
        assert!(matches!(error, KvError::TooLarge { .. }), "{error}");
        assert!(KvArena::new(1, 1, 513, 1, format).is_err());
    }
}

#[test]
fn bytes_are_blocks_times_bytes_per_block() {
    for format in [KvFormat::Bf16, KvFormat::Int8] {
        for dim in [40, 5] {
            let arena = KvArena::new(3, 2, dim, 7, format).unwrap();
            assert_eq!(arena.bytes(), 7 * KvArena::bytes_per_block(3, 2, dim, format));
        }
    }
    let half = KvArena::bytes_per_block(3, 2, 64, KvFormat::Int8) as f64;
    assert!(half / (KvArena::bytes_per_block(3, 2, 64, KvFormat::Bf16) as f64) < 0.54);
}

#[test]
#[should_panic(expected = "slot is 16")]
fn a_slot_past_the_block_is_refused() {
    let mut arena = KvArena::new(1, 1, 2, 1, KvFormat::Bf16).unwrap();
    let row = [KvRow { block: 0, slot: 16 }];
    arena.write(&Pool::new(1), Isa::Portable, 0, &row, &[0.0; 2], &[0.0; 2]);
}
