//! Causal attention over paged keys and values. The rule: a query takes its sequence in segments of
//! [`SEGMENT_BLOCKS`] blocks, each from nothing, and absorbs them in order; so a row's result depends on the row and
//! its keys alone, and threads may share out the segments of one row.
//!
//! Source of the running maximum: FlashAttention, arXiv 2205.14135.
#![allow(unsafe_code)]

use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::dispatch::Isa;
use crate::kv::{AttentionSeq, BLOCK, KvArena, padded};
use crate::ops::Share;
use crate::pool::Pool;
use crate::portable;

/// Blocks of one segment. Results depend on it, so that it never depends on anything.
pub(crate) const SEGMENT_BLOCKS: usize = 16;

/// Tokens of one segment.
pub(crate) const SEGMENT: usize = SEGMENT_BLOCKS * BLOCK;

/// Queries that one part works on: enough that keys and values are fetched rarely.
const TILE_QUERIES: usize = 96;

/// What fetching a segment costs, in queries' work on it.
const FETCH_QUERIES: usize = 12;

/// Numbers that unfinished results of one call may take; work that needs more is split less.
const MOST_PARTIALS: usize = 1 << 24;

/// What every part of one call reads.
pub(crate) struct Scene<'a> {
    pub(crate) arena: &'a KvArena,
    pub(crate) layer: usize,
    pub(crate) q: &'a [f32],
    pub(crate) heads: usize,
    pub(crate) scale: f32,
}

impl Scene<'_> {
    /// Query heads of one key head.
    pub(crate) fn group(&self) -> usize {
        self.heads / self.arena.kv_heads()
    }

    /// Where a tile's query lies in `q` and `out`. Queries are numbered by row, then by head.
    pub(crate) fn at(&self, tile: &Tile<'_>, query: usize) -> usize {
        let group = self.group();
        let head = tile.kv_head * group + query % group;
        ((tile.row + query / group) * self.heads + head) * self.arena.head_dim()
    }

    /// Numbers that the result of a tile's queries in one segment takes.
    fn partial_len(&self, tile: &Tile<'_>) -> usize {
        tile.rows * self.group() * (padded(self.arena.head_dim()) + 2)
    }
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

impl Tile<'_> {
    /// How many segments its last row sees.
    pub(crate) fn segments(&self) -> usize {
        (self.position + self.rows).div_ceil(SEGMENT)
    }

    /// The blocks of a segment, up to the last row's.
    pub(crate) fn blocks(&self, segment: usize) -> &[u32] {
        let end = (self.position + self.rows).div_ceil(BLOCK).min((segment + 1) * SEGMENT_BLOCKS);
        self.table.get(segment * SEGMENT_BLOCKS..end).unwrap_or(&[])
    }

    /// How many keys of a segment a query sees.
    pub(crate) fn seen(&self, query: usize, group: usize, segment: usize) -> usize {
        (self.position + query / group + 1).saturating_sub(segment * SEGMENT).min(SEGMENT)
    }

    /// The first query that sees any of a segment.
    pub(crate) fn first_query(&self, group: usize, segment: usize) -> usize {
        (segment * SEGMENT).saturating_sub(self.position) * group
    }

    fn cost(&self, group: usize) -> usize {
        self.segments() * (self.rows * group + FETCH_QUERIES)
    }
}

/// What one thread does at a time.
struct Part {
    tile: usize,
    segments: Range<usize>,
    /// Where the tile's unfinished results lie, if others work on it too.
    shared: Option<usize>,
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
    let scene = Scene { arena, layer, q, heads, scale };
    let tiles = tiles(seqs, kv_heads, heads / kv_heads);
    let (parts, left, needed) = parts(&scene, &tiles, pool.threads());
    let mut partials = vec![0.0_f32; needed];
    let (partials, out) = (Share::new(&mut partials), Share::new(out));
    pool.run(parts.len(), &|index| {
        let part = &parts[index];
        let tile = &tiles[part.tile];
        let Some(start) = part.shared else {
            return whole(isa, &scene, tile, out);
        };
        let len = scene.partial_len(tile);
        for segment in part.segments.clone() {
            // SAFETY: each segment of a tile is in one part only.
            let partial = unsafe { partials.slice(start + segment * len, len) };
            one_segment(isa, &scene, tile, segment, partial);
        }
        // Who is last finds everyone's results.
        if left[part.tile].fetch_sub(1, Ordering::AcqRel) == 1 {
            // SAFETY: all parts of this tile are done with their pieces, and nobody else will be the last.
            let partials = unsafe { partials.slice(start, len * tile.segments()) };
            merge(isa, &scene, tile, partials, out);
        }
    });
}

fn tiles<'a>(seqs: &[AttentionSeq<'a>], kv_heads: usize, group: usize) -> Vec<Tile<'a>> {
    let rows_per_tile = (TILE_QUERIES / group).max(1);
    let mut tiles = Vec::new();
    for seq in seqs {
        for first in (0..seq.rows).step_by(rows_per_tile) {
            let rows = rows_per_tile.min(seq.rows - first);
            let (row, position) = (seq.first_row + first, seq.start as usize + first);
            let tile = |kv_head| Tile { row, rows, position, kv_head, table: seq.table };
            tiles.extend((0..kv_heads).map(tile));
        }
    }
    // The longest first, so that no thread is left with a long one at the end.
    tiles.sort_by_key(|tile| std::cmp::Reverse(tile.cost(group)));
    tiles
}

/// How the tiles' segments are shared out, how many parts of each tile there are, and how many numbers the
/// unfinished results take.
fn parts(scene: &Scene<'_>, tiles: &[Tile<'_>], threads: usize) -> (Vec<Part>, Vec<AtomicUsize>, usize) {
    let group = scene.group();
    let total: usize = tiles.iter().map(|tile| tile.cost(group)).sum();
    let fair = (total / (threads * 4)).max(1);
    let (mut parts, mut left, mut needed) = (Vec::with_capacity(tiles.len()), Vec::new(), 0);
    for (index, tile) in tiles.iter().enumerate() {
        let segments = tile.segments();
        let pieces = if threads > 1 { tile.cost(group).div_ceil(fair).min(segments) } else { 1 };
        let numbers = scene.partial_len(tile) * segments;
        if pieces < 2 || needed + numbers > MOST_PARTIALS {
            left.push(AtomicUsize::new(1));
            parts.push(Part { tile: index, segments: 0..segments, shared: None });
            continue;
        }
        left.push(AtomicUsize::new(pieces));
        parts.extend((0..pieces).map(|piece| Part {
            tile: index,
            segments: segments * piece / pieces..segments * (piece + 1) / pieces,
            shared: Some(needed),
        }));
        needed += numbers;
    }
    (parts, left, needed)
}

/// Computes the outputs of one tile.
fn whole(isa: Isa, scene: &Scene<'_>, tile: &Tile<'_>, out: Share<'_>) {
    #[cfg(target_arch = "x86_64")]
    if isa.runs_avx512() {
        return crate::avx512::attention::whole(scene, tile, out);
    }
    let _ = isa;
    portable::attention::whole(scene, tile, out);
}

/// Computes what one segment adds to a tile's outputs.
fn one_segment(isa: Isa, scene: &Scene<'_>, tile: &Tile<'_>, segment: usize, partial: &mut [f32]) {
    #[cfg(target_arch = "x86_64")]
    if isa.runs_avx512() {
        return crate::avx512::attention::one_segment(scene, tile, segment, partial);
    }
    let _ = isa;
    portable::attention::one_segment(scene, tile, segment, partial);
}

/// Computes a tile's outputs from all its segments' results.
fn merge(isa: Isa, scene: &Scene<'_>, tile: &Tile<'_>, partials: &[f32], out: Share<'_>) {
    #[cfg(target_arch = "x86_64")]
    if isa.runs_avx512() {
        return crate::avx512::attention::merge(scene, tile, partials, out);
    }
    let _ = isa;
    portable::attention::merge(scene, tile, partials, out);
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
