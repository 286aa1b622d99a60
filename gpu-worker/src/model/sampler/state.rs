//! What sampling has to remember about a sequence: parameters and token counts. The rule: rebuilt from prompt
//! and output alone it is the same as carried along, so a continued sequence samples as if it had never stopped.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use pons_protocol::id::TokenId;
use pons_protocol::sampling::SamplingParams;

/// Sampler state of one sequence.
pub struct SamplerState {
    params: Arc<SamplingParams>,
    min_tokens: u32,
    end_tokens: Arc<[TokenId]>,
    allowed: Vec<u32>,
    prompt: HashSet<TokenId>,
    output: HashMap<TokenId, u32>,
}

impl SamplerState {
    /// State after `prompt` and no output.
    pub fn new(
        params: Arc<SamplingParams>,
        min_tokens: u32,
        end_tokens: Arc<[TokenId]>,
        prompt: &[TokenId],
        vocab_size: usize,
    ) -> Self {
        let prompt =
            if params.repetition_penalty != 1.0 { prompt.iter().copied().collect() } else { HashSet::new() };
        let mut allowed = Vec::new();
        if !params.allowed_token_ids.is_empty() {
            allowed.resize(vocab_size.div_ceil(32), 0u32);
            for &token in params.allowed_token_ids.iter().filter(|&&t| (t as usize) < vocab_size) {
                allowed[token as usize / 32] |= 1 << (token % 32);
            }
        }
        Self { params, min_tokens, end_tokens, allowed, prompt, output: HashMap::new() }
    }

    /// Parameters of the sequence.
    pub fn params(&self) -> &SamplingParams {
        &self.params
    }

    /// Counts a token of the output.
    pub fn push(&mut self, token: TokenId) {
        if self.penalises() {
            *self.output.entry(token).or_insert(0) += 1;
        }
    }

    fn penalises(&self) -> bool {
        let p = &self.params;
        p.repetition_penalty != 1.0 || p.presence_penalty != 0.0 || p.frequency_penalty != 0.0
    }

    /// Whether [`SamplerState::adjust`] would change anything at an output position.
    pub(super) fn changes_logits(&self, position: u32) -> bool {
        position < self.min_tokens
            || !self.allowed.is_empty()
            || !self.params.logit_bias.is_empty()
            || self.penalises()
    }

    /// Applies the end-token mask, allowed ids, logit bias and penalties.
    pub(super) fn adjust(&self, row: &mut [f32], position: u32) {
        if position < self.min_tokens {
            for &token in self.end_tokens.iter() {
                if let Some(x) = row.get_mut(token as usize) {
                    *x = f32::NEG_INFINITY;
                }
            }
        }
        if !self.allowed.is_empty() {
            super::apply_mask(row, super::TokenMask(&self.allowed));
        }
        for &(token, bias) in &self.params.logit_bias {
            if let Some(x) = row.get_mut(token as usize) {
                *x += bias;
            }
        }
        if self.penalises() {
            self.penalise(row);
        }
    }

    fn penalise(&self, row: &mut [f32]) {
        let p = &self.params;
        let repetition = p.repetition_penalty;
        let repeat = |x: &mut f32| *x = if *x > 0.0 { *x / repetition } else { *x * repetition };
        if repetition != 1.0 {
            for &token in self.prompt.iter().filter(|t| !self.output.contains_key(t)) {
                if let Some(x) = row.get_mut(token as usize) {
                    repeat(x);
                }
            }
        }
        for (&token, &count) in &self.output {
            if let Some(x) = row.get_mut(token as usize) {
                if repetition != 1.0 {
                    repeat(x);
                }
                *x -= p.presence_penalty + p.frequency_penalty * count as f32;
            }
        }
    }
}
