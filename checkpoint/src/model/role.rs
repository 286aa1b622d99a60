//! The roles tensors play in a transformer, and what each format calls them.
//!
//! The rule: a role's shape follows from the configuration alone.

use crate::config::ModelConfig;

/// What a tensor is for. Numbers are layers, counted from 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Role {
    /// Token embedding, `vocab_size x hidden`.
    Embedding,
    /// Weight of the last normalisation, `hidden`.
    FinalNorm,
    /// Output head, `vocab_size x hidden`.
    Head,
    /// Weight of the normalisation before attention, `hidden`.
    AttnNorm(usize),
    /// Query projection, `heads * head_dim x hidden`.
    Q(usize),
    /// Key projection, `kv_heads * head_dim x hidden`.
    K(usize),
    /// Value projection, `kv_heads * head_dim x hidden`.
    V(usize),
    /// Attention output projection, `hidden x heads * head_dim`.
    O(usize),
    /// Bias of the query projection.
    QBias(usize),
    /// Bias of the key projection.
    KBias(usize),
    /// Bias of the value projection.
    VBias(usize),
    /// Weight of the query normalisation, `head_dim`.
    QNorm(usize),
    /// Weight of the key normalisation, `head_dim`.
    KNorm(usize),
    /// Weight of the normalisation before the feed-forward network, `hidden`.
    FfnNorm(usize),
    /// Gate projection, `intermediate x hidden`.
    Gate(usize),
    /// Up projection, `intermediate x hidden`.
    Up(usize),
    /// Down projection, `hidden x intermediate`.
    Down(usize),
}

impl Role {
    /// Every role a model of this configuration has, in a fixed order. The head is listed also where it is tied.
    pub fn all(config: &ModelConfig) -> impl Iterator<Item = Self> + use<> {
        let (bias, norm) = (config.qkv_bias, config.qk_norm);
        let layer = move |l| {
            let plain = [
                Self::AttnNorm(l),
                Self::Q(l),
                Self::K(l),
                Self::V(l),
                Self::O(l),
                Self::FfnNorm(l),
                Self::Gate(l),
                Self::Up(l),
                Self::Down(l),
            ];
            let biases = [Self::QBias(l), Self::KBias(l), Self::VBias(l)].into_iter().filter(move |_| bias);
            let norms = [Self::QNorm(l), Self::KNorm(l)].into_iter().filter(move |_| norm);
            plain.into_iter().chain(biases).chain(norms)
        };
        [Self::Embedding, Self::FinalNorm, Self::Head].into_iter().chain((0..config.layers).flat_map(layer))
    }

    /// Rows and columns; a vector has one row.
    #[must_use]
    pub fn shape(self, config: &ModelConfig) -> (usize, usize) {
        let c = config;
        match self {
            Self::Embedding | Self::Head => (c.vocab_size, c.hidden),
            Self::FinalNorm | Self::AttnNorm(_) | Self::FfnNorm(_) => (1, c.hidden),
            Self::Q(_) => (c.q_dim(), c.hidden),
            Self::K(_) | Self::V(_) => (c.kv_dim(), c.hidden),
            Self::O(_) => (c.hidden, c.q_dim()),
            Self::QBias(_) => (1, c.q_dim()),
            Self::KBias(_) | Self::VBias(_) => (1, c.kv_dim()),
            Self::QNorm(_) | Self::KNorm(_) => (1, c.head_dim),
            Self::Gate(_) | Self::Up(_) => (c.intermediate, c.hidden),
            Self::Down(_) => (c.hidden, c.intermediate),
        }
    }

    /// The tensor's name in a GGUF file.
    #[must_use]
    pub fn gguf_name(self) -> String {
        match self {
            Self::Embedding => "token_embd.weight".to_owned(),
            Self::FinalNorm => "output_norm.weight".to_owned(),
            Self::Head => "output.weight".to_owned(),
            Self::AttnNorm(l) => format!("blk.{l}.attn_norm.weight"),
            Self::Q(l) => format!("blk.{l}.attn_q.weight"),
            Self::K(l) => format!("blk.{l}.attn_k.weight"),
            Self::V(l) => format!("blk.{l}.attn_v.weight"),
            Self::O(l) => format!("blk.{l}.attn_output.weight"),
            Self::QBias(l) => format!("blk.{l}.attn_q.bias"),
            Self::KBias(l) => format!("blk.{l}.attn_k.bias"),
            Self::VBias(l) => format!("blk.{l}.attn_v.bias"),
            Self::QNorm(l) => format!("blk.{l}.attn_q_norm.weight"),
            Self::KNorm(l) => format!("blk.{l}.attn_k_norm.weight"),
            Self::FfnNorm(l) => format!("blk.{l}.ffn_norm.weight"),
            Self::Gate(l) => format!("blk.{l}.ffn_gate.weight"),
            Self::Up(l) => format!("blk.{l}.ffn_up.weight"),
            Self::Down(l) => format!("blk.{l}.ffn_down.weight"),
        }
    }

    /// The tensor's name in a Hugging Face style directory.
    #[must_use]
    pub fn safetensors_name(self) -> String {
        match self {
            Self::Embedding => "model.embed_tokens.weight".to_owned(),
            Self::FinalNorm => "model.norm.weight".to_owned(),
            Self::Head => "lm_head.weight".to_owned(),
            Self::AttnNorm(l) => format!("model.layers.{l}.input_layernorm.weight"),
            Self::Q(l) => format!("model.layers.{l}.self_attn.q_proj.weight"),
            Self::K(l) => format!("model.layers.{l}.self_attn.k_proj.weight"),
            Self::V(l) => format!("model.layers.{l}.self_attn.v_proj.weight"),
            Self::O(l) => format!("model.layers.{l}.self_attn.o_proj.weight"),
            Self::QBias(l) => format!("model.layers.{l}.self_attn.q_proj.bias"),
            Self::KBias(l) => format!("model.layers.{l}.self_attn.k_proj.bias"),
            Self::VBias(l) => format!("model.layers.{l}.self_attn.v_proj.bias"),
            Self::QNorm(l) => format!("model.layers.{l}.self_attn.q_norm.weight"),
            Self::KNorm(l) => format!("model.layers.{l}.self_attn.k_norm.weight"),
            Self::FfnNorm(l) => format!("model.layers.{l}.post_attention_layernorm.weight"),
            Self::Gate(l) => format!("model.layers.{l}.mlp.gate_proj.weight"),
            Self::Up(l) => format!("model.layers.{l}.mlp.up_proj.weight"),
            Self::Down(l) => format!("model.layers.{l}.mlp.down_proj.weight"),
        }
    }
}
