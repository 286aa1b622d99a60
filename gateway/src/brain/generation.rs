//! One request's sequences, from acceptance to the last token, across as many brains as it takes.
//!
//! The rule: for every unfinished choice this holds prompt, tokens so far, parameters and seed; when a link is
//! lost they are submitted again, and the new brain goes on at the next output position.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use pons_protocol::id::{SequenceId, TokenId};
use pons_protocol::inference::{RejectReason, Rejection, SequenceOutput, Submit};
use pons_protocol::sampling::Grammar;
use tokio::sync::mpsc;
use tokio::time::Instant;

use super::link::{EventSender, Link, LinkEvent};
use super::{BrainError, BrainPool, GenerateRequest, GenerationEvent, Timeouts};
use crate::error::ApiError;
use crate::openai::{SequenceSpec, ServedModel};

/// Events that may wait for a reader, for each choice; a client this far behind is dropped.
const EVENTS_PER_CHOICE: usize = 2048;
/// Most events that may wait for one generation.
const EVENTS_MOST: usize = 16 << 10;
/// A generation that loses its brain this often in a row, without a token in between, may be what kills it.
const LOSSES_MOST: u32 = 4;
/// Pause, times the losses so far, before a generation that has no token yet is submitted again. Those that have
/// begun go first and get on, so that one that kills brains is given up alone.
const SUSPECT_PAUSE: Duration = Duration::from_millis(250);
/// Most bytes that one generation may send to a brain, its choices together.
const SUBMISSION_BYTES: usize = 32 << 20;
/// Pause before a continued sequence that met a full queue is submitted again.
const QUEUE_FULL_PAUSE: Duration = Duration::from_millis(50);

/// Tokens on their way. Dropping it aborts whatever still runs.
pub struct Generation {
    pool: BrainPool,
    model: String,
    fingerprint: String,
    request: GenerateRequest,
    choices: Vec<Choice>,
    sender: EventSender,
    events: mpsc::Receiver<LinkEvent>,
    /// Outputs that came before the last sequence was accepted.
    early: VecDeque<LinkEvent>,
    link: Option<Arc<Link>>,
    started: Instant,
    last_output: Option<Instant>,
    losses: u32,
    failed: bool,
    /// Work that a taken event asks for. Kept here until it is done, so that dropping a half-run `next` and
    /// calling it again (a heartbeat does so) loses nothing.
    pending: Pending,
}

enum Pending {
    Nothing,
    /// All unfinished choices are to be submitted at this time.
    Submit {
        at: Instant,
    },
    /// One refused choice is to be tried again at this time.
    Retry {
        choice: usize,
        at: Instant,
    },
}

struct Choice {
    sequence: SequenceId,
    generated: Vec<TokenId>,
    accepted: bool,
    /// Prompt tokens that the first run found in the cache, once it has reported. A continuation then sends no
    /// prompt log probabilities again, and what it finds in the cache is not what the client is charged by.
    cached_tokens: Option<u32>,
    done: bool,
}

impl Generation {
    pub(super) fn new(pool: BrainPool, model: &ServedModel, request: GenerateRequest) -> Generation {
        let capacity = (request.sequences.len() * EVENTS_PER_CHOICE).clamp(EVENTS_PER_CHOICE, EVENTS_MOST);
        let (queue, events) = mpsc::channel(capacity);
        let choice = || Choice {
            sequence: pool.new_sequence(),
            generated: Vec::new(),
            accepted: false,
            cached_tokens: None,
            done: false,
        };
        Generation {
            choices: request.sequences.iter().map(|_| choice()).collect(),
            model: model.name.clone(),
            fingerprint: model.fingerprint.clone(),
            sender: EventSender { queue, overflowed: Arc::new(AtomicBool::new(false)) },
            events,
            early: VecDeque::new(),
            link: None,
            started: Instant::now(),
            last_output: None,
            losses: 0,
            failed: false,
            pending: Pending::Nothing,
            pool,
            request,
        }
    }

    /// Submits everything and waits until all of it is accepted.
    pub(super) async fn begin(&mut self) -> Result<(), BrainError> {
        let bytes: usize = self.request.sequences.iter().map(submission_bytes).sum();
        if bytes > SUBMISSION_BYTES {
            return Err(BrainError::TooLarge { bytes, limit: SUBMISSION_BYTES });
        }
        self.pending = Pending::Submit { at: self.started };
        self.settle_pending().await?;
        while self.choices.iter().any(|c| !c.accepted) {
            match self.receive().await? {
                LinkEvent::Accepted(id) => self.mark_accepted(id),
                LinkEvent::Rejected(rejection) => return Err(self.refused(&rejection)),
                LinkEvent::Lost(id) => {
                    // Outputs of the lost attempt are outdated: the new one computes them again, identically.
                    self.early.clear();
                    self.recover(id)?;
                    self.settle_pending().await?;
                }
                output @ LinkEvent::Output(_) => self.early.push_back(output),
            }
        }
        Ok(())
    }

    /// The next tokens, or the failure that ends it all; `None` when every choice is done.
    ///
    /// Safe to drop and call again: nothing is taken from the queue without being returned or recorded.
    pub async fn next(&mut self) -> Option<GenerationEvent> {
        if self.failed || self.choices.iter().all(|c| c.done) {
            return None;
        }
        match self.advance().await {
            Ok((choice, output)) => Some(GenerationEvent::Output { choice, output }),
            Err(error) => {
                self.failed = true;
                self.abort_unfinished();
                Some(GenerationEvent::Failed(ApiError::from(error)))
            }
        }
    }

    /// Ends one choice early (a stop string matched).
    pub fn stop(&mut self, choice: usize) {
        let Some(choice) = self.choices.get_mut(choice).filter(|c| !c.done) else { return };
        choice.done = true;
        if let Some(link) = &self.link {
            link.abort(vec![choice.sequence]);
        }
    }

    /// Ends all choices early; nothing comes after this.
    pub fn stop_all(&mut self) {
        if !self.failed {
            self.failed = true;
            self.abort_unfinished();
        }
    }

    async fn advance(&mut self) -> Result<(usize, SequenceOutput), BrainError> {
        loop {
            self.settle_pending().await?;
            let event = match self.early.pop_front() {
                Some(event) => event,
                None => self.receive().await?,
            };
            match event {
                LinkEvent::Output(output) => {
                    if let Some(event) = self.take_output(output)? {
                        return Ok(event);
                    }
                }
                LinkEvent::Accepted(id) => self.mark_accepted(id),
                LinkEvent::Lost(id) => self.recover(id)?,
                LinkEvent::Rejected(rejection) => self.retry_rejected(rejection)?,
            }
        }
    }

    /// Waits for one event under the limits of the request.
    async fn receive(&mut self) -> Result<LinkEvent, BrainError> {
        if self.sender.overflowed.load(Ordering::Acquire) {
            return Err(BrainError::SlowReader { events: self.sender.queue.max_capacity() });
        }
        let Timeouts { first_token, inter_token, total } = self.request.timeouts;
        let (awaited, limit, at) = match self.last_output {
            None => ("first token", first_token, self.started + first_token),
            Some(last) => ("further token", inter_token, last.max(self.started) + inter_token),
        };
        let (awaited, limit, at) = if self.started + total < at {
            ("complete answer", total, self.started + total)
        } else {
            (awaited, limit, at)
        };
        match tokio::time::timeout_at(at, self.events.recv()).await {
            Ok(Some(event)) => Ok(event),
            // This generation holds a sender itself, so the channel can't close.
            Ok(None) => Err(BrainError::Inconsistent("the event queue closed".to_owned())),
            Err(_) => Err(BrainError::Timeout { awaited, limit_ms: limit.as_millis() }),
        }
    }

    fn find(&self, id: SequenceId) -> Option<usize> {
        self.choices.iter().position(|c| c.sequence == id && !c.done)
    }

    /// A final refusal, in words that fit the request.
    fn refused(&self, rejection: &Rejection) -> BrainError {
        let Rejection { sequence, reason, message } = rejection;
        let error = match self.find(*sequence).and_then(|choice| self.request.sequences.get(choice)) {
            Some(spec) => spec.origin.refusal(*reason, message, spec.grammar.as_ref()),
            None => ApiError::rejected(*reason, message),
        };
        BrainError::Refused(error)
    }

    fn mark_accepted(&mut self, id: SequenceId) {
        if let Some(index) = self.find(id) {
            self.choices[index].accepted = true;
        }
    }

    /// Records an output; `None` if it belongs to a choice that is done or an attempt that was given up.
    fn take_output(
        &mut self,
        mut output: SequenceOutput,
    ) -> Result<Option<(usize, SequenceOutput)>, BrainError> {
        let Some(index) = self.find(output.sequence) else { return Ok(None) };
        let choice = &mut self.choices[index];
        if output.position as usize != choice.generated.len() {
            return Err(BrainError::Inconsistent(format!(
                "output position {} where {} was expected",
                output.position,
                choice.generated.len()
            )));
        }
        if choice.cached_tokens.is_some() {
            output.prompt_logprobs.clear();
        }
        output.cached_tokens = *choice.cached_tokens.get_or_insert(output.cached_tokens);
        choice.generated.extend_from_slice(&output.tokens);
        choice.done = output.finish.is_some();
        self.last_output = Some(Instant::now());
        self.losses = 0;
        Ok(Some((index, output)))
    }

    /// Goes on elsewhere after the link of `id` was lost. Every sequence of the link gets its own notice; the
    /// first one moves all, the later ones find that their sequence has a new name.
    fn recover(&mut self, id: SequenceId) -> Result<(), BrainError> {
        if self.find(id).is_none() {
            return Ok(());
        }
        self.losses += 1;
        if self.losses > LOSSES_MOST {
            return Err(BrainError::LostTooOften { losses: self.losses });
        }
        tracing::info!(model = %self.model, losses = self.losses, "generation moves to a new link");
        for choice in self.choices.iter_mut().filter(|c| !c.done) {
            choice.sequence = self.pool.new_sequence();
            choice.accepted = false;
        }
        let suspect = self.choices.iter().all(|c| c.generated.is_empty());
        let pause = if suspect { SUSPECT_PAUSE * self.losses } else { Duration::ZERO };
        self.pending = Pending::Submit { at: Instant::now() + pause };
        Ok(())
    }

    /// A refusal of a sequence that was accepted once: room will come, so it is tried again until the limits of
    /// the request end it. Any other refusal is final.
    fn retry_rejected(&mut self, rejection: Rejection) -> Result<(), BrainError> {
        let Some(choice) = self.find(rejection.sequence) else { return Ok(()) };
        if !matches!(
            rejection.reason,
            RejectReason::QueueFull | RejectReason::Draining | RejectReason::QueueTimeout
        ) {
            return Err(self.refused(&rejection));
        }
        self.choices[choice].sequence = self.pool.new_sequence();
        // While a move of all choices is due, it takes this one along.
        if matches!(self.pending, Pending::Nothing) {
            self.pending = Pending::Retry { choice, at: Instant::now() + QUEUE_FULL_PAUSE };
        }
        Ok(())
    }

    async fn settle_pending(&mut self) -> Result<(), BrainError> {
        let choices = match self.pending {
            Pending::Nothing => return Ok(()),
            Pending::Submit { at } => {
                // The timer counts whole milliseconds, so a time that has come must not be given to it.
                if at > Instant::now() {
                    tokio::time::sleep_until(at).await;
                }
                (0..self.choices.len()).filter(|&i| !self.choices[i].done).collect()
            }
            Pending::Retry { choice, at } => {
                tokio::time::sleep_until(at).await;
                vec![choice]
            }
        };
        let link = self.pick().await?;
        let submits: Vec<_> = choices.into_iter().map(|i| self.submission(i)).collect();
        // Known before the wait, so that a drop in the middle of it still aborts.
        self.link = Some(Arc::clone(&link));
        link.submit(submits, self.sender.clone()).await;
        self.pending = Pending::Nothing;
        Ok(())
    }

    async fn pick(&self) -> Result<Arc<Link>, BrainError> {
        let limit = Instant::now() + self.pool.recovery();
        self.pool
            .pick(&self.model, &self.fingerprint, limit.min(self.started + self.request.timeouts.total))
            .await
    }

    fn submission(&self, index: usize) -> Submit {
        let (choice, spec): (&Choice, &SequenceSpec) = (&self.choices[index], &self.request.sequences[index]);
        let mut sampling = spec.sampling.clone();
        if choice.cached_tokens.is_some() {
            sampling.prompt_logprobs = None;
        }
        Submit {
            sequence: choice.sequence,
            tenant: self.request.tenant,
            cache_salt: self.request.cache_salt,
            priority: self.request.priority,
            prompt: spec.prompt.to_vec(),
            generated: choice.generated.clone(),
            sampling,
            stop: spec.stop.clone(),
            grammar: spec.grammar.clone(),
            queue_timeout_ms: u32::try_from(self.request.timeouts.first_token.as_millis())
                .unwrap_or(u32::MAX),
        }
    }

    fn abort_unfinished(&mut self) {
        let Some(link) = &self.link else { return };
        link.abort(self.choices.iter().filter(|c| !c.done).map(|c| c.sequence).collect());
    }
}

/// About what a sequence takes in a frame.
fn submission_bytes(spec: &SequenceSpec) -> usize {
    let grammar = spec.grammar.as_ref().map_or(0, Grammar::text_bytes);
    let ids = spec.prompt.len() + spec.sampling.allowed_token_ids.len() + spec.stop.stop_token_ids.len();
    512 + grammar + 4 * ids + 8 * spec.sampling.logit_bias.len()
}

impl Drop for Generation {
    fn drop(&mut self) {
        if !self.failed {
            self.abort_unfinished();
        }
    }
}
