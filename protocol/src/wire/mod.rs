//! Bytes on a link. The rule: a frame is verified once, whole, before any field is read.
//!
//! A frame is a four-byte little-endian length and that many bytes of flatbuffer. [`Encoder`] makes whole
//! frames, [`frame::FrameReader`] cuts a byte stream into whole frames, and the two `decode` functions take
//! whole frames, length included.

mod encoder;
pub mod frame;
mod from_brain;
mod generated;
mod to_brain;

pub use encoder::{Encoder, encode_from_brain, encode_to_brain};
pub use frame::{FrameReader, MAX_FRAME_BYTES};
pub use from_brain::decode_from_brain;
pub use to_brain::decode_to_brain;

#[cfg(test)]
mod tests;
