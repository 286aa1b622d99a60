//! What stored weights mean: reference dequantisation, and a row's parts, which packed kernels use.
//!
//! The rule: both views describe exactly the same weights. The formats are ggml's (`ggml-quants.c`).

use half::{bf16, f16};

use crate::tensor::Dtype;

/// Dequantises `bytes` into `out`. Works on any whole number of blocks: one row or many.
///
/// # Panics
/// When `bytes` does not hold exactly `out.len()` weights: a caller's mistake, since [`crate::Tensor`] checks its own.
pub fn to_f32(dtype: Dtype, bytes: &[u8], out: &mut [f32]) {
    check_len(dtype, bytes, out.len());
    let blocks = bytes.chunks_exact(dtype.block_bytes()).zip(out.chunks_exact_mut(dtype.block_len()));
    match dtype {
        Dtype::F32 => blocks.for_each(|(b, o)| o[0] = f32::from_le_bytes([b[0], b[1], b[2], b[3]])),
        Dtype::F16 => blocks.for_each(|(b, o)| o[0] = half_at(b, 0)),
        Dtype::Bf16 => blocks.for_each(|(b, o)| o[0] = bf16::from_le_bytes([b[0], b[1]]).to_f32()),
        Dtype::Q4_0 => blocks.for_each(|(b, o)| signed_nibbles(half_at(b, 0), 8, &b[2..], &[0; 4], o)),
        Dtype::Q5_0 => blocks.for_each(|(b, o)| signed_nibbles(half_at(b, 0), 16, &b[6..], &b[2..6], o)),
        Dtype::Q4_1 => blocks.for_each(|(b, o)| offset_nibbles(b, &b[4..], &[0; 4], o)),
        Dtype::Q5_1 => blocks.for_each(|(b, o)| offset_nibbles(b, &b[8..], &b[4..8], o)),
        Dtype::Q8_0 => blocks.for_each(|(b, o)| {
            let d = half_at(b, 0);
            o.iter_mut().zip(&b[2..]).for_each(|(w, &q)| *w = f32::from(q.cast_signed()) * d);
        }),
        Dtype::Q4K => blocks.for_each(|(b, o)| k_block(b, &b[16..144], &[], o)),
        Dtype::Q5K => blocks.for_each(|(b, o)| k_block(b, &b[48..176], &b[16..48], o)),
        Dtype::Q6K => blocks.for_each(|(b, o)| six_bit_block(b, o)),
    }
}

/// Parts of one row of a block format, as the file has them: the integers, one a byte, and the numbers that make
/// weights of them. Half-precision numbers are given by their bits.
#[derive(Debug)]
pub struct Parts<'a> {
    /// The integers, unsigned: a format's own zero is 8 (Q4_0), 16 (Q5_0), 128 (Q8_0) or 32 (Q6_K).
    pub q: &'a mut [u8],
    /// `d`, one a block.
    pub d: &'a mut [u16],
    /// `m` or `dmin`, one a block of the formats that have it.
    pub m: &'a mut [u16],
    /// Inner scales of the K formats: six bits for 32 weights, or a signed byte for 16 (Q6_K).
    pub s: &'a mut [u8],
    /// Inner minima of Q4_K and Q5_K: six bits for 32 weights.
    pub t: &'a mut [u8],
}

/// Splits one row of a block format into its parts.
///
/// # Panics
/// When the type is a float type or a slice has the wrong length: a caller's mistake.
pub fn split_row(dtype: Dtype, bytes: &[u8], parts: Parts<'_>) {
    let Parts { q, d, m, s, t } = parts;
    check_len(dtype, bytes, q.len());
    let blocks = bytes.chunks_exact(dtype.block_bytes()).zip(q.chunks_exact_mut(dtype.block_len()));
    for (index, (b, q)) in blocks.enumerate() {
        let bits = |at: usize| u16::from_le_bytes([b[at], b[at + 1]]);
        match dtype {
            Dtype::F32 | Dtype::F16 | Dtype::Bf16 => panic!("{} has no parts", dtype.name()),
            Dtype::Q4_0 => split_nibbles(&b[2..], &[0; 4], q),
            Dtype::Q5_0 => split_nibbles(&b[6..], &b[2..6], q),
            Dtype::Q4_1 => split_nibbles(&b[4..], &[0; 4], q),
            Dtype::Q5_1 => split_nibbles(&b[8..], &b[4..8], q),
            // Adding 128 to a two's-complement byte is the same as flipping its sign bit.
            Dtype::Q8_0 => q.iter_mut().zip(&b[2..]).for_each(|(q, &b)| *q = b ^ 0x80),
            Dtype::Q4K => q.iter_mut().enumerate().for_each(|(i, q)| *q = k_quant(&b[16..144], &[], i)),
            Dtype::Q5K => {
                q.iter_mut().enumerate().for_each(|(i, q)| *q = k_quant(&b[48..176], &b[16..48], i));
            }
            Dtype::Q6K => q.iter_mut().enumerate().for_each(|(i, q)| *q = six_bit_quant(b, i)),
        }
        d[index] = bits(if dtype == Dtype::Q6K { 208 } else { 0 });
        match dtype {
            Dtype::Q4_1 | Dtype::Q5_1 => m[index] = bits(2),
            Dtype::Q4K | Dtype::Q5K => {
                m[index] = bits(2);
                for (j, (s, t)) in s[index * 8..].iter_mut().zip(&mut t[index * 8..]).take(8).enumerate() {
                    (*s, *t) = k_scale_min(&b[4..16], j);
                }
            }
            Dtype::Q6K => s[index * 16..][..16].copy_from_slice(&b[192..208]),
            _ => {}
        }
    }
}

fn check_len(dtype: Dtype, bytes: &[u8], weights: usize) {
    assert_eq!(
        dtype.row_bytes(weights),
        Some(bytes.len()),
        "{} bytes do not hold {weights} weights of type {}",
        bytes.len(),
        dtype.name()
    );
}

fn half_at(bytes: &[u8], at: usize) -> f32 {
    f16::from_le_bytes([bytes[at], bytes[at + 1]]).to_f32()
}

/// Bit `i` of a 32-bit mask of fifth bits, moved to where a fifth bit belongs.
fn fifth_bit(high: &[u8], i: usize) -> u8 {
    ((high[i / 8] >> (i % 8)) & 1) << 4
}

/// Unpacks 32 weights of 4 bits and a mask of fifth bits: byte `j` holds weight `j` below and weight `j + 16` above.
fn split_nibbles(low: &[u8], high: &[u8], q: &mut [u8]) {
    for j in 0..16 {
        q[j] = (low[j] & 0x0f) | fifth_bit(high, j);
        q[j + 16] = (low[j] >> 4) | fifth_bit(high, j + 16);
    }
}

/// Q4_0 and Q5_0: weight = d * (q - zero).
fn signed_nibbles(d: f32, zero: i8, low: &[u8], high: &[u8], out: &mut [f32]) {
    let mut q = [0; 32];
    split_nibbles(low, high, &mut q);
    out.iter_mut().zip(q).for_each(|(w, q)| *w = f32::from(q.cast_signed() - zero) * d);
}

/// Q4_1 and Q5_1: weight = d * q + m.
fn offset_nibbles(block: &[u8], low: &[u8], high: &[u8], out: &mut [f32]) {
    let (d, m) = (half_at(block, 0), half_at(block, 2));
    let mut q = [0; 32];
    split_nibbles(low, high, &mut q);
    out.iter_mut().zip(q).for_each(|(w, q)| *w = f32::from(q) * d + m);
}

/// The 6-bit scale and minimum of sub-block `j` (0..8), packed into 12 bytes: the first four pairs keep their six bits
/// in bytes 0..8; the last four keep four bits in bytes 8..12 and borrow two top bits from bytes 0..8.
fn k_scale_min(packed: &[u8], j: usize) -> (u8, u8) {
    if j < 4 {
        (packed[j] & 63, packed[j + 4] & 63)
    } else {
        let low = packed[j + 4];
        ((low & 0x0f) | ((packed[j - 4] >> 6) << 4), (low >> 4) | ((packed[j] >> 6) << 4))
    }
}

/// One of the 256 integers of a Q4_K or Q5_K block; `high` is empty for Q4_K.
fn k_quant(low: &[u8], high: &[u8], i: usize) -> u8 {
    let (pair, lane) = (i / 64, i % 32);
    let upper = (i / 32) % 2;
    let nibble = (low[pair * 32 + lane] >> (4 * upper)) & 0x0f;
    let fifth = high.get(lane).map_or(0, |bits| ((bits >> (i / 32)) & 1) << 4);
    nibble | fifth
}

/// Q4_K and Q5_K: weight = (d * scale) * q - dmin * min, eight sub-blocks of 32.
fn k_block(block: &[u8], low: &[u8], high: &[u8], out: &mut [f32]) {
    let (d, dmin) = (half_at(block, 0), half_at(block, 2));
    for (j, sub) in out.chunks_exact_mut(32).enumerate() {
        let (scale, min) = k_scale_min(&block[4..16], j);
        let (scale, min) = (d * f32::from(scale), dmin * f32::from(min));
        for (lane, w) in sub.iter_mut().enumerate() {
            *w = scale * f32::from(k_quant(low, high, j * 32 + lane)) - min;
        }
    }
}

/// One of the 256 integers (0..64) of a Q6_K block: two halves of 128; in a half, 64 bytes of low nibbles carry two
/// runs of 64 weights, and 32 bytes of high bits carry two bits for each of four runs of 32.
fn six_bit_quant(block: &[u8], i: usize) -> u8 {
    let (half, at) = (i / 128, i % 128);
    let low = block[half * 64 + at % 64] >> (4 * (at / 64));
    let high = block[128 + half * 32 + at % 32] >> (2 * (at / 32));
    (low & 0x0f) | ((high & 3) << 4)
}

/// Q6_K: weight = d * scale * (q - 32), sixteen sub-blocks of 16 with signed scales.
fn six_bit_block(block: &[u8], out: &mut [f32]) {
    let d = half_at(block, 208);
    for (i, w) in out.iter_mut().enumerate() {
        let scale = f32::from(block[192 + i / 16].cast_signed());
        *w = d * scale * f32::from(six_bit_quant(block, i).cast_signed() - 32);
    }
}

#[cfg(test)]
mod tests;
