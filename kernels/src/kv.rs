//! The paged store of keys and values for one device, and where in it a sequence lies. The rule: a position is only
//! ever a block and a slot; which blocks belong to whom is the caller's business.
//!
//! Values are bfloat16. A block holds [`BLOCK`] tokens of all heads of one layer. Keys are transposed, `[head]
//! [dim][token]`, so that one vector holds one dimension of all sixteen keys and a query's sixteen scores come out
//! side by side; values are `[head][token][dim]`, with `dim` padded to whole vectors.
//!
//! Source of the paging: vLLM, arXiv 2309.06180.

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

/// Keys and values of all layers.
pub struct KvArena {
    layers: usize,
    kv_heads: usize,
    head_dim: usize,
    blocks: usize,
    keys: Aligned<u16>,
    values: Aligned<u16>,
}

impl std::fmt::Debug for KvArena {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let KvArena { layers, kv_heads, head_dim, blocks, .. } = self;
        write!(f, "KvArena({blocks} blocks, {layers} layers, {kv_heads} heads of {head_dim})")
    }
}

impl KvArena {
    /// An arena of `blocks` blocks. Its memory is zero and taken from the system only as it is written.
    pub fn new(layers: usize, kv_heads: usize, head_dim: usize, blocks: usize) -> Result<KvArena, KvError> {
        let bounded = |field, value, most| {
            if (1..=most).contains(&value) { Ok(()) } else { Err(KvError::Dimension { field, value, most }) }
        };
        bounded("layers", layers, 1 << 16)?;
        bounded("kv_heads", kv_heads, 1 << 16)?;
        bounded("head_dim", head_dim, MAX_HEAD_DIM)?;
        bounded("blocks", blocks, u32::MAX as usize)?;
        let key_len = layers * kv_heads * head_dim * BLOCK;
        let value_len = layers * kv_heads * padded(head_dim) * BLOCK;
        let make = |len: usize| len.checked_mul(blocks).and_then(Aligned::zeroed);
        match (make(key_len), make(value_len)) {
            (Some(keys), Some(values)) => Ok(KvArena { layers, kv_heads, head_dim, blocks, keys, values }),
            _ => {
                let bytes_per_block = KvArena::bytes_per_block(layers, kv_heads, head_dim);
                Err(KvError::TooLarge { blocks, bytes_per_block })
            }
        }
    }

    /// What one block takes over all layers, in bytes; for sizing an arena before it is made.
    pub fn bytes_per_block(layers: usize, kv_heads: usize, head_dim: usize) -> usize {
        let token = head_dim.saturating_add(head_dim.next_multiple_of(16)).saturating_mul(2);
        token.saturating_mul(BLOCK).saturating_mul(kv_heads).saturating_mul(layers)
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

    /// The memory the arena can come to take, in bytes.
    pub fn bytes(&self) -> usize {
        (self.keys.len() + self.values.len()) * 2
    }

    /// Writes the keys and values of `rows.len()` tokens, `kv_heads * head_dim` each, rounded to bfloat16.
    ///
    /// # Panics
    /// When a length does not fit, or a layer, block or slot is out of range.
    pub fn write(&mut self, layer: usize, rows: &[KvRow], k: &[f32], v: &[f32]) {
        let width = self.kv_heads * self.head_dim;
        assert!(layer < self.layers, "layer is {layer}; the arena has {}", self.layers);
        assert!(
            k.len() == rows.len() * width && v.len() == k.len(),
            "{} rows of {width} need as many keys and values; {} and {} were given",
            rows.len(),
            k.len(),
            v.len()
        );
        let dim = self.head_dim;
        let (key_block, value_block) = (width * BLOCK, self.kv_heads * padded(dim) * BLOCK);
        for (row, (k, v)) in rows.iter().zip(k.chunks_exact(width).zip(v.chunks_exact(width))) {
            let (block, slot) = (row.block as usize, row.slot as usize);
            assert!(block < self.blocks, "block is {block}; the arena has {}", self.blocks);
            assert!(slot < BLOCK, "slot is {slot}; a block has {BLOCK}");
            let place = layer * self.blocks + block;
            let keys = &mut self.keys[place * key_block..][..key_block];
            for (element, &value) in keys.chunks_exact_mut(BLOCK).zip(k) {
                element[slot] = bf16::from_f32(value).to_bits();
            }
            let values = &mut self.values[place * value_block..][..value_block];
            let heads = values.chunks_exact_mut(padded(dim) * BLOCK).zip(v.chunks_exact(dim));
            for (head, v) in heads {
                for (element, &value) in head[slot * padded(dim)..].iter_mut().zip(v) {
                    *element = bf16::from_f32(value).to_bits();
                }
            }
        }
    }

    /// The keys of one head in a block, `[dim][token]`.
    pub(crate) fn keys(&self, layer: usize, block: u32, head: usize) -> &[u16] {
        let len = self.head_dim * BLOCK;
        &self.keys[((layer * self.blocks + block as usize) * self.kv_heads + head) * len..][..len]
    }

    /// The values of one head in a block, `[token][padded dim]`.
    pub(crate) fn values(&self, layer: usize, block: u32, head: usize) -> &[u16] {
        let len = padded(self.head_dim) * BLOCK;
        &self.values[((layer * self.blocks + block as usize) * self.kv_heads + head) * len..][..len]
    }
}

/// A head's length in whole vectors.
pub(crate) fn padded(head_dim: usize) -> usize {
    head_dim.next_multiple_of(16)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read_back_rounded_to_bfloat16() {
        let mut arena = KvArena::new(2, 2, 5, 3).unwrap();
        let k: Vec<f32> = (0..20).map(|i| i as f32 + 0.5).collect();
        let v: Vec<f32> = (0..20).map(|i| -(i as f32)).collect();
        arena.write(1, &[KvRow { block: 2, slot: 15 }, KvRow { block: 0, slot: 3 }], &k, &v);
        for (row, (block, slot)) in [(2, 15), (0, 3)].into_iter().enumerate() {
            for head in 0..2 {
                for dim in 0..5 {
                    let at = row * 10 + head * 5 + dim;
                    let key = arena.keys(1, block, head)[dim * BLOCK + slot];
                    let value = arena.values(1, block, head)[slot * 16 + dim];
                    assert_eq!(bf16::from_bits(key).to_f32(), bf16::from_f32(k[at]).to_f32());
                    assert_eq!(bf16::from_bits(value).to_f32(), bf16::from_f32(v[at]).to_f32());
                }
            }
        }
        assert!(arena.keys(0, 2, 0).iter().all(|&bits| bits == 0), "another layer was written");
    }

    #[test]
    fn sizes_that_cannot_be_are_refused_by_name() {
        let error = KvArena::new(0, 1, 64, 1).unwrap_err();
        assert!(error.to_string().starts_with("layers is 0"), "{error}");
        let error = KvArena::new(1 << 16, 1 << 16, 512, u32::MAX as usize).unwrap_err();
        assert!(matches!(error, KvError::TooLarge { .. }), "{error}");
        assert!(KvArena::new(1, 1, 513, 1).is_err());
    }

    #[test]
    fn bytes_are_blocks_times_bytes_per_block() {
        let arena = KvArena::new(3, 2, 40, 7).unwrap();
        assert_eq!(arena.bytes(), 7 * KvArena::bytes_per_block(3, 2, 40));
    }

    #[test]
    #[should_panic(expected = "slot is 16")]
    fn a_slot_past_the_block_is_refused() {
        let mut arena = KvArena::new(1, 1, 2, 1).unwrap();
        arena.write(0, &[KvRow { block: 0, slot: 16 }], &[0.0; 2], &[0.0; 2]);
    }
}
