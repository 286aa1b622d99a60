//! Operations on rows of activations. The rule: both instruction sets run the same source in the same order, so
//! that they agree to the bit.
#![allow(unsafe_code)]

use crate::compiled::dispatch;
use crate::dispatch::Isa;
use crate::ops::Share;
use crate::pool::Pool;
use crate::portable::elementwise;
use crate::rope::Rope;

/// Elements below which waking another thread costs more than it saves.
const LEAST_SHARED: usize = 16_384;

/// Calls `job(first, count)` for runs of `items` that cover all of them; on more than one thread where there is
/// enough to do. `width` is the number of elements an item stands for.
pub(super) fn share_out(pool: &Pool, items: usize, width: usize, job: &(dyn Fn(usize, usize) + Sync)) {
    if items == 0 {
        return;
    }
    let elements = items.saturating_mul(width);
    let parts = if elements < LEAST_SHARED { 1 } else { (pool.threads() * 4).min(items) };
    pool.run(parts, &|part| {
        let (first, end) = (items * part / parts, items * (part + 1) / parts);
        job(first, end - first);
    });
}

/// `out = x / sqrt(mean(x²) + eps) · weight` for each of `rows` rows of `weight.len()`; rows may as well be heads.
///
/// # Panics
/// When `x` or `out` does not hold `rows` rows.
pub fn rms_norm(pool: &Pool, isa: Isa, x: &[f32], weight: &[f32], eps: f32, rows: usize, out: &mut [f32]) {
    let width = weight.len();
    assert!(width > 0, "weight is empty; a row must have at least one element");
    assert!(rows.checked_mul(width) == Some(x.len()), "x holds {} numbers, not {rows} x {width}", x.len());
    assert!(x.len() == out.len(), "out holds {} numbers; x holds {}", out.len(), x.len());
    let out = Share::new(out);
    share_out(pool, rows, width, &|first, count| {
        let x = &x[first * width..][..count * width];
        // SAFETY: `share_out` gives each run of rows to one part only.
        let out = unsafe { out.slice(first * width, count * width) };
        dispatch!(isa, elementwise::rms_norm(x, weight, eps, out));
    });
}

/// Turns each of `heads` heads of each of `rows` rows of `x` by the row's position.
///
/// # Panics
/// When `x` or `positions` does not fit `rows`, or a position has no rotation.
pub fn rope(pool: &Pool, isa: Isa, x: &mut [f32], rows: usize, heads: usize, rope: &Rope, positions: &[u32]) {
    let width = heads * rope.head_dim();
    assert!(rows.checked_mul(width) == Some(x.len()), "x holds {} numbers, not {rows} x {width}", x.len());
    assert!(positions.len() == rows, "{} positions were given for {rows} rows", positions.len());
    let x = Share::new(x);
    share_out(pool, rows, width, &|first, count| {
        // SAFETY: `share_out` gives each run of rows to one part only.
        let x = unsafe { x.slice(first * width, count * width) };
        dispatch!(isa, elementwise::rope(x, heads, rope, &positions[first..][..count]));
    });
}
