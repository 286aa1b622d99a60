//! Top-k, top-p and min-p, in this order. The rule: what is kept is a prefix of the tokens ordered by (logit
//! descending, id ascending), found without sorting the vocabulary.

use std::cmp::Ordering;

use pons_protocol::sampling::SamplingParams;

use super::Candidate;

/// Buckets of the histogram that finds the nucleus; each spans [`BUCKET_WIDTH`] of log probability.
const BUCKETS: usize = 1024;
/// Width of one bucket in nats. The last one takes everything from 51 nats below the best on, whose mass is
/// below 1e-16 even over a million tokens.
const BUCKET_WIDTH: f32 = 0.05;

fn by_rank(a: &Candidate, b: &Candidate) -> Ordering {
    b.z.total_cmp(&a.z).then(a.id.cmp(&b.id))
}

/// Fills `out` with the tokens that survive, in no particular order; at least the best one does.
pub(super) fn candidates(
    row: &[f32],
    best: f32,
    inverse_temperature: f64,
    params: &SamplingParams,
    out: &mut Vec<Candidate>,
    mass: &mut Vec<f64>,
) {
    out.clear();
    for (id, &logit) in row.iter().enumerate() {
        if logit > f32::NEG_INFINITY {
            let z = (f64::from(logit) - f64::from(best)) * inverse_temperature;
            out.push(Candidate { id: id as u32, z: z as f32 });
        }
    }
    let k = params.top_k as usize;
    if k > 0 && k < out.len() {
        out.select_nth_unstable_by(k - 1, by_rank);
        out.truncate(k);
    }
    if params.top_p < 1.0 {
        keep_nucleus(out, f64::from(params.top_p), mass);
    }
    if params.min_p > 0.0 {
        // p ≥ min_p · p_best, as logits; the best one stays whatever the setting.
        let floor = f64::from(params.min_p).ln().min(0.0);
        out.retain(|c| f64::from(c.z) >= floor);
    }
}

fn bucket(z: f32) -> usize {
    ((-z / BUCKET_WIDTH) as usize).min(BUCKETS - 1)
}

/// Keeps the smallest set of best tokens whose mass reaches `top_p` of all. Sums run over buckets by ids rising,
/// so that they don't depend on the order in which a selection left the tokens.
fn keep_nucleus(out: &mut Vec<Candidate>, top_p: f64, mass: &mut Vec<f64>) {
    out.sort_unstable_by_key(|c| c.id);
    mass.clear();
    mass.resize(BUCKETS, 0.0);
    for c in out.iter() {
        mass[bucket(c.z)] += f64::from(c.z).exp();
    }
    let target = mass.iter().sum::<f64>() * top_p;
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
        return;
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
}
