//! Attention for AVX-512. The rule: what happens to one query in one block is the same however many queries share
//! the block's keys; masked keys are not read into the result at all, so that whatever an earlier owner of the block
//! left there, even a NaN, cannot show.
#![allow(unsafe_code)]
#![allow(
    clippy::needless_range_loop,
    reason = "loops over constant counts become registers; iterators hide that"
)]

use std::arch::x86_64::*;

use super::source::{fetch_lines, widen_bf16};
use crate::kv::{BLOCK, padded};
use crate::ops::{AttentionTile, Scene, Share};

/// Queries whose scores are in registers together.
const ABREAST: usize = 8;

/// Elements of one vector.
const LANES: usize = 16;

/// What is known so far about the queries of a tile. Queries are numbered by row, then by head.
struct Progress {
    /// The queries, `[dim][query]`, so that those abreast lie side by side.
    q: Vec<f32>,
    /// The weighted values so far, `[query][padded dim]`.
    sums: Vec<f32>,
    /// The largest score so far.
    most: Vec<f32>,
    /// The weights so far, in one vector a query.
    totals: Vec<[f32; LANES]>,
    count: usize,
    dim: usize,
}

/// One block's keys and values, and the tile's place in relation to it.
struct Block<'a> {
    keys: &'a [u16],
    values: &'a [u16],
    /// The first key's position.
    start: usize,
    /// The first query's position.
    position: usize,
    /// Queries of one row.
    group: usize,
    scale: f32,
}

/// Weights of the queries abreast in one block, and how much their sums shrink before these are added.
struct Weights {
    by_query: [[f32; LANES]; ABREAST],
    shrink: [f32; ABREAST],
}

/// Computes the outputs of one part.
pub(crate) fn attention_tile(scene: &Scene<'_>, tile: &AttentionTile<'_>, out: Share<'_>) {
    let dim = scene.arena.head_dim();
    let group = scene.heads / scene.arena.kv_heads();
    let at = |query: usize| {
        let head = tile.kv_head * group + query % group;
        ((tile.row + query / group) * scene.heads + head) * dim
    };
    let mut progress = Progress::new(tile.rows * group, dim);
    for query in 0..progress.count {
        for (d, &value) in scene.q[at(query)..][..dim].iter().enumerate() {
            progress.q[d * progress.count + query] = value;
        }
    }
    let last = (tile.position + tile.rows - 1) / BLOCK;
    for (index, &id) in tile.table[..=last].iter().enumerate() {
        if let Some(&next) = tile.table[..=last].get(index + 1) {
            // Blocks lie anywhere, so that the processor cannot guess which comes next.
            let keys = scene.arena.keys(scene.layer, next, tile.kv_head);
            let values = scene.arena.values(scene.layer, next, tile.kv_head);
            fetch_lines(keys.as_ptr(), size_of_val(keys));
            fetch_lines(values.as_ptr(), size_of_val(values));
        }
        let block = Block {
            keys: scene.arena.keys(scene.layer, id, tile.kv_head),
            values: scene.arena.values(scene.layer, id, tile.kv_head),
            start: index * BLOCK,
            position: tile.position,
            group,
            scale: scene.scale,
        };
        // SAFETY: `Isa` has found the features before it chose this function.
        unsafe { progress.attend(&block) };
    }
    for query in 0..progress.count {
        // SAFETY: parts differ in rows or heads, so that no other part takes these elements.
        let out = unsafe { out.slice(at(query), dim) };
        let total = crate::portable::elementwise::tree_sum(progress.totals[query]);
        for (out, &sum) in out.iter_mut().zip(&progress.sums[query * padded(dim)..]) {
            *out = sum / total;
        }
    }
}

impl Progress {
    fn new(count: usize, dim: usize) -> Progress {
        Progress {
            q: vec![0.0; count * dim],
            sums: vec![0.0; count * padded(dim)],
            most: vec![f32::NEG_INFINITY; count],
            totals: vec![[0.0; LANES]; count],
            count,
            dim,
        }
    }

    /// Takes a block into account for all queries that see any of it.
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq")]
    fn attend(&mut self, block: &Block<'_>) {
        let mut first = block.start.saturating_sub(block.position) * block.group;
        while first < self.count {
            let abreast = ABREAST.min(self.count - first);
            match abreast {
                1 => self.attend_abreast::<1>(block, first),
                2 => self.attend_abreast::<2>(block, first),
                3 => self.attend_abreast::<3>(block, first),
                4 => self.attend_abreast::<4>(block, first),
                5 => self.attend_abreast::<5>(block, first),
                6 => self.attend_abreast::<6>(block, first),
                7 => self.attend_abreast::<7>(block, first),
                _ => self.attend_abreast::<ABREAST>(block, first),
            }
            first += abreast;
        }
    }

    /// Queries `first..first + N`.
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq")]
    fn attend_abreast<const N: usize>(&mut self, block: &Block<'_>, first: usize) {
        let scores = self.scores::<N>(block, first);
        let mut weights = Weights { by_query: [[0.0; LANES]; ABREAST], shrink: [0.0; ABREAST] };
        for n in 0..N {
            self.weigh(scores[n], block, first + n, n, &mut weights);
        }
        let (fewest, most) = (block.seen(first), block.seen(first + N - 1));
        if fewest == most {
            self.mix::<N>(block, first, most, 0, &weights);
        } else {
            for n in 0..N {
                self.mix::<1>(block, first + n, block.seen(first + n), n, &weights);
            }
        }
    }

    /// The products of queries `first..first + N` with all keys of the block: two chains each, one over the even
    /// dimensions and one over the odd, because a single query must not wait for each addition in turn.
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq")]
    fn scores<const N: usize>(&self, block: &Block<'_>, first: usize) -> [__m512; N] {
        assert!(block.keys.len() >= self.dim * BLOCK && first + N <= self.count);
        assert!(self.q.len() == self.dim * self.count);
        let mut even = [_mm512_setzero_ps(); N];
        let mut odd = [_mm512_setzero_ps(); N];
        // SAFETY: the assertions above keep all places inside their slices.
        unsafe {
            let (mut keys, mut q) = (block.keys.as_ptr(), self.q.as_ptr().add(first));
            for _ in 0..self.dim / 2 {
                let (key, next) = (widen_bf16(keys), widen_bf16(keys.add(BLOCK)));
                for n in 0..N {
                    even[n] = _mm512_fmadd_ps(_mm512_set1_ps(*q.add(n)), key, even[n]);
                    odd[n] = _mm512_fmadd_ps(_mm512_set1_ps(*q.add(self.count + n)), next, odd[n]);
                }
                (keys, q) = (keys.wrapping_add(2 * BLOCK), q.wrapping_add(2 * self.count));
            }
            if self.dim % 2 == 1 {
                let key = widen_bf16(keys);
                for n in 0..N {
                    even[n] = _mm512_fmadd_ps(_mm512_set1_ps(*q.add(n)), key, even[n]);
                }
            }
        }
        for n in 0..N {
            even[n] = _mm512_add_ps(even[n], odd[n]);
        }
        even
    }

    /// From one query's products to its weights; only the first `seen` keys count.
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq")]
    fn weigh(&mut self, scores: __m512, block: &Block<'_>, query: usize, n: usize, weights: &mut Weights) {
        let mask = ((1_u32 << block.seen(query)) - 1) as __mmask16;
        let nothing = _mm512_set1_ps(f32::NEG_INFINITY);
        let scores = _mm512_mask_mul_ps(nothing, mask, scores, _mm512_set1_ps(block.scale));
        let before = self.most[query];
        let most = before.max(_mm512_reduce_max_ps(scores));
        let weight = exp(_mm512_sub_ps(scores, _mm512_set1_ps(most)));
        let shrink = exp(_mm512_set1_ps(before - most));
        let total = &mut self.totals[query];
        // SAFETY: a total and a query's weights are one vector long each.
        unsafe {
            let before = _mm512_loadu_ps(total.as_ptr());
            _mm512_storeu_ps(total.as_mut_ptr(), _mm512_fmadd_ps(before, shrink, weight));
            _mm512_storeu_ps(weights.by_query[n].as_mut_ptr(), weight);
        }
        self.most[query] = most;
        weights.shrink[n] = _mm512_cvtss_f32(shrink);
    }

    /// Adds the block's first `seen` values to the sums of queries `first..first + N`, whose weights start at
    /// `offset`: per element one chain over the values.
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq")]
    fn mix<const N: usize>(
        &mut self,
        block: &Block<'_>,
        first: usize,
        seen: usize,
        offset: usize,
        weights: &Weights,
    ) {
        let width = padded(self.dim);
        assert!(block.values.len() >= seen * width && offset + N <= ABREAST);
        assert!(self.sums.len() >= (first + N) * width && seen <= BLOCK);
        for d in (0..width).step_by(LANES) {
            // SAFETY: the assertions above keep all places inside their slices; `width` is whole vectors.
            unsafe {
                let at = self.sums.as_mut_ptr().add(first * width + d);
                let mut sums = [_mm512_setzero_ps(); N];
                for n in 0..N {
                    let shrink = _mm512_set1_ps(weights.shrink[offset + n]);
                    sums[n] = _mm512_mul_ps(_mm512_loadu_ps(at.add(n * width)), shrink);
                }
                let by_query = weights.by_query.as_ptr().add(offset);
                for token in 0..seen {
                    let values = widen_bf16(block.values.as_ptr().add(token * width + d));
                    for n in 0..N {
                        let weight = _mm512_set1_ps((*by_query.add(n))[token]);
                        sums[n] = _mm512_fmadd_ps(weight, values, sums[n]);
                    }
                }
                for n in 0..N {
                    _mm512_storeu_ps(at.add(n * width), sums[n]);
                }
            }
        }
    }
}

impl Block<'_> {
    /// How many of the block's keys a query sees; at least one.
    fn seen(&self, query: usize) -> usize {
        (self.position + query / self.group + 1 - self.start).min(BLOCK)
    }
}

/// `exp(x)` of numbers that are at most zero (or NaN): within two units in the last place, exactly 1 at 0, and 0
/// where the result would be subnormal. Lanes do not know of each other.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq")]
fn exp(x: __m512) -> __m512 {
    let least = _mm512_set1_ps(-87.33);
    let whole = _mm512_roundscale_ps::<{ _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC }>(_mm512_mul_ps(
        x,
        _mm512_set1_ps(std::f32::consts::LOG2_E),
    ));
    // ln 2 in two pieces; the first has so few bits that its multiples are exact.
    let rest = _mm512_fnmadd_ps(whole, _mm512_set1_ps(355.0 / 512.0), x);
    let rest = _mm512_fnmadd_ps(whole, _mm512_set1_ps(-2.121_944_4e-4), rest);
    let mut sum = _mm512_set1_ps(1.987_569_1e-4);
    for factor in [1.398_199_9e-3, 8.333_452e-3, 4.166_579_6e-2, 1.666_666_5e-1, 0.5] {
        sum = _mm512_fmadd_ps(sum, rest, _mm512_set1_ps(factor));
    }
    let mantissa = _mm512_fmadd_ps(sum, _mm512_mul_ps(rest, rest), rest);
    let result = _mm512_scalef_ps(_mm512_add_ps(mantissa, _mm512_set1_ps(1.0)), whole);
    // An unordered comparison keeps NaN.
    let kept = _mm512_cmp_ps_mask::<_CMP_NLT_UQ>(x, least);
    _mm512_maskz_mov_ps(kept, result)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// [`exp`] of each number, in the lane that its index names.
    fn each(numbers: &[f32]) -> Vec<f32> {
        let mut out = Vec::new();
        for chunk in numbers.chunks(LANES) {
            let (mut from, mut to) = ([0.0_f32; LANES], [0.0_f32; LANES]);
            from[..chunk.len()].copy_from_slice(chunk);
            // SAFETY: the tests below ask for the features first; both arrays are one vector long.
            unsafe { _mm512_storeu_ps(to.as_mut_ptr(), exp(_mm512_loadu_ps(from.as_ptr()))) };
            out.extend_from_slice(&to[..chunk.len()]);
        }
        out
    }

    fn usable() -> bool {
        crate::Isa::Avx512.runs_avx512()
    }

    #[test]
    fn exp_is_within_two_units_in_the_last_place_whatever_the_lane() {
        if !usable() {
            return;
        }
        let numbers: Vec<f32> = (0..1_000_000).map(|step| step as f32 * (-87.3 / 1_000_000.0)).collect();
        let results = each(&numbers);
        for (&x, &got) in numbers.iter().zip(&results) {
            let exact = f64::from(x).exp();
            assert!((f64::from(got) - exact).abs() <= 2.0 * f64::from(f32::EPSILON) * exact, "{x}: {got}");
        }
        // The same numbers one lane further on.
        assert!(each(&numbers[1..]) == results[1..]);
    }

    #[test]
    fn exp_keeps_its_promises_at_the_edges() {
        if !usable() {
            return;
        }
        let results = each(&[0.0, -0.0, f32::NEG_INFINITY, -1e30, -88.0, f32::NAN]);
        assert_eq!(results[..5], [1.0, 1.0, 0.0, 0.0, 0.0]);
        assert!(results[5].is_nan());
    }
}
