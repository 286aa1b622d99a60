//! The operations for AVX-512. The rule: functions here are reached only after [`crate::Isa`] has found the
//! features they are compiled for.
#![allow(unsafe_code)]

pub(crate) mod attention;
pub(crate) mod elementwise;
mod matmul;
mod source;

pub(crate) use matmul::matmul_tile;
