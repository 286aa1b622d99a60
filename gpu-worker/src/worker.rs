//! The engine thread: it takes commands, runs steps, and hands out what they produced.
//!
//! The rule: one thread, no locks, and nothing on it waits for a peer. It blocks only when there is nothing to
//! compute, and a link that is slow or lost costs its own sequences.

mod compile;
mod routes;

use std::collections::HashMap;
use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crossbeam::channel::{Receiver, RecvTimeoutError, Sender, bounded};
use pons_protocol::id::SequenceId;
use pons_protocol::inference::{FromBrain, RejectReason, Rejection, SequenceOutput, StepOutput, Submit};
use pons_protocol::sampling::Grammar;

use crate::clock::Clock;
use crate::engine::Engine;
use crate::executor::{ExecutorError, ModelExecutor};
use crate::grammar::GrammarMatcher;
use crate::link::{LinkId, Outbox};
use crate::metrics::Published;
use compile::{CompileJob, CompileQueue};
use routes::Routes;

pub use compile::Compiled;

/// Commands that wait for the engine; a link that sends more waits itself.
const INBOX: usize = 64;
/// Commands taken between two steps, so that a flood can't hold up those who decode.
const COMMANDS_PER_STEP: usize = 256;
/// Most sequences whose grammar is being compiled.
const MAX_COMPILING: usize = 4096;
/// How long to sleep when sequences wait but no step can be planned.
const STALLED: Duration = Duration::from_millis(2);

/// What reaches the engine thread.
pub enum Command {
    /// A link said hello.
    Opened {
        /// Its number.
        link: LinkId,
        /// Where its output goes.
        outbox: Outbox,
    },
    /// Sequences arrived.
    Submit {
        /// From where.
        link: LinkId,
        /// In the link's own numbers.
        submits: Vec<Submit>,
    },
    /// Sequences are not wanted any more.
    Abort {
        /// From where.
        link: LinkId,
        /// In the link's own numbers.
        sequences: Vec<SequenceId>,
    },
    /// Finish what the link has, take nothing new from it, then close it.
    Drain {
        /// Which link.
        link: LinkId,
    },
    /// A link ended.
    Closed {
        /// Which link.
        link: LinkId,
    },
    /// A grammar was compiled, or not.
    Compiled(Box<Compiled>),
    /// Finish everything within the time, then stop.
    Stop {
        /// How long it may take.
        limit: Duration,
    },
}

/// The inbox of a worker that is yet to be started.
pub struct Inbox {
    sender: Sender<Command>,
    receiver: Receiver<Command>,
}

impl Default for Inbox {
    fn default() -> Self {
        let (sender, receiver) = bounded(INBOX);
        Self { sender, receiver }
    }
}

impl Inbox {
    /// For links and signals.
    pub fn sender(&self) -> Sender<Command> {
        self.sender.clone()
    }
}

/// A sequence whose grammar is being compiled.
struct Pending {
    submit: Submit,
    received_us: u64,
}

/// Runs an engine for the links that connect.
pub struct Worker<E: ModelExecutor> {
    engine: Engine<E>,
    inbox: Receiver<Command>,
    compiler: CompileQueue,
    pending: HashMap<SequenceId, Pending>,
    routes: Routes,
    published: Arc<Published>,
    clock: Clock,
    /// When to stop at the latest, once asked to.
    stop_by_us: Option<u64>,
    /// Links that overflowed while something was sent to them.
    lost: Vec<LinkId>,
}

impl<E: ModelExecutor> Worker<E> {
    /// A worker around an engine. `compile` runs on a thread of its own.
    ///
    /// # Errors
    /// The system gives no thread.
    pub fn new(
        engine: Engine<E>,
        inbox: Inbox,
        compile: impl Fn(&Grammar) -> Result<GrammarMatcher, String> + Send + 'static,
        published: Arc<Published>,
        clock: Clock,
    ) -> io::Result<Self> {
        let compiler = CompileQueue::start(compile, inbox.sender)?;
        Ok(Self {
            engine,
            inbox: inbox.receiver,
            compiler,
            pending: HashMap::new(),
            routes: Routes::default(),
            published,
            clock,
            stop_by_us: None,
            lost: Vec::new(),
        })
    }

    /// Works until it is told to stop and has finished, or the time for that is over.
    ///
    /// # Errors
    /// The device failed. The process should end then; whoever started it starts another.
    pub fn run(mut self) -> Result<(), ExecutorError> {
        loop {
            self.take_commands();
            if self.is_finished() {
                return Ok(());
            }
            if self.engine.is_idle() {
                self.publish(false);
                self.wait(None);
                continue;
            }
            let clock = self.clock;
            match self.engine.step(|| clock.now_us())? {
                Some(output) => {
                    self.publish(true);
                    let begun = Instant::now();
                    self.distribute(output);
                    self.engine.note_send(begun.elapsed());
                }
                None => self.wait(Some(STALLED)),
            }
            self.pass_on_rejections();
            self.close_lost();
            debug_assert!(self.routes.is_consistent(), "a sequence lost its link");
        }
    }

    fn take_commands(&mut self) {
        for _ in 0..COMMANDS_PER_STEP {
            let Ok(command) = self.inbox.try_recv() else { break };
            self.handle(command);
        }
        self.pass_on_rejections();
        self.close_lost();
        self.routes.close_drained();
    }

    /// Blocks until a command arrives, or the given time has passed, or it is time to stop.
    fn wait(&mut self, limit: Option<Duration>) {
        let stop_in =
            self.stop_by_us.map(|by_us| Duration::from_micros(by_us.saturating_sub(self.clock.now_us())));
        let command = match [limit, stop_in].into_iter().flatten().min() {
            Some(limit) => self.inbox.recv_timeout(limit),
            None => self.inbox.recv().map_err(|_| RecvTimeoutError::Disconnected),
        };
        if let Ok(command) = command {
            self.handle(command);
        }
    }

    fn is_finished(&self) -> bool {
        self.stop_by_us.is_some_and(|by_us| {
            (self.routes.is_empty() && self.engine.is_idle()) || self.clock.now_us() >= by_us
        })
    }

    fn handle(&mut self, command: Command) {
        match command {
            Command::Opened { link, outbox } => self.routes.open(link, outbox),
            Command::Submit { link, submits } => self.submit(link, submits),
            Command::Abort { link, sequences } => {
                for theirs in sequences {
                    if let Some(ours) = self.routes.ours(link, theirs) {
                        self.forget(ours);
                    }
                }
            }
            Command::Drain { link } => self.routes.drain(link),
            Command::Closed { link } => self.close(link),
            Command::Compiled(compiled) => self.compiled(*compiled),
            Command::Stop { limit } => {
                let limit_us = u64::try_from(limit.as_micros()).unwrap_or(u64::MAX);
                self.stop_by_us = Some(self.clock.now_us().saturating_add(limit_us));
                self.engine.drain();
                tracing::info!(limit_s = limit.as_secs(), "draining: running sequences may finish");
            }
        }
        if !self.engine.is_idle() {
            self.publish(false);
        }
    }

    fn submit(&mut self, link: LinkId, submits: Vec<Submit>) {
        let now_us = self.clock.now_us();
        let mut accepted = Vec::new();
        let mut jobs: Vec<CompileJob> = Vec::new();
        for mut submit in submits {
            let theirs = submit.sequence;
            if self.routes.is_draining(link) {
                let message = "this link is draining; send the request over another".to_owned();
                self.reject(link, Rejection { sequence: theirs, reason: RejectReason::Draining, message });
                continue;
            }
            let Some(ours) = self.routes.add(link, theirs) else {
                let message = format!("sequence {theirs} is live already; choose another id");
                self.reject(
                    link,
                    Rejection { sequence: theirs, reason: RejectReason::BadParameter, message },
                );
                continue;
            };
            submit.sequence = ours;
            match submit.grammar.take() {
                None => {
                    if self.start(submit, None, now_us) {
                        accepted.push(theirs);
                    }
                }
                Some(grammar) => {
                    self.pending.insert(ours, Pending { submit, received_us: now_us });
                    // Choices of one request share their grammar; it is compiled once.
                    match jobs.iter_mut().find(|job| job.grammar == grammar) {
                        Some(job) => job.sequences.push(ours),
                        None => jobs.push(CompileJob { grammar, sequences: vec![ours] }),
                    }
                }
            }
        }
        if !accepted.is_empty() {
            self.send(link, FromBrain::Accepted(accepted));
        }
        for job in jobs {
            self.compile(job);
        }
    }

    fn compile(&mut self, job: CompileJob) {
        let refused =
            if self.pending.len() > MAX_COMPILING { Err(job.sequences) } else { self.compiler.push(job) };
        for ours in refused.err().unwrap_or_default() {
            self.pending.remove(&ours);
            let message = "too many grammars wait to be compiled; retry later".to_owned();
            self.reject_ours(Rejection { sequence: ours, reason: RejectReason::QueueFull, message });
        }
    }

    fn compiled(&mut self, compiled: Compiled) {
        let now_us = self.clock.now_us();
        let mut accepted: Vec<(LinkId, SequenceId)> = Vec::new();
        for ours in compiled.sequences {
            // Aborted meanwhile, or its link ended.
            let Some(Pending { mut submit, received_us }) = self.pending.remove(&ours) else { continue };
            let Some(route) = self.routes.find(ours) else { continue };
            let waited_ms = now_us.saturating_sub(received_us) / 1000;
            if submit.queue_timeout_ms > 0 {
                let left = u64::from(submit.queue_timeout_ms).saturating_sub(waited_ms);
                if left == 0 {
                    let message =
                        format!("compiling its grammar took {waited_ms} ms, longer than it may wait");
                    self.reject_ours(Rejection {
                        sequence: ours,
                        reason: RejectReason::QueueTimeout,
                        message,
                    });
                    continue;
                }
                submit.queue_timeout_ms = u32::try_from(left).unwrap_or(u32::MAX);
            }
            match &compiled.result {
                Ok(matcher) => {
                    if self.start(submit, Some(matcher.clone()), now_us) {
                        accepted.push((route.link, route.theirs));
                    }
                }
                Err(message) => {
                    let message = message.clone();
                    self.reject_ours(Rejection { sequence: ours, reason: RejectReason::BadGrammar, message });
                }
            }
        }
        // All of one job came with one batch, over one link.
        if let Some(&(link, _)) = accepted.first() {
            let ids = accepted.into_iter().map(|(_, theirs)| theirs).collect();
            self.send(link, FromBrain::Accepted(ids));
        }
    }

    /// Hands a sequence to the engine; false if that refuses it.
    fn start(&mut self, submit: Submit, grammar: Option<GrammarMatcher>, now_us: u64) -> bool {
        match self.engine.submit(submit, grammar, now_us) {
            Ok(()) => true,
            Err(rejection) => {
                self.reject_ours(rejection);
                false
            }
        }
    }

    /// Sends a rejection that names the sequence in our numbers, and forgets the sequence.
    fn reject_ours(&mut self, mut rejection: Rejection) {
        let Some(route) = self.routes.remove(rejection.sequence) else { return };
        // Nobody outside knows our number.
        rejection.message =
            rejection.message.replace(&rejection.sequence.to_string(), &route.theirs.to_string());
        rejection.sequence = route.theirs;
        self.reject(route.link, rejection);
    }

    fn reject(&mut self, link: LinkId, rejection: Rejection) {
        self.send(link, FromBrain::Rejected(rejection));
    }

    fn pass_on_rejections(&mut self) {
        for rejection in self.engine.take_rejections() {
            self.reject_ours(rejection);
        }
    }

    fn distribute(&mut self, output: StepOutput) {
        let StepOutput { step, outputs, capacity } = output;
        let mut parts: Vec<(LinkId, Vec<SequenceOutput>)> = Vec::with_capacity(1);
        for mut output in outputs {
            let route = if output.finish.is_some() {
                self.routes.remove(output.sequence)
            } else {
                self.routes.find(output.sequence)
            };
            // Aborted while the step ran.
            let Some(route) = route else { continue };
            output.sequence = route.theirs;
            match parts.iter_mut().find(|(link, _)| *link == route.link) {
                Some((_, part)) => part.push(output),
                None => parts.push((route.link, vec![output])),
            }
        }
        for (link, outputs) in parts {
            self.send(link, FromBrain::Step(StepOutput { step, outputs, capacity }));
        }
    }

    fn send(&mut self, link: LinkId, message: FromBrain) {
        if self.routes.send(link, message).is_err() {
            self.lost.push(link);
        }
    }

    fn close_lost(&mut self) {
        while let Some(link) = self.lost.pop() {
            if self.routes.is_open(link) {
                tracing::warn!(link = link.0, "a link was cut: its peer is gone or reads too slowly");
                self.close(link);
            }
        }
    }

    fn close(&mut self, link: LinkId) {
        for ours in self.routes.close(link) {
            self.pending.remove(&ours);
            self.engine.abort(ours);
        }
    }

    fn forget(&mut self, ours: SequenceId) {
        self.routes.remove(ours);
        self.pending.remove(&ours);
        self.engine.abort(ours);
    }

    fn publish(&self, step_ended: bool) {
        let capacity = self.engine.capacity(self.clock.now_us());
        self.published.publish(capacity, !self.engine.is_idle(), step_ended);
    }
}
