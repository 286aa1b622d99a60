use half::f16;
use proptest::prelude::*;

use super::*;

/// Weight `i` of a row, each written straight from the format's definition and one element at a time, so that it shares
/// no index arithmetic with the code under test.
fn weight(dtype: Dtype, row: &[u8], i: usize) -> f64 {
    let block = &row[i / dtype.block_len() * dtype.block_bytes()..][..dtype.block_bytes()];
    let i = i % dtype.block_len();
    let h = |at: usize| {
        f64::from(f16::from_bits(u16::from(block[at]) | (u16::from(block[at + 1]) << 8)).to_f32())
    };
    let nibble = |at: usize| {
        if i < 16 { block[at + i] % 16 } else { block[at + i - 16] / 16 }
    };
    let fifth = |at: usize| {
        let mask = u32::from_le_bytes([block[at], block[at + 1], block[at + 2], block[at + 3]]);
        if mask & (1 << i) == 0 { 0.0 } else { 16.0 }
    };
    match dtype {
        Dtype::F32 => f64::from(f32::from_le_bytes([block[0], block[1], block[2], block[3]])),
        Dtype::F16 => h(0),
        Dtype::Bf16 => f64::from(f32::from_bits((u32::from(block[1]) << 24) | (u32::from(block[0]) << 16))),
        Dtype::Q4_0 => h(0) * (f64::from(nibble(2)) - 8.0),
        Dtype::Q4_1 => h(0) * f64::from(nibble(4)) + h(2),
        Dtype::Q5_0 => h(0) * (f64::from(nibble(6)) + fifth(2) - 16.0),
        Dtype::Q5_1 => h(0) * (f64::from(nibble(8)) + fifth(4)) + h(2),
        Dtype::Q8_0 => h(0) * f64::from(block[2 + i] as i8),
        Dtype::Q4K => {
            let (scale, min) = six_bits(&block[4..16], i / 32);
            let byte = block[16 + 32 * (i / 64) + i % 32];
            let q = if i % 64 < 32 { byte & 15 } else { byte >> 4 };
            h(0) * scale * f64::from(q) - h(2) * min
        }
        Dtype::Q5K => {
            let (scale, min) = six_bits(&block[4..16], i / 32);
            let byte = block[48 + 32 * (i / 64) + i % 32];
            let low = if i % 64 < 32 { byte & 15 } else { byte >> 4 };
            let high = if block[16 + i % 32] & (1 << (i / 32)) == 0 { 0 } else { 16 };
            h(0) * scale * f64::from(low + high) - h(2) * min
        }
        Dtype::Q6K => {
            let (n, l) = (i / 128, i % 32);
            let (ql, qh) = (&block[64 * n..], &block[128 + 32 * n..]);
            let q = match (i % 128) / 32 {
                0 => (ql[l] & 15) | ((qh[l] & 3) << 4),
                1 => (ql[l + 32] & 15) | (((qh[l] >> 2) & 3) << 4),
                2 => (ql[l] >> 4) | (((qh[l] >> 4) & 3) << 4),
                _ => (ql[l + 32] >> 4) | ((qh[l] >> 6) << 4),
            };
            h(208) * f64::from(block[192 + i / 16] as i8) * (f64::from(q) - 32.0)
        }
    }
}

/// The pairs of a K block written out one by one.
fn six_bits(p: &[u8], j: usize) -> (f64, f64) {
    let (scale, min) = match j {
        0..=3 => (p[j] % 64, p[j + 4] % 64),
        4 => (p[8] % 16 + p[0] / 64 * 16, p[8] / 16 + p[4] / 64 * 16),
        5 => (p[9] % 16 + p[1] / 64 * 16, p[9] / 16 + p[5] / 64 * 16),
        6 => (p[10] % 16 + p[2] / 64 * 16, p[10] / 16 + p[6] / 64 * 16),
        _ => (p[11] % 16 + p[3] / 64 * 16, p[11] / 16 + p[7] / 64 * 16),
    };
    (f64::from(scale), f64::from(min))
}

/// A row of two random blocks whose half-precision scales are finite and of ordinary size.
fn random_row(dtype: Dtype) -> impl Strategy<Value = Vec<u8>> {
    let halves: &[usize] = match dtype {
        Dtype::F32 | Dtype::F16 | Dtype::Bf16 => &[],
        Dtype::Q4_0 | Dtype::Q5_0 | Dtype::Q8_0 => &[0],
        Dtype::Q4_1 | Dtype::Q5_1 | Dtype::Q4K | Dtype::Q5K => &[0, 2],
        Dtype::Q6K => &[208],
    };
    let len = 2 * dtype.block_bytes();
    let parts = (prop::collection::vec(any::<u8>(), len), prop::collection::vec(-2.0_f32..2.0, 4));
    parts.prop_map(move |(mut row, scales)| {
        for (block, chunk) in row.chunks_exact_mut(dtype.block_bytes()).enumerate() {
            for (n, &at) in halves.iter().enumerate() {
                chunk[at..at + 2].copy_from_slice(&f16::from_f32(scales[2 * block + n]).to_le_bytes());
            }
        }
        row
    })
}

fn any_row() -> impl Strategy<Value = (Dtype, Vec<u8>)> {
    prop::sample::select(Dtype::ALL.to_vec()).prop_flat_map(|dtype| (Just(dtype), random_row(dtype)))
}

proptest! {
    #[test]
    fn dequantised_weights_follow_the_formats_definition((dtype, row) in any_row()) {
        let mut out = vec![0.0; 2 * dtype.block_len()];
        to_f32(dtype, &row, &mut out);
        for (i, &got) in out.iter().enumerate() {
            let want = weight(dtype, &row, i);
            if want.is_nan() {
                prop_assert!(got.is_nan());
                continue;
            }
            // A weight is at most three roundings of f32 away from the exact value, relative to its largest term.
            let term = want.abs().max(2.0 * 63.0 * f64::from(dtype != Dtype::F32 && dtype != Dtype::Bf16));
            let same = f64::from(got) == want;
            prop_assert!(same || (f64::from(got) - want).abs() <= 4.0 * f64::from(f32::EPSILON) * term,
                "{} weight {i}: {got} is not {want}", dtype.name());
        }
    }

    #[test]
    fn the_parts_of_a_row_give_the_same_weights((dtype, row) in any_row()) {
        // Weights of one d; of one s, or the same; what stands for zero; the first number that is none.
        let (outer, inner, zero, limit) = match dtype {
            Dtype::F32 | Dtype::F16 | Dtype::Bf16 => return Ok(()),
            Dtype::Q4_0 => (32, 32, 8, 16),
            Dtype::Q4_1 => (32, 32, 0, 16),
            Dtype::Q5_0 => (32, 32, 16, 32),
            Dtype::Q5_1 => (32, 32, 0, 32),
            Dtype::Q8_0 => (32, 32, 128, 256),
            Dtype::Q4K => (256, 32, 0, 16),
            Dtype::Q5K => (256, 32, 0, 32),
            Dtype::Q6K => (256, 16, 32, 64),
        };
        let len = 2 * dtype.block_len();
        let mut flat = vec![0.0; len];
        to_f32(dtype, &row, &mut flat);
        let (mut q, mut d, mut m) = (vec![0; len], vec![0; len / outer], vec![0; len / outer]);
        let (mut s, mut t) = (vec![0; len / inner], vec![0; len / inner]);
        split_row(dtype, &row, Parts { q: &mut q, d: &mut d, m: &mut m, s: &mut s, t: &mut t });
        let half = |bits: u16| f64::from(f16::from_bits(bits).to_f32());
        for i in 0..len {
            prop_assert!(i32::from(q[i]) < limit);
            let number = f64::from(i32::from(q[i]) - zero);
            let (d, m) = (half(d[i / outer]), half(m[i / outer]));
            let (s, t) = (s[i / inner], f64::from(t[i / inner]));
            let (want, largest) = match dtype {
                Dtype::Q4K | Dtype::Q5K => (d * f64::from(s) * number - m * t, m * t),
                Dtype::Q6K => (d * f64::from(s.cast_signed()) * number, 0.0),
                _ => (d * number + m, m),
            };
            let tolerance = f64::from(f32::EPSILON) * (2.0 * largest.abs() + want.abs());
            prop_assert!((want - f64::from(flat[i])).abs() <= tolerance, "{} {i}: {want} {}", dtype.name(), flat[i]);
        }
    }
}

fn dequantise(dtype: Dtype, bytes: &[u8]) -> Vec<f32> {
    let mut out = vec![0.0; bytes.len() / dtype.block_bytes() * dtype.block_len()];
    to_f32(dtype, bytes, &mut out);
    out
}

/// 1.0, 0.5 and 2.0 in half precision.
const ONE: [u8; 2] = [0x00, 0x3c];
const HALF: [u8; 2] = [0x00, 0x38];
const TWO: [u8; 2] = [0x00, 0x40];

#[test]
fn floats_decode_by_hand() {
    assert_eq!(dequantise(Dtype::F32, &[0, 0, 0x80, 0x3f, 0, 0, 0, 0xc0]), [1.0, -2.0]);
    assert_eq!(dequantise(Dtype::F16, &[0x00, 0x3c, 0x00, 0xc0, 0x01, 0x00]), [1.0, -2.0, 5.960_464_5e-8]);
    assert_eq!(dequantise(Dtype::Bf16, &[0x80, 0x3f, 0x00, 0xc0]), [1.0, -2.0]);
}

#[test]
fn four_and_five_bit_blocks_decode_by_hand() {
    let mut low = [0x80; 16];
    low[3] = 0xf1;
    let block = |head: &[&[u8]]| [&head.concat()[..], &low].concat();
    let w = dequantise(Dtype::Q4_0, &block(&[&HALF]));
    assert_eq!((w[0], w[16], w[3], w[19]), (-4.0, 0.0, -3.5, 3.5));
    let w = dequantise(Dtype::Q4_1, &block(&[&TWO, &ONE]));
    assert_eq!((w[0], w[16], w[3], w[19]), (1.0, 17.0, 3.0, 31.0));
    // Fifth bits of weights 0 and 19.
    let high = (1_u32 | 1 << 19).to_le_bytes();
    let w = dequantise(Dtype::Q5_0, &block(&[&ONE, &high]));
    assert_eq!((w[0], w[16], w[3], w[19]), (0.0, -8.0, -15.0, 15.0));
    let w = dequantise(Dtype::Q5_1, &block(&[&ONE, &HALF, &high]));
    assert_eq!((w[0], w[16], w[3], w[19]), (16.5, 8.5, 1.5, 31.5));
}

#[test]
fn eight_bit_blocks_decode_by_hand() {
    let mut block = [ONE.as_slice(), &[0; 32]].concat();
    (block[2], block[3], block[33]) = (0x80, 0x7f, 0xff);
    let w = dequantise(Dtype::Q8_0, &block);
    assert_eq!((w[0], w[1], w[2], w[31]), (-128.0, 127.0, 0.0, -1.0));
}

#[test]
fn super_blocks_decode_by_hand() {
    let mut q4 = vec![0; 144];
    q4[..2].copy_from_slice(&ONE);
    q4[2..4].copy_from_slice(&HALF);
    // Sub-block 0: scale 3, minimum 4. Sub-block 5: scale 0x12, minimum 0x21 (low bits in byte 9, high in bytes 1 and 5).
    (q4[4], q4[8]) = (3, 4);
    (q4[4 + 9], q4[4 + 1], q4[4 + 5]) = (0x12, 0x40, 0x80);
    q4[16] = 0x05;
    q4[16 + 64 + 7] = 0xa0;
    let w = dequantise(Dtype::Q4K, &q4);
    assert_eq!((w[0], w[1], w[5 * 32 + 7]), (3.0 * 5.0 - 2.0, -2.0, 18.0 * 10.0 - 16.5));

    let mut q5 = vec![0; 176];
    q5[..2].copy_from_slice(&TWO);
    (q5[4], q5[16 + 9], q5[48 + 9]) = (1, 1, 2);
    let w = dequantise(Dtype::Q5K, &q5);
    assert_eq!((w[9], w[8]), (2.0 * 18.0, 0.0));

    let mut q6 = vec![0; 210];
    q6[208..].copy_from_slice(&HALF);
    // Weight 128 + 96 + 5: upper nibble of low byte 64 + 32 + 5, top bit pair of high byte 32 + 5, scale 14.
    (q6[64 + 37], q6[128 + 37], q6[192 + 14]) = (0x70, 0x80, 0xfe);
    let w = dequantise(Dtype::Q6K, &q6);
    assert_eq!((w[229], w[228]), (0.5 * -2.0 * (39.0 - 32.0), 32.0));
}

#[test]
#[should_panic(expected = "do not hold")]
fn a_wrong_length_is_a_callers_mistake() {
    to_f32(Dtype::Q4_0, &[0; 18], &mut [0.0; 31]);
}
