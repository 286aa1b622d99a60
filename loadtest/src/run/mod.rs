//! Sends a plan. The rule: an open loop sends when a request is due, whether or not others have been answered, and
//! latency counts from when it was due; what can't be sent is counted, never put off.

mod progress;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tokio::sync::mpsc;
use tokio::task::JoinSet;

use crate::client::{Call, Client, ClientError, End, NOT_SENT, Outcome, Target, Tls};
use crate::record::Round;
use crate::scenario::{Load, Planned, Scenario};
pub use progress::Progress;

/// Requests that wait between the clock's thread and those that send: a burst of so many is not held up.
const BETWEEN: usize = 1_024;

/// What a round needs beside scenario and target.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Number of the round.
    pub number: usize,
    /// Makes its prompts differ from those of other rounds.
    pub salt: u64,
    /// Whose certificates are believed.
    pub tls: Tls,
    /// Told of each request.
    pub progress: Arc<Progress>,
}

/// What a round came to.
#[derive(Clone, Debug)]
pub struct Measured {
    /// Summed up.
    pub round: Round,
    /// Every measured request.
    pub outcomes: Vec<Outcome>,
}

/// What all requests of a round share.
struct Shared {
    client: Client,
    loads: Vec<Load>,
    start: Instant,
    /// Requests of open loops that are under way.
    in_flight: AtomicUsize,
    most_in_flight: usize,
    /// Turns that were not sent since one before them failed.
    turns_lost: AtomicU64,
    progress: Arc<Progress>,
}

/// Runs one round against one target.
///
/// # Errors
/// A tenant's key is missing.
pub async fn measure(
    scenario: &Scenario,
    target: &Target,
    settings: &Settings,
) -> Result<Measured, ClientError> {
    let plans = scenario.plan(settings.salt);
    let client = Client::new(target.clone(), scenario, &settings.tls)?;
    let shared = Arc::new(Shared {
        client,
        loads: scenario.loads(),
        start: Instant::now(),
        in_flight: AtomicUsize::new(0),
        most_in_flight: scenario.max_in_flight,
        turns_lost: AtomicU64::new(0),
        progress: Arc::clone(&settings.progress),
    });
    let mut streams = JoinSet::new();
    let mut due: Vec<(usize, Planned)> = Vec::new();
    for (group, plan) in plans.into_iter().enumerate() {
        match shared.loads[group].arrivals.streams() {
            Some(count) => closed(&shared, group, plan, count, &mut streams),
            None => due.extend(plan.into_iter().map(|planned| (group, planned))),
        }
    }
    let (from_open, from_closed) = tokio::join!(open(&shared, due), streams.join_all());
    let mut outcomes: Vec<Outcome> = from_open.into_iter().chain(from_closed).flatten().collect();
    outcomes.sort_by_key(|outcome| (outcome.group, outcome.index, outcome.turn));
    outcomes.retain(|outcome| outcome.index >= shared.loads[outcome.group].warmup);
    let mut round = Round::of(scenario, &target.name, settings.number, &outcomes);
    let lost = shared.turns_lost.load(Ordering::Relaxed);
    if lost > 0 {
        round
            .warnings
            .push(format!("{lost} turns were not sent: a turn before them was not answered in full"));
    }
    Ok(Measured { round, outcomes })
}

/// So many streams, each taking the next conversation as its last one ends.
fn closed(
    shared: &Arc<Shared>,
    group: usize,
    plan: Vec<Planned>,
    streams: usize,
    into: &mut JoinSet<Vec<Outcome>>,
) {
    let next = Arc::new(AtomicUsize::new(0));
    let plan: Arc<[Planned]> = plan.into();
    for _ in 0..streams {
        let (shared, plan, next) = (Arc::clone(shared), Arc::clone(&plan), Arc::clone(&next));
        into.spawn(async move {
            tokio::time::sleep_until(shared.at(shared.loads[group].start_s).into()).await;
            let mut outcomes = Vec::new();
            while let Some(planned) = plan.get(next.fetch_add(1, Ordering::Relaxed)) {
                if shared.over(group, Instant::now()) {
                    break;
                }
                outcomes.extend(shared.converse(group, planned, Instant::now(), false).await);
            }
            outcomes
        });
    }
}

/// Each conversation when it is due. The times are kept by a thread that does nothing else, since the runtime's own
/// timers are a millisecond coarse.
async fn open(shared: &Arc<Shared>, mut due: Vec<(usize, Planned)>) -> Vec<Vec<Outcome>> {
    due.sort_by(|one, other| one.1.due_s.unwrap_or(0.0).total_cmp(&other.1.due_s.unwrap_or(0.0)));
    let (sender, mut receiver) = mpsc::channel(BETWEEN);
    let start = shared.start;
    // It ends by itself when all is sent, or at the next request once nobody receives any more.
    std::thread::spawn(move || {
        for (group, planned) in due {
            let at = start + Duration::from_secs_f64(planned.due_s.unwrap_or(0.0));
            std::thread::sleep(at.saturating_duration_since(Instant::now()));
            if sender.blocking_send((group, planned, at)).is_err() {
                return;
            }
        }
    });
    let mut conversations = JoinSet::new();
    while let Some((group, planned, at)) = receiver.recv().await {
        let shared = Arc::clone(shared);
        conversations.spawn(async move { shared.converse(group, &planned, at, true).await });
    }
    conversations.join_all().await
}

impl Shared {
    fn at(&self, seconds: f64) -> Instant {
        self.start + Duration::from_secs_f64(seconds)
    }

    /// Whether a group sends no more.
    fn over(&self, group: usize, at: Instant) -> bool {
        let load = &self.loads[group];
        load.duration_s.is_some_and(|duration_s| at >= self.at(load.start_s + duration_s))
    }

    /// All turns of a conversation, the first due at `due`.
    async fn converse(&self, group: usize, planned: &Planned, due: Instant, open: bool) -> Vec<Outcome> {
        let mut outcomes = Vec::with_capacity(planned.turns.len());
        let mut messages: Vec<Value> = Vec::new();
        let mut due = due;
        for (number, turn) in planned.turns.iter().enumerate() {
            if number > 0 {
                // A user thinks once the answer is there, and a recorded one comes no sooner than it came.
                let thought = Instant::now() + Duration::from_secs_f64(turn.think_s);
                due = thought.max(self.at(turn.not_before_s));
                if self.over(group, due) {
                    break;
                }
                tokio::time::sleep_until(due.into()).await;
            }
            messages.push(json!({ "role": "user", "content": turn.prompt }));
            let mut outcome = self.outcome(group, planned, number, due);
            if open && !self.enter() {
                outcome.end = End::Failed(NOT_SENT);
                outcome.lag_s = due.elapsed().as_secs_f64();
                outcome.end_s = outcome.lag_s;
                self.progress.end(&outcome.end, 0, 0);
                outcomes.push(outcome);
                self.lose(planned.turns.len() - number - 1);
                break;
            }
            let load = &self.loads[group];
            let last = number + 1 == planned.turns.len();
            let keep_text = !last || load.structured.is_some();
            let progress = &self.progress;
            let call = Call { load, turn, messages: &messages, keep_text, due, progress };
            let text = self.client.send(&call, &mut outcome).await;
            if open {
                self.in_flight.fetch_sub(1, Ordering::Relaxed);
            }
            let done = outcome.end == End::Done;
            outcomes.push(outcome);
            if !done {
                self.lose(planned.turns.len() - number - 1);
                break;
            }
            messages.push(json!({ "role": "assistant", "content": text }));
        }
        outcomes
    }

    /// Counts a request of an open loop as under way, if there is room for it.
    fn enter(&self) -> bool {
        let room = |under_way: usize| (under_way < self.most_in_flight).then_some(under_way + 1);
        self.in_flight.fetch_update(Ordering::Relaxed, Ordering::Relaxed, room).is_ok()
    }

    fn lose(&self, turns: usize) {
        self.turns_lost.fetch_add(turns as u64, Ordering::Relaxed);
    }

    fn outcome(&self, group: usize, planned: &Planned, turn: usize, due: Instant) -> Outcome {
        Outcome {
            group,
            index: planned.index,
            turn,
            tenant: planned.tenant.clone(),
            end: End::Failed("no answer"),
            due_s: due.duration_since(self.start).as_secs_f64(),
            lag_s: 0.0,
            again: false,
            chunks_s: Vec::with_capacity((planned.turns[turn].output_tokens as usize + 2).min(4_096)),
            end_s: 0.0,
            prompt_tokens: 0,
            output_tokens: 0,
            cached_tokens: 0,
        }
    }
}
