//! The operations for AVX-512. The rule: functions here are reached only after [`crate::Isa`] has found the
//! features they are compiled for.
#![allow(unsafe_code)]

pub(crate) mod attention;
pub(crate) mod digits;
mod matmul;
pub(crate) mod outputs;
mod panel;
mod quantise;
mod quantised;
mod source;

pub(crate) use matmul::matmul_tile;
pub(crate) use quantise::quantise_rows;
pub(crate) use quantised::quantised_tile;
