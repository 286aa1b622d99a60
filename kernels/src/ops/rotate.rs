//! Rotation of queries and keys together with the writing of keys and values. The rule: one round of all threads
//! for what would be three, with the bits of the three.
#![allow(unsafe_code)]

use crate::compiled::dispatch;
use crate::dispatch::Isa;
use crate::kv::{Beside, KvArena, KvRow, Rows, Turn};
use crate::ops::Share;
use crate::pool::Pool;
use crate::portable::elementwise;
use crate::rope::Rope;

/// Rows of queries, keys and values before their rotation.
#[derive(Debug)]
pub struct Rotated<'a> {
    /// The rotation of each position.
    pub rope: &'a Rope,
    /// The position of each row.
    pub positions: &'a [u32],
    /// Queries, which are turned where they lie.
    pub q: &'a mut [f32],
    /// Heads of a row of queries.
    pub heads: usize,
    /// Keys; they stay as they are, and are turned on their way into the arena.
    pub k: &'a [f32],
    /// Values, which have no rotation.
    pub v: &'a [f32],
}

/// Turns queries by their positions, and writes keys, so turned, and values to `places` of one layer.
///
/// # Panics
/// When a length does not fit, a position has no rotation, or a layer, block or slot is out of range.
pub fn rotate_and_store(
    pool: &Pool,
    isa: Isa,
    arena: &mut KvArena,
    layer: usize,
    places: &[KvRow],
    rows: Rotated<'_>,
) {
    let Rotated { rope, positions, q, heads, k, v } = rows;
    let (count, width) = (places.len(), heads * rope.head_dim());
    assert!(count.checked_mul(width) == Some(q.len()), "q holds {} numbers, not {count} x {width}", q.len());
    assert!(positions.len() == count, "{} positions were given for {count} rows", positions.len());
    assert!(
        rope.head_dim() == arena.head_dim(),
        "the rotation is for heads of {}; the arena's have {}",
        rope.head_dim(),
        arena.head_dim()
    );
    // As many parts as keep all threads busy beside the arena's own.
    let parts = (pool.threads() * 2).min(count);
    let elements = q.len();
    let q = Share::new(q);
    let turn_queries = |part: usize| {
        let (first, end) = (count * part / parts, count * (part + 1) / parts);
        // SAFETY: each run of rows is in one part only.
        let q = unsafe { q.slice(first * width, (end - first) * width) };
        dispatch!(isa, elementwise::rope(q, heads, rope, &positions[first..end]));
    };
    let of = Rows { rows: places, k, v, turn: Some(Turn { rope, positions }) };
    arena.write_beside(pool, isa, layer, of, Beside { parts, elements, job: &turn_queries });
}
