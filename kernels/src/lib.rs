//! All arithmetic of the CPU brain.
//!
//! The one rule kept here: every output element is computed in an order that depends on its own inputs alone,
//! never on how many rows share the call, how the work is split over threads, or where a chunk starts. A sampled
//! token can then depend only on its own logits, and those only on its own prompt.
//!
//! Each operation has three forms of the same name: [`scalar`] (the naive oracle that tests compare against),
//! a portable one in plain Rust, and one for AVX-512. [`ops`] picks between the latter two by [`dispatch::Isa`].
//! Products of many rows with quantised weights have a fourth, by the tiles of [`amx`].
#![deny(unsafe_op_in_unsafe_fn)]

pub mod amx;
#[cfg(target_arch = "x86_64")]
mod avx512;
mod compiled;
pub mod dispatch;
pub mod kv;
mod layout;
pub mod ops;
pub mod pool;
mod portable;
pub mod probe;
pub mod rope;
pub mod scalar;

pub use dispatch::Isa;
pub use kv::{AttentionSeq, BLOCK, KvArena, KvError, KvFormat, KvRow};
pub use layout::kept::{Kind, LAYOUT_VERSION};
pub use layout::matrix::Matrix;
pub use layout::pages::Pages;
pub use layout::quant::{FillRow, Form, QuantRow, Scaling, Width};
pub use layout::rows::Precision;
pub use layout::stored::{Section, SectionError};
pub use layout::{matrix, quant};
pub use pool::Pool;
pub use rope::{Rope, RopeLayout, RopeScaling};
