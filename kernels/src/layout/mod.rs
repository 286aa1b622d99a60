//! How numbers lie in memory. The rule: a layout is chosen once, when data is packed, and every reader of it goes
//! through the same index functions.

pub(crate) mod aligned;
pub(crate) mod kept;
mod large;
pub mod matrix;
mod pack;
pub(crate) mod pages;
pub mod quant;
pub(crate) mod rows;
pub(crate) mod stored;
mod unpack;
