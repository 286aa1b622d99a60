//! Causal attention over paged keys and values. The rule: a query goes through the blocks of its sequence in order,
//! sixteen keys at a time, with a running maximum; so a row's result depends on the row and its keys alone.
//!
//! Source of the running maximum: FlashAttention, arXiv 2205.14135.

use crate::dispatch::Isa;
use crate::kv::{AttentionSeq, BLOCK, KvArena};
use crate::ops::Share;
use crate::pool::Pool;
use crate::portable;

/// Numbers in the query vectors that one part works on: with their sums twice that, which leaves room for a block in
/// the first-level cache.
const TILE_NUMBERS: usize = 3072;

/// What every part of one call reads.
pub(crate) struct Scene<'a> {
    pub(crate) arena: &'a KvArena,
    pub(crate) layer: usize,
    pub(crate) q: &'a [f32],
    pub(crate) heads: usize,
    pub(crate) scale: f32,
}

/// Some rows of one sequence by the query heads of one key head.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Tile<'a> {
    /// The first row in the batch.
    pub(crate) row: usize,
    pub(crate) rows: usize,
    /// The first row's position.
    pub(crate) position: usize,
    pub(crate) kv_head: usize,
    pub(crate) table: &'a [u32],
}

/// For each row of each sequence and each of `heads` query heads: the mean of the values up to the row's position,
/// weighted by `softmax(scale · q·k)`. `q` and `out` hold rows of `heads * head_dim`. Rows that belong to no
/// sequence are left as they are. Query head `h` reads key head `h / (heads / kv_heads)`.
///
/// # Panics
/// When a length does not fit, `heads` is no multiple of the arena's heads, sequences overlap or are out of order,
/// or a table is too short or names a block that the arena lacks.
#[expect(
    clippy::too_many_arguments,
    reason = "a kernel call names its operands; a struct would only rename them"
)]
pub fn attention(
    pool: &Pool,
    isa: Isa,
    arena: &KvArena,
    layer: usize,
    q: &[f32],
    heads: usize,
    seqs: &[AttentionSeq<'_>],
    scale: f32,
    out: &mut [f32],
) {
    let kv_heads = arena.kv_heads();
    assert!(heads > 0 && heads.is_multiple_of(kv_heads), "heads is {heads}, no multiple of {kv_heads}");
    assert!(layer < arena.layers(), "layer is {layer}; the arena has {}", arena.layers());
    assert!(q.len() == out.len(), "out holds {} numbers; q holds {}", out.len(), q.len());
    let width = heads * arena.head_dim();
    assert!(q.len().is_multiple_of(width), "q holds {} numbers, no multiple of {width}", q.len());
    check(seqs, arena.blocks(), q.len() / width);
    let group = heads / kv_heads;
    let rows_per_tile = (TILE_NUMBERS / arena.head_dim() / group).max(1);
    let mut tiles = Vec::new();
    for seq in seqs {
        for first in (0..seq.rows).step_by(rows_per_tile) {
            let rows = rows_per_tile.min(seq.rows - first);
            let (row, position) = (seq.first_row + first, seq.start as usize + first);
            tiles.extend((0..kv_heads).map(|kv_head| Tile {
                row,
                rows,
                position,
                kv_head,
                table: seq.table,
            }));
        }
    }
    // The longest first, so that no thread is left with a long one at the end.
    tiles.sort_by_key(|tile| std::cmp::Reverse(tile.position));
    let scene = Scene { arena, layer, q, heads, scale };
    let out = Share::new(out);
    pool.run(tiles.len(), &|part| {
        #[cfg(target_arch = "x86_64")]
        if isa.runs_avx512() {
            crate::avx512::attention_tile(&scene, &tiles[part], out);
            return;
        }
        let _ = isa;
        portable::attention_tile(&scene, &tiles[part], out);
    });
}

fn check(seqs: &[AttentionSeq<'_>], blocks: usize, rows: usize) {
    let mut next = 0;
    for seq in seqs {
        assert!(seq.first_row >= next, "first_row is {}; rows up to {next} are taken", seq.first_row);
        assert!(
            seq.first_row <= rows && seq.rows <= rows - seq.first_row,
            "rows {}+{} of a sequence exceed the batch of {rows}",
            seq.first_row,
            seq.rows
        );
        next = seq.first_row + seq.rows;
        let needed = (seq.start as usize + seq.rows).div_ceil(BLOCK);
        assert!(
            seq.rows == 0 || seq.table.len() >= needed,
            "a table has {} blocks; {needed} are needed",
            seq.table.len()
        );
        if seq.rows > 0 {
            let bad = seq.table[..needed].iter().find(|&&block| block as usize >= blocks);
            assert!(bad.is_none(), "a table names block {bad:?}; the arena has {blocks}");
        }
    }
}
