//! What can be wrong with bytes that arrived on a link.

/// A frame that can't be used. The link that carried it is closed: after a framing fault nothing that
/// follows can be trusted.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ProtocolError {
    /// Larger than [`crate::wire::frame::MAX_FRAME_BYTES`].
    #[error("frame of {bytes} bytes exceeds the limit of {limit}; the peer is broken or not a pons worker")]
    FrameTooLarge {
        /// Announced size.
        bytes: u64,
        /// The limit.
        limit: u64,
    },
    /// The flatbuffers verifier refused it.
    #[error("frame is not a valid {kind} message: {reason}")]
    Malformed {
        /// Expected message.
        kind: &'static str,
        /// The verifier's reason.
        reason: String,
    },
    /// A field holds a value outside its set.
    #[error(
        "field {field} of {kind} has the value {value}, which this build does not know; run the same version on both ends"
    )]
    UnknownValue {
        /// Message.
        kind: &'static str,
        /// Field.
        field: &'static str,
        /// Value found.
        value: String,
    },
    /// The two ends speak different versions.
    #[error("peer speaks protocol version {theirs}, this build {ours}; run the same version on both ends")]
    VersionMismatch {
        /// Theirs.
        theirs: u32,
        /// Ours.
        ours: u32,
    },
}
