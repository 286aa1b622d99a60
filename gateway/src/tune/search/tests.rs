//! The search finds the best of a made-up machine, and ends.

use std::collections::HashSet;

use super::*;

const LIMITS: Limits = Limits {
    p99_ttft_ms: 800.0,
    p99_itl_ms: 100.0,
    max_cost: None,
    machine_price_per_hour: None,
    output_price: None,
};

fn measured(ttft: f64, itl: f64, rate: f64) -> Measured {
    Measured { p99_ttft_ms: ttft, p99_itl_ms: itl, output_tokens_per_s: rate, ok: 100, unserved: 0 }
}

fn trial(candidate: Candidate, measured: Option<Measured>, limits: &Limits) -> Trial {
    let met = measured.as_ref().is_some_and(|measured| limits.met(measured));
    Trial { candidate, measured, failure: None, met, took_s: 1.0 }
}

/// Runs a search to its end against a machine.
fn run(limits: Limits, machine: impl Fn(Candidate) -> Option<Measured>) -> Vec<Trial> {
    let mut search = Search::new(Space { threads: 4, p99_itl_ms: limits.p99_itl_ms }, limits);
    let mut trials = Vec::new();
    while let Some(candidate) = search.next(&trials) {
        trials.push(trial(candidate, machine(candidate), &limits));
        assert!(trials.len() < 100, "the search doesn't end");
    }
    trials
}

/// More rows give more tokens and longer steps; three threads are best.
fn machine(candidate: Candidate) -> Option<Measured> {
    let rows = f64::from(candidate.max_sequences.unwrap_or(24));
    let threads = candidate.threads.unwrap_or(4);
    let speed = if threads == 3 { 1.2 } else { 1.0 };
    Some(measured(500.0, (20.0 + rows) / speed, rows * 10.0 * speed))
}

#[test]
fn the_first_candidate_is_what_the_brain_measures_itself_and_none_comes_twice() {
    let trials = run(LIMITS, machine);
    assert_eq!(trials[0].candidate, Candidate::default());
    let descriptions: HashSet<String> = trials.iter().map(|trial| trial.candidate.describe()).collect();
    assert_eq!(descriptions.len(), trials.len());
}

#[test]
fn coarse_then_fine_steps_find_more_within_the_limits() {
    let trials = run(LIMITS, machine);
    let chosen = &trials[best(&trials).expect("some meet the limits")];
    // 64 rows are the best coarse step, three threads are better still, and then 80 rows fit: (20 + 80) / 1.2.
    assert_eq!((chosen.candidate.max_sequences, chosen.candidate.threads), (Some(80), Some(3)));
    assert!(chosen.met);
}

#[test]
fn where_none_meets_the_limits_the_nearest_is_named() {
    let limits = Limits { p99_itl_ms: 10.0, ..LIMITS };
    let trials = run(limits, machine);
    assert_eq!(best(&trials), None);
    let nearest = &trials[nearest(&trials, &limits).expect("all were measured")];
    assert_eq!(nearest.candidate.max_sequences, Some(6), "fewest rows");
}

#[test]
fn failed_trials_are_neither_best_nor_nearest() {
    let trials = run(LIMITS, |_| None);
    assert!(trials.len() > 5);
    assert_eq!((best(&trials), nearest(&trials, &LIMITS)), (None, None));
}

#[test]
fn every_limit_counts() {
    assert!(LIMITS.met(&measured(800.0, 100.0, 1.0)));
    assert!(!LIMITS.met(&measured(801.0, 1.0, 1.0)));
    assert!(!LIMITS.met(&measured(1.0, 101.0, 1.0)));
    assert!(!LIMITS.met(&measured(1.0, 1.0, 0.0)), "nothing was generated");
    assert!(!LIMITS.met(&Measured { unserved: 2, ..measured(1.0, 1.0, 1.0) }), "2 of 102 were not served");
    // 36 an hour at 100 tokens/s is 0.1 for a thousand.
    let priced = Limits { max_cost: Some(0.09), machine_price_per_hour: Some(36.0), ..LIMITS };
    assert!(!priced.met(&measured(1.0, 1.0, 100.0)));
    assert!(priced.met(&measured(1.0, 1.0, 120.0)));
    let sold = Limits { max_cost: Some(0.09), output_price: Some(0.08), ..LIMITS };
    assert!(sold.met(&measured(1.0, 1.0, 1.0)));
}

#[test]
fn no_candidate_has_fewer_step_tokens_than_sequences() {
    // Many rows are best here, so that small steps would be tried beside them.
    let trials = run(LIMITS, |c| Some(measured(1.0, 1.0, f64::from(c.max_sequences.unwrap_or(1)))));
    assert!(trials.iter().all(|trial| trial.candidate.is_valid()));
    assert!(trials.iter().any(|trial| trial.candidate.max_sequences == Some(160)));
}
