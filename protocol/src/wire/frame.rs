//! Framing: a four-byte little-endian length, then that many bytes.
//!
//! The rule: an announced length is checked before anything is allocated for it, and memory grows only with
//! bytes that have arrived.

use flatbuffers::VerifierOptions;

use super::generated as fb;
use crate::error::ProtocolError;

/// Most bytes of one frame, its length field apart.
pub const MAX_FRAME_BYTES: u32 = 64 << 20;

/// Bytes of the length field.
pub const LENGTH_BYTES: usize = 4;

/// Where the identifier stands: after the length and the offset of the root.
const IDENTIFIER_AT: usize = 8;

/// Most tables of one frame; every sequence takes one to five. It bounds what small repeated tables can grow
/// to once they are decoded.
const MAX_TABLES: usize = 1 << 18;

/// Deepest nesting of the schema is four; anything deeper is not ours.
const MAX_DEPTH: usize = 8;

/// Capacity that an empty reader keeps; what a rare large frame took beyond it is given back.
const KEPT_BYTES: usize = 1 << 20;

/// Cuts a stream of bytes into whole frames.
///
/// Push what arrived, then take frames until there is none; then push again. Each byte is moved at most twice,
/// however the stream is cut.
#[derive(Debug, Default)]
pub struct FrameReader {
    bytes: Vec<u8>,
    start: usize,
}

impl FrameReader {
    /// An empty reader.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds bytes that arrived. Take all frames before the next push, else the buffer grows with the input.
    pub fn push(&mut self, bytes: &[u8]) {
        self.compact();
        self.bytes.extend_from_slice(bytes);
    }

    /// The next whole frame with its length field, or none until more bytes arrive.
    pub fn next_frame(&mut self) -> Result<Option<&[u8]>, ProtocolError> {
        let pending = &self.bytes[self.start..];
        let Some(body_bytes) = announced_bytes(pending)? else { return Ok(None) };
        let frame_bytes = LENGTH_BYTES + body_bytes;
        if pending.len() < frame_bytes {
            return Ok(None);
        }
        let start = self.start;
        self.start += frame_bytes;
        Ok(Some(&self.bytes[start..start + frame_bytes]))
    }

    /// Bytes that arrived and belong to no frame yet. Not 0 at the end of a stream means that it was cut.
    pub fn pending_bytes(&self) -> usize {
        self.bytes.len() - self.start
    }

    /// Bytes of memory it holds.
    pub fn capacity_bytes(&self) -> usize {
        self.bytes.capacity()
    }

    /// Drops what was taken. It moves bytes only when at least as many were taken as are left, so that the work
    /// stays linear.
    fn compact(&mut self) {
        if self.start == self.bytes.len() {
            self.bytes.clear();
            self.start = 0;
            if self.bytes.capacity() > KEPT_BYTES {
                self.bytes.shrink_to(KEPT_BYTES);
            }
        } else if self.start >= self.bytes.len() - self.start {
            self.bytes.drain(..self.start);
            self.start = 0;
        }
    }
}

/// Reads the length field, if it is there, and refuses it when it is over the limit.
fn announced_bytes(bytes: &[u8]) -> Result<Option<usize>, ProtocolError> {
    let Some(field) = bytes.first_chunk::<LENGTH_BYTES>() else { return Ok(None) };
    let announced = u32::from_le_bytes(*field);
    if announced > MAX_FRAME_BYTES {
        return Err(ProtocolError::FrameTooLarge {
            bytes: u64::from(announced),
            limit: u64::from(MAX_FRAME_BYTES),
        });
    }
    Ok(Some(announced as usize))
}

/// Verifies a whole frame and opens its envelope. `kind` names the expected direction in errors.
pub(super) fn open<'a>(frame: &'a [u8], kind: &'static str) -> Result<fb::Envelope<'a>, ProtocolError> {
    let malformed = |reason: String| ProtocolError::Malformed { kind, reason };
    let Some(body_bytes) = announced_bytes(frame)? else {
        return Err(malformed(format!("{} bytes are too few for a length field", frame.len())));
    };
    if frame.len() != LENGTH_BYTES + body_bytes {
        return Err(malformed(format!(
            "the length field says {body_bytes} bytes, {} follow it",
            frame.len() - LENGTH_BYTES
        )));
    }
    // Shared parts count once for each use, so decoding never yields more than a few times the frame.
    let options = VerifierOptions {
        max_depth: MAX_DEPTH,
        max_tables: MAX_TABLES,
        max_apparent_size: 8 * frame.len() + 1024,
        ..VerifierOptions::default()
    };
    if frame.get(IDENTIFIER_AT..IDENTIFIER_AT + 4) != Some(fb::ENVELOPE_IDENTIFIER.as_bytes()) {
        return Err(malformed(format!("it does not carry the identifier {}", fb::ENVELOPE_IDENTIFIER)));
    }
    flatbuffers::size_prefixed_root_with_opts::<fb::Envelope<'a>>(&options, frame)
        .map_err(|invalid| malformed(invalid.to_string().lines().next().unwrap_or("invalid").to_owned()))
}
