//! Raw log probabilities. The rule: one formula for the token itself and for the alternatives, so that the same
//! token never shows two values; sums in f64.

use pons_kernels::{Isa, ops};
use pons_protocol::id::TokenId;
use pons_protocol::inference::TokenLogprobs;

/// What to report about one row of logits.
#[derive(Clone, Copy, Debug)]
pub struct TokenRow {
    /// The token whose log probability is wanted.
    pub token: Option<TokenId>,
    /// How many of the best alternatives.
    pub top: usize,
}

/// Log probability of a token and of the best alternatives, best first, ties by lower id.
pub fn token_logprobs(isa: Isa, logits: &[f32], row: TokenRow) -> TokenLogprobs {
    let total = ops::log_sum_exp(isa, logits);
    let value = |logit: f32| (f64::from(logit) - total) as f32;
    let logprob = row.token.and_then(|t| logits.get(t as usize)).map_or(f32::NAN, |&logit| value(logit));
    let top = best(logits, row.top).into_iter().map(|id| (id, value(logits[id as usize]))).collect();
    TokenLogprobs { logprob, top }
}

/// Ids of the `k` largest logits in order. `k` is small, so a sorted list with insertion beats any heap.
fn best(logits: &[f32], k: usize) -> Vec<TokenId> {
    let k = k.min(logits.len());
    let mut ids: Vec<TokenId> = Vec::with_capacity(k + 1);
    if k == 0 {
        return ids;
    }
    let mut floor = f32::NEG_INFINITY;
    for (id, &x) in logits.iter().enumerate() {
        if ids.len() == k && x <= floor {
            continue;
        }
        let at = ids.partition_point(|&other| logits[other as usize] >= x);
        ids.insert(at, id as TokenId);
        ids.truncate(k);
        if ids.len() == k {
            floor = logits[ids[k - 1] as usize];
        }
    }
    ids
}
