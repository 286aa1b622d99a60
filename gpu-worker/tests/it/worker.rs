//! The worker in this process, around executors without a model.

use std::net::TcpStream;
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::Duration;

use crossbeam::channel::{Receiver, Sender, bounded};
use pons_gpu_worker::clock::Clock;
use pons_gpu_worker::config::ListenAddress;
use pons_gpu_worker::engine::Engine;
use pons_gpu_worker::executor::fake::FakeExecutor;
use pons_gpu_worker::executor::{ExecutorError, ExecutorLimits, ModelExecutor, StepPlan, StepResult, Ticket};
use pons_gpu_worker::link::{LinkContext, Links, Listener};
use pons_gpu_worker::metrics::Published;
use pons_gpu_worker::scheduler::SchedulerConfig;
use pons_gpu_worker::worker::{Command, Inbox, Worker};
use pons_protocol::PROTOCOL_VERSION;
use pons_protocol::id::SequenceId;
use pons_protocol::inference::{BrainHello, FinishReason, FromBrain, RejectReason, ToBrain};
use pons_protocol::sampling::Grammar;

use crate::client::{Gateway, submit};

const LIMITS: ExecutorLimits =
    ExecutorLimits { blocks: 64, slots: 4, step_tokens: 64, context_tokens: 512, vocab_size: 1000 };

/// A worker on its own thread, reachable over TCP.
struct Running {
    thread: JoinHandle<Result<(), ExecutorError>>,
    commands: Sender<Command>,
    links: Links,
    port: String,
}

fn start<E: ModelExecutor + Send + 'static>(
    executor: E,
    compile: impl Fn(&Grammar) -> Result<pons_gpu_worker::grammar::GrammarMatcher, String> + Send + 'static,
) -> Running {
    let clock = Clock::start();
    let engine = Engine::new(executor, SchedulerConfig { max_waiting: 2, ..SchedulerConfig::default() });
    let published = Arc::new(Published::new(clock, engine.capacity(0)));
    let inbox = Inbox::default();
    let commands = inbox.sender();
    let hello = BrainHello {
        protocol_version: PROTOCOL_VERSION,
        software: "test".to_owned(),
        model: "fake".to_owned(),
        fingerprint: "fake".to_owned(),
        vocab_size: LIMITS.vocab_size,
        context_tokens: LIMITS.context_tokens,
        eos_token_ids: Vec::new(),
        max_sequences: LIMITS.slots,
        max_waiting: 2,
        max_waiting_tokens: 10_000,
        block_tokens: 16,
        blocks_total: LIMITS.blocks,
        step_tokens: LIMITS.step_tokens,
        calibration: None,
    };
    let listener = Listener::bind(&ListenAddress::Tcp("127.0.0.1:0".to_owned())).expect("loopback is free");
    let port = listener.address().trim_start_matches("tcp:").to_owned();
    let context =
        LinkContext { commands: commands.clone(), hello: Arc::new(hello), published: published.clone() };
    let links = listener.serve(context).expect("a thread starts");
    let worker = Worker::new(engine, inbox, compile, published, clock).expect("a thread starts");
    Running { thread: thread::spawn(move || worker.run()), commands, links, port }
}

impl Running {
    fn connect(&self) -> Gateway<TcpStream> {
        let stream = TcpStream::connect(&self.port).expect("the worker listens");
        stream.set_read_timeout(Some(Duration::from_secs(60))).expect("a timeout can be set");
        let mut gateway = Gateway::over(stream);
        assert_eq!(gateway.greet(PROTOCOL_VERSION).model, "fake");
        gateway
    }

    fn stop(self) {
        self.commands.send(Command::Stop { limit: Duration::from_secs(60) }).expect("the worker listens");
        self.thread.join().expect("the worker does not panic").expect("no device failed");
        self.links.finish(Duration::from_secs(60));
    }
}

fn no_grammars(_: &Grammar) -> Result<pons_gpu_worker::grammar::GrammarMatcher, String> {
    Err("no grammar is known here".to_owned())
}

#[test]
fn a_link_over_tcp_works_like_one_over_a_unix_socket() {
    let running = start(FakeExecutor::new(LIMITS), no_grammars);
    let mut gateway = running.connect();
    gateway.submit(vec![submit(1, &[1, 2, 3], 40)]);
    let (tokens, finish) = gateway.finish(1);
    assert_eq!((tokens.len(), finish.reason), (40, FinishReason::Length));
    running.stop();
    while gateway.next().is_some() {}
}

/// An executor that says when a step is under way, waits for permission to end it, and fails when told to.
struct Gated {
    inner: FakeExecutor,
    under_way: Sender<()>,
    gate: Receiver<bool>,
}

/// The executor, the permissions, and the steps that are under way.
fn gated() -> (Gated, Sender<bool>, Receiver<()>) {
    let ((permit, gate), (under_way, steps)) = (bounded(8), bounded(8));
    (Gated { inner: FakeExecutor::new(LIMITS), under_way, gate }, permit, steps)
}

impl ModelExecutor for Gated {
    fn limits(&self) -> ExecutorLimits {
        self.inner.limits()
    }

    fn submit(&mut self, plan: StepPlan) -> Result<Ticket, ExecutorError> {
        self.inner.submit(plan)
    }

    fn collect(&mut self, ticket: Ticket) -> Result<StepResult, ExecutorError> {
        // A test that does not look has dropped the other end.
        let _ = self.under_way.send(());
        match self.gate.recv() {
            Ok(true) => self.inner.collect(ticket),
            _ => Err(ExecutorError::Device("it was unplugged".to_owned())),
        }
    }
}

#[test]
fn a_device_error_ends_the_worker_and_no_stream_looks_complete() {
    let (executor, gate, _) = gated();
    let running = start(executor, no_grammars);
    let mut gateway = running.connect();
    gate.send(true).expect("the worker runs");
    gate.send(false).expect("the worker runs");
    gateway.submit(vec![submit(1, &[1], 10)]);
    let mut tokens = 0;
    while let Some(message) = gateway.next() {
        if let FromBrain::Step(step) = message {
            assert!(step.outputs.iter().all(|output| output.finish.is_none()));
            tokens += step.outputs.len();
        }
    }
    assert_eq!(tokens, 1);
    let error = running.thread.join().expect("the worker does not panic").expect_err("the device failed");
    assert_eq!(error.to_string(), "device failed: it was unplugged");
}

#[test]
fn an_abort_during_a_step_frees_everything_with_that_step() {
    let (executor, gate, steps) = gated();
    let running = start(executor, no_grammars);
    let mut gateway = running.connect();
    gateway.submit(vec![submit(1, &[1; 40], 100)]);
    steps.recv().expect("the first step begins");
    gate.send(true).expect("the worker runs");
    steps.recv().expect("the second step begins");
    gateway.send(&ToBrain::Abort(vec![SequenceId(1)]));
    while running.commands.is_empty() {
        thread::yield_now();
    }
    gate.send(true).expect("the worker runs");
    let after = gateway.await_capacity(|capacity| capacity.steps > 0 && capacity.running == 0);
    assert_eq!((after.steps, after.blocks_held), (2, 0), "{after:?}");
    running.stop();
}

#[test]
fn the_waiting_room_is_bounded_and_says_so() {
    let (executor, gate, _) = gated();
    let running = start(executor, no_grammars);
    let mut gateway = running.connect();
    gateway.submit((0..8).map(|sequence| submit(sequence, &[1], 5)).collect());
    let mut refused = 0;
    loop {
        match gateway.next_event() {
            FromBrain::Rejected(rejection) => {
                assert_eq!(rejection.reason, RejectReason::QueueFull);
                refused += 1;
            }
            FromBrain::Accepted(accepted) => {
                assert_eq!(accepted.len() + refused, 8);
                assert_eq!(accepted.len(), 6, "four may start and two may wait");
                break;
            }
            other => panic!("{other:?} before any step was permitted"),
        }
    }
    drop(gate);
    assert!(running.thread.join().expect("the worker does not panic").is_err());
}

#[test]
fn an_abort_while_its_grammar_is_compiled_leaves_nothing() {
    let (release, held) = bounded::<()>(0);
    let running = start(FakeExecutor::new(LIMITS), move |_| {
        // Compiles for as long as the test wants.
        let _ = held.recv();
        Err("it is broken".to_owned())
    });
    let mut gateway = running.connect();
    let mut slow = submit(1, &[1], 5);
    slow.grammar = Some(Grammar::Regex("a".to_owned()));
    let mut kept = slow.clone();
    kept.sequence = SequenceId(2);
    kept.grammar = Some(Grammar::Regex("b".to_owned()));
    gateway.submit(vec![slow, kept]);
    gateway.send(&ToBrain::Abort(vec![SequenceId(1)]));
    gateway.submit(vec![submit(3, &[1], 2)]);
    assert_eq!(gateway.finish(3).0.len(), 2, "others run while a grammar is compiled");
    release.send(()).expect("the first compile waits");
    release.send(()).expect("the second compile waits");
    match gateway.next_event() {
        FromBrain::Rejected(rejection) => {
            assert_eq!((rejection.sequence, rejection.reason), (SequenceId(2), RejectReason::BadGrammar));
        }
        other => panic!("{other:?} for an aborted sequence"),
    }
    running.stop();
}
