//! Grammar masks, computed while the forward pass runs. The rule: a matcher has one owner at a time. It leaves its
//! slot for the mask thread when the step is planned, and is back, or its slot has a fault, before a row is sampled.

use std::sync::Mutex;
use std::thread::JoinHandle;

use crossbeam::channel::{Receiver, Sender, bounded};
use pons_kernels::Pool;

use super::slot::Slots;
use crate::executor::{PlanItem, SlotId};
use crate::grammar::GrammarMatcher;

/// A matcher under way.
struct Job {
    slot: SlotId,
    grammar: GrammarMatcher,
    fault: Option<String>,
}

impl Job {
    fn compute(&mut self) {
        self.fault = self.grammar.compute_mask().err();
    }
}

/// One thread that takes matchers and gives them back with their masks. What it has not begun when the forward
/// pass is over is computed by the pool instead.
struct MaskThread {
    /// None once the thread is told to end.
    jobs: Option<Sender<Job>>,
    /// The other end of `jobs`, to take back what has not been begun.
    waiting: Receiver<Job>,
    done: Receiver<Job>,
    handle: Option<JoinHandle<()>>,
}

impl MaskThread {
    /// A thread with room for one job of each slot.
    fn start(slots: usize) -> std::io::Result<Self> {
        let (jobs, waiting) = bounded::<Job>(slots);
        let (finished, done) = bounded(slots);
        let theirs = waiting.clone();
        let work = move || {
            while let Ok(mut job) = theirs.recv() {
                job.compute();
                if finished.send(job).is_err() {
                    return;
                }
            }
        };
        let handle = std::thread::Builder::new().name("grammar-masks".to_owned()).spawn(work)?;
        Ok(Self { jobs: Some(jobs), waiting, done, handle: Some(handle) })
    }
}

impl Drop for MaskThread {
    fn drop(&mut self) {
        self.jobs = None;
        if let Some(handle) = self.handle.take() {
            // A thread that panicked has said so already.
            let _ = handle.join();
        }
    }
}

/// The masks of one step at a time.
#[derive(Default)]
pub(super) struct Masks {
    /// Started with the first grammar; none where the system gives no thread.
    thread: Option<MaskThread>,
    /// Slots whose matcher is with the thread.
    away: Vec<SlotId>,
    /// Matchers that the thread could not take.
    kept: Vec<Job>,
}

impl Masks {
    /// Sends the matchers of all rows that will be sampled.
    pub(super) fn start(&mut self, slots: &mut Slots, items: &[PlanItem]) {
        for item in items.iter().filter(|item| item.sample.is_some()) {
            let Some(grammar) = slots.get_mut(item.slot).lend_grammar() else { continue };
            let job = Job { slot: item.slot, grammar, fault: None };
            if self.thread.is_none() {
                self.thread = MaskThread::start(slots.count()).ok();
            }
            match self.thread.as_ref().and_then(|thread| thread.jobs.as_ref()) {
                None => self.kept.push(job),
                Some(jobs) => match jobs.try_send(job) {
                    Ok(()) => self.away.push(item.slot),
                    Err(error) => self.kept.push(error.into_inner()),
                },
            }
        }
    }

    /// Brings every matcher back to its slot, with its mask.
    pub(super) fn finish(&mut self, slots: &mut Slots, pool: &Pool) {
        let mut rest: Vec<Mutex<Job>> = self.kept.drain(..).map(Mutex::new).collect();
        if let Some(thread) = &self.thread {
            rest.extend(thread.waiting.try_iter().map(Mutex::new));
        }
        // Each lock is taken once, by the only part that touches it; it is how safe code hands out the jobs.
        pool.run(rest.len(), &|part| {
            if let Ok(mut job) = rest[part].lock() {
                job.compute();
            }
        });
        for job in rest {
            self.settle(slots, job.into_inner().unwrap_or_else(std::sync::PoisonError::into_inner));
        }
        while !self.away.is_empty() {
            let back = self.thread.as_ref().and_then(|thread| thread.done.recv().ok());
            if let Some(job) = back {
                self.settle(slots, job);
                continue;
            }
            // The thread is gone with what it held; the next step starts another.
            self.thread = None;
            for slot in self.away.drain(..) {
                slots.get_mut(slot).lose_grammar();
            }
        }
    }

    fn settle(&mut self, slots: &mut Slots, job: Job) {
        self.away.retain(|slot| *slot != job.slot);
        slots.get_mut(job.slot).return_grammar(job.grammar, job.fault);
    }
}
