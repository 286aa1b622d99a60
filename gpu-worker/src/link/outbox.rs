//! What waits to be written to one link.
//!
//! The rule: it is bounded in messages and bytes, and whoever fills it never waits. A peer that reads too slowly
//! loses its link, not the others their tokens.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use crossbeam::channel::{Receiver, RecvTimeoutError, Sender, TryRecvError, bounded};
use pons_protocol::inference::{FromBrain, SequenceOutput, TokenLogprobs};

use super::Stream;

/// Most messages that wait: seconds of decode steps even of a tiny model, so that a peer may stall for a moment.
const MAX_MESSAGES: usize = 4096;
/// Most bytes that wait.
const MAX_BYTES: usize = 64 << 20;

/// The engine's end of a link's queue. When it goes, the link is closed after its last message was written.
#[derive(Debug)]
pub struct Outbox {
    sender: Sender<FromBrain>,
    waiting_bytes: Arc<AtomicUsize>,
    stream: Option<Arc<Stream>>,
}

/// The writer's end.
#[derive(Debug)]
pub(crate) struct Outgoing {
    receiver: Receiver<FromBrain>,
    waiting_bytes: Arc<AtomicUsize>,
}

/// The peer reads too slowly, or the link is gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the peer is gone or reads too slowly")]
pub struct Overflow;

impl Outbox {
    /// A queue whose stream is closed at once when [`Self::cut`] is called.
    pub(crate) fn new(stream: Option<Arc<Stream>>) -> (Self, Outgoing) {
        let (sender, receiver) = bounded(MAX_MESSAGES);
        let waiting_bytes = Arc::new(AtomicUsize::new(0));
        let outgoing = Outgoing { receiver, waiting_bytes: Arc::clone(&waiting_bytes) };
        (Self { sender, waiting_bytes, stream }, outgoing)
    }

    /// Queues a message without waiting.
    pub fn send(&self, message: FromBrain) -> Result<(), Overflow> {
        let bytes = estimated_bytes(&message);
        let before = self.waiting_bytes.fetch_add(bytes, Ordering::Relaxed);
        // One message may be larger than the bound on its own; it must still be able to leave.
        if before > 0 && before + bytes > MAX_BYTES {
            return Err(Overflow);
        }
        self.sender.try_send(message).map_err(|_| Overflow)
    }

    /// Ends the link now, with whatever still waits.
    pub fn cut(&self) {
        if let Some(stream) = &self.stream {
            stream.close();
        }
    }
}

impl Outgoing {
    /// The next message, if it comes before the deadline.
    pub(crate) fn next(&self, limit: std::time::Duration) -> Result<FromBrain, RecvTimeoutError> {
        self.receiver.recv_timeout(limit).inspect(|message| self.taken(message))
    }

    /// The next message, if it is there already.
    pub(crate) fn ready(&self) -> Result<FromBrain, TryRecvError> {
        self.receiver.try_recv().inspect(|message| self.taken(message))
    }

    fn taken(&self, message: &FromBrain) {
        self.waiting_bytes.fetch_sub(estimated_bytes(message), Ordering::Relaxed);
    }
}

/// About the size of a message's frame; the same for the same message.
fn estimated_bytes(message: &FromBrain) -> usize {
    const FIXED: usize = 128;
    let logprobs = |positions: &[TokenLogprobs]| {
        positions.iter().map(|position| 8 + 8 * position.top.len()).sum::<usize>()
    };
    let output = |output: &SequenceOutput| {
        FIXED + 4 * output.tokens.len() + logprobs(&output.logprobs) + logprobs(&output.prompt_logprobs)
    };
    FIXED
        + match message {
            FromBrain::Hello(_) | FromBrain::Heartbeat(_) => 0,
            FromBrain::Accepted(ids) => 8 * ids.len(),
            FromBrain::Rejected(rejection) => rejection.message.len(),
            FromBrain::Step(step) => step.outputs.iter().map(output).sum(),
        }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use pons_protocol::capacity::Capacity;
    use pons_protocol::id::SequenceId;

    use super::*;

    #[test]
    fn a_peer_that_reads_nothing_overflows_after_the_bound() {
        let (outbox, outgoing) = Outbox::new(None);
        for _ in 0..MAX_MESSAGES {
            assert_eq!(outbox.send(FromBrain::Heartbeat(Capacity::default())), Ok(()));
        }
        assert_eq!(outbox.send(FromBrain::Heartbeat(Capacity::default())), Err(Overflow));
        drop(outbox);
        assert!(outgoing.ready().is_ok(), "what was queued can still be written");
    }

    #[test]
    fn bytes_are_bounded_and_freed_as_they_are_written() {
        let (outbox, outgoing) = Outbox::new(None);
        let large = || FromBrain::Accepted(vec![SequenceId(1); MAX_BYTES / 16]);
        assert_eq!(outbox.send(large()), Ok(()));
        assert!(outgoing.next(Duration::ZERO).is_ok());
        assert_eq!(outbox.send(large()), Ok(()));
        assert_eq!(outbox.send(large()), Err(Overflow));
    }

    #[test]
    fn a_message_to_a_link_that_ended_is_an_overflow() {
        let (outbox, outgoing) = Outbox::new(None);
        drop(outgoing);
        assert_eq!(outbox.send(FromBrain::Accepted(Vec::new())), Err(Overflow));
    }
}
