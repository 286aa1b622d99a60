//! From rows of weights to packed strips. The rule: sizes are multiplied with checks, because they come from files.

use super::aligned::{Aligned, Zeroed};
use super::matrix::{FillRow, GroupData, Groups, Matrix, OCTET, STRIP, Store};
use half::f16;

impl Matrix {
    /// Packs row-major `f32` weights, kept as `f32`.
    ///
    /// # Panics
    /// When `data` does not hold `rows * cols` weights, or a dimension is zero; as with the other constructors.
    pub fn from_f32(rows: usize, cols: usize, data: &[f32]) -> Matrix {
        Matrix { rows, cols, store: Store::F32(dense(rows, cols, data)) }
    }

    /// Packs row-major bfloat16 weights given by their bits, kept as bfloat16.
    pub fn from_bf16_bits(rows: usize, cols: usize, data: &[u16]) -> Matrix {
        Matrix { rows, cols, store: Store::Bf16(dense(rows, cols, data)) }
    }

    /// Packs row-major half-precision weights given by their bits, kept as half precision.
    pub fn from_f16_bits(rows: usize, cols: usize, data: &[u16]) -> Matrix {
        Matrix { rows, cols, store: Store::F16(dense(rows, cols, data)) }
    }

    /// Packs grouped weights without widening them: `group` (16 or 32) consecutive inputs share a scale and a
    /// minimum, and each weight is a number of `bits` (4 or 8) bits. `fill(row, q, scale, min)` writes one row:
    /// `cols` numbers, and one scale and minimum for each started group. Rows are asked for in order, once each.
    ///
    /// # Panics
    /// When `group` or `bits` is none of those, a number does not fit its bits, or the size cannot exist.
    pub fn from_grouped(rows: usize, cols: usize, group: usize, bits: u32, fill: &mut FillRow<'_>) -> Matrix {
        assert!(group == 16 || group == 32, "group is {group}; only groups of 16 or 32 inputs can be packed");
        assert!(bits == 4 || bits == 8, "bits is {bits}; only 4-bit and 8-bit weights can be packed");
        let groups = cols.div_ceil(group);
        let units = if bits == 4 { cols.div_ceil(OCTET) } else { cols };
        let mut scales = zeroed::<f32>(rows, groups.checked_mul(2).expect("a slice this long cannot exist"));
        let mut nibbles = zeroed::<u32>(if bits == 4 { rows } else { 0 }, units);
        let mut bytes = zeroed::<u8>(if bits == 8 { rows } else { 0 }, units);
        check_dimensions(rows, cols);
        let mut q = vec![0_u8; cols];
        let (mut scale, mut min) = (vec![0.0_f32; groups], vec![0.0_f32; groups]);
        for row in 0..rows {
            fill(row, &mut q, &mut scale, &mut min);
            let (strip, lane) = (row / STRIP, row % STRIP);
            for (index, (&s, &m)) in scale.iter().zip(&min).enumerate() {
                let at = Groups::at(group, cols, strip, index) + lane;
                scales[at] = s;
                scales[at + STRIP] = m;
            }
            if bits == 4 {
                pack_nibbles(&mut nibbles, &q, strip * units * STRIP + lane, row);
            } else {
                let start = Matrix::dense_at(cols, strip, 0);
                for (k, &value) in q.iter().enumerate() {
                    bytes[start + k * STRIP + lane] = value;
                }
            }
        }
        let scales = Groups { size: group, data: narrowed(scales) };
        let store = if bits == 4 { Store::Nibbles(nibbles, scales) } else { Store::Bytes(bytes, scales) };
        Matrix { rows, cols, store }
    }
}

/// Half precision where that keeps every bit, as for the formats whose files hold it.
fn narrowed(numbers: Aligned<f32>) -> GroupData {
    let exact = |&number: &f32| f16::from_f32(number).to_f32().to_bits() == number.to_bits();
    if !numbers.iter().all(exact) {
        return GroupData::F32(numbers);
    }
    let mut halves = zeroed::<u16>(STRIP, numbers.len() / STRIP);
    for (half, &number) in halves.iter_mut().zip(numbers.iter()) {
        *half = f16::from_f32(number).to_bits();
    }
    GroupData::F16(halves)
}

fn pack_nibbles(out: &mut [u32], q: &[u8], start: usize, row: usize) {
    for (octet, values) in q.chunks(OCTET).enumerate() {
        let mut word = 0_u32;
        let mut seen = 0_u8;
        for (index, &value) in values.iter().enumerate() {
            seen |= value;
            word |= u32::from(value) << (4 * index);
        }
        assert!(
            seen < 16,
            "row {row} has a four-bit weight above 15; the row must be unpacked before packing"
        );
        out[start + octet * STRIP] = word;
    }
}

fn check_dimensions(rows: usize, cols: usize) {
    assert!(rows > 0 && cols > 0, "a matrix of {rows} x {cols} has no weights; both must be above zero");
}

/// A zeroed store for `rows` outputs, padded to whole strips, of `units` elements each.
fn zeroed<T: Copy + Default>(rows: usize, units: usize) -> Aligned<T>
where
    Vec<T>: Zeroed<T>,
{
    let len = rows.div_ceil(STRIP).checked_mul(STRIP).and_then(|padded| padded.checked_mul(units));
    len.and_then(Aligned::zeroed)
        .unwrap_or_else(|| panic!("a matrix of {rows} rows by {units} units exceeds the address space"))
}

fn dense<T: Copy + Default>(rows: usize, cols: usize, data: &[T]) -> Aligned<T>
where
    Vec<T>: Zeroed<T>,
{
    check_dimensions(rows, cols);
    assert!(
        rows.checked_mul(cols) == Some(data.len()),
        "a matrix of {rows} x {cols} needs as many weights, {} were given",
        data.len()
    );
    let mut out = zeroed::<T>(rows, cols);
    for (row, weights) in data.chunks_exact(cols).enumerate() {
        let start = Matrix::dense_at(cols, row / STRIP, 0) + row % STRIP;
        for (k, &weight) in weights.iter().enumerate() {
            out[start + k * STRIP] = weight;
        }
    }
    out
}
