//! Writes whole frames. The rule: an encoder that is kept allocates nothing for a frame that is no larger than
//! the largest before it.

use flatbuffers::{FlatBufferBuilder, WIPOffset};

use super::generated as fb;
use crate::inference::{FromBrain, ToBrain};

/// The builder every message is written with; its buffer is its own.
pub(super) type Builder = FlatBufferBuilder<'static>;

/// Room of a new encoder.
const INITIAL_BYTES: usize = 4 << 10;

/// A buffer that grew beyond this for one large frame is given back before the next.
const KEPT_BYTES: usize = 1 << 20;

/// Encodes one message after another into the same buffer.
pub struct Encoder {
    builder: Builder,
    offsets: Offsets,
    last_bytes: usize,
}

/// Offsets of the tables of one list while it is written; kept for their allocation.
#[derive(Default)]
pub(super) struct Offsets {
    pub(super) submits: Vec<WIPOffset<fb::Submit<'static>>>,
    pub(super) outputs: Vec<WIPOffset<fb::SequenceOutput<'static>>>,
}

impl Default for Encoder {
    fn default() -> Self {
        Self::new()
    }
}

impl Encoder {
    /// An encoder with room for small messages.
    pub fn new() -> Self {
        Self {
            builder: FlatBufferBuilder::with_capacity(INITIAL_BYTES),
            offsets: Offsets::default(),
            last_bytes: 0,
        }
    }

    /// The whole frame of a message to the brain, valid until the next call.
    pub fn to_brain(&mut self, message: &ToBrain) -> &[u8] {
        self.restart();
        let (kind, offset) = super::to_brain::write(&mut self.builder, &mut self.offsets, message);
        self.finish(kind, offset)
    }

    /// The whole frame of a message from the brain, valid until the next call.
    pub fn from_brain(&mut self, message: &FromBrain) -> &[u8] {
        self.restart();
        let (kind, offset) = super::from_brain::write(&mut self.builder, &mut self.offsets, message);
        self.finish(kind, offset)
    }

    fn restart(&mut self) {
        if self.last_bytes > KEPT_BYTES {
            self.builder = FlatBufferBuilder::with_capacity(INITIAL_BYTES);
            self.offsets = Offsets::default();
        } else {
            self.builder.reset();
        }
    }

    fn finish(&mut self, kind: fb::Message, offset: MessageOffset) -> &[u8] {
        let envelope = fb::Envelope::create(
            &mut self.builder,
            &fb::EnvelopeArgs { message_type: kind, message: Some(offset) },
        );
        fb::finish_size_prefixed_envelope_buffer(&mut self.builder, envelope);
        let frame = self.builder.finished_data();
        self.last_bytes = frame.len();
        frame
    }
}

/// Offset of a message before it is put into its envelope.
pub(super) type MessageOffset = WIPOffset<flatbuffers::UnionWIPOffset>;

/// The whole frame of a message to the brain, as bytes of its own.
pub fn encode_to_brain(message: &ToBrain, encoder: &mut Encoder) -> Vec<u8> {
    encoder.to_brain(message).to_vec()
}

/// The whole frame of a message from the brain, as bytes of its own.
pub fn encode_from_brain(message: &FromBrain, encoder: &mut Encoder) -> Vec<u8> {
    encoder.from_brain(message).to_vec()
}
