//! The operations for AVX-512. The rule: functions here are reached only after [`crate::Isa`] has found the
//! features they are compiled for.

pub(crate) mod elementwise;

pub(crate) use crate::portable::{attention_tile, matmul_tile};
