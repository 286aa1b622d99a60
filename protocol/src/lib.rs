//! Messages between the gateway and the brain: domain types, flatbuffers schemas, framing.
//!
//! The rule it keeps: nothing here does I/O, reads a clock or spawns anything. A message is plain data that
//! either side can build, encode into a byte buffer, verify once, and read.

pub mod capacity;
pub mod error;
pub mod id;
pub mod inference;
pub mod sampling;
pub mod wire;

pub use error::ProtocolError;

/// Version of the message set. A link whose two ends differ is refused at the handshake, by name.
pub const PROTOCOL_VERSION: u32 = 3;
