//! Devices that run the transformer. The rule: a backend computes what it is told on opaque buffers; it knows
//! neither sequences' fates nor sampling.

pub mod cpu;

use pons_checkpoint::Tensor;

use crate::model::batch::StepBatch;

/// Brings weights onto a device. Used from several threads at once while a model loads.
pub trait Loader: Sync {
    /// A weight matrix in the device's own layout.
    type Matrix: Send + Sync;
    /// A vector of f32 weights (a norm, a bias).
    type Vector: Send + Sync;

    /// Converts a matrix; quantised formats stay packed.
    ///
    /// # Errors
    /// A storage type the device can't compute with, in words.
    fn matrix(&self, tensor: &Tensor<'_>) -> Result<Self::Matrix, String>;

    /// Converts a vector.
    fn vector(&self, tensor: &Tensor<'_>) -> Self::Vector;
}

/// Weight matrix of a backend.
pub type MatrixOf<B> = <<B as Backend>::Loader as Loader>::Matrix;
/// Weight vector of a backend.
pub type VectorOf<B> = <<B as Backend>::Loader as Loader>::Vector;

/// The operations of a decoder on one device. Every output row depends on its own input row (and, in attention,
/// on the keys before it) alone, whatever else is in the call.
pub trait Backend {
    /// Its loader.
    type Loader: Loader;
    /// Rows of activations on the device. Each operation sizes its output.
    type Buffer;

    /// An empty buffer.
    fn buffer(&self) -> Self::Buffer;
    /// Takes the tokens, positions and block tables of the step that the next calls compute.
    fn begin(&mut self, batch: StepBatch);
    /// Embedding of each token of the step.
    fn embed(&self, table: &MatrixOf<Self>, out: &mut Self::Buffer);
    /// Root-mean-square norm over stretches as long as `weight`: rows, or heads of rows.
    fn norm(&self, x: &Self::Buffer, weight: &VectorOf<Self>, eps: f32, out: &mut Self::Buffer);
    /// `out = x · weightᵀ + bias` for several weights at once.
    fn project<const N: usize>(
        &self,
        x: &mut Self::Buffer,
        weights: [(&MatrixOf<Self>, Option<&VectorOf<Self>>); N],
        out: [&mut Self::Buffer; N],
    );
    /// `out += x · weightᵀ`.
    fn project_onto(&self, x: &mut Self::Buffer, weight: &MatrixOf<Self>, out: &mut Self::Buffer);
    /// `out = silu(x · gateᵀ) · (x · upᵀ)`; `room` is for what lies between.
    fn project_gated(
        &self,
        x: &mut Self::Buffer,
        gate: &MatrixOf<Self>,
        up: &MatrixOf<Self>,
        room: &mut Self::Buffer,
        out: &mut Self::Buffer,
    );
    /// Turns the heads of queries and keys by their tokens' positions, and writes the keys so turned and the values
    /// into the blocks of one layer. `keys` stay as they were.
    fn rotate_and_store(
        &mut self,
        layer: usize,
        queries: &mut Self::Buffer,
        keys: &Self::Buffer,
        values: &Self::Buffer,
    );
    /// Causal attention of the step's queries over the blocks of their sequences.
    fn attend(&mut self, layer: usize, queries: &Self::Buffer, out: &mut Self::Buffer);
    /// Copies single rows of `width` elements.
    fn gather(&self, x: &Self::Buffer, width: usize, rows: &[u32], out: &mut Self::Buffer);
    /// The content, on the host.
    fn read<'a>(&self, x: &'a Self::Buffer) -> std::borrow::Cow<'a, [f32]>;
}
