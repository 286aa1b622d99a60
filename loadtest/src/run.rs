//! Sends a plan. The rule: an open loop sends when a request is due, whether or not others have been answered, and
//! latency counts from when it was due.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use tokio::task::JoinSet;

use crate::client::{Client, Outcome, Target};
use crate::live::Progress;
use crate::record::Round;
use crate::scenario::{Arrivals, Planned, Scenario};

/// Runs one round against one target. `salt` makes its prompts differ from those of other rounds.
pub async fn round(scenario: &Scenario, target: &Target, number: usize, salt: u64) -> Round {
    watched(scenario, target, number, salt, &Arc::default()).await
}

/// The same, with counters for a live view.
pub async fn watched(
    scenario: &Scenario,
    target: &Target,
    number: usize,
    salt: u64,
    progress: &Arc<Progress>,
) -> Round {
    let plan: Arc<[Planned]> = scenario.plan(salt).into();
    let client = Client::new(target.clone()).watched(Arc::clone(progress));
    let scenario_shared = Arc::new(scenario.clone());
    let mut outcomes = match scenario.arrivals {
        Arrivals::Closed { streams } => closed(&scenario_shared, &client, &plan, streams).await,
        _ => open(&scenario_shared, &client, &plan).await,
    };
    outcomes.sort_by_key(|(index, _)| *index);
    let measured: Vec<Outcome> =
        outcomes.into_iter().skip(scenario.warmup).map(|(_, outcome)| outcome).collect();
    Round::of(scenario, &target.name, load(&scenario.arrivals), number, &measured)
}

/// What a level is called by.
pub fn load(arrivals: &Arrivals) -> f64 {
    match *arrivals {
        Arrivals::Closed { streams } => streams as f64,
        Arrivals::Poisson { rate } | Arrivals::Gamma { rate, .. } => rate,
        Arrivals::Ramp { from_rate, to_rate } => f64::midpoint(from_rate, to_rate),
    }
}

/// So many streams, each taking the next request as its last one ends.
async fn closed(
    scenario: &Arc<Scenario>,
    client: &Client,
    plan: &Arc<[Planned]>,
    streams: usize,
) -> Vec<(usize, Outcome)> {
    let next = Arc::new(AtomicUsize::new(0));
    let start = Instant::now();
    let mut workers = JoinSet::new();
    for _ in 0..streams {
        let (scenario, client) = (Arc::clone(scenario), client.clone());
        let (plan, next) = (Arc::clone(plan), Arc::clone(&next));
        workers.spawn(async move {
            let mut outcomes = Vec::new();
            while let Some(planned) = plan.get(next.fetch_add(1, Ordering::Relaxed)) {
                let outcome = client.send(&scenario, planned, start, Instant::now()).await;
                outcomes.push((planned.index, outcome));
            }
            outcomes
        });
    }
    workers.join_all().await.into_iter().flatten().collect()
}

/// Each request when it is due.
async fn open(scenario: &Arc<Scenario>, client: &Client, plan: &Arc<[Planned]>) -> Vec<(usize, Outcome)> {
    let start = Instant::now();
    let mut requests = JoinSet::new();
    for index in 0..plan.len() {
        let due = start + Duration::from_secs_f64(plan[index].due_s.unwrap_or(0.0));
        tokio::time::sleep_until(due.into()).await;
        let (scenario, client, plan) = (Arc::clone(scenario), client.clone(), Arc::clone(plan));
        requests.spawn(async move { (index, client.send(&scenario, &plan[index], start, due).await) });
    }
    requests.join_all().await
}
