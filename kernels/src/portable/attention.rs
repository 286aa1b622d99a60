//! Attention in plain Rust, one query at a time. The rule: masked keys are not read into the result at all, so that
//! whatever an earlier owner of the block left there, even a NaN, cannot show.
#![allow(unsafe_code)]

use crate::kv::{BLOCK, padded};
use crate::ops::{AttentionTile, Scene, Share};
use crate::portable::elementwise::{exp, tree_sum};

/// Computes the outputs of one part.
pub(crate) fn attention_tile(scene: &Scene<'_>, tile: &AttentionTile<'_>, out: Share<'_>) {
    let dim = scene.arena.head_dim();
    let group = scene.heads / scene.arena.kv_heads();
    let mut sums = vec![0.0_f32; padded(dim)];
    for row in 0..tile.rows {
        for head in tile.kv_head * group..(tile.kv_head + 1) * group {
            let at = ((tile.row + row) * scene.heads + head) * dim;
            // SAFETY: parts differ in rows or heads, so that no other part takes these elements.
            let out = unsafe { out.slice(at, dim) };
            let total = one_query(scene, tile, &scene.q[at..][..dim], tile.position + row, &mut sums);
            for (out, &sum) in out.iter_mut().zip(&sums) {
                *out = sum / total;
            }
        }
    }
}

/// Leaves the weighted sum of values in `sums` and returns the sum of weights.
fn one_query(
    scene: &Scene<'_>,
    tile: &AttentionTile<'_>,
    q: &[f32],
    position: usize,
    sums: &mut [f32],
) -> f32 {
    let width = sums.len();
    let mut most = f32::NEG_INFINITY;
    let mut totals = [0.0_f32; BLOCK];
    sums.fill(0.0);
    for (index, &block) in tile.table[..=position / BLOCK].iter().enumerate() {
        let valid = (position + 1 - index * BLOCK).min(BLOCK);
        let keys = scene.arena.keys(scene.layer, block, tile.kv_head);
        let values = scene.arena.values(scene.layer, block, tile.kv_head);
        let mut scores = [0.0_f32; BLOCK];
        for (&q, keys) in q.iter().zip(keys.chunks_exact(BLOCK)) {
            for (score, &key) in scores.iter_mut().zip(keys) {
                *score += q * widen(key);
            }
        }
        let mut larger = most;
        for score in &mut scores[..valid] {
            *score *= scene.scale;
            larger = if *score > larger { *score } else { larger };
        }
        scores[valid..].fill(f32::NEG_INFINITY);
        let shrink = exp(most - larger);
        most = larger;
        for (total, score) in totals.iter_mut().zip(&mut scores) {
            *score = exp(*score - most);
            *total = *total * shrink + *score;
        }
        sums.iter_mut().for_each(|sum| *sum *= shrink);
        for (&weight, values) in scores[..valid].iter().zip(values.chunks_exact(width)) {
            for (sum, &value) in sums.iter_mut().zip(values) {
                *sum += weight * widen(value);
            }
        }
    }
    tree_sum(totals)
}

fn widen(bits: u16) -> f32 {
    f32::from_bits(u32::from(bits) << 16)
}
