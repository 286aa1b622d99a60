//! A model family as data. The rule: the transformer branches on these fields only, never on a family's name, so
//! that a new family of this kind is a new set of values.

use pons_checkpoint::{ModelConfig, RopeLayout, RopeScaling};
use pons_kernels::Rope;

/// Sizes and switches of a decoder with gated feed-forward layers and rotary positions (Llama, Qwen2, Qwen3).
#[derive(Clone, Debug, PartialEq)]
pub struct Shape {
    /// Rows of the embedding and of the head.
    pub vocab_size: usize,
    /// Width of the residual stream.
    pub hidden: usize,
    /// Blocks.
    pub layers: usize,
    /// Query heads.
    pub heads: usize,
    /// Key and value heads.
    pub kv_heads: usize,
    /// Elements of a head.
    pub head_dim: usize,
    /// Positions.
    pub context: usize,
    /// Epsilon of every norm.
    pub norm_eps: f32,
    /// Query, key and value projections add a bias (Qwen2).
    pub qkv_bias: bool,
    /// Queries and keys are normalised head by head before rotation (Qwen3).
    pub qk_norm: bool,
    /// The head is the embedding.
    pub tied_embeddings: bool,
}

impl Shape {
    /// The shape that a checkpoint's configuration describes.
    pub fn new(config: &ModelConfig) -> Self {
        Self {
            vocab_size: config.vocab_size,
            hidden: config.hidden,
            layers: config.layers,
            heads: config.heads,
            kv_heads: config.kv_heads,
            head_dim: config.head_dim,
            context: config.context,
            norm_eps: config.rms_eps,
            qkv_bias: config.qkv_bias,
            qk_norm: config.qk_norm,
            tied_embeddings: config.tied_embeddings,
        }
    }

    /// Factor of the dot products of queries and keys.
    pub fn attention_scale(&self) -> f32 {
        (1.0 / (self.head_dim as f64).sqrt()) as f32
    }
}

/// The rotations of a validated configuration for `positions` positions.
pub fn rope(config: &ModelConfig, positions: usize) -> Rope {
    use pons_kernels::RopeScaling as Kernel;
    let scaling = match &config.rope_scaling {
        RopeScaling::None => Kernel::None,
        RopeScaling::Linear { factor } => Kernel::Linear { factor: *factor },
        RopeScaling::Llama3 { factor, low_freq_factor, high_freq_factor, original_context } => {
            Kernel::Llama3 {
                factor: *factor,
                low_freq_factor: *low_freq_factor,
                high_freq_factor: *high_freq_factor,
                original_max_positions: *original_context,
            }
        }
        RopeScaling::Yarn { factor, original_context, beta_fast, beta_slow, attention_factor } => {
            Kernel::Yarn {
                factor: *factor,
                original_max_positions: *original_context,
                beta_fast: *beta_fast,
                beta_slow: *beta_slow,
                attn_factor: attention_factor.unwrap_or(0.1 * factor.ln() + 1.0),
            }
        }
        RopeScaling::Divisors(_) => Kernel::None,
    };
    let layout = match config.rope_layout {
        RopeLayout::Half => pons_kernels::RopeLayout::Half,
        RopeLayout::Interleaved => pons_kernels::RopeLayout::Interleaved,
    };
    let rope = Rope::new(config.head_dim, config.head_dim, positions, config.rope_theta, scaling, layout);
    match &config.rope_scaling {
        RopeScaling::Divisors(divisors) => rope.divided(divisors),
        _ => rope,
    }
}
