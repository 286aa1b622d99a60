//! The operations in plain Rust, for machines without AVX-512. The rule: the same order of reduction as the vector
//! forms, in arrays that a compiler turns into whatever vectors the machine has; no fused multiply-add, which
//! without the instruction is a slow library call.

pub(crate) mod attention;
pub(crate) mod elementwise;
mod matmul;
pub(crate) mod quantise;
mod quantised;

pub(crate) use matmul::matmul_tile;
pub(crate) use quantised::quantised_tile;
