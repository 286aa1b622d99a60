//! Attention in plain Rust, and how segments' results come together on any set. The rule: masked keys are not read
//! into the result at all, so that whatever an earlier owner of the block left there, even a NaN, cannot show.
//!
//! Scores are in powers of two.
#![allow(unsafe_code)]

use crate::kv::{BLOCK, padded};
use crate::ops::{AttentionTile, SEGMENT, Scene, Share};
use crate::portable::elementwise::tree_sum;

/// `2^x` of numbers that are at most zero (or NaN): exactly 1 at 0, and 0 where the result would be subnormal.
#[inline(always)]
pub(crate) fn exp2(x: f32) -> f32 {
    // Adding 1.5 · 2^23 rounds to a whole number, which is then in the low bits.
    const ROUND: f32 = 12_582_912.0;
    let shifted = x + ROUND;
    let rest = x - (shifted - ROUND);
    let mut sum = 1.545_316_3e-4;
    for factor in [1.339_086_3e-3, 9.618_083e-3, 5.550_357e-2, 2.402_265e-1, std::f32::consts::LN_2, 1.0] {
        sum = sum * rest + factor;
    }
    let power = f32::from_bits((shifted.to_bits().wrapping_sub(ROUND.to_bits()).wrapping_add(127)) << 23);
    if x < -126.0 { 0.0 } else { sum * power }
}

/// What is known of `count` queries: weighted sums of values, largest scores, sums of weights.
pub(crate) struct Progress<T> {
    pub(crate) sums: T,
    pub(crate) most: T,
    pub(crate) totals: T,
}

impl<'a> Progress<&'a mut [f32]> {
    /// The three in one buffer of `count * (width + 2)`.
    pub(crate) fn in_buffer(buffer: &'a mut [f32], count: usize, width: usize) -> Self {
        let (sums, rest) = buffer.split_at_mut(count * width);
        let (most, rest) = rest.split_at_mut(count);
        Progress { sums, most, totals: &mut rest[..count] }
    }

    /// Nothing seen yet.
    #[inline(always)]
    pub(crate) fn clear(&mut self) {
        self.sums.fill(0.0);
        self.most.fill(f32::NEG_INFINITY);
        self.totals.fill(0.0);
    }

    /// Takes a segment's results into account, of queries `first` and on.
    #[inline(always)]
    pub(crate) fn absorb(&mut self, segment: &Progress<&[f32]>, first: usize, width: usize) {
        for query in first..self.most.len() {
            let (before, theirs) = (self.most[query], segment.most[query]);
            let most = if theirs > before { theirs } else { before };
            let (shrink, weight) = (exp2(before - most), exp2(theirs - most));
            self.most[query] = most;
            self.totals[query] = self.totals[query] * shrink + segment.totals[query] * weight;
            let sums = &mut self.sums[query * width..][..width];
            for (sum, &add) in sums.iter_mut().zip(&segment.sums[query * width..][..width]) {
                *sum = *sum * shrink + add * weight;
            }
        }
    }

    /// Writes a tile's outputs.
    #[inline(always)]
    pub(crate) fn finish(&self, scene: &Scene<'_>, tile: &AttentionTile<'_>, out: Share<'_>) {
        let dim = scene.arena.head_dim();
        for (query, &total) in self.totals.iter().enumerate() {
            // SAFETY: tiles differ in rows or heads, so that no other part takes these elements.
            let out = unsafe { out.slice(scene.at(tile, query), dim) };
            for (out, &sum) in out.iter_mut().zip(&self.sums[query * padded(dim)..]) {
                *out = sum / total;
            }
        }
    }
}

impl<'a> Progress<&'a [f32]> {
    /// The three in one buffer of `count * (width + 2)`.
    pub(crate) fn read(buffer: &'a [f32], count: usize, width: usize) -> Self {
        let (sums, rest) = buffer.split_at(count * width);
        let (most, rest) = rest.split_at(count);
        Progress { sums, most, totals: &rest[..count] }
    }
}

/// Computes the outputs of one tile.
pub(crate) fn whole(scene: &Scene<'_>, tile: &AttentionTile<'_>, out: Share<'_>) {
    let (group, width) = (scene.group(), padded(scene.arena.head_dim()));
    let count = tile.rows * group;
    let (mut running, mut partial) = (vec![0.0; count * (width + 2)], vec![0.0; count * (width + 2)]);
    let mut running = Progress::in_buffer(&mut running, count, width);
    running.clear();
    for segment in 0..tile.segments() {
        one_segment(scene, tile, segment, &mut partial);
        running.absorb(&Progress::read(&partial, count, width), tile.first_query(group, segment), width);
    }
    running.finish(scene, tile, out);
}

/// Computes a tile's outputs from all its segments' results.
#[inline(always)]
pub(crate) fn merge(scene: &Scene<'_>, tile: &AttentionTile<'_>, partials: &[f32], out: Share<'_>) {
    let (group, width) = (scene.group(), padded(scene.arena.head_dim()));
    let count = tile.rows * group;
    let mut running = vec![0.0; count * (width + 2)];
    let mut running = Progress::in_buffer(&mut running, count, width);
    running.clear();
    for (segment, partial) in partials.chunks_exact(count * (width + 2)).enumerate() {
        running.absorb(&Progress::read(partial, count, width), tile.first_query(group, segment), width);
    }
    running.finish(scene, tile, out);
}

/// Computes what one segment adds to a tile's outputs.
pub(crate) fn one_segment(scene: &Scene<'_>, tile: &AttentionTile<'_>, segment: usize, partial: &mut [f32]) {
    let (dim, group) = (scene.arena.head_dim(), scene.group());
    let (count, width) = (tile.rows * group, padded(dim));
    let mut progress = Progress::in_buffer(partial, count, width);
    progress.clear();
    let mut lanes = vec![[0.0_f32; BLOCK]; count];
    let (mut keys, mut values) = (vec![0.0; dim * BLOCK], vec![0.0; width * BLOCK]);
    for (index, &id) in tile.blocks(segment).iter().enumerate() {
        let block = scene.arena.head_block(scene.layer, id, tile.kv_head);
        for (at, key) in keys.iter_mut().enumerate() {
            *key = block.key(at % BLOCK, at / BLOCK);
        }
        for (at, value) in values.iter_mut().enumerate() {
            *value = block.value(at / width, at % width, dim);
        }
        let first = tile.first_query(group, segment);
        for (query, lanes) in lanes.iter_mut().enumerate().skip(first) {
            let seen = tile.seen(query, group, segment).saturating_sub(index * BLOCK).min(BLOCK);
            if seen > 0 {
                let q = &scene.q[scene.at(tile, query)..][..dim];
                let place = Place { query, seen, scale: scene.scale * std::f32::consts::LOG2_E };
                attend(&mut progress, lanes, q, &keys, &values, &place);
            }
        }
    }
    debug_assert!(tile.blocks(segment).len() * BLOCK <= SEGMENT);
    for (total, lanes) in progress.totals.iter_mut().zip(lanes) {
        *total = tree_sum(lanes);
    }
}

/// Which query, how many of a block's keys it sees, and the factor on its scores.
struct Place {
    query: usize,
    seen: usize,
    scale: f32,
}

/// Takes one block into account for one query.
fn attend(
    progress: &mut Progress<&mut [f32]>,
    lanes: &mut [f32; BLOCK],
    q: &[f32],
    keys: &[f32],
    values: &[f32],
    place: &Place,
) {
    let mut scores = [0.0_f32; BLOCK];
    for (&q, keys) in q.iter().zip(keys.chunks_exact(BLOCK)) {
        for (score, &key) in scores.iter_mut().zip(keys) {
            *score += q * key;
        }
    }
    let before = progress.most[place.query];
    let mut most = before;
    for score in &mut scores[..place.seen] {
        *score *= place.scale;
        most = if *score > most { *score } else { most };
    }
    scores[place.seen..].fill(f32::NEG_INFINITY);
    let shrink = exp2(before - most);
    progress.most[place.query] = most;
    for (total, score) in lanes.iter_mut().zip(&mut scores) {
        *score = exp2(*score - most);
        *total = *total * shrink + *score;
    }
    let width = values.len() / BLOCK;
    let sums = &mut progress.sums[place.query * width..][..width];
    sums.iter_mut().for_each(|sum| *sum *= shrink);
    for (&weight, values) in scores[..place.seen].iter().zip(values.chunks_exact(width)) {
        for (sum, &value) in sums.iter_mut().zip(values) {
            *sum += weight * value;
        }
    }
}
