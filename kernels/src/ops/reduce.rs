//! What a sampler asks of a row of logits. The rule: one fixed order of reduction, whatever the instruction set.
#![allow(unsafe_code)]

use crate::compiled::dispatch;
use crate::dispatch::Isa;
use crate::portable::elementwise;

/// The index of the largest number. Of equals the lowest wins; a NaN never wins (0 where all are NaN).
///
/// # Panics
/// When `x` is empty.
pub fn argmax(isa: Isa, x: &[f32]) -> usize {
    assert!(!x.is_empty(), "x is empty; there is no largest number");
    let most = max(isa, x);
    x.iter().position(|&value| value == most).unwrap_or(0)
}

/// The largest number that is no NaN; minus infinity where there is none.
pub fn max(isa: Isa, x: &[f32]) -> f32 {
    dispatch!(isa, elementwise::max(x))
}

/// `Σ exp(x - most)`: terms in f32, sums in f64. NaN where any number is NaN.
pub fn sum_exp(isa: Isa, x: &[f32], most: f32) -> f64 {
    dispatch!(isa, elementwise::sum_exp(x, most))
}

/// `ln Σ exp(x)`: terms in f32 relative to the largest, sums in f64. NaN where any number is NaN.
pub fn log_sum_exp(isa: Isa, x: &[f32]) -> f64 {
    let most = max(isa, x);
    let sum = if most.is_infinite() { 1.0 } else { dispatch!(isa, elementwise::sum_exp(x, most)) };
    if most.is_infinite() && x.iter().any(|value| value.is_nan()) {
        return f64::NAN;
    }
    f64::from(most) + sum.ln()
}
