//! What a run has come to so far, for whoever watches. The rule: watching costs a request a few additions and never
//! makes it wait for the watcher.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use crate::client::End;

/// The most recent values that are kept.
const KEPT: usize = 16_384;

/// Counts of a run, all groups together, warm-up included.
#[derive(Debug, Default)]
pub struct Progress {
    /// Requests that were sent.
    pub sent: AtomicU64,
    /// Of these, those that haven't ended.
    pub in_flight: AtomicU64,
    /// Complete answers, and those abandoned as planned.
    pub ok: AtomicU64,
    /// Refused by the server.
    pub refused: AtomicU64,
    /// Failed, those the harness didn't send included.
    pub failed: AtomicU64,
    /// Chunks as they arrive, put right by the server's usage at an answer's end.
    pub output_tokens: AtomicU64,
    ttft_s: Mutex<VecDeque<(Instant, f64)>>,
    itl_s: Mutex<VecDeque<(Instant, f64)>>,
}

/// A request under way; it ends when this is dropped, so that a cancelled one is not in flight for ever.
#[derive(Debug)]
pub struct Flight<'a>(&'a Progress);

impl Drop for Flight<'_> {
    fn drop(&mut self) {
        self.0.in_flight.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Progress {
    /// A request goes out.
    pub fn begin(&self) -> Flight<'_> {
        self.sent.fetch_add(1, Ordering::Relaxed);
        self.in_flight.fetch_add(1, Ordering::Relaxed);
        Flight(self)
    }

    /// A chunk of output arrived; `chunks_s` are the times of all chunks of its answer so far.
    pub fn chunk(&self, chunks_s: &[f64]) {
        self.output_tokens.fetch_add(1, Ordering::Relaxed);
        match chunks_s {
            [] => {}
            [first] => keep(&self.ttft_s, *first),
            [.., before, last] => keep(&self.itl_s, last - before),
        }
    }

    /// A request ended with so many chunks; the server counted so many tokens in them.
    pub fn end(&self, end: &End, chunks: u64, tokens: u64) {
        let counter = match end {
            End::Done | End::Aborted => &self.ok,
            End::Refused(_) => &self.refused,
            End::Failed(_) => &self.failed,
        };
        counter.fetch_add(1, Ordering::Relaxed);
        self.output_tokens.fetch_add(tokens.saturating_sub(chunks), Ordering::Relaxed);
    }

    /// Times to a first token that came lately, in seconds, latest first.
    pub fn recent_ttft_s(&self, within: Duration) -> Vec<f64> {
        recent(&self.ttft_s, within)
    }

    /// Times between chunks that came lately, in seconds, latest first.
    pub fn recent_itl_s(&self, within: Duration) -> Vec<f64> {
        recent(&self.itl_s, within)
    }
}

fn keep(kept: &Mutex<VecDeque<(Instant, f64)>>, value_s: f64) {
    // A watcher that panicked has broken nothing here.
    let mut kept = kept.lock().unwrap_or_else(PoisonError::into_inner);
    if kept.len() == KEPT {
        kept.pop_front();
    }
    kept.push_back((Instant::now(), value_s));
}

fn recent(kept: &Mutex<VecDeque<(Instant, f64)>>, within: Duration) -> Vec<f64> {
    let kept = kept.lock().unwrap_or_else(PoisonError::into_inner);
    kept.iter().rev().take_while(|(at, _)| at.elapsed() <= within).map(|(_, value)| *value).collect()
}
