//! How numbers lie in memory. The rule: a layout is chosen once, when data is packed, and every reader of it goes
//! through the same index functions.

pub(crate) mod aligned;
pub mod matrix;
mod pack;
mod pages;
pub mod quant;
pub(crate) mod rows;
mod unpack;
