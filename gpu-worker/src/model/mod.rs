//! The transformer: what a model is (data), its weights, its forward pass, and the choice of the next token.

pub mod batch;
pub mod family;
pub mod sampler;
pub mod transformer;
pub mod weights;

/// Why a model can't be made ready.
#[derive(Debug, thiserror::Error)]
pub enum ModelError {
    /// The checkpoint is missing something or can't be read.
    #[error("weights: {0}")]
    Checkpoint(#[from] pons_checkpoint::error::CheckpointError),
    /// A tensor's storage type is not supported by the device.
    #[error("tensor {name}: {reason}; convert the model to another format")]
    Tensor {
        /// Its name in the file.
        name: String,
        /// Why.
        reason: String,
    },
    /// There is no memory for the weights.
    #[error("weights take {bytes} bytes: {source}; end other programs or use a smaller model")]
    Memory {
        /// Bytes of all packed weights.
        bytes: usize,
        /// What the system said.
        source: std::io::Error,
    },
    /// The KV arena can't have the size asked for.
    #[error("kv cache: {0}")]
    Kv(#[from] pons_kernels::KvError),
    /// A setting is out of range.
    #[error("{field} is {value}; {remedy}")]
    Setting {
        /// Which.
        field: &'static str,
        /// What it was.
        value: String,
        /// What it may be.
        remedy: String,
    },
}
