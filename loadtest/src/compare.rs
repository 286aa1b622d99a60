//! Ratios between targets. The rule: a ratio is taken within a round, so that what slowed the machine slowed both;
//! the median of the rounds counts, and least and most are shown beside it.

use std::collections::BTreeMap;

use serde::Serialize;

use crate::record::Round;

/// What is compared, and whether more of it is better.
type Metric = (&'static str, bool, fn(&Round) -> f64);

const METRICS: [Metric; 6] = [
    ("output tokens/s", true, |round| round.output_tokens_per_s),
    ("ttft p50 ms", false, |round| round.ttft_ms.p50),
    ("ttft p99 ms", false, |round| round.ttft_ms.p99),
    ("itl p50 ms", false, |round| round.itl_ms.p50),
    ("itl p99 ms", false, |round| round.itl_ms.p99),
    ("e2e p99 ms", false, |round| round.e2e_ms.p99),
];

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
}

/// All ratios of the first target to each other one.
pub fn ratios(rounds: &[Round]) -> Vec<Ratio> {
    let Some(first) = rounds.first().map(|round| round.target.clone()) else { return Vec::new() };
    // By level (as millionths, since floats don't order) and target, in order of rounds.
    let mut groups: BTreeMap<(u64, &str), BTreeMap<usize, &Round>> = BTreeMap::new();
    for round in rounds {
        groups.entry(((round.load * 1e6) as u64, &round.target)).or_default().insert(round.round, round);
    }
    let mut ratios = Vec::new();
    for ((level, other), theirs) in &groups {
        let Some(ours) = groups.get(&(*level, first.as_str())).filter(|_| *other != first) else { continue };
        let pairs: Vec<(&Round, &Round)> =
            ours.iter().filter_map(|(round, ours)| Some((*ours, *theirs.get(round)?))).collect();
        for (metric, more, value) in METRICS {
            let better = pairs.iter().map(|(ours, theirs)| {
                let (ours, theirs) = (value(ours), value(theirs));
                if more { ours / theirs } else { theirs / ours }
            });
            let mut better: Vec<f64> = better.filter(|ratio| ratio.is_finite()).collect();
            better.sort_by(f64::total_cmp);
            let (Some(&least), Some(&most)) = (better.first(), better.last()) else { continue };
            ratios.push(Ratio {
                load: *level as f64 / 1e6,
                metric,
                ours: first.clone(),
                other: (*other).to_owned(),
                ours_median: median(pairs.iter().map(|(ours, _)| value(ours))),
                other_median: median(pairs.iter().map(|(_, theirs)| value(theirs))),
                better: better[better.len() / 2],
                least,
                most,
                rounds: better.len(),
            });
        }
    }
    ratios
}

fn median(values: impl Iterator<Item = f64>) -> f64 {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
}

/// A table for a terminal.
pub fn table(ratios: &[Ratio]) -> String {
    let mut text = format!(
        "{:>7} {:<16} {:>12} {:>12} {:>8} {:>15}\n",
        "load", "metric", "ours", "other", "better", "least..most"
    );
    for ratio in ratios {
        let spread = format!("{:.2}..{:.2}", ratio.least, ratio.most);
        text += &format!(
            "{:>7.1} {:<16} {:>12.1} {:>12.1} {:>7.2}x {:>15}  {} against {}\n",
            ratio.load,
            ratio.metric,
            ratio.ours_median,
            ratio.other_median,
            ratio.better,
            spread,
            ratio.ours,
            ratio.other
        );
    }
    text
}
