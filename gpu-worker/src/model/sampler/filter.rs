//! Top-k, top-p and min-p, in this order. The rule: what is kept is a prefix of the tokens ordered by (logit
//! descending, id ascending), found without sorting the vocabulary.

use std::cmp::Ordering;

use pons_kernels::{Isa, ops};
use pons_protocol::sampling::SamplingParams;

use super::Candidate;

/// Buckets of the histogram that finds the nucleus; each spans [`BUCKET_WIDTH`] of log probability.
const BUCKETS: usize = 1024;
/// Width of one bucket in nats. The last one takes everything from 51 nats below the best on, whose mass is
/// below 1e-16 even over a million tokens.
const BUCKET_WIDTH: f32 = 0.05;

/// Tokens looked at together.
const CHUNK: usize = 32;
/// How far below the best one the nucleus is looked for, in nats, as long as it is not found: it is nearly always
/// near, and then few tokens are looked at more than once.
const FLOORS: [f32; 4] = [-8.0, -16.0, -32.0, f32::MIN];

fn by_rank(a: &Candidate, b: &Candidate) -> Ordering {
    b.z.total_cmp(&a.z).then(a.id.cmp(&b.id))
}

/// Buffers that one thread reuses from row to row.
#[derive(Default)]
pub(super) struct Room {
    /// Tokens that are still in the race.
    pub(super) kept: Vec<Candidate>,
    /// Tempered logits relative to the best one, or largest logits of chunks.
    numbers: Vec<f32>,
    /// Mass of each bucket.
    mass: Vec<f64>,
}

/// Fills `room.kept` with the tokens that survive, in no particular order; at least the best one does.
pub(super) fn candidates(
    isa: Isa,
    row: &[f32],
    best: f32,
    inverse_temperature: f64,
    params: &SamplingParams,
    room: &mut Room,
) {
    let tempered = |logit: f32| ((f64::from(logit) - f64::from(best)) * inverse_temperature) as f32;
    let Room { kept, numbers, mass } = room;
    let k = params.top_k as usize;
    // p ≥ min_p · p_best, as logits; the best one stays whatever the setting.
    let least = if params.min_p > 0.0 { f64::from(params.min_p).ln().min(0.0) } else { f64::NEG_INFINITY };
    if k > 0 {
        gather(row, bound_of_best(isa, row, k, numbers), tempered, kept);
        if k < kept.len() {
            kept.select_nth_unstable_by(k - 1, by_rank);
            kept.truncate(k);
        }
        if params.top_p < 1.0 {
            kept.sort_unstable_by_key(|c| c.id);
            keep_nucleus(kept, f64::from(params.top_p), None, mass);
        }
    } else if params.top_p < 1.0 {
        numbers.clear();
        numbers.extend(row.iter().map(|&logit| tempered(logit)));
        let total = ops::sum_exp(isa, numbers, 0.0);
        for floor in FLOORS {
            gather(numbers, floor, |z| z, kept);
            if keep_nucleus(kept, f64::from(params.top_p), Some(total), mass) {
                break;
            }
        }
    } else {
        gather(row, f32::MIN, tempered, kept);
    }
    kept.retain(|c| f64::from(c.z) >= least);
}

/// A number that at least `k` of the row reach: of the largest numbers of its chunks, the one of rank `k`.
fn bound_of_best(isa: Isa, row: &[f32], k: usize, largest: &mut Vec<f32>) -> f32 {
    largest.clear();
    largest.extend(row.chunks(CHUNK).map(|chunk| ops::max(isa, chunk)));
    if k > largest.len() {
        return f32::MIN;
    }
    let (_, bound, _) = largest.select_nth_unstable_by(k - 1, |a, b| b.total_cmp(a));
    bound.max(f32::MIN)
}

/// Takes the tokens whose number reaches the floor, by ids rising.
fn gather(numbers: &[f32], floor: f32, z: impl Fn(f32) -> f32, out: &mut Vec<Candidate>) {
    out.clear();
    for (index, chunk) in numbers.chunks(CHUNK).enumerate() {
        // Counting has no branches, and few chunks have any.
        if chunk.iter().filter(|&&x| x >= floor).count() == 0 {
            continue;
        }
        for (id, &x) in (index * CHUNK..).zip(chunk) {
            if x >= floor {
                out.push(Candidate { id: id as u32, z: z(x) });
            }
        }
    }
}

fn bucket(z: f32) -> usize {
    ((-z / BUCKET_WIDTH) as usize).min(BUCKETS - 1)
}

/// Keeps the smallest set of best tokens whose mass reaches `top_p` of the total, which is all of theirs if none is
/// given, and says whether they do. Tokens come by ids rising: sums run over buckets in that order, so that they
/// don't depend on the order in which a selection left the tokens.
fn keep_nucleus(out: &mut Vec<Candidate>, top_p: f64, total: Option<f64>, mass: &mut Vec<f64>) -> bool {
    mass.clear();
    mass.resize(BUCKETS, 0.0);
    for c in out.iter() {
        mass[bucket(c.z)] += f64::from(c.z).exp();
    }
    let target = total.unwrap_or_else(|| mass.iter().sum()) * top_p;
    let mut below = 0.0;
    let mut border = BUCKETS;
    for (index, bucket_mass) in mass.iter().enumerate() {
        if below + bucket_mass >= target {
            border = index;
            break;
        }
        below += bucket_mass;
    }
    if border == BUCKETS {
        return false;
    }
    // Only the bucket in which the mass is reached needs an order.
    let mut edge: Vec<Candidate> = out.iter().copied().filter(|c| bucket(c.z) == border).collect();
    edge.sort_unstable_by(by_rank);
    let mut kept = 0;
    let mut sum = below;
    for c in &edge {
        kept += 1;
        sum += f64::from(c.z).exp();
        if sum >= target {
            break;
        }
    }
    edge.truncate(kept);
    out.retain(|c| bucket(c.z) < border);
    out.extend_from_slice(&edge);
    true
}
