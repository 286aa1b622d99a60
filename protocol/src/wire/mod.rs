//! Bytes on a link. The rule: a frame is verified once, whole, before any field is read.

pub mod frame;
