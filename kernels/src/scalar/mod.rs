//! The oracle: every operation written the obvious way. The rule: clarity only. Sums are f64, so that an oracle's
//! own rounding never hides another's error; tests compare the fast forms with these.

use crate::kv::{AttentionSeq, BLOCK, KvArena};
use crate::layout::matrix::Matrix;
use crate::rope::{Rope, RopeLayout};

/// `out[i][n] = bias[n] + Σ_k x[i][k] · w[n][k]` for `m` rows.
pub fn matmul_bias(x: &[f32], m: usize, w: &Matrix, bias: Option<&[f32]>, out: &mut [f32]) {
    let mut weights = vec![0.0; w.cols()];
    for n in 0..w.rows() {
        w.row_to_f32(n, &mut weights);
        for i in 0..m {
            let row = &x[i * w.cols()..][..w.cols()];
            let products = row.iter().zip(&weights).map(|(&x, &w)| f64::from(x) * f64::from(w));
            let bias = bias.map_or(0.0, |bias| f64::from(bias[n]));
            out[i * w.rows() + n] = (bias + products.sum::<f64>()) as f32;
        }
    }
}

/// [`matmul_bias`] without a bias.
pub fn matmul(x: &[f32], m: usize, w: &Matrix, out: &mut [f32]) {
    matmul_bias(x, m, w, None, out);
}

/// Each of `rows` rows divided by its root mean square and multiplied by `weight`.
pub fn rms_norm(x: &[f32], weight: &[f32], eps: f32, rows: usize, out: &mut [f32]) {
    let width = weight.len();
    for row in 0..rows {
        let x = &x[row * width..][..width];
        let squares: f64 = x.iter().map(|&x| f64::from(x) * f64::from(x)).sum();
        let scale = 1.0 / (squares / width as f64 + f64::from(eps)).sqrt();
        for k in 0..width {
            out[row * width + k] = (f64::from(x[k]) * scale * f64::from(weight[k])) as f32;
        }
    }
}

/// `out = gate · sigmoid(gate) · up`.
pub fn silu_mul(gate: &[f32], up: &[f32], out: &mut [f32]) {
    for (k, out) in out.iter_mut().enumerate() {
        let (gate, up) = (f64::from(gate[k]), f64::from(up[k]));
        *out = (gate / (1.0 + (-gate).exp()) * up) as f32;
    }
}

/// What the whole-number form of rows of `cols` values stands for: the nearest multiple of each 32 inputs' largest
/// magnitude over `most`, which is 127 or, for fifteen bits, 16,319.
pub fn to_whole_numbers(x: &[f32], cols: usize, most: f32) -> Vec<f32> {
    let groups = x.chunks(cols).flat_map(|row| row.chunks(32));
    let value = |group: &[f32]| -> Vec<f32> {
        let largest = group.iter().fold(0.0, |largest: f32, x| largest.max(x.abs()));
        let number = |x: f32| if largest > 0.0 { (x * (most / largest)).round_ties_even() } else { 0.0 };
        group.iter().map(|&x| number(x) * (largest / most)).collect()
    };
    groups.flat_map(value).collect()
}

/// Turns each head of each row by its row's position.
pub fn rope(x: &mut [f32], rows: usize, heads: usize, rope: &Rope, positions: &[u32]) {
    let (dim, half) = (rope.head_dim(), rope.rotary_dim() / 2);
    for row in 0..rows {
        let (cos, sin) = rope.at(positions[row]);
        for head in 0..heads {
            let x = &mut x[(row * heads + head) * dim..][..dim];
            for pair in 0..half {
                let (a, b) = match rope.layout() {
                    RopeLayout::Half => (pair, pair + half),
                    RopeLayout::Interleaved => (2 * pair, 2 * pair + 1),
                };
                let (real, imaginary) = (x[a], x[b]);
                x[a] = real * cos[pair] - imaginary * sin[pair];
                x[b] = real * sin[pair] + imaginary * cos[pair];
            }
        }
    }
}

/// Causal attention with all of a row's scores at once.
pub fn attention(
    arena: &KvArena,
    layer: usize,
    q: &[f32],
    heads: usize,
    seqs: &[AttentionSeq<'_>],
    scale: f32,
    out: &mut [f32],
) {
    let dim = arena.head_dim();
    for seq in seqs {
        for row in 0..seq.rows {
            let position = seq.start as usize + row;
            for head in 0..heads {
                let kv_head = head / (heads / arena.kv_heads());
                let at = ((seq.first_row + row) * heads + head) * dim;
                let query = &q[at..at + dim];
                let score = |token: usize| {
                    let block = arena.head_block(layer, seq.table[token / BLOCK], kv_head);
                    let key = |d: usize| f64::from(block.key(token % BLOCK, d));
                    (0..dim).map(|d| f64::from(query[d]) * key(d)).sum::<f64>() * f64::from(scale)
                };
                let scores: Vec<f64> = (0..=position).map(score).collect();
                let most = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
                let weights: Vec<f64> = scores.iter().map(|score| (score - most).exp()).collect();
                let total: f64 = weights.iter().sum();
                for d in 0..dim {
                    let value = |token: usize| {
                        let block = arena.head_block(layer, seq.table[token / BLOCK], kv_head);
                        f64::from(block.value(token % BLOCK, d, dim))
                    };
                    let sum: f64 = weights.iter().enumerate().map(|(t, weight)| weight * value(t)).sum();
                    out[at + d] = (sum / total) as f32;
                }
            }
        }
    }
}

/// The index of the largest number; the lowest of equals, never a NaN unless all are.
pub fn argmax(x: &[f32]) -> usize {
    let mut best = None;
    for (index, &value) in x.iter().enumerate() {
        if !value.is_nan() && best.is_none_or(|best: usize| value > x[best]) {
            best = Some(index);
        }
    }
    best.unwrap_or(0)
}

/// The largest number that is no NaN; minus infinity where there is none.
pub fn max(x: &[f32]) -> f32 {
    x.iter().copied().fold(f32::NEG_INFINITY, f32::max)
}

/// `ln Σ exp(x)`.
pub fn log_sum_exp(x: &[f32]) -> f64 {
    let most = f64::from(max(x));
    if most.is_infinite() && !x.iter().any(|x| x.is_nan()) {
        return most;
    }
    most + x.iter().map(|&x| (f64::from(x) - most).exp()).sum::<f64>().ln()
}
