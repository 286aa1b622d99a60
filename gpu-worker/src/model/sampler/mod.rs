//! From one row of logits to one token. The rule: the token depends on the logits, the sampling parameters, the
//! seed and the output position, and on nothing else.
//!
//! Order: end-token mask while `min_tokens` are missing, allowed ids, logit bias, penalties, grammar mask,
//! temperature, top-k, top-p, min-p, then the maximum of logit plus Gumbel noise. Log probabilities come from
//! the logits as the model gave them.

mod filter;
mod logprobs;
mod random;
mod state;
#[cfg(test)]
mod tests;

pub use logprobs::{TokenRow, token_logprobs};
pub use state::SamplerState;

use pons_kernels::{Isa, ops};
use pons_protocol::id::TokenId;
use pons_protocol::inference::TokenLogprobs;

use random::Noise;

/// Why a row has no token. It ends that sequence alone.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SampleError {
    /// A logit is infinite or not a number.
    #[error("logit of token {token} is {value}; the weights or the prompt broke the arithmetic")]
    NotFinite {
        /// First token whose logit is not finite.
        token: usize,
        /// The value, as text.
        value: String,
    },
    /// Masks left no token.
    #[error(
        "no token is allowed at output position {position}: allowed_token_ids, min_tokens and the grammar exclude each other; relax one of them"
    )]
    NothingAllowed {
        /// Output position.
        position: u32,
    },
}

/// A sampled token.
#[derive(Clone, Debug, PartialEq)]
pub struct Sampled {
    /// The token.
    pub token: TokenId,
    /// Its raw log probabilities, if asked for.
    pub logprobs: Option<TokenLogprobs>,
}

/// Buffers that one thread reuses from row to row.
pub struct Scratch {
    isa: Isa,
    adjusted: Vec<f32>,
    room: filter::Room,
}

impl Default for Scratch {
    fn default() -> Self {
        Self { isa: Isa::detect(), adjusted: Vec::new(), room: filter::Room::default() }
    }
}

impl Scratch {
    /// The instruction set of this process.
    pub fn isa(&self) -> Isa {
        self.isa
    }
}

/// A token that is still in the race, with its tempered logit relative to the best one (so ≤ 0).
#[derive(Clone, Copy, Debug, PartialEq)]
struct Candidate {
    id: TokenId,
    z: f32,
}

/// Tokens a grammar allows, as bits in 32-bit words; tokens past its end are not allowed.
#[derive(Clone, Copy, Debug)]
pub struct TokenMask<'a>(pub &'a [u32]);

impl TokenMask<'_> {
    /// Whether a token is allowed.
    pub fn allows(self, token: usize) -> bool {
        self.0.get(token / 32).is_some_and(|word| word >> (token % 32) & 1 == 1)
    }
}

/// Chooses the token of output position `position` and reports log probabilities if the parameters ask for them.
///
/// # Errors
/// A logit that is not finite, or masks that leave nothing.
pub fn sample(
    logits: &[f32],
    state: &SamplerState,
    grammar: Option<TokenMask<'_>>,
    position: u32,
    scratch: &mut Scratch,
) -> Result<Sampled, SampleError> {
    check_finite(logits)?;
    let params = state.params();
    let row: &[f32] = if state.changes_logits(position) || grammar.is_some() {
        scratch.adjusted.clear();
        scratch.adjusted.extend_from_slice(logits);
        state.adjust(&mut scratch.adjusted, position);
        if let Some(mask) = grammar {
            apply_mask(&mut scratch.adjusted, mask);
        }
        &scratch.adjusted
    } else {
        logits
    };
    let best = ops::argmax(scratch.isa, row);
    let best_value = row[best];
    if best_value == f32::NEG_INFINITY {
        return Err(SampleError::NothingAllowed { position });
    }
    let token = if params.temperature <= 0.0 {
        best as TokenId
    } else {
        let noise = Noise::new(params.seed, params.choice, position);
        let inverse = 1.0 / f64::from(params.temperature);
        if params.top_k == 0 && params.top_p >= 1.0 && params.min_p <= 0.0 {
            draw(scratch.isa, noise, row, best, inverse)
        } else {
            filter::candidates(scratch.isa, row, best_value, inverse, params, &mut scratch.room);
            draw_among(noise, &scratch.room.kept)
        }
    };
    let logprobs = params
        .logprobs
        .map(|top| token_logprobs(scratch.isa, logits, TokenRow { token: Some(token), top: top as usize }));
    Ok(Sampled { token, logprobs })
}

/// Refuses a row in which a logit is infinite or not a number.
///
/// # Errors
/// Names the first such token.
pub fn check_finite(logits: &[f32]) -> Result<(), SampleError> {
    // The bits of a magnitude rise with it, and those of infinity and of no number are above all others.
    const INFINITY: u32 = 0x7f80_0000;
    let largest = logits.iter().fold(0, |most, x| most.max(x.to_bits() & 0x7fff_ffff));
    if largest < INFINITY {
        return Ok(());
    }
    let token = logits.iter().position(|x| !x.is_finite()).unwrap_or(0);
    Err(SampleError::NotFinite { token, value: logits[token].to_string() })
}

fn apply_mask(row: &mut [f32], mask: TokenMask<'_>) {
    for (word, chunk) in row.chunks_mut(32).enumerate() {
        let bits = mask.0.get(word).copied().unwrap_or(0);
        if bits == u32::MAX {
            continue;
        }
        for (bit, x) in chunk.iter_mut().enumerate() {
            if bits >> bit & 1 == 0 {
                *x = f32::NEG_INFINITY;
            }
        }
    }
}

/// Tokens that share one bound in [`draw`].
const DRAWN_TOGETHER: usize = 32;

/// The token of the largest tempered logit plus noise, over the whole row. A token is looked at closely only if
/// the bound of its noise could still win with the largest logit of its chunk, which costs a hash and a comparison
/// for nearly all and leaves a handful of logarithms for each row.
fn draw(isa: Isa, noise: Noise, row: &[f32], first: usize, inverse: f64) -> TokenId {
    let top = f64::from(row[first]);
    let mut best_token = first;
    let mut best = Noise::gumbel(noise.bits(first as u32));
    for (index, chunk) in row.chunks(DRAWN_TOGETHER).enumerate() {
        let most = (f64::from(ops::max(isa, chunk)) - top) * inverse;
        let Some(least_bits) = Noise::least_bits(best - most) else { continue };
        for (token, &logit) in (index * DRAWN_TOGETHER..).zip(chunk) {
            let bits = noise.bits(token as u32);
            if bits < least_bits {
                continue;
            }
            let value = (f64::from(logit) - top) * inverse + Noise::gumbel(bits);
            if value > best || (value == best && token < best_token) {
                (best, best_token) = (value, token);
            }
        }
    }
    best_token as TokenId
}

/// As [`draw`], among the tokens that the filters kept.
fn draw_among(noise: Noise, candidates: &[Candidate]) -> TokenId {
    let mut best = (f64::NEG_INFINITY, TokenId::MAX);
    for c in candidates {
        let bits = noise.bits(c.id);
        if Noise::least_bits(best.0 - f64::from(c.z)).is_none_or(|least| bits < least) {
            continue;
        }
        let value = f64::from(c.z) + Noise::gumbel(bits);
        if value > best.0 || (value == best.0 && c.id < best.1) {
            best = (value, c.id);
        }
    }
    best.1
}
