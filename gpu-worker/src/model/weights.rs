//! A model's weights on a device. The rule: one pass over the file, layers in parallel, nothing kept twice.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};

use pons_checkpoint::{Checkpoint, Role};

use super::ModelError;
use super::family::Shape;
use crate::backend::Loader;

/// One block.
pub struct Layer<L: Loader> {
    /// Norm before attention.
    pub attn_norm: L::Vector,
    /// Query projection.
    pub q: L::Matrix,
    /// Key projection.
    pub k: L::Matrix,
    /// Value projection.
    pub v: L::Matrix,
    /// Biases of the three, if the family has them.
    pub bias: Option<[L::Vector; 3]>,
    /// Head norms of queries and keys, if the family has them.
    pub head_norms: Option<[L::Vector; 2]>,
    /// Output projection of attention.
    pub o: L::Matrix,
    /// Norm before the feed-forward network.
    pub ffn_norm: L::Vector,
    /// Gate projection.
    pub gate: L::Matrix,
    /// Up projection.
    pub up: L::Matrix,
    /// Down projection.
    pub down: L::Matrix,
}

/// All weights.
pub struct Weights<L: Loader> {
    /// Token embedding.
    pub embedding: Arc<L::Matrix>,
    /// Blocks in order.
    pub layers: Vec<Layer<L>>,
    /// Last norm.
    pub final_norm: L::Vector,
    /// Output layer; the embedding itself where they are tied.
    pub head: Arc<L::Matrix>,
}

/// Reads weights from a checkpoint for one loader.
struct Reader<'a, L> {
    checkpoint: &'a Checkpoint,
    loader: &'a L,
    shape: &'a Shape,
}

impl<L: Loader> Reader<'_, L> {
    fn matrix(&self, role: Role) -> Result<L::Matrix, ModelError> {
        let tensor = self.checkpoint.tensor(role)?;
        self.loader
            .matrix(&tensor)
            .map_err(|reason| ModelError::Tensor { name: tensor.name.to_owned(), reason })
    }

    fn vector(&self, role: Role) -> Result<L::Vector, ModelError> {
        Ok(self.loader.vector(&self.checkpoint.tensor(role)?))
    }

    fn layer(&self, l: usize) -> Result<Layer<L>, ModelError> {
        let bias = if self.shape.qkv_bias {
            Some([self.vector(Role::QBias(l))?, self.vector(Role::KBias(l))?, self.vector(Role::VBias(l))?])
        } else {
            None
        };
        let head_norms = if self.shape.qk_norm {
            Some([self.vector(Role::QNorm(l))?, self.vector(Role::KNorm(l))?])
        } else {
            None
        };
        Ok(Layer {
            attn_norm: self.vector(Role::AttnNorm(l))?,
            q: self.matrix(Role::Q(l))?,
            k: self.matrix(Role::K(l))?,
            v: self.matrix(Role::V(l))?,
            bias,
            head_norms,
            o: self.matrix(Role::O(l))?,
            ffn_norm: self.vector(Role::FfnNorm(l))?,
            gate: self.matrix(Role::Gate(l))?,
            up: self.matrix(Role::Up(l))?,
            down: self.matrix(Role::Down(l))?,
        })
    }

    fn part(&self, part: Part) -> Result<Loaded<L>, ModelError> {
        match part {
            Part::Matrix(role) => Ok(Loaded::Matrix(Arc::new(self.matrix(role)?))),
            Part::Layer(l) => Ok(Loaded::Layer(Box::new(self.layer(l)?))),
        }
    }
}

#[derive(Clone, Copy)]
enum Part {
    Matrix(Role),
    Layer(usize),
}

enum Loaded<L: Loader> {
    Matrix(Arc<L::Matrix>),
    Layer(Box<Layer<L>>),
}

impl<L: Loader> Weights<L> {
    /// Loads all weights with `threads` threads.
    ///
    /// # Errors
    /// The first tensor that is missing, misshapen or of a type the device can't compute with.
    pub fn load(
        checkpoint: &Checkpoint,
        shape: &Shape,
        loader: &L,
        threads: usize,
    ) -> Result<Self, ModelError> {
        let reader = Reader { checkpoint, loader, shape };
        // The two largest matrices first, so that no thread starts one when all others are done.
        let mut parts = vec![Part::Matrix(Role::Embedding)];
        if !shape.tied_embeddings {
            parts.push(Part::Matrix(Role::Head));
        }
        parts.extend((0..shape.layers).map(Part::Layer));
        let slots: Vec<OnceLock<Result<Loaded<L>, ModelError>>> =
            parts.iter().map(|_| OnceLock::new()).collect();
        let next = AtomicUsize::new(0);
        std::thread::scope(|scope| {
            for _ in 0..threads.clamp(1, parts.len()) {
                scope.spawn(|| {
                    while let Some(index) = take(&next, parts.len()) {
                        // Each index is taken once, so the slot is empty.
                        let _ = slots[index].set(reader.part(parts[index]));
                    }
                });
            }
        });
        let mut matrices = Vec::with_capacity(2);
        let mut layers = Vec::with_capacity(shape.layers);
        for slot in slots {
            match slot.into_inner().expect("every part was taken by a thread that has ended") {
                Ok(Loaded::Matrix(matrix)) => matrices.push(matrix),
                Ok(Loaded::Layer(layer)) => layers.push(*layer),
                Err(error) => return Err(error),
            }
        }
        let embedding = Arc::clone(&matrices[0]);
        let head = Arc::clone(matrices.last().unwrap_or(&embedding));
        Ok(Self { embedding, layers, final_norm: reader.vector(Role::FinalNorm)?, head })
    }
}

fn take(next: &AtomicUsize, count: usize) -> Option<usize> {
    let index = next.fetch_add(1, Ordering::Relaxed);
    (index < count).then_some(index)
}
