//! The operations that a transformer and a sampler are made of. The rule: shapes are checked here, before any fast
//! code runs; a mismatch is the caller's bug and panics with both numbers.

mod activations;
mod attention;
mod elementwise;
mod matmul;
mod reduce;
mod rotate;
mod share;

pub use activations::Activations;
pub(crate) use activations::{Quantiser, Run, quantise_rows, quantise_rows_by};
pub use attention::{AttentionPlan, attend, attention};
pub(crate) use attention::{SEGMENT, SEGMENT_BLOCKS, Scene, Tile as AttentionTile};
pub use elementwise::{rms_norm, rope};
pub(crate) use matmul::{Product, Tile as ProductTile};
pub use matmul::{Projection, matmul, matmul_bias, project, project_gated};
pub use reduce::{argmax, log_sum_exp, max, sum_exp};
pub use rotate::{Rotated, rotate_and_store};
pub(crate) use share::Share;
