//! What a step of a model can take at the least on a machine: its bytes by the bandwidth of the memory that holds
//! them, its operations by the peak of the arithmetic units (Williams, Waterman and Patterson, "Roofline", 2009).
//! The rule: only what no implementation can do without is counted, so a bound can be missed and never beaten.

use std::fmt::Write as _;

use serde::Serialize;

use crate::limits::{Caches, Limits};

/// Units that may do a model's operations.
const UNITS: [&str; 5] = ["f32_fma", "bf16_dot", "int8_dot", "amx_int8", "amx_bf16"];
/// Bytes of a key's or value's element (bfloat16).
const KV_BYTES: u64 = 2;

/// The sizes of a transformer of the Llama kind.
struct Model {
    name: &'static str,
    layers: u64,
    hidden: u64,
    intermediate: u64,
    heads: u64,
    kv_heads: u64,
    head_dim: u64,
    vocabulary: u64,
}

const MODELS: [Model; 3] = [
    Model {
        name: "smollm2-135m",
        layers: 30,
        hidden: 576,
        intermediate: 1536,
        heads: 9,
        kv_heads: 3,
        head_dim: 64,
        vocabulary: 49_152,
    },
    Model {
        name: "qwen2.5-0.5b",
        layers: 24,
        hidden: 896,
        intermediate: 4864,
        heads: 14,
        kv_heads: 2,
        head_dim: 64,
        vocabulary: 151_936,
    },
    Model {
        name: "qwen2.5-1.5b",
        layers: 28,
        hidden: 1536,
        intermediate: 8960,
        heads: 12,
        kv_heads: 2,
        head_dim: 128,
        vocabulary: 151_936,
    },
];

/// Name and bits of a weight, scales and minima of groups of 32 included.
const WIDTHS: [(&str, f64); 3] = [("f32", 32.0), ("8-bit", 8.5), ("4-bit", 5.0)];

/// What a step computes: so many sequences with so many new tokens each, after so many.
#[derive(Clone, Copy)]
pub struct Step {
    /// What it is called.
    pub name: &'static str,
    /// Sequences.
    pub sequences: u32,
    /// New tokens of each.
    pub tokens: u32,
    /// Tokens before them.
    pub after: u32,
}

/// The steps that are looked at.
pub const STEPS: [Step; 6] = [
    Step { name: "decode 1 after 512", sequences: 1, tokens: 1, after: 512 },
    Step { name: "decode 4 after 512", sequences: 4, tokens: 1, after: 512 },
    Step { name: "decode 8 after 512", sequences: 8, tokens: 1, after: 512 },
    Step { name: "decode 32 after 512", sequences: 32, tokens: 1, after: 512 },
    Step { name: "prefill 512", sequences: 1, tokens: 512, after: 0 },
    Step { name: "prefill 4096", sequences: 1, tokens: 4096, after: 0 },
];

/// What one step asks of a machine, and what it can take at the least.
#[derive(Clone, Debug, Serialize)]
pub struct Bound {
    /// The model.
    pub model: &'static str,
    /// How its weights are stored.
    pub weights: &'static str,
    /// The step.
    pub step: &'static str,
    /// Bytes to read: all weights once, and the keys and values of every sequence.
    pub bytes: u64,
    /// Operations to do.
    pub operations: u64,
    /// The limit that asks for most time.
    pub limit: &'static str,
    /// How much, in microseconds.
    pub least_us: f64,
    /// New tokens a second if every step took just that.
    pub most_tokens_per_s: f64,
}

impl Model {
    /// Weights of the layers; each is used for every token.
    fn layer_weights(&self) -> u64 {
        let attention = 2 * self.hidden * (self.heads + self.kv_heads) * self.head_dim;
        self.layers * (attention + 3 * self.hidden * self.intermediate)
    }

    /// Weights of the output layer, used for the last token of each sequence.
    fn head_weights(&self) -> u64 {
        self.vocabulary * self.hidden
    }

    fn bytes(&self, step: Step, bits: f64) -> u64 {
        let weights = (self.layer_weights() + self.head_weights()) as f64 * bits / 8.0;
        let token = 2 * self.layers * self.kv_heads * self.head_dim * KV_BYTES;
        weights as u64 + u64::from(step.sequences) * u64::from(step.after + step.tokens) * token
    }

    fn operations(&self, step: Step) -> u64 {
        let [sequences, tokens, after] = [step.sequences, step.tokens, step.after].map(u64::from);
        let rows = sequences * tokens;
        // Each token sees those before it and itself; a product and a weighted sum for each.
        let seen = rows * after + sequences * tokens * (tokens + 1) / 2;
        let attention = 4 * seen * self.layers * self.heads * self.head_dim;
        2 * (rows * self.layer_weights() + sequences * self.head_weights()) + attention
    }
}

/// The limit and the least microseconds of a step of a known model whose stored weights take `weights_bytes`.
pub fn of_step(
    limits: &Limits,
    caches: Caches,
    model: &str,
    weights_bytes: u64,
    step: Step,
) -> Option<(&'static str, f64)> {
    let model = MODELS.iter().find(|known| model.replace("-coder", "") == known.name)?;
    let (bytes, operations) = (weights_bytes + model.bytes(step, 0.0), model.operations(step));
    limits.least_ns(caches, bytes, operations, &UNITS).map(|(limit, least_ns)| (limit, least_ns / 1e3))
}

/// The bounds of known models at known steps.
pub fn bounds(limits: &Limits, caches: Caches) -> Vec<Bound> {
    let mut bounds = Vec::new();
    for model in &MODELS {
        for (weights, bits) in WIDTHS {
            for step in STEPS {
                let (bytes, operations) = (model.bytes(step, bits), model.operations(step));
                let Some((limit, least_ns)) = limits.least_ns(caches, bytes, operations, &UNITS) else {
                    continue;
                };
                bounds.push(Bound {
                    model: model.name,
                    weights,
                    step: step.name,
                    bytes,
                    operations,
                    limit,
                    least_us: least_ns / 1e3,
                    most_tokens_per_s: f64::from(step.sequences * step.tokens) * 1e9 / least_ns,
                });
            }
        }
    }
    bounds
}

/// One line a bound.
pub fn table(bounds: &[Bound]) -> String {
    let mut out = format!(
        "{:<14}{:<8}{:<22}{:>10}{:>10}{:>12}{:>14}  limit\n",
        "model", "weights", "step", "MB", "Gop", "least ms", "tokens/s"
    );
    for bound in bounds {
        let _ = writeln!(
            out,
            "{:<14}{:<8}{:<22}{:>10.1}{:>10.2}{:>12.3}{:>14.0}  {}",
            bound.model,
            bound.weights,
            bound.step,
            bound.bytes as f64 / 1e6,
            bound.operations as f64 / 1e9,
            bound.least_us / 1e3,
            bound.most_tokens_per_s,
            bound.limit,
        );
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limits::Limit;

    #[test]
    fn weights_are_those_that_the_models_are_named_for() {
        // Without embeddings, norms and biases; SmolLM2 and the small Qwen share the embeddings with the head.
        let millions = MODELS.map(|model| (model.layer_weights() + model.head_weights()) / 1_000_000);
        assert_eq!(millions, [134, 493, 1543]);
    }

    #[test]
    fn one_stream_is_bound_by_memory_and_a_long_prompt_by_arithmetic() {
        let limit =
            |(name, best)| Limit { name, unit: "G/s", best: Some(best), not_measured: None, samples: vec![] };
        let all = [("dram_read", 40.0), ("l3_read", 200.0), ("f32_fma", 500.0), ("int8_dot", 2000.0)];
        let limits = Limits { threads: 2, limits: all.into_iter().map(limit).collect() };
        let caches = Caches { l1_bytes: 1 << 15, l2_bytes: 1 << 20, l3_bytes: 1 << 25 };
        let bounds = bounds(&limits, caches);
        assert_eq!(bounds.len(), MODELS.len() * WIDTHS.len() * STEPS.len());
        for bound in &bounds {
            let wanted = if bound.step.starts_with("prefill") { "int8_dot" } else { "dram_read" };
            if bound.weights == "4-bit" && !bound.step.contains("32") {
                assert_eq!(bound.limit, wanted, "{bound:?}");
            }
            // What the last cache holds comes from there, the rest from the main memory.
            let least_us = (bound.bytes as f64 - f64::from(1 << 25)) / 40.0 / 1e3;
            assert!(bound.least_us >= least_us, "{bound:?}");
        }
        assert_eq!(table(&bounds).lines().count(), bounds.len() + 1);
    }
}
