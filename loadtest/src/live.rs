//! What a run is doing right now, on a terminal. The rule: a request never waits for the view; the view looks a few
//! times a second, and only when someone can see it.

use std::collections::VecDeque;
use std::io::IsTerminal;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use crate::run::Progress;

/// What rates and latencies of the view are taken over.
const RECENT: Duration = Duration::from_secs(5);
/// Redraws are this far apart: quick enough to follow, too few to disturb what is measured.
const REDRAW_MS: u64 = 250;

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

/// Looks at a run again and again: a rate is what came between two looks some seconds apart.
#[derive(Debug)]
struct Watch {
    progress: Arc<Progress>,
    /// When it was looked, and the output tokens then, oldest first.
    looks: VecDeque<(Instant, u64)>,
}

impl Watch {
    fn new(progress: Arc<Progress>) -> Self {
        Self { progress, looks: VecDeque::from([(Instant::now(), 0)]) }
    }

    fn look(&mut self) -> Glance {
        let progress = &self.progress;
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let (now, tokens) = (Instant::now(), read(&progress.output_tokens));
        self.looks.push_back((now, tokens));
        // The oldest look is the last one that lies the whole window back.
        while self.looks.len() > 2 && now.duration_since(self.looks[1].0) >= RECENT {
            self.looks.pop_front();
        }
        let (then, before) = self.looks[0];
        let between_s = now.duration_since(then).as_secs_f64();
        Glance {
            in_flight: read(&progress.in_flight),
            ok: read(&progress.ok),
            refused: read(&progress.refused),
            failed: read(&progress.failed),
            tokens_per_s: tokens.saturating_sub(before) as f64 / between_s.max(1e-3),
            ttft_ms: pair(progress.recent_ttft_s(RECENT)),
            itl_ms: pair(progress.recent_itl_s(RECENT)),
        }
    }
}

/// Median and 99th percentile in milliseconds; none of nothing.
fn pair(mut values_s: Vec<f64>) -> Option<(f64, f64)> {
    values_s.sort_by(f64::total_cmp);
    let at = |share: f64| values_s.get(((values_s.len() as f64 * share) as usize).min(values_s.len() - 1));
    if values_s.is_empty() { None } else { Some((at(0.5)? * 1e3, at(0.99)? * 1e3)) }
}

impl Glance {
    /// Two lines for a terminal.
    pub fn text(&self) -> String {
        let pair = |pair: Option<(f64, f64)>, digits: usize| match pair {
            Some((half, most)) => format!("{half:.digits$} / {most:.digits$} ms"),
            None => "–".to_owned(),
        };
        format!(
            "in flight {}   ok {}   refused {}   failed {}   {:.0} tok/s\n  last {} s, p50 / p99:   \
             first token {}   between tokens {}",
            self.in_flight,
            self.ok,
            self.refused,
            self.failed,
            self.tokens_per_s,
            RECENT.as_secs(),
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
        let (mut watch, shown) = (Watch::new(Arc::clone(progress)), bar.clone());
        let task = tokio::spawn(async move {
            let mut every = tokio::time::interval(Duration::from_millis(REDRAW_MS));
            loop {
                every.tick().await;
                let glance = watch.look();
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
    use crate::client::End;

    #[test]
    fn a_look_shows_counts_the_rate_since_looks_before_and_recent_latencies() {
        let progress = Arc::new(Progress::default());
        let mut watch = Watch::new(Arc::clone(&progress));
        let flights = [progress.begin(), progress.begin(), progress.begin()];
        progress.chunk(&[0.2]);
        progress.chunk(&[0.2, 0.25]);
        progress.end(&End::Done, 2, 2);
        progress.end(&End::Refused(429), 0, 0);
        let glance = watch.look();
        assert_eq!((glance.in_flight, glance.ok, glance.refused, glance.failed), (3, 1, 1, 0));
        let (ttft, itl) = (glance.ttft_ms.expect("one arrived"), glance.itl_ms.expect("one arrived"));
        assert!((ttft.1 - 200.0).abs() < 4.0 && (itl.0 - 50.0).abs() < 1.0, "{ttft:?} {itl:?}");
        assert!(glance.tokens_per_s > 0.0);
        drop(flights);
        assert!(watch.look().text().contains("in flight 0   ok 1   refused 1   failed 0"));
    }

    #[test]
    fn looks_are_forgotten_once_they_are_older_than_the_window() {
        let mut watch = Watch::new(Arc::default());
        let long_ago = Instant::now() - Duration::from_secs(60);
        watch.looks = (0..100).map(|step| (long_ago + Duration::from_millis(250 * step), step)).collect();
        watch.look();
        assert_eq!(watch.looks.len(), 2);
        assert_eq!(pair(Vec::new()), None);
        assert_eq!(pair((0..100).map(f64::from).collect()), Some((50e3, 99e3)));
    }

    #[tokio::test]
    async fn a_quiet_view_has_no_task() {
        let view = View::start(&Arc::new(Progress::default()), "round", 10, true);
        assert!(view.task.is_none() && view.bar.is_hidden());
    }
}
