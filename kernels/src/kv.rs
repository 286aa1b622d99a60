//! The paged store of keys and values for one device, and where in it a sequence lies. The rule: a position is only
//! ever a block and a slot; which blocks belong to whom is the caller's business.
//!
//! A block holds [`BLOCK`] tokens of all heads of one layer, as bfloat16 or as eight-bit integers with a scale for
//! each token and head. A dot product takes two elements at a time, so that two lie side by side wherever they are
//! summed over: keys are `[head][pair of dims][token][2]`, values `[head][pair of tokens][dim][2]`. Dimensions that
//! a head lacks, to be whole pairs or vectors, are zero and stay so.
//!
//! Source of the paging: vLLM, arXiv 2309.06180.

mod write;

pub(crate) use write::{Beside, Rows, Turn};

use half::bf16;

use crate::layout::aligned::Aligned;

/// Tokens in one block.
pub const BLOCK: usize = 16;

/// The largest head that attention has room for.
pub const MAX_HEAD_DIM: usize = 512;

/// Why an arena cannot be made.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum KvError {
    /// A dimension that must be within bounds is not.
    #[error("{field} is {value}; it must be between 1 and {most}")]
    Dimension {
        /// Which one.
        field: &'static str,
        /// What was asked for.
        value: usize,
        /// The most there can be.
        most: usize,
    },
    /// All together is more than memory can address.
    #[error("{blocks} blocks of {bytes_per_block} bytes exceed the address space; ask for fewer blocks")]
    TooLarge {
        /// What was asked for.
        blocks: usize,
        /// What each takes over all layers.
        bytes_per_block: usize,
    },
}

/// Where one token's keys and values lie.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KvRow {
    /// The block.
    pub block: u32,
    /// The token's place in it, below [`BLOCK`].
    pub slot: u32,
}

/// A run of query rows of one sequence.
#[derive(Debug, Clone, Copy)]
pub struct AttentionSeq<'a> {
    /// Its first row in the batch.
    pub first_row: usize,
    /// How many rows.
    pub rows: usize,
    /// The position of the first row in its sequence.
    pub start: u32,
    /// The blocks of the sequence from position 0 on; at least up to the last row's position.
    pub table: &'a [u32],
}

/// How keys and values are stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum KvFormat {
    /// bfloat16.
    #[default]
    Bf16,
    /// Eight-bit integers, with a scale for each token and head: about half the memory, and less exact.
    Int8,
}

/// The elements of an arena.
enum Store {
    Bf16 { keys: Aligned<u16>, values: Aligned<u16> },
    Int8 { keys: Aligned<u8>, values: Aligned<u8>, key_scales: Aligned<f32>, value_scales: Aligned<f32> },
}

/// One head's keys and values in one block.
#[derive(Clone, Copy)]
pub(crate) enum HeadBlock<'a> {
    Bf16 { keys: &'a [u16], values: &'a [u16] },
    Int8 { keys: &'a [u8], values: &'a [u8], key_scales: &'a [f32], value_scales: &'a [f32] },
}

/// Keys and values of all layers.
pub struct KvArena {
    layers: usize,
    kv_heads: usize,
    head_dim: usize,
    blocks: usize,
    store: Store,
}

impl std::fmt::Debug for KvArena {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let KvArena { layers, kv_heads, head_dim, blocks, .. } = self;
        write!(
            f,
            "KvArena({blocks} blocks, {layers} layers, {kv_heads} heads of {head_dim}, {:?})",
            self.format()
        )
    }
}

impl KvArena {
    /// An arena of `blocks` blocks. Its memory is zero and taken from the system only as it is written.
    pub fn new(
        layers: usize,
        kv_heads: usize,
        head_dim: usize,
        blocks: usize,
        format: KvFormat,
    ) -> Result<KvArena, KvError> {
        let bounded = |field, value, most| {
            if (1..=most).contains(&value) { Ok(()) } else { Err(KvError::Dimension { field, value, most }) }
        };
        bounded("layers", layers, 1 << 16)?;
        bounded("kv_heads", kv_heads, 1 << 16)?;
        bounded("head_dim", head_dim, MAX_HEAD_DIM)?;
        bounded("blocks", blocks, u32::MAX as usize)?;
        let heads = (layers * kv_heads).checked_mul(blocks);
        let len = |each: usize| heads.and_then(|heads| heads.checked_mul(each));
        match Store::zeroed(len(key_len(head_dim)), len(value_len(head_dim)), len(BLOCK), format) {
            Some(store) => Ok(KvArena { layers, kv_heads, head_dim, blocks, store }),
            None => {
                let bytes_per_block = KvArena::bytes_per_block(layers, kv_heads, head_dim, format);
                Err(KvError::TooLarge { blocks, bytes_per_block })
            }
        }
    }

    /// What one block takes over all layers, in bytes; for sizing an arena before it is made.
    pub fn bytes_per_block(layers: usize, kv_heads: usize, head_dim: usize, format: KvFormat) -> usize {
        let elements = head_dim.saturating_add(1).saturating_mul(2 * BLOCK);
        let elements =
            if head_dim <= MAX_HEAD_DIM { key_len(head_dim) + value_len(head_dim) } else { elements };
        let bytes = match format {
            KvFormat::Bf16 => elements.saturating_mul(2),
            KvFormat::Int8 => elements.saturating_add(2 * BLOCK * size_of::<f32>()),
        };
        bytes.saturating_mul(kv_heads).saturating_mul(layers)
    }

    /// Blocks in the arena.
    pub fn blocks(&self) -> usize {
        self.blocks
    }

    /// Layers in the arena.
    pub fn layers(&self) -> usize {
        self.layers
    }

    /// Heads of keys and values.
    pub fn kv_heads(&self) -> usize {
        self.kv_heads
    }

    /// Elements of one head.
    pub fn head_dim(&self) -> usize {
        self.head_dim
    }

    /// How keys and values are stored.
    pub fn format(&self) -> KvFormat {
        match self.store {
            Store::Bf16 { .. } => KvFormat::Bf16,
            Store::Int8 { .. } => KvFormat::Int8,
        }
    }

    /// The memory the arena can come to take, in bytes.
    pub fn bytes(&self) -> usize {
        match &self.store {
            Store::Bf16 { keys, values } => (keys.len() + values.len()) * 2,
            Store::Int8 { keys, values, key_scales, value_scales } => {
                keys.len() + values.len() + (key_scales.len() + value_scales.len()) * size_of::<f32>()
            }
        }
    }

    /// The keys and values of one head in a block.
    pub(crate) fn head_block(&self, layer: usize, block: u32, head: usize) -> HeadBlock<'_> {
        let place = (layer * self.blocks + block as usize) * self.kv_heads + head;
        let (key_len, value_len) = (key_len(self.head_dim), value_len(self.head_dim));
        match &self.store {
            Store::Bf16 { keys, values } => HeadBlock::Bf16 {
                keys: &keys[place * key_len..][..key_len],
                values: &values[place * value_len..][..value_len],
            },
            Store::Int8 { keys, values, key_scales, value_scales } => HeadBlock::Int8 {
                keys: &keys[place * key_len..][..key_len],
                values: &values[place * value_len..][..value_len],
                key_scales: &key_scales[place * BLOCK..][..BLOCK],
                value_scales: &value_scales[place * BLOCK..][..BLOCK],
            },
        }
    }
}

impl Store {
    /// A store of these many keys, values, and scales of each; `None` where there cannot be as many.
    fn zeroed(
        keys: Option<usize>,
        values: Option<usize>,
        scales: Option<usize>,
        format: KvFormat,
    ) -> Option<Store> {
        Some(match format {
            KvFormat::Bf16 => {
                Store::Bf16 { keys: Aligned::zeroed(keys?)?, values: Aligned::zeroed(values?)? }
            }
            KvFormat::Int8 => Store::Int8 {
                keys: Aligned::zeroed(keys?)?,
                values: Aligned::zeroed(values?)?,
                key_scales: Aligned::zeroed(scales?)?,
                value_scales: Aligned::zeroed(scales?)?,
            },
        })
    }
}

impl HeadBlock<'_> {
    /// One element of one token's key.
    pub(crate) fn key(&self, slot: usize, dim: usize) -> f32 {
        let at = key_at(slot, dim);
        match *self {
            HeadBlock::Bf16 { keys, .. } => bf16::from_bits(keys[at]).to_f32(),
            HeadBlock::Int8 { keys, key_scales, .. } => f32::from(keys[at].cast_signed()) * key_scales[slot],
        }
    }

    /// One element of one token's value.
    pub(crate) fn value(&self, slot: usize, dim: usize, head_dim: usize) -> f32 {
        let at = value_at(slot, dim, head_dim);
        match *self {
            HeadBlock::Bf16 { values, .. } => bf16::from_bits(values[at]).to_f32(),
            HeadBlock::Int8 { values, value_scales, .. } => {
                f32::from(values[at].cast_signed()) * value_scales[slot]
            }
        }
    }
}

/// A head's length in whole vectors.
pub(crate) fn padded(head_dim: usize) -> usize {
    head_dim.next_multiple_of(16)
}

/// Key elements of one head in a block.
pub(crate) fn key_len(head_dim: usize) -> usize {
    head_dim.next_multiple_of(2) * BLOCK
}

/// Value elements of one head in a block.
pub(crate) fn value_len(head_dim: usize) -> usize {
    padded(head_dim) * BLOCK
}

/// Where one element of a key is among a head's in a block.
pub(crate) fn key_at(slot: usize, dim: usize) -> usize {
    dim / 2 * (2 * BLOCK) + slot * 2 + dim % 2
}

/// Where one element of a value is among a head's in a block.
pub(crate) fn value_at(slot: usize, dim: usize, head_dim: usize) -> usize {
    slot / 2 * (2 * padded(head_dim)) + dim * 2 + slot % 2
}

#[cfg(test)]
mod tests;
