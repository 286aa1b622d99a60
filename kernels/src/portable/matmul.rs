//! Products in plain Rust. The rule: as in the vector form, one chain an output, inputs in order.
#![allow(unsafe_code)]

use crate::layout::matrix::STRIP;
use crate::ops::{Product, ProductTile, Share};

/// Inputs unpacked at once: 256 of a strip are 32 KiB, which stay in the first-level cache.
const PANEL: usize = 256;

/// Computes the outputs of one part.
#[inline(always)]
pub(crate) fn matmul_tile(product: &Product<'_>, tile: &ProductTile, out: Share<'_>) {
    let cols = product.w.cols();
    let mut panel = [0.0_f32; PANEL * STRIP];
    let mut sums = vec![[0.0_f32; STRIP]; tile.rows.len()];
    for strip in tile.strips.clone() {
        product.start(strip, &mut sums);
        for start in (0..cols).step_by(PANEL) {
            let len = PANEL.min(cols - start);
            let panel = &mut panel[..len * STRIP];
            product.w.unpack_strip(strip, start, panel);
            for (row, sums) in tile.rows.clone().zip(&mut sums) {
                let x = &product.x[row * cols + start..][..len];
                for (&x, weights) in x.iter().zip(panel.chunks_exact(STRIP)) {
                    for (sum, &weight) in sums.iter_mut().zip(weights) {
                        *sum += x * weight;
                    }
                }
            }
        }
        product.finish(strip, tile, &sums, out);
    }
}

impl Product<'_> {
    /// What the chains of a strip start from.
    pub(super) fn start(&self, strip: usize, sums: &mut [[f32; STRIP]]) {
        let mut first = [0.0_f32; STRIP];
        if let Some(bias) = self.bias {
            for (first, &bias) in first.iter_mut().zip(&bias[strip * STRIP..]) {
                *first = bias;
            }
        }
        sums.fill(first);
    }

    /// Stores the sums of a strip, or adds them to what is there.
    pub(super) fn finish(&self, strip: usize, tile: &ProductTile, sums: &[[f32; STRIP]], out: Share<'_>) {
        let (outputs, first) = (self.w.rows(), strip * STRIP);
        let width = STRIP.min(outputs - first);
        for (row, sums) in tile.rows.clone().zip(sums) {
            // SAFETY: parts differ in rows or strips, so that no other part takes these elements.
            let out = unsafe { out.slice(row * outputs + first, width) };
            for (out, &sum) in out.iter_mut().zip(sums) {
                *out = if self.add { *out + sum } else { sum };
            }
        }
    }
}
