//! What a run has come to so far, for whoever watches. The rule: watching costs a request a few atomic additions and
//! never makes it wait for the watcher.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use crate::client::{End, Outcome};

/// The most recent values that are kept.
const KEPT: usize = 16_384;

/// Counts of a run, all groups together, warm-up included.
#[derive(Debug, Default)]
pub struct Progress {
    /// Requests that were sent.
    pub sent: AtomicU64,
    /// Of these, those that haven't ended.
    pub in_flight: AtomicUsize,
    /// Complete answers.
    pub ok: AtomicU64,
    /// Refused by the server.
    pub refused: AtomicU64,
    /// Failed, those the harness didn't send included.
    pub failed: AtomicU64,
    /// Abandoned as planned.
    pub aborted: AtomicU64,
    /// By usage, once an answer is complete.
    pub output_tokens: AtomicU64,
    /// Chunks of output of complete answers.
    pub chunks: AtomicU64,
    ttft_s: Mutex<VecDeque<(Instant, f64)>>,
    itl_s: Mutex<VecDeque<(Instant, f64)>>,
}

impl Progress {
    pub(super) fn begun(&self) {
        self.sent.fetch_add(1, Ordering::Relaxed);
        self.in_flight.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn ended(&self, outcome: &Outcome) {
        self.in_flight.fetch_sub(1, Ordering::Relaxed);
        self.count(outcome);
        if outcome.end != End::Done {
            return;
        }
        self.output_tokens.fetch_add(outcome.output_tokens, Ordering::Relaxed);
        self.chunks.fetch_add(outcome.chunks_s.len() as u64, Ordering::Relaxed);
        keep(&self.ttft_s, outcome.ttft_s().into_iter());
        keep(&self.itl_s, outcome.gaps_s());
    }

    /// Counts an end alone, that of a request which was never sent.
    pub(super) fn count(&self, outcome: &Outcome) {
        let counter = match outcome.end {
            End::Done => &self.ok,
            End::Aborted => &self.aborted,
            End::Refused(_) => &self.refused,
            End::Failed(_) => &self.failed,
        };
        counter.fetch_add(1, Ordering::Relaxed);
    }

    /// Times to the first token of answers that were completed lately, in seconds, in no order.
    pub fn recent_ttft_s(&self, within: Duration) -> Vec<f64> {
        recent(&self.ttft_s, within)
    }

    /// Times between chunks of answers that were completed lately, in seconds, in no order.
    pub fn recent_itl_s(&self, within: Duration) -> Vec<f64> {
        recent(&self.itl_s, within)
    }
}

fn keep(kept: &Mutex<VecDeque<(Instant, f64)>>, values: impl Iterator<Item = f64>) {
    let now = Instant::now();
    // A watcher that panicked has broken nothing here.
    let mut kept = kept.lock().unwrap_or_else(PoisonError::into_inner);
    for value in values {
        if kept.len() == KEPT {
            kept.pop_front();
        }
        kept.push_back((now, value));
    }
}

fn recent(kept: &Mutex<VecDeque<(Instant, f64)>>, within: Duration) -> Vec<f64> {
    let kept = kept.lock().unwrap_or_else(PoisonError::into_inner);
    kept.iter().rev().take_while(|(at, _)| at.elapsed() <= within).map(|(_, value)| *value).collect()
}
