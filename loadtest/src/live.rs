//! What a run is doing right now: counters that the client adds to, and a view of them on a terminal. The rule: a
//! request never waits for the view; the view reads when it likes and remembers five seconds.

use std::io::IsTerminal;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use hdrhistogram::Histogram;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use crate::client::End;

/// Whole seconds that latencies of the view are taken over.
const RECENT_S: u64 = 5;
/// Redraws are this far apart: quick enough to follow, too few to disturb what is measured.
const REDRAW_MS: u64 = 250;

/// Counters of a run under way.
#[derive(Debug)]
pub struct Progress {
    start: Instant,
    /// Requests that went out.
    pub sent: AtomicU64,
    /// Of them, those without an end yet.
    pub in_flight: AtomicU64,
    /// Complete answers, and those abandoned as planned.
    pub ok: AtomicU64,
    /// Refusals.
    pub refused: AtomicU64,
    /// Failures.
    pub failed: AtomicU64,
    /// Output tokens: chunks as they arrive, put right by the server's usage at an answer's end.
    pub output_tokens: AtomicU64,
    recent: Mutex<[Slot; RECENT_S as usize]>,
}

/// One second of latencies, in microseconds.
#[derive(Debug)]
struct Slot {
    second: u64,
    tokens: u64,
    ttft: Histogram<u64>,
    itl: Histogram<u64>,
}

/// What the view shows.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Glance {
    /// Requests without an end yet.
    pub in_flight: u64,
    /// Complete answers.
    pub ok: u64,
    /// Refusals.
    pub refused: u64,
    /// Failures.
    pub failed: u64,
    /// Over the last seconds.
    pub tokens_per_s: f64,
    /// Median and 99th percentile over the last seconds, in milliseconds.
    pub ttft_ms: Option<(f64, f64)>,
    /// Median and 99th percentile over the last seconds, in milliseconds.
    pub itl_ms: Option<(f64, f64)>,
}

impl Default for Progress {
    fn default() -> Self {
        Self {
            start: Instant::now(),
            sent: AtomicU64::new(0),
            in_flight: AtomicU64::new(0),
            ok: AtomicU64::new(0),
            refused: AtomicU64::new(0),
            failed: AtomicU64::new(0),
            output_tokens: AtomicU64::new(0),
            recent: Mutex::new(std::array::from_fn(|_| Slot::new())),
        }
    }
}

impl Slot {
    fn new() -> Self {
        // Microseconds up to an hour, two digits: enough to read, and small.
        let histogram = || Histogram::new_with_bounds(1, 3_600_000_000, 2).expect("the bounds are right");
        Self { second: 0, tokens: 0, ttft: histogram(), itl: histogram() }
    }
}

/// A request under way; it ends when this is dropped, so that one whose task is cancelled is not in flight for ever.
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
        let (Some(last), count) = (chunks_s.last(), chunks_s.len()) else { return };
        let before = count.checked_sub(2).map(|index| chunks_s[index]);
        self.output_tokens.fetch_add(1, Ordering::Relaxed);
        self.at(self.start.elapsed().as_secs(), |slot| {
            slot.tokens += 1;
            let micros = |seconds: f64| ((seconds * 1e6) as u64).max(1);
            match before {
                None => slot.ttft.saturating_record(micros(*last)),
                Some(before) => slot.itl.saturating_record(micros(last - before)),
            }
        });
    }

    /// A request ended with so many chunks; the server counted so many tokens in them.
    pub fn end(&self, end: &End, chunks: u64, tokens: u64) {
        let counter = match end {
            End::Done | End::Aborted => &self.ok,
            End::Refused(_) => &self.refused,
            End::Failed(_) => &self.failed,
        };
        counter.fetch_add(1, Ordering::Relaxed);
        let missing = tokens.saturating_sub(chunks);
        if missing > 0 {
            self.output_tokens.fetch_add(missing, Ordering::Relaxed);
            self.at(self.start.elapsed().as_secs(), |slot| slot.tokens += missing);
        }
    }

    fn at(&self, second: u64, add: impl FnOnce(&mut Slot)) {
        let mut slots = self.recent.lock().unwrap_or_else(PoisonError::into_inner);
        let slot = &mut slots[(second % RECENT_S) as usize];
        if slot.second != second {
            slot.second = second;
            slot.tokens = 0;
            slot.ttft.reset();
            slot.itl.reset();
        }
        add(slot);
    }

    /// The counters, and latencies of the last seconds.
    pub fn glance(&self) -> Glance {
        self.glance_at(self.start.elapsed())
    }

    fn glance_at(&self, elapsed: Duration) -> Glance {
        let now = elapsed.as_secs();
        let slots = self.recent.lock().unwrap_or_else(PoisonError::into_inner);
        let mut sum = Slot::new();
        for slot in slots.iter().filter(|slot| slot.second + RECENT_S > now) {
            sum.tokens += slot.tokens;
            // Both have the same bounds, so adding cannot fail.
            let _ = (sum.ttft.add(&slot.ttft), sum.itl.add(&slot.itl));
        }
        drop(slots);
        let pair = |histogram: &Histogram<u64>| {
            let at = |quantile: f64| histogram.value_at_quantile(quantile) as f64 / 1e3;
            (!histogram.is_empty()).then(|| (at(0.5), at(0.99)))
        };
        // The oldest of the seconds is complete, the newest has just begun.
        let window_s = elapsed.as_secs_f64().min((RECENT_S - 1) as f64 + elapsed.as_secs_f64().fract());
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        Glance {
            in_flight: read(&self.in_flight),
            ok: read(&self.ok),
            refused: read(&self.refused),
            failed: read(&self.failed),
            tokens_per_s: sum.tokens as f64 / window_s.max(0.1),
            ttft_ms: pair(&sum.ttft),
            itl_ms: pair(&sum.itl),
        }
    }
}

impl Glance {
    /// Two lines for a terminal.
    pub fn text(&self) -> String {
        let pair = |pair: Option<(f64, f64)>, digits: usize| match pair {
            Some((half, most)) => format!("{half:.digits$} / {most:.digits$} ms"),
            None => "–".to_owned(),
        };
        format!(
            "in flight {}   ok {}   refused {}   failed {}   {:.0} tok/s\n  last {RECENT_S} s, p50 / p99:   \
             first token {}   between tokens {}",
            self.in_flight,
            self.ok,
            self.refused,
            self.failed,
            self.tokens_per_s,
            pair(self.ttft_ms, 0),
            pair(self.itl_ms, 1),
        )
    }
}

/// The view while a round runs; dropping it clears it from the terminal.
#[derive(Debug)]
pub struct View {
    bar: ProgressBar,
    task: Option<tokio::task::JoinHandle<()>>,
}

impl View {
    /// Shows a round of `total` requests, unless `quiet` or stderr is no terminal.
    pub fn start(progress: &Arc<Progress>, title: &str, total: u64, quiet: bool) -> Self {
        if quiet || !std::io::stderr().is_terminal() {
            return Self { bar: ProgressBar::hidden(), task: None };
        }
        let bar = ProgressBar::with_draw_target(Some(total), ProgressDrawTarget::stderr());
        let style = ProgressStyle::with_template(
            "{spinner} {prefix}  {elapsed_precise}  [{bar:30}] {pos}/{len}\n  {msg}",
        );
        // The template is a constant; should it ever be wrong, a plain bar is better than an end.
        bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
        bar.set_prefix(title.to_owned());
        let (progress, shown) = (Arc::clone(progress), bar.clone());
        let task = tokio::spawn(async move {
            let mut every = tokio::time::interval(Duration::from_millis(REDRAW_MS));
            loop {
                every.tick().await;
                let glance = progress.glance();
                shown.set_position(glance.ok + glance.refused + glance.failed);
                shown.set_message(glance.text());
                shown.tick();
            }
        });
        Self { bar, task: Some(task) }
    }
}

impl Drop for View {
    fn drop(&mut self) {
        if let Some(task) = self.task.take() {
            task.abort();
        }
        self.bar.finish_and_clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_counted_by_how_they_end_and_a_dropped_one_is_not_in_flight() {
        let progress = Progress::default();
        let flights = [progress.begin(), progress.begin(), progress.begin()];
        assert_eq!(progress.glance().in_flight, 3);
        progress.end(&End::Done, 4, 6);
        progress.end(&End::Refused(429), 0, 0);
        progress.end(&End::Failed("cut"), 1, 0);
        drop(flights);
        let glance = progress.glance();
        assert_eq!((glance.in_flight, glance.ok, glance.refused, glance.failed), (0, 1, 1, 1));
        // Four chunks held six tokens: two had not been counted as they arrived.
        assert_eq!(progress.output_tokens.load(Ordering::Relaxed), 2);
    }

    #[test]
    fn latencies_are_those_of_the_last_seconds_and_then_forgotten() {
        let progress = Progress::default();
        progress.chunk(&[0.2]);
        progress.chunk(&[0.2, 0.25]);
        let glance = progress.glance();
        let (ttft, itl) = (glance.ttft_ms.expect("one arrived"), glance.itl_ms.expect("one arrived"));
        assert!((ttft.0 - 200.0).abs() < 4.0 && (itl.1 - 50.0).abs() < 1.0, "{ttft:?} {itl:?}");
        assert!(glance.text().contains("in flight 0"), "{}", glance.text());
        let later = progress.glance_at(Duration::from_secs(30));
        assert_eq!((later.ttft_ms, later.itl_ms, later.tokens_per_s), (None, None, 0.0));
    }

    #[tokio::test]
    async fn a_quiet_view_has_no_task() {
        let view = View::start(&Arc::new(Progress::default()), "round", 10, true);
        assert!(view.task.is_none() && view.bar.is_hidden());
    }
}
