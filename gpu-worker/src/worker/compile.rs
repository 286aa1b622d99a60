//! Compiles grammars beside the engine.
//!
//! The rule: the engine never waits for a compiler. One thread, a bounded queue, and what was compiled lately is
//! copied instead of compiled again.

use std::collections::VecDeque;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::thread;

use crossbeam::channel::{Receiver, Sender, bounded};
use pons_protocol::id::SequenceId;
use pons_protocol::sampling::Grammar;

use super::Command;
use crate::grammar::GrammarMatcher;

/// Most compiles that wait.
const MAX_WAITING: usize = 256;
/// Grammars kept in their initial state. Agents use the same few schemas again and again.
const KEPT: usize = 32;

/// A grammar and the sequences that wait for it.
#[derive(Debug)]
pub(super) struct CompileJob {
    pub(super) grammar: Grammar,
    pub(super) sequences: Vec<SequenceId>,
}

/// A finished compile: the matcher in its initial state, or what is wrong with the grammar.
pub struct Compiled {
    pub(super) sequences: Vec<SequenceId>,
    pub(super) result: Result<GrammarMatcher, String>,
}

/// The compiler thread's inbox.
pub(super) struct CompileQueue {
    jobs: Sender<CompileJob>,
}

impl CompileQueue {
    /// Starts the thread. Results go to the engine's inbox.
    pub(super) fn start(
        compile: impl Fn(&Grammar) -> Result<GrammarMatcher, String> + Send + 'static,
        done: Sender<Command>,
    ) -> io::Result<Self> {
        let (jobs, inbox) = bounded(MAX_WAITING);
        thread::Builder::new().name("grammar".to_owned()).spawn(move || run(&compile, &inbox, &done))?;
        Ok(Self { jobs })
    }

    /// Queues a job without waiting; gives its sequences back when the queue is full.
    pub(super) fn push(&self, job: CompileJob) -> Result<(), Vec<SequenceId>> {
        self.jobs.try_send(job).map_err(|refused| refused.into_inner().sequences)
    }
}

fn run(
    compile: &dyn Fn(&Grammar) -> Result<GrammarMatcher, String>,
    inbox: &Receiver<CompileJob>,
    done: &Sender<Command>,
) {
    let mut kept: VecDeque<(Grammar, GrammarMatcher)> = VecDeque::new();
    while let Ok(job) = inbox.recv() {
        let found = kept.iter().position(|(grammar, _)| *grammar == job.grammar);
        let result = match found.and_then(|at| kept.remove(at)) {
            Some((grammar, matcher)) => {
                let copy = matcher.clone();
                kept.push_front((grammar, matcher));
                Ok(copy)
            }
            None => compile_guarded(compile, &job.grammar).inspect(|matcher| {
                kept.truncate(KEPT - 1);
                kept.push_front((job.grammar.clone(), matcher.clone()));
            }),
        };
        if done.send(Command::Compiled(Box::new(Compiled { sequences: job.sequences, result }))).is_err() {
            return;
        }
    }
}

/// A compiler that panics costs the grammar, not the brain.
fn compile_guarded(
    compile: &dyn Fn(&Grammar) -> Result<GrammarMatcher, String>,
    grammar: &Grammar,
) -> Result<GrammarMatcher, String> {
    catch_unwind(AssertUnwindSafe(|| compile(grammar)))
        .unwrap_or_else(|_| Err("grammar breaks the compiler; simplify it".to_owned()))
}
