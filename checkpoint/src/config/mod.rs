//! What a model is: its family, sizes and numeric conventions.
//!
//! The rule: a [`ModelConfig`] that exists has been validated, so nobody downstream checks its fields again.

mod from_gguf;
mod from_json;
#[cfg(test)]
mod tests;

use std::fmt;

use crate::error::{CheckpointError, Result};

/// The transformer families this build can run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Family {
    /// Llama 2, 3 and models of the same shape, like SmolLM2.
    Llama,
    /// Qwen2 and Qwen2.5: Llama with biases on the query, key and value projections.
    Qwen2,
    /// Qwen3: Llama with normalised queries and keys.
    Qwen3,
}

impl Family {
    /// Every supported family.
    pub const ALL: [Self; 3] = [Self::Llama, Self::Qwen2, Self::Qwen3];

    /// The name model files use.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Llama => "llama",
            Self::Qwen2 => "qwen2",
            Self::Qwen3 => "qwen3",
        }
    }

    fn parse(field: &str, name: &str) -> Result<Self> {
        Self::ALL.into_iter().find(|family| family.name() == name).ok_or_else(|| {
            let remedy = "this architecture is not supported; supported are llama, qwen2 and qwen3";
            CheckpointError::config(field, format!("`{}`", name.escape_debug()), remedy)
        })
    }
}

impl fmt::Display for Family {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// How rotary position embedding pairs the elements of a head.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RopeLayout {
    /// Element `i` pairs with `i + head_dim / 2`.
    Half,
    /// Element `2 i` pairs with `2 i + 1`; GGUF files of the llama family are permuted for this.
    Interleaved,
}

/// How rotary frequencies are stretched for long contexts.
#[derive(Clone, Debug, PartialEq)]
pub enum RopeScaling {
    /// Not at all.
    None,
    /// Positions divided by `factor`.
    Linear {
        /// The divisor.
        factor: f64,
    },
    /// Llama 3's piecewise rule.
    Llama3 {
        /// Divisor of low frequencies.
        factor: f64,
        /// Wavelengths above original context / this are fully stretched.
        low_freq_factor: f64,
        /// Wavelengths below original context / this are left alone.
        high_freq_factor: f64,
        /// Positions the model was first trained for.
        original_context: usize,
    },
    /// `YaRN`.
    Yarn {
        /// The divisor.
        factor: f64,
        /// Positions the model was first trained for.
        original_context: usize,
        /// Rotations above which a dimension is left alone.
        beta_fast: f64,
        /// Rotations below which a dimension is fully stretched.
        beta_slow: f64,
        /// Multiplier of sines and cosines; `None` stands for `0.1 ln(factor) + 1`.
        attention_factor: Option<f64>,
    },
    /// Each frequency divided by its own factor (`rope_freqs.weight` in GGUF); `head_dim / 2` of them.
    Divisors(Vec<f32>),
}

/// A validated model description.
#[derive(Clone, Debug, PartialEq)]
pub struct ModelConfig {
    /// The family.
    pub architecture: Family,
    /// Rows of the embedding.
    pub vocab_size: usize,
    /// Width of the residual stream.
    pub hidden: usize,
    /// Transformer blocks.
    pub layers: usize,
    /// Query heads.
    pub heads: usize,
    /// Key and value heads; divides `heads`.
    pub kv_heads: usize,
    /// Elements of one head; even.
    pub head_dim: usize,
    /// Width of the feed-forward network.
    pub intermediate: usize,
    /// Positions the model can attend over.
    pub context: usize,
    /// Base of the rotary frequencies.
    pub rope_theta: f64,
    /// Stretching of the rotary frequencies.
    pub rope_scaling: RopeScaling,
    /// Pairing of elements in a head.
    pub rope_layout: RopeLayout,
    /// The epsilon of RMS normalisation.
    pub rms_eps: f32,
    /// Whether query, key and value projections have biases.
    pub qkv_bias: bool,
    /// Whether queries and keys are RMS-normalised per head.
    pub qk_norm: bool,
    /// Whether the output head is the embedding.
    pub tied_embeddings: bool,
    /// Beginning of sequence.
    pub bos: Option<u32>,
    /// Every token that ends generation, without repeats; may be empty.
    pub eos: Vec<u32>,
    /// Padding.
    pub pad: Option<u32>,
}

/// Upper bounds; each is several times the largest published model.
mod bounds {
    pub(super) const VOCAB: usize = 4_000_000;
    pub(super) const HIDDEN: usize = 131_072;
    pub(super) const LAYERS: usize = 1_024;
    pub(super) const HEADS: usize = 4_096;
    pub(super) const HEAD_DIM: usize = 4_096;
    pub(super) const INTERMEDIATE: usize = 1_048_576;
    pub(super) const CONTEXT: usize = 16_777_216;
    pub(super) const EOS: usize = 64;
}

impl ModelConfig {
    /// Checks every field against the others and against upper bounds.
    fn validated(mut self) -> Result<Self> {
        in_range("vocab_size", self.vocab_size, bounds::VOCAB)?;
        in_range("hidden_size", self.hidden, bounds::HIDDEN)?;
        in_range("num_hidden_layers", self.layers, bounds::LAYERS)?;
        in_range("num_attention_heads", self.heads, bounds::HEADS)?;
        in_range("num_key_value_heads", self.kv_heads, bounds::HEADS)?;
        in_range("head_dim", self.head_dim, bounds::HEAD_DIM)?;
        in_range("intermediate_size", self.intermediate, bounds::INTERMEDIATE)?;
        in_range("max_position_embeddings", self.context, bounds::CONTEXT)?;
        if !self.heads.is_multiple_of(self.kv_heads) {
            let remedy = format!("it must divide num_attention_heads, which is {}", self.heads);
            return Err(CheckpointError::config("num_key_value_heads", self.kv_heads, remedy));
        }
        if !self.head_dim.is_multiple_of(2) {
            return Err(CheckpointError::config(
                "head_dim",
                self.head_dim,
                "rotary embedding needs an even number",
            ));
        }
        positive("rope_theta", self.rope_theta, 1e12)?;
        positive("rms_norm_eps", f64::from(self.rms_eps), 1.0)?;
        self.rope_scaling.validate(self.head_dim)?;
        self.validate_tokens()?;
        Ok(self)
    }

    fn validate_tokens(&mut self) -> Result<()> {
        let mut seen = Vec::with_capacity(self.eos.len().min(bounds::EOS));
        for &id in &self.eos {
            if !seen.contains(&id) {
                seen.push(id);
            }
            if seen.len() > bounds::EOS {
                let remedy = format!("at most {} distinct ids can end generation", bounds::EOS);
                return Err(CheckpointError::config(
                    "eos_token_id",
                    format!("{} ids", self.eos.len()),
                    remedy,
                ));
            }
        }
        self.eos = seen;
        let named = [("bos_token_id", self.bos), ("pad_token_id", self.pad)];
        let eos = self.eos.iter().map(|&id| ("eos_token_id", Some(id)));
        for (field, id) in named.into_iter().chain(eos) {
            if let Some(id) = id.filter(|&id| id as usize >= self.vocab_size) {
                let remedy = format!("token ids must be below vocab_size, which is {}", self.vocab_size);
                return Err(CheckpointError::config(field, id, remedy));
            }
        }
        Ok(())
    }

    /// Elements of all query heads together: rows of the query projection.
    #[must_use]
    pub fn q_dim(&self) -> usize {
        self.heads * self.head_dim
    }

    /// Elements of all key (or value) heads together: rows of the key and value projections.
    #[must_use]
    pub fn kv_dim(&self) -> usize {
        self.kv_heads * self.head_dim
    }
}

impl RopeScaling {
    fn validate(&self, head_dim: usize) -> Result<()> {
        let factor = |value: f64| at_least("rope_scaling.factor", value, 1.0, 1e6);
        let original =
            |value: usize| in_range("rope_scaling.original_max_position_embeddings", value, bounds::CONTEXT);
        match self {
            Self::None => Ok(()),
            Self::Linear { factor: f } => factor(*f),
            Self::Llama3 { factor: f, low_freq_factor: low, high_freq_factor: high, original_context } => {
                factor(*f)?;
                original(*original_context)?;
                positive("rope_scaling.low_freq_factor", *low, 1e6)?;
                positive("rope_scaling.high_freq_factor", *high, 1e6)?;
                if high <= low {
                    let remedy = format!("it must be above low_freq_factor, which is {low}");
                    return Err(CheckpointError::config("rope_scaling.high_freq_factor", high, remedy));
                }
                Ok(())
            }
            Self::Yarn { factor: f, original_context, beta_fast, beta_slow, attention_factor } => {
                factor(*f)?;
                original(*original_context)?;
                positive("rope_scaling.beta_fast", *beta_fast, 1e6)?;
                positive("rope_scaling.beta_slow", *beta_slow, 1e6)?;
                if beta_fast <= beta_slow {
                    let remedy = format!("it must be above beta_slow, which is {beta_slow}");
                    return Err(CheckpointError::config("rope_scaling.beta_fast", beta_fast, remedy));
                }
                attention_factor.map_or(Ok(()), |a| positive("rope_scaling.attention_factor", a, 1e3))
            }
            Self::Divisors(divisors) => {
                if divisors.len() != head_dim / 2 {
                    let value = format!("of {} elements", divisors.len());
                    let remedy = format!("it must have head_dim / 2 = {} elements", head_dim / 2);
                    return Err(CheckpointError::config("rope_freqs.weight", value, remedy));
                }
                divisors.iter().try_for_each(|&d| positive("rope_freqs.weight", f64::from(d), 1e6))
            }
        }
    }
}

fn in_range(field: &str, value: usize, most: usize) -> Result<()> {
    if (1..=most).contains(&value) {
        return Ok(());
    }
    Err(CheckpointError::config(field, value, format!("it must be from 1 to {most}")))
}

fn positive(field: &str, value: f64, most: f64) -> Result<()> {
    if value > 0.0 && value <= most {
        return Ok(());
    }
    Err(CheckpointError::config(field, value, format!("it must be above 0 and at most {most}")))
}

fn at_least(field: &str, value: f64, least: f64, most: f64) -> Result<()> {
    if (least..=most).contains(&value) {
        return Ok(());
    }
    Err(CheckpointError::config(field, value, format!("it must be from {least} to {most}")))
}
