//! Searches against servers of known limits.

use serde_json::json;

use super::*;

/// Runs a search against a server that keeps its limits up to `short` in a run, and up to `long` in a longer one.
fn search(mut search: Search, short: f64, long: f64) -> (Option<f64>, Vec<Step>) {
    let mut steps = Vec::new();
    loop {
        let step = search.next();
        steps.push(step);
        match step {
            Step::Try(load) => search.report(load <= short),
            Step::Confirm(load) => search.report(load <= long),
            Step::Done(answer) => return (answer, steps),
        }
        assert!(steps.len() <= MOST_POINTS + 1, "{steps:?}");
    }
}

#[test]
fn streams_are_doubled_then_halved_to_the_last_one_that_holds_and_confirmed() {
    let (answer, steps) = search(Search::new(true, 1.0, 64.0, 0.01), 11.0, 11.0);
    assert_eq!(answer, Some(11.0));
    assert_eq!(steps[..5], [1.0, 2.0, 4.0, 8.0, 16.0].map(Step::Try));
    assert_eq!(steps[steps.len() - 2], Step::Confirm(11.0));
}

#[test]
fn a_load_that_fails_its_longer_run_steps_down_until_one_holds() {
    let (answer, steps) = search(Search::new(true, 1.0, 64.0, 0.01), 20.0, 17.0);
    assert_eq!(answer, Some(16.0));
    let confirmed: Vec<_> = steps.iter().filter(|step| matches!(step, Step::Confirm(_))).collect();
    assert_eq!(confirmed, [&Step::Confirm(20.0), &Step::Confirm(18.0), &Step::Confirm(16.0)]);
}

#[test]
fn an_open_rate_is_found_within_the_share_that_was_asked_for_above_and_below_the_first() {
    for limit in [0.3, 1.0, 3.7, 41.0] {
        let (answer, _) = search(Search::new(false, 1.0, 100.0, 0.02), limit, limit);
        let answer = answer.expect("there is one");
        assert!(answer <= limit && answer > limit * 0.97, "{limit}: {answer}");
    }
}

#[test]
fn a_server_that_holds_everything_gets_the_highest_load_and_one_that_holds_nothing_none() {
    assert_eq!(search(Search::new(true, 1.0, 48.0, 0.01), 1e9, 1e9).0, Some(48.0));
    assert_eq!(search(Search::new(true, 1.0, 48.0, 0.01), 0.0, 0.0).0, None);
    assert_eq!(search(Search::new(false, 2.0, 48.0, 0.02), 0.0, 0.0).0, None);
    // Short runs hold and no longer one does.
    assert_eq!(search(Search::new(true, 1.0, 48.0, 0.01), 1e9, 0.0).0, None);
    assert_eq!(search(Search::new(false, 2.0, 48.0, 0.02), 1e9, 0.0).0, None);
}

#[test]
fn what_a_round_did_not_keep_is_said_in_words() {
    let limits = Limits { p99_ttft_ms: Some(800.0), p99_itl_ms: Some(100.0), p99_e2e_ms: None };
    let mut round = json!({
        "sent": 10, "ok": 10, "refused": {}, "failed": {},
        "ttft_ms": { "p99": 700.0 }, "itl_ms": { "p99": 90.0 }, "e2e_ms": { "p99": 9e9 },
    });
    assert_eq!(limits.broken(&round), [""; 0]);
    round["ttft_ms"]["p99"] = json!(900.0);
    round["refused"] = json!({ "429": 2, "503": 1 });
    round["failed"] = json!({ "cut": 1 });
    let broken = limits.broken(&round).join("; ");
    assert_eq!(broken, "P99 first token 900 ms > 800 ms; 3 of 10 requests refused; 1 of 10 requests failed");
}

#[test]
fn limits_come_from_the_sweep_before_the_scenario() {
    let mut record = json!({ "scenario": { "goodput": { "ttft_ms": 500.0, "tpot_ms": 50.0 } } });
    assert_eq!(Limits::of(&record), Limits { p99_ttft_ms: Some(500.0), ..Limits::default() });
    record["scenario"]["slo"] = json!({ "ttft_ms": 400.0, "e2e_ms": 9000.0 });
    let slo = Limits { p99_ttft_ms: Some(400.0), p99_itl_ms: None, p99_e2e_ms: Some(9000.0) };
    assert_eq!(Limits::of(&record), slo);
    record["sweep"] = json!({ "limits": { "p99_itl_ms": 70.0 } });
    assert_eq!(Limits::of(&record), Limits { p99_itl_ms: Some(70.0), ..Limits::default() });
    assert!(Limits::of(&json!({})).is_empty());
}
