//! How the attention of one step is shared out. The rule: made once for all layers, from what the layers have in
//! common, and checked when it is made, so that a layer has nothing to look at but lengths.

use std::ops::Range;
use std::sync::atomic::AtomicUsize;

use super::{SEGMENT, Tile, partial_len};
use crate::kv::{AttentionSeq, BLOCK, KvArena};
use crate::pool::Pool;

/// Queries that one part works on: enough that keys and values are fetched rarely.
const TILE_QUERIES: usize = 96;

/// What fetching a segment costs, in queries' work on it.
const FETCH_QUERIES: usize = 12;

/// Numbers that unfinished results of one call may take; work that needs more is split less.
const MOST_PARTIALS: usize = 1 << 24;

/// What one thread does at a time.
#[derive(Debug)]
pub(super) struct Part {
    pub(super) tile: usize,
    pub(super) segments: Range<usize>,
    /// Where the tile's unfinished results lie, if others work on it too.
    pub(super) shared: Option<usize>,
}

/// A tile whose block table lies among the plan's.
#[derive(Debug, Clone)]
struct Place {
    row: usize,
    rows: usize,
    position: usize,
    kv_head: usize,
    table: Range<usize>,
}

/// What of an arena and its queries a plan depends on.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Shape {
    heads: usize,
    kv_heads: usize,
    head_dim: usize,
    blocks: usize,
}

/// What the parts of one call share.
#[derive(Debug, Default)]
pub(super) struct Work {
    shape: Shape,
    /// The block tables of all sequences, one after the other.
    tables: Vec<u32>,
    places: Vec<Place>,
    pub(super) parts: Vec<Part>,
    /// Parts of each tile.
    pieces: Vec<usize>,
    /// Parts of each tile that are yet to be done in this call.
    pub(super) left: Vec<AtomicUsize>,
}

/// The attention of one step, shared out among threads: which rows, over which blocks, in which pieces. It serves
/// every layer of the step, and its memory serves every step.
#[derive(Debug, Default)]
pub struct AttentionPlan {
    work: Work,
    /// Rows up to the last sequence's last.
    rows: usize,
    needed: usize,
    partials: Vec<f32>,
}

impl AttentionPlan {
    /// Plans the attention of these sequences by `heads` query heads anew.
    ///
    /// # Panics
    /// When `heads` is no multiple of the arena's heads, sequences overlap or are out of order, or a table is too
    /// short or names a block that the arena lacks.
    pub fn renew(&mut self, pool: &Pool, arena: &KvArena, heads: usize, seqs: &[AttentionSeq<'_>]) {
        let kv_heads = arena.kv_heads();
        assert!(heads > 0 && heads.is_multiple_of(kv_heads), "heads is {heads}, no multiple of {kv_heads}");
        self.rows = check(seqs, arena.blocks());
        self.work.shape = Shape { heads, kv_heads, head_dim: arena.head_dim(), blocks: arena.blocks() };
        self.work.cut_tiles(seqs);
        self.needed = self.work.cut_parts(pool.threads());
    }

    /// What one call works with: the counters are full and there is room for unfinished results.
    pub(super) fn begin(&mut self, arena: &KvArena, numbers: usize) -> (&Work, &mut [f32]) {
        let work = &mut self.work;
        let shape = Shape {
            heads: work.shape.heads,
            kv_heads: arena.kv_heads(),
            head_dim: arena.head_dim(),
            blocks: arena.blocks(),
        };
        assert!(work.shape == shape, "the plan is for {:?}; the arena has {shape:?}", work.shape);
        let width = shape.heads * shape.head_dim;
        assert!(numbers.is_multiple_of(width), "q holds {numbers} numbers, no multiple of {width}");
        let (rows, needed) = (self.rows, self.needed);
        assert!(
            rows <= numbers / width,
            "rows up to {rows} of a sequence exceed the batch of {}",
            numbers / width
        );
        for (left, &pieces) in work.left.iter_mut().zip(&work.pieces) {
            *left.get_mut() = pieces;
        }
        // What is left in it from the last call is written over before anybody reads it.
        if self.partials.len() < needed {
            self.partials.resize(needed, 0.0);
        }
        (work, &mut self.partials[..needed])
    }
}

impl Work {
    pub(super) fn heads(&self) -> usize {
        self.shape.heads
    }

    pub(super) fn tile(&self, index: usize) -> Tile<'_> {
        let Place { row, rows, position, kv_head, ref table } = self.places[index];
        Tile { row, rows, position, kv_head, table: &self.tables[table.clone()] }
    }

    fn group(&self) -> usize {
        self.shape.heads / self.shape.kv_heads
    }

    fn cost(&self, index: usize) -> usize {
        cost(&self.places[index], self.group())
    }

    fn cut_tiles(&mut self, seqs: &[AttentionSeq<'_>]) {
        let group = self.group();
        let rows_per_tile = (TILE_QUERIES / group).max(1);
        self.tables.clear();
        self.places.clear();
        for seq in seqs {
            let start = self.tables.len();
            self.tables.extend_from_slice(seq.table);
            let table = start..self.tables.len();
            for first in (0..seq.rows).step_by(rows_per_tile) {
                let rows = rows_per_tile.min(seq.rows - first);
                let (row, position) = (seq.first_row + first, seq.start as usize + first);
                let place = |kv_head| Place { row, rows, position, kv_head, table: table.clone() };
                self.places.extend((0..self.shape.kv_heads).map(place));
            }
        }
        // The longest first, so that no thread is left with a long one at the end.
        self.places.sort_by_key(|place| std::cmp::Reverse(cost(place, group)));
    }

    /// Shares the tiles' segments out. Returns how many numbers the unfinished results take.
    fn cut_parts(&mut self, threads: usize) -> usize {
        let total: usize = (0..self.places.len()).map(|index| self.cost(index)).sum();
        let fair = (total / (threads * 4)).max(1);
        self.parts.clear();
        self.pieces.clear();
        let mut needed = 0;
        for index in 0..self.places.len() {
            let tile = self.tile(index);
            let (segments, queries) = (tile.segments(), tile.rows * self.group());
            let pieces = if threads > 1 { self.cost(index).div_ceil(fair).min(segments) } else { 1 };
            let numbers = partial_len(queries, self.shape.head_dim) * segments;
            if pieces < 2 || needed + numbers > MOST_PARTIALS {
                self.pieces.push(1);
                self.parts.push(Part { tile: index, segments: 0..segments, shared: None });
                continue;
            }
            self.pieces.push(pieces);
            self.parts.extend((0..pieces).map(|piece| Part {
                tile: index,
                segments: segments * piece / pieces..segments * (piece + 1) / pieces,
                shared: Some(needed),
            }));
            needed += numbers;
        }
        self.left.resize_with(self.pieces.len(), AtomicUsize::default);
        needed
    }
}

/// What a tile costs, in queries' work on one segment.
fn cost(place: &Place, group: usize) -> usize {
    (place.position + place.rows).div_ceil(SEGMENT) * (place.rows * group + FETCH_QUERIES)
}

/// Refuses sequences that can't be. Returns the rows up to the last one's last.
fn check(seqs: &[AttentionSeq<'_>], blocks: usize) -> usize {
    let mut next = 0;
    for seq in seqs {
        assert!(seq.first_row >= next, "first_row is {}; rows up to {next} are taken", seq.first_row);
        let end = seq.first_row.checked_add(seq.rows);
        next = end.expect("a batch has fewer rows than there are addresses");
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
    next
}
