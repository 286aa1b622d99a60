//! From rows of weights to packed strips. The rule: sizes are multiplied with checks, because they come from files.

use super::aligned::{Aligned, Zeroed};
use super::matrix::{Matrix, STRIP, Store};
use super::quant::{FillRow, Form, Quants};
use super::rows::Precision;

impl Matrix {
    /// Packs row-major `f32` weights, kept as `f32`.
    ///
    /// # Panics
    /// When `data` does not hold `rows * cols` weights, or a dimension is zero; as with the other constructors.
    pub fn from_f32(rows: usize, cols: usize, data: &[f32]) -> Matrix {
        Matrix {
            rows,
            cols,
            precision: Precision::default(),
            store: Store::F32(dense(rows, cols, data).into()),
        }
    }

    /// Packs row-major bfloat16 weights given by their bits, kept as bfloat16.
    pub fn from_bf16_bits(rows: usize, cols: usize, data: &[u16]) -> Matrix {
        Matrix {
            rows,
            cols,
            precision: Precision::default(),
            store: Store::Bf16(dense(rows, cols, data).into()),
        }
    }

    /// Packs row-major half-precision weights given by their bits, kept as half precision.
    pub fn from_f16_bits(rows: usize, cols: usize, data: &[u16]) -> Matrix {
        Matrix {
            rows,
            cols,
            precision: Precision::default(),
            store: Store::F16(dense(rows, cols, data).into()),
        }
    }

    /// Packs quantised weights: `fill(row, parts)` writes the numbers and scales of one row, as `form` describes
    /// them; rows are asked for in order, once each.
    ///
    /// # Panics
    /// When a number does not fit the form's width, or the size cannot exist.
    pub fn from_quantised(rows: usize, cols: usize, form: Form, fill: &mut FillRow<'_>) -> Matrix {
        Matrix {
            rows,
            cols,
            precision: Precision::default(),
            store: Store::Quants(Quants::pack(rows, cols, form, fill)),
        }
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
