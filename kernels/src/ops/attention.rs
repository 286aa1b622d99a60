//! Causal attention over paged keys and values. The rule: a query takes its sequence in segments of
//! [`SEGMENT_BLOCKS`] blocks, each from nothing, and absorbs them in order; so a row's result depends on the row and
//! its keys alone, and threads may share out the segments of one row.
//!
//! Source of the running maximum: FlashAttention, arXiv 2205.14135.
#![allow(unsafe_code)]

mod plan;

pub use plan::AttentionPlan;

use std::sync::atomic::Ordering;

use crate::dispatch::Isa;
use crate::kv::{AttentionSeq, BLOCK, KvArena, padded};
use crate::ops::Share;
use crate::pool::Pool;
use crate::portable;

/// Blocks of one segment. Results depend on it, so that it never depends on anything.
pub(crate) const SEGMENT_BLOCKS: usize = 16;

/// Tokens of one segment.
pub(crate) const SEGMENT: usize = SEGMENT_BLOCKS * BLOCK;

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
        partial_len(tile.rows * self.group(), self.arena.head_dim())
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
}

/// Numbers that the result of so many queries in one segment takes.
fn partial_len(queries: usize, head_dim: usize) -> usize {
    queries * (padded(head_dim) + 2)
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
    let mut plan = AttentionPlan::default();
    plan.renew(pool, arena, heads, seqs);
    attend(pool, isa, arena, layer, q, &mut plan, scale, out);
}

/// [`attention`] of the sequences and by the heads of a plan, which serves every layer of a step.
///
/// # Panics
/// When a length does not fit, the arena lacks the layer, or the plan was made for another arena.
#[expect(
    clippy::too_many_arguments,
    reason = "a kernel call names its operands; a struct would only rename them"
)]
pub fn attend(
    pool: &Pool,
    isa: Isa,
    arena: &KvArena,
    layer: usize,
    q: &[f32],
    plan: &mut AttentionPlan,
    scale: f32,
    out: &mut [f32],
) {
    assert!(layer < arena.layers(), "layer is {layer}; the arena has {}", arena.layers());
    assert!(q.len() == out.len(), "out holds {} numbers; q holds {}", out.len(), q.len());
    let (work, partials) = plan.begin(arena, q.len());
    let scene = Scene { arena, layer, q, heads: work.heads(), scale };
    let (partials, out) = (Share::new(partials), Share::new(out));
    pool.run(work.parts.len(), &|index| {
        let part = &work.parts[index];
        let tile = &work.tile(part.tile);
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
        if work.left[part.tile].fetch_sub(1, Ordering::AcqRel) == 1 {
            // SAFETY: all parts of this tile are done with their pieces, and nobody else will be the last.
            let partials = unsafe { partials.slice(start, len * tile.segments()) };
            merge(isa, &scene, tile, partials, out);
        }
    });
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
