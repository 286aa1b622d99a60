//! The forward pass, written once for every backend and family. The rule: one variable-length pass for all rows of
//! a step; the output layer sees only the rows somebody asked for.

use std::borrow::Cow;

use super::batch::StepBatch;
use super::family::Shape;
use super::weights::{Layer, Weights};
use crate::backend::Backend;

/// Rows for which logits exist at the same time; bounds their memory.
pub const LOGIT_ROWS: usize = 32;

/// A model on a device.
pub struct Transformer<B: Backend> {
    backend: B,
    shape: Shape,
    weights: Weights<B::Loader>,
    rows: Rows<B>,
}

/// Activations, kept from step to step so that nothing is allocated in a steady state.
struct Rows<B: Backend> {
    /// Residual stream.
    residual: B::Buffer,
    /// Input of a projection.
    normed: B::Buffer,
    q: B::Buffer,
    k: B::Buffer,
    v: B::Buffer,
    /// Queries or keys after their head norm; attention's output.
    heads: B::Buffer,
    /// Room for the gate.
    gate: B::Buffer,
    /// Gated values.
    gated: B::Buffer,
    /// Single rows of the residual stream.
    gathered: B::Buffer,
    logits: B::Buffer,
}

impl<B: Backend> Rows<B> {
    fn new(backend: &B) -> Self {
        Self {
            residual: backend.buffer(),
            normed: backend.buffer(),
            q: backend.buffer(),
            k: backend.buffer(),
            v: backend.buffer(),
            heads: backend.buffer(),
            gate: backend.buffer(),
            gated: backend.buffer(),
            gathered: backend.buffer(),
            logits: backend.buffer(),
        }
    }
}

impl<B: Backend> Transformer<B> {
    /// A model from its parts.
    pub fn new(backend: B, shape: Shape, weights: Weights<B::Loader>) -> Self {
        let rows = Rows::new(&backend);
        Self { backend, shape, weights, rows }
    }

    /// Sizes and switches.
    pub fn shape(&self) -> &Shape {
        &self.shape
    }

    /// Computes all rows of a step: writes their keys and values, and keeps the last hidden state of each row for
    /// [`Transformer::logits`].
    pub fn forward(&mut self, batch: StepBatch) {
        self.backend.begin(batch);
        self.backend.embed(&self.weights.embedding, &mut self.rows.residual);
        for (index, layer) in self.weights.layers.iter().enumerate() {
            attention(&mut self.backend, &self.shape, layer, index, &mut self.rows);
            feed_forward(&self.backend, &self.shape, layer, &mut self.rows);
        }
    }

    /// Logits of single rows of the last step, one after the other.
    ///
    /// # Panics
    /// When more than [`LOGIT_ROWS`] are asked for, or a row the step did not have.
    pub fn logits(&mut self, rows: &[u32]) -> Cow<'_, [f32]> {
        assert!(rows.len() <= LOGIT_ROWS, "{} rows of logits were asked for; {LOGIT_ROWS} fit", rows.len());
        let (backend, r) = (&self.backend, &mut self.rows);
        backend.gather(&r.residual, self.shape.hidden, rows, &mut r.gathered);
        backend.norm(&r.gathered, &self.weights.final_norm, self.shape.norm_eps, &mut r.normed);
        backend.project(&mut r.normed, [(&*self.weights.head, None)], [&mut r.logits]);
        backend.read(&r.logits)
    }
}

fn attention<B: Backend>(
    backend: &mut B,
    shape: &Shape,
    layer: &Layer<B::Loader>,
    index: usize,
    r: &mut Rows<B>,
) {
    let [q_bias, k_bias, v_bias] = match &layer.bias {
        Some([q, k, v]) => [Some(q), Some(k), Some(v)],
        None => [None; 3],
    };
    backend.norm(&r.residual, &layer.attn_norm, shape.norm_eps, &mut r.normed);
    let weights = [(&layer.q, q_bias), (&layer.k, k_bias), (&layer.v, v_bias)];
    backend.project(&mut r.normed, weights, [&mut r.q, &mut r.k, &mut r.v]);
    if let Some([q_norm, k_norm]) = &layer.head_norms {
        backend.norm(&r.q, q_norm, shape.norm_eps, &mut r.heads);
        std::mem::swap(&mut r.q, &mut r.heads);
        backend.norm(&r.k, k_norm, shape.norm_eps, &mut r.heads);
        std::mem::swap(&mut r.k, &mut r.heads);
    }
    backend.rotate_and_store(index, &mut r.q, &r.k, &r.v);
    backend.attend(index, &r.q, &mut r.heads);
    backend.project_onto(&mut r.heads, &layer.o, &mut r.residual);
}

fn feed_forward<B: Backend>(backend: &B, shape: &Shape, layer: &Layer<B::Loader>, r: &mut Rows<B>) {
    backend.norm(&r.residual, &layer.ffn_norm, shape.norm_eps, &mut r.normed);
    backend.project_gated(&mut r.normed, &layer.gate, &layer.up, &mut r.gate, &mut r.gated);
    backend.project_onto(&mut r.gated, &layer.down, &mut r.residual);
}
