//! Ratios between targets. The rule: a ratio is taken within a round, so that what slowed the machine slowed both;
//! the median of the rounds counts, and none is called better whose ratios lie on both sides of one.

use std::collections::BTreeMap;

use serde::Serialize;
use serde_json::Value;

/// What is compared: its name, where it stands in a round, and whether more of it is better.
type Metric = (&'static str, &'static str, bool);

const METRICS: [Metric; 12] = [
    ("output tokens/s", "/output_tokens_per_s", true),
    ("requests/s", "/requests_per_s", true),
    ("goodput requests/s", "/good_per_s", true),
    ("ttft p50 ms", "/ttft_ms/p50", false),
    ("ttft p99 ms", "/ttft_ms/p99", false),
    ("ttft p99.9 ms", "/ttft_ms/p999", false),
    ("itl p50 ms", "/itl_ms/p50", false),
    ("itl p99 ms", "/itl_ms/p99", false),
    ("tpot p50 ms", "/tpot_ms/p50", false),
    ("e2e p50 ms", "/e2e_ms/p50", false),
    ("e2e p99 ms", "/e2e_ms/p99", false),
    ("cost per million output tokens", "/cost/tokens/per_million_output_tokens", false),
];
/// Rounds below which none is called better: two that agree may do so by chance.
const FEW_ROUNDS: usize = 3;

/// Who is better at one metric.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Winner {
    /// The first target, in every round.
    Ours,
    /// The other, in every round.
    Other,
    /// Some rounds say the one and some the other.
    Overlap,
    /// There are too few rounds to say.
    TooFew,
}

/// One metric of one level: the first target against another.
#[derive(Clone, Debug, Serialize, PartialEq)]
pub struct Ratio {
    /// Streams or rate.
    pub load: f64,
    /// What is compared.
    pub metric: &'static str,
    /// The first target.
    pub ours: String,
    /// The other.
    pub other: String,
    /// Median of the first target's values.
    pub ours_median: f64,
    /// Median of the other's.
    pub other_median: f64,
    /// Median over the rounds of how many times better the first is: more output, or less time.
    pub better: f64,
    /// In its worst round.
    pub least: f64,
    /// In its best round.
    pub most: f64,
    /// Rounds.
    pub rounds: usize,
    /// Who is better, if that can be said.
    pub winner: Winner,
    /// Requests that either had refused or failed: a server that answers fewer is quicker with the rest.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub caveat: Option<String>,
}

/// Rounds of one target at one level, by their number.
type Rounds<'a> = BTreeMap<u64, &'a Value>;

/// All ratios of the first target to each other one.
pub fn ratios(rounds: &[Value]) -> Vec<Ratio> {
    let target = |round: &Value| round["target"].as_str().unwrap_or("").to_owned();
    let Some(first) = rounds.first().map(target) else { return Vec::new() };
    // By level (as millionths, since floats don't order) and target.
    let mut groups: BTreeMap<(u64, String), Rounds<'_>> = BTreeMap::new();
    for round in rounds {
        let level = (round["load"].as_f64().unwrap_or(0.0) * 1e6) as u64;
        let number = round["round"].as_u64().unwrap_or(0);
        groups.entry((level, target(round))).or_default().insert(number, round);
    }
    let mut ratios = Vec::new();
    for ((level, other), theirs) in &groups {
        let Some(ours) = groups.get(&(*level, first.clone())).filter(|_| *other != first) else { continue };
        let pairs: Vec<(&Value, &Value)> =
            ours.iter().filter_map(|(round, ours)| Some((*ours, *theirs.get(round)?))).collect();
        let caveat = caveat(&pairs, &first, other);
        for metric in METRICS {
            if let Some(mut ratio) = ratio(metric, &pairs) {
                ratio.load = *level as f64 / 1e6;
                (ratio.ours, ratio.other) = (first.clone(), other.clone());
                ratio.caveat.clone_from(&caveat);
                ratios.push(ratio);
            }
        }
    }
    ratios
}

/// One metric over all rounds of a level; names and level are the caller's.
fn ratio((metric, path, more): Metric, pairs: &[(&Value, &Value)]) -> Option<Ratio> {
    let value = |round: &Value| {
        // One in a thousand of fewer is the worst one under another name.
        let few = path.strip_suffix("/p999").is_some_and(|latency| {
            round.pointer(latency).and_then(|latency| latency["count"].as_u64()).unwrap_or(0) < 1000
        });
        round.pointer(path).and_then(Value::as_f64).filter(|value| *value > 0.0 && !few)
    };
    let pairs: Vec<(f64, f64)> =
        pairs.iter().filter_map(|(ours, theirs)| Some((value(ours)?, value(theirs)?))).collect();
    let better = pairs.iter().map(|(ours, theirs)| if more { ours / theirs } else { theirs / ours });
    let mut better: Vec<f64> = better.filter(|ratio| ratio.is_finite()).collect();
    better.sort_by(f64::total_cmp);
    let (least, most) = (*better.first()?, *better.last()?);
    let winner = if least <= 1.0 && most >= 1.0 {
        Winner::Overlap
    } else if better.len() < FEW_ROUNDS {
        Winner::TooFew
    } else if least > 1.0 {
        Winner::Ours
    } else {
        Winner::Other
    };
    Some(Ratio {
        load: 0.0,
        metric,
        ours: String::new(),
        other: String::new(),
        ours_median: median(pairs.iter().map(|(ours, _)| *ours).collect()),
        other_median: median(pairs.iter().map(|(_, theirs)| *theirs).collect()),
        rounds: better.len(),
        better: median(better),
        least,
        most,
        winner,
        caveat: None,
    })
}

/// What a reader must know of requests that were not answered.
fn caveat(pairs: &[(&Value, &Value)], ours: &str, other: &str) -> Option<String> {
    let mut parts = Vec::new();
    for (name, rounds) in [
        (ours, pairs.iter().map(|(ours, _)| *ours).collect::<Vec<_>>()),
        (other, pairs.iter().map(|(_, theirs)| *theirs).collect()),
    ] {
        let sum = |field: &str| rounds.iter().filter_map(|round| round[field].as_u64()).sum::<u64>();
        let sent = sum("sent");
        let missing = sent.saturating_sub(sum("ok") + sum("aborted"));
        if missing > 0 {
            parts.push(format!("{name} left {missing} of {sent} requests unanswered"));
        }
    }
    (!parts.is_empty()).then(|| parts.join("; "))
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    match values.len() {
        0 => f64::NAN,
        count if count % 2 == 1 => values[count / 2],
        count => f64::midpoint(values[count / 2 - 1], values[count / 2]),
    }
}

/// A table for a terminal; nothing where nothing was compared.
pub fn table(ratios: &[Ratio]) -> String {
    if ratios.is_empty() {
        return String::new();
    }
    let mut text = String::new();
    let mut group: Option<(f64, &str)> = None;
    for ratio in ratios {
        if group != Some((ratio.load, &ratio.other)) {
            group = Some((ratio.load, &ratio.other));
            text += &format!(
                "\n{} against {}, load {}{}\n{:<32} {:>11} {:>11} {:>8} {:>15} {:>3}  verdict\n",
                ratio.ours,
                ratio.other,
                ratio.load,
                ratio.caveat.as_ref().map_or(String::new(), |caveat| format!(" — {caveat}")),
                "metric (medians)",
                clip(&ratio.ours),
                clip(&ratio.other),
                "better",
                "least..most",
                "n"
            );
        }
        text += &format!(
            "{:<32} {:>11.1} {:>11.1} {:>7.2}x {:>15} {:>3}  {}\n",
            ratio.metric,
            ratio.ours_median,
            ratio.other_median,
            ratio.better,
            format!("{:.2}..{:.2}", ratio.least, ratio.most),
            ratio.rounds,
            ratio.verdict()
        );
    }
    text
}

/// A name as a column has room for.
fn clip(name: &str) -> String {
    name.chars().take(11).collect()
}

impl Ratio {
    /// Who is better, in words.
    pub fn verdict(&self) -> String {
        match self.winner {
            Winner::Ours => format!("{} is better", self.ours),
            Winner::Other => format!("{} is better", self.other),
            Winner::Overlap => "no winner: rounds lie on both sides of 1".to_owned(),
            Winner::TooFew => format!("no winner: {} of at least {FEW_ROUNDS} rounds", self.rounds),
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// Rounds of two targets with these output rates.
    fn rounds(pairs: &[(f64, f64)]) -> Vec<Value> {
        let one = |target: &str, number: usize, rate: f64| {
            json!({
                "target": target, "load": 4.0, "round": number, "sent": 10, "ok": 10,
                "output_tokens_per_s": rate, "ttft_ms": { "p50": 1000.0 / rate },
            })
        };
        let pairs = pairs.iter().enumerate();
        pairs.flat_map(|(at, (ours, theirs))| [one("a", at, *ours), one("b", at, *theirs)]).collect()
    }

    fn output(rounds: &[Value]) -> Ratio {
        ratios(rounds).into_iter().find(|ratio| ratio.metric == "output tokens/s").expect("it is there")
    }

    #[test]
    fn the_median_of_ratios_within_rounds_counts_and_less_time_is_better() {
        let all = ratios(&rounds(&[(20.0, 10.0), (90.0, 30.0), (40.0, 10.0)]));
        let names: Vec<_> = all.iter().map(|ratio| ratio.metric).collect();
        assert_eq!(names, ["output tokens/s", "ttft p50 ms"], "metrics that a record lacks are left out");
        for ratio in &all {
            assert!((ratio.better - 3.0).abs() < 1e-9 && (ratio.least - 2.0).abs() < 1e-9, "{ratio:?}");
            assert_eq!((ratio.rounds, ratio.winner), (3, Winner::Ours));
        }
        assert!(table(&all).contains("a is better"), "{}", table(&all));
    }

    #[test]
    fn no_winner_is_called_when_rounds_disagree_or_are_few() {
        let overlap = output(&rounds(&[(20.0, 10.0), (9.0, 10.0), (30.0, 10.0), (30.0, 10.0)]));
        assert_eq!((overlap.winner, overlap.rounds), (Winner::Overlap, 4));
        assert!((overlap.better - 2.5).abs() < 1e-9, "the median of an even number: {overlap:?}");
        assert_eq!(output(&rounds(&[(20.0, 10.0), (20.0, 10.0)])).winner, Winner::TooFew);
        assert_eq!(output(&rounds(&[(1.0, 10.0), (2.0, 10.0), (3.0, 10.0)])).winner, Winner::Other);
        assert!(overlap.verdict().starts_with("no winner"));
    }

    #[test]
    fn unanswered_requests_are_said_beside_every_ratio() {
        let mut rounds = rounds(&[(20.0, 10.0), (20.0, 10.0), (20.0, 10.0)]);
        rounds[1]["ok"] = json!(7);
        assert_eq!(output(&rounds).caveat.as_deref(), Some("b left 3 of 30 requests unanswered"));
        assert!(table(&ratios(&rounds)).contains("unanswered"));
    }

    #[test]
    fn one_in_a_thousand_is_compared_only_where_there_are_a_thousand() {
        let one = |target: &str, count: u64| json!({ "target": target, "load": 1.0, "ttft_ms": { "p999": 2.0, "count": count } });
        assert!(ratios(&[one("a", 5000), one("b", 999)]).is_empty());
        assert_eq!(ratios(&[one("a", 5000), one("b", 1000)]).len(), 1);
    }

    #[test]
    fn nothing_and_one_target_have_no_ratios() {
        assert!(ratios(&[]).is_empty());
        assert!(ratios(&rounds(&[(1.0, 1.0)])[..1]).is_empty());
        assert_eq!(table(&[]), "");
    }
}
