//! Products in plain Rust. The rule: as in the vector form, one chain a weight, inputs in order.
#![allow(unsafe_code)]

use crate::layout::matrix::STRIP;
use crate::ops::Share;
use crate::ops::{Product, ProductTile};

/// Inputs unpacked at once: 256 of a strip are 32 KiB, which stay in the first-level cache.
const PANEL: usize = 256;

/// Computes the outputs of one part.
pub(crate) fn matmul_tile(product: &Product<'_>, tile: &ProductTile, out: Share<'_>) {
    let (rows, cols) = (product.w.rows(), product.w.cols());
    let mut panel = [0.0_f32; PANEL * STRIP];
    for strip in tile.strips.clone() {
        let first = strip * STRIP;
        let width = STRIP.min(rows - first);
        for start in (0..cols).step_by(PANEL) {
            let len = PANEL.min(cols - start);
            let panel = &mut panel[..len * STRIP];
            product.w.unpack_strip(strip, start, panel);
            for row in tile.rows.clone() {
                let x = &product.x[row * cols + start..][..len];
                // SAFETY: parts differ in rows or strips, so that no other part takes these elements.
                let out = unsafe { out.slice(row * rows + first, width) };
                let mut sums = [0.0_f32; STRIP];
                match (start, product.bias) {
                    (0, Some(bias)) => sums[..width].copy_from_slice(&bias[first..][..width]),
                    (0, None) => {}
                    _ => sums[..width].copy_from_slice(out),
                }
                for (&x, weights) in x.iter().zip(panel.chunks_exact(STRIP)) {
                    for (sum, &weight) in sums.iter_mut().zip(weights) {
                        *sum += x * weight;
                    }
                }
                out.copy_from_slice(&sums[..width]);
            }
        }
    }
}
