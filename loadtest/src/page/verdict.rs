//! What a record comes to, in words. The rule: limits are kept only if they were kept in every round, and a sweep's
//! answer only counts as confirmed.

use std::collections::BTreeMap;

use serde::Serialize;
use serde_json::Value;

use crate::sweep::Limits;

/// What stands at the top of a page.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(super) struct Verdict {
    /// `good`, `bad` or `even`.
    pub(super) kind: &'static str,
    /// In one line.
    pub(super) headline: String,
    /// What it rests on.
    pub(super) details: Vec<String>,
}

/// Of a whole record; none where it declares no limits.
pub(super) fn verdict(record: &Value, rounds: &[Value], limits: &Limits) -> Option<Verdict> {
    if record["sweep"].is_object() {
        return Some(of_sweep(&record["sweep"], limits));
    }
    if limits.is_empty() || rounds.is_empty() {
        return None;
    }
    // Of each level and target: rounds that kept the limits, all rounds, and what was not kept in the first that didn't.
    let mut levels: BTreeMap<(u64, &str), (usize, usize, Vec<String>)> = BTreeMap::new();
    for round in rounds {
        let level = (round["load"].as_f64().unwrap_or(0.0) * 1e6) as u64;
        let entry = levels.entry((level, round["target"].as_str().unwrap_or(""))).or_default();
        let broken = limits.broken(round);
        entry.0 += usize::from(broken.is_empty());
        entry.1 += 1;
        if entry.2.is_empty() {
            entry.2 = broken;
        }
    }
    let details = levels.iter().map(|((level, target), (kept, of, broken))| {
        let load = *level as f64 / 1e6;
        let rest = if broken.is_empty() { String::new() } else { format!(" ({})", broken.join("; ")) };
        format!("{target} at load {load}: kept in {kept} of {of} rounds{rest}")
    });
    let details = details.collect();
    // Of each target over all levels, in the order of the record; the first is the one that is judged.
    let mut targets: Vec<(&str, usize, usize)> = Vec::new();
    for round in rounds {
        let name = round["target"].as_str().unwrap_or("");
        if targets.iter().any(|(other, _, _)| *other == name) {
            continue;
        }
        let mine = || levels.iter().filter(|((_, target), _)| *target == name).map(|(_, counts)| counts);
        targets.push((name, mine().map(|counts| counts.0).sum(), mine().map(|counts| counts.1).sum()));
    }
    let kind = match targets[0] {
        (_, kept, of) if kept == of => "good",
        (_, 0, _) => "bad",
        _ => "even",
    };
    let sentences = targets.iter().map(|(name, kept, of)| match (kept, of) {
        (kept, of) if kept == of => format!("{name} in all {of} rounds"),
        (0, of) => format!("{name} in none of {of} rounds"),
        (kept, of) => format!("{name} in {kept} of {of} rounds"),
    });
    let sentences: Vec<String> = sentences.collect();
    Some(Verdict {
        kind,
        headline: format!("{} kept by {}", words(limits), sentences.join(", by ")),
        details,
    })
}

fn of_sweep(sweep: &Value, limits: &Limits) -> Verdict {
    let load = sweep["load"].as_str().unwrap_or("load");
    let points = sweep["points"].as_array().map_or(&[][..], Vec::as_slice);
    let details = vec![format!(
        "{} loads were tried, {} of them in longer runs that confirm",
        points.len(),
        points.iter().filter(|point| point["longer"] == true).count()
    )];
    match sweep["answer"].as_f64() {
        Some(answer) => Verdict {
            kind: "good",
            headline: format!("Up to {answer:.4} {load} with {}", words(limits)).replace(".0000 ", " "),
            details,
        },
        None => Verdict { kind: "bad", headline: format!("No load keeps {}", words(limits)), details },
    }
}

/// The limits in words.
fn words(limits: &Limits) -> String {
    let parts = [
        ("first token", limits.p99_ttft_ms),
        ("between tokens", limits.p99_itl_ms),
        ("end to end", limits.p99_e2e_ms),
    ];
    let parts: Vec<String> =
        parts.iter().filter_map(|(name, most)| Some(format!("P99 {name} ≤ {} ms", (*most)?))).collect();
    parts.join(", ")
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn round(target: &str, number: u64, p99: f64) -> Value {
        json!({ "target": target, "load": 4.0, "round": number, "sent": 9, "ok": 9, "ttft_ms": { "p99": p99 } })
    }

    #[test]
    fn limits_are_kept_only_if_kept_in_every_round() {
        let limits = Limits { p99_ttft_ms: Some(800.0), ..Limits::default() };
        let kinds = [[700.0, 750.0], [700.0, 900.0], [900.0, 900.0]].map(|[one, two]| {
            let rounds = [round("a", 0, one), round("a", 1, two)];
            let found = verdict(&json!({}), &rounds, &limits).expect("there are limits");
            (found.kind, found.details[0].clone())
        });
        assert_eq!(kinds[0], ("good", "a at load 4: kept in 2 of 2 rounds".to_owned()));
        assert_eq!(
            kinds[1],
            ("even", "a at load 4: kept in 1 of 2 rounds (P99 first token 900 ms > 800 ms)".to_owned())
        );
        assert_eq!(kinds[2].0, "bad");
    }

    #[test]
    fn without_limits_there_is_no_verdict() {
        assert_eq!(verdict(&json!({}), &[round("a", 0, 1.0)], &Limits::default()), None);
    }

    #[test]
    fn a_sweep_says_its_answer_or_that_there_is_none() {
        let limits = Limits { p99_ttft_ms: Some(800.0), ..Limits::default() };
        let mut record =
            json!({ "sweep": { "load": "streams", "answer": 12.0, "points": [{ "longer": true }] } });
        let found = verdict(&record, &[], &limits).expect("a sweep has a verdict");
        assert_eq!(
            (found.kind, found.headline.as_str()),
            ("good", "Up to 12 streams with P99 first token ≤ 800 ms")
        );
        record["sweep"]["answer"] = Value::Null;
        assert_eq!(verdict(&record, &[], &limits).expect("as well").kind, "bad");
    }
}
