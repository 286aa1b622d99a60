//! Framing: a four-byte little-endian length, then that many bytes.

/// Most bytes of one frame.
pub const MAX_FRAME_BYTES: u32 = 64 << 20;
