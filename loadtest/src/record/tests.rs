//! Sums over requests whose times are made up. The rule: what a record says is worked out by hand here.

use std::sync::Arc;

use super::*;
use crate::client::End;

fn outcome(group: usize, due_s: f64, chunks_s: &[f64], end_s: f64) -> Outcome {
    Outcome {
        group,
        index: 0,
        turn: 0,
        tenant: None,
        end: End::Done,
        due_s,
        lag_s: 0.0,
        again: false,
        chunks_s: chunks_s.to_vec(),
        end_s,
        prompt_tokens: 1_000,
        output_tokens: chunks_s.len() as u64 * 2,
        cached_tokens: 400,
    }
}

fn scenario(more: &str) -> Scenario {
    let text = format!("name = 'x'\nrequests = 4\nprompt_tokens = [8]\noutput_tokens = [4, 4]\n{more}");
    Scenario::parse(&text).expect("the scenario is right")
}

const CLOSED: &str = "arrivals = { kind = 'closed', streams = 1 }\n";

#[test]
fn a_second_holds_what_happened_in_it() {
    let mut failed = outcome(0, 0.5, &[0.1], 2.0);
    (failed.end, failed.output_tokens) = (End::Failed("cut"), 0);
    let mut unsent = outcome(0, 1.6, &[], 0.0);
    unsent.end = End::Failed(NOT_SENT);
    let outcomes = [outcome(0, 0.0, &[0.2, 1.2], 1.3), failed, unsent];
    let round = Round::of(&scenario(CLOSED), "t", 0, &outcomes);
    let seconds = &round.seconds;
    let of = |part: fn(&Second) -> u64| seconds.iter().map(part).collect::<Vec<_>>();
    assert_eq!(of(|second| second.arrivals), [2, 1, 0]);
    assert_eq!(of(|second| second.completions), [0, 2, 1]);
    assert_eq!(of(|second| second.ok), [0, 1, 0]);
    assert_eq!(of(|second| second.lost), [0, 1, 1]);
    assert_eq!(of(|second| second.in_flight), [2, 2, 1]);
    assert_eq!(seconds.iter().map(|second| second.tokens).collect::<Vec<_>>(), [3.0, 2.0, 0.0]);
    assert_eq!(round.failed.get(NOT_SENT), Some(&1));
    assert!(round.warnings[0].starts_with("HARNESS BOUND: 1 requests"), "{:?}", round.warnings);
    assert!(round.line().contains("HARNESS BOUND"), "{}", round.line());
}

#[test]
fn good_requests_keep_every_limit_that_is_declared() {
    let outcomes = [
        outcome(0, 0.0, &[0.1, 0.2, 0.3], 0.4),
        outcome(0, 1.0, &[0.6, 0.7, 0.8], 0.9),
        outcome(0, 2.0, &[0.1, 0.2, 0.6], 0.7),
        outcome(0, 3.0, &[0.1, 0.2, 0.3], 1.0),
    ];
    let good = |limits: &str| {
        let round = Round::of(&scenario(&format!("{CLOSED}[slo]\n{limits}")), "t", 0, &outcomes);
        assert!((round.good_share - round.good as f64 / 4.0).abs() < 1e-9);
        assert!((round.good_per_s - round.good as f64 / 4.0).abs() < 1e-9, "the run took four seconds");
        round.good
    };
    assert_eq!(good(""), 4);
    assert_eq!(good("ttft_ms = 500"), 3);
    assert_eq!(good("itl_ms = 150"), 3);
    // Four tokens after the first chunk's first token: six tokens, five gaps.
    assert_eq!(good("tpot_ms = 60"), 3);
    assert_eq!(good("e2e_ms = 950"), 3);
    assert_eq!(good("ttft_ms = 500\nitl_ms = 150\ne2e_ms = 950"), 1);
}

#[test]
fn tokens_and_the_machine_are_billed_apart() {
    let prices = "[cost]\nprompt_per_million = 1.0\ncached_per_million = 0.5\noutput_per_million = 10.0\n\
                  machine_per_hour = 36.0";
    // Two answers of 1,000 prompt tokens, 400 of them cached, and 4 of output each, in two seconds.
    let outcomes = [outcome(0, 0.0, &[0.1, 0.2], 0.4), outcome(0, 1.0, &[0.1, 0.2], 1.0)];
    let round = Round::of(&scenario(&format!("{CLOSED}{prices}")), "t", 0, &outcomes);
    let bills = round.cost.expect("prices are given");
    let (tokens, machine) = (bills.tokens.expect("priced"), bills.machine.expect("priced"));
    let near =
        |value: f64, wanted: f64| assert!((value / wanted - 1.0).abs() < 1e-9, "{value}, not {wanted}");
    near(tokens.total, (1_200.0 + 800.0 * 0.5 + 8.0 * 10.0) / 1e6);
    near(machine.total, 0.02);
    near(machine.per_million_output_tokens.expect("there was output"), 0.02 / 8.0 * 1e6);
    near(machine.per_ok_request.expect("there were answers"), 0.01);
    assert_eq!(Round::of(&scenario(CLOSED), "t", 0, &outcomes).cost, None);
}

#[test]
fn a_background_is_told_apart_by_whether_an_intruder_is_in_prefill() {
    let groups = "[[group]]\nname = 'chats'\narrivals = { kind = 'closed', streams = 1 }\n\
                  [[group]]\nname = 'intruder'\narrivals = { kind = 'even', rate = 1.0 }\n";
    // The intruder is in prefill from 1.0 to 2.0; the chat's gaps end at 0.5, 1.5 and 2.5.
    let outcomes = [outcome(0, 0.0, &[0.4, 0.5, 1.5, 2.1, 2.5], 2.5), outcome(1, 1.0, &[1.0, 1.1], 1.2)];
    let round = Round::of(&scenario(groups), "t", 0, &outcomes);
    let chats = &round.groups["chats"];
    let (quiet, disturbed) = (chats.itl_quiet_ms.as_ref(), chats.itl_disturbed_ms.as_ref());
    let (quiet, disturbed) = (quiet.expect("told"), disturbed.expect("told"));
    assert_eq!((quiet.count, disturbed.count), (2, 2));
    assert!((quiet.most - 400.0).abs() < 1.0 && (disturbed.most - 1_000.0).abs() < 1.0);
    assert_eq!(round.groups["intruder"].ok, 1);
    assert!(round.line().contains("while others prefill"));
}

#[test]
fn rows_hold_every_request_and_quote_what_must_be() {
    let mut one = outcome(0, 1.0, &[0.25], 0.5);
    (one.lag_s, one.tenant) = (0.001, Some(Arc::from("a \"b\", c")));
    let mut two = outcome(0, 2.0, &[], 0.5);
    (two.turn, two.end, two.prompt_tokens) = (3, End::Refused(429), 0);
    let scenario = scenario(CLOSED);
    let mut file = Vec::new();
    raw::header(&mut file).expect("memory takes it");
    raw::rows(&mut file, ("t", 2.5, 1), &scenario.loads(), &[one, two]).expect("memory takes it");
    let text = String::from_utf8(file).expect("it is text");
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!(lines[0].split(',').count(), 17);
    let first = "t,2.5,1,x,0,0,\"a \"\"b\"\", c\",1.000000,1.001000,1.250000,1.500000,1000,400,2,1,true,ok";
    assert_eq!(lines[1], first);
    assert_eq!(lines[2], "t,2.5,1,x,0,3,,2.000000,2.000000,,2.500000,0,400,0,0,false,refused 429");
}

#[test]
fn a_tail_is_not_lost_among_many() {
    let latency = Latency::of((0..10_000).map(|number| if number < 9_985 { 0.01 } else { 1.0 }));
    assert!((latency.p99 - 10.0).abs() < 0.1 && (latency.p999 - 1_000.0).abs() < 2.0, "{latency:?}");
    assert_eq!(latency.count, 10_000);
    assert!(latency.without_curve().curve.is_empty());
}
