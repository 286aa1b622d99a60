//! A request that is ready to run, and the reply that its tokens become.
//!
//! The rule: the caller moves tokens and bytes, and decides nothing about their meaning.

use std::sync::Arc;

use bytes::BytesMut;
use pons_protocol::inference::SequenceOutput;
use pons_protocol::sampling::{Grammar, SamplingParams, StopParams};

use super::chat::ChatReply;
use super::completion::CompletionReply;
use super::frame::DONE;
use super::origin::Origin;
pub use super::sampling::Serving;
pub use super::usage::Usage;
use crate::error::ApiError;

/// A checked request.
#[derive(Debug)]
pub struct Prepared {
    /// What to run; the index is the number that [`Reply::push`] wants.
    pub sequences: Vec<SequenceSpec>,
    /// Whether the client wants server-sent events.
    pub stream: bool,
    /// Turns outputs into the reply.
    pub reply: Reply,
    /// Priority and cache salt.
    pub serving: Serving,
}

/// One sequence to run.
#[derive(Clone, Debug, PartialEq)]
pub struct SequenceSpec {
    /// Prompt; sequences of one prompt share it.
    pub prompt: Arc<[u32]>,
    /// How tokens are chosen.
    pub sampling: SamplingParams,
    /// When it ends.
    pub stop: StopParams,
    /// What the output is held to.
    pub grammar: Option<Grammar>,
    /// Which fields all this came from.
    pub origin: Arc<Origin>,
}

/// What became of a sequence with its newest output.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChoiceState {
    /// It goes on.
    Open,
    /// It ended by itself.
    Done,
    /// Its text is over, so the caller must abort the sequence in the brain.
    Stopped,
}

/// The reply of one request while it grows.
#[derive(Debug)]
pub struct Reply {
    kind: Kind,
    stream: bool,
    failure: Option<ApiError>,
}

#[derive(Debug)]
enum Kind {
    Chat(ChatReply),
    Completion(CompletionReply),
}

impl Reply {
    pub(super) fn chat(reply: ChatReply) -> Self {
        Self { stream: reply.streams(), kind: Kind::Chat(reply), failure: None }
    }

    pub(super) fn completion(reply: CompletionReply) -> Self {
        Self { stream: reply.streams(), kind: Kind::Completion(reply), failure: None }
    }

    /// Begins a stream, once the brain has accepted every sequence; writes nothing otherwise.
    pub fn open(&mut self, out: &mut BytesMut) {
        if let Kind::Chat(reply) = &mut self.kind {
            reply.open(out);
        }
    }

    /// Takes an output of the sequence with this number and appends frames when streaming. Outputs after the
    /// choice's end are ignored.
    pub fn push(&mut self, choice: usize, output: &SequenceOutput, out: &mut BytesMut) -> ChoiceState {
        use pons_protocol::inference::FinishReason::Failed;
        if output.finish.as_ref().is_some_and(|finish| finish.reason == Failed) {
            let error = ApiError::brain_failed("the model failed to compute this answer; send it again");
            self.failure.get_or_insert(error);
            // No frame may make it look complete.
            match &mut self.kind {
                Kind::Chat(reply) => reply.fail_choice(choice),
                Kind::Completion(reply) => reply.fail_choice(choice),
            }
            return ChoiceState::Done;
        }
        match &mut self.kind {
            Kind::Chat(reply) => reply.push(choice, output, out),
            Kind::Completion(reply) => reply.push(choice, output, out),
        }
    }

    /// Set once the brain could not compute a sequence: the reply can't be completed, only failed.
    pub fn failure(&self) -> Option<&ApiError> {
        self.failure.as_ref()
    }

    /// Whether every choice has ended.
    pub fn is_complete(&self) -> bool {
        match &self.kind {
            Kind::Chat(reply) => reply.is_complete(),
            Kind::Completion(reply) => reply.is_complete(),
        }
    }

    /// Ends the reply: the last frames of a stream, or the whole body. A failed one ends as its error.
    pub fn close(&mut self, out: &mut BytesMut) {
        if let Some(error) = self.failure.clone() {
            if self.stream {
                self.fail(&error, out);
            } else {
                out.extend_from_slice(&error.body());
            }
            return;
        }
        match &mut self.kind {
            Kind::Chat(reply) => reply.close(out),
            Kind::Completion(reply) => reply.close(out),
        }
        if self.stream {
            out.extend_from_slice(DONE);
        }
    }

    /// Ends a stream with an error; nothing may follow. Writes nothing when not streaming.
    pub fn fail(&mut self, error: &ApiError, out: &mut BytesMut) {
        if self.stream {
            out.extend_from_slice(b"data: ");
            out.extend_from_slice(&error.body());
            out.extend_from_slice(b"\n\n");
        }
    }

    /// Counts so far.
    pub fn usage(&self) -> Usage {
        match &self.kind {
            Kind::Chat(reply) => reply.usage(),
            Kind::Completion(reply) => reply.usage(),
        }
    }
}
