//! What a run came to. The rule: one JSON holds everything a report shows, percentiles and the curves behind them.

use std::collections::BTreeMap;

use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};

use crate::client::{End, Outcome};
use crate::over_time::ttft_by_second_ms;
use crate::scenario::Scenario;

/// Requests below which a 99th percentile is a guess.
pub const FEW: u64 = 100;

/// Percentiles of one latency, in milliseconds.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Latency {
    /// Values.
    pub count: u64,
    /// Half are below.
    pub p50: f64,
    /// Nine of ten are below.
    pub p90: f64,
    /// All but one in a hundred are below.
    pub p99: f64,
    /// All but one in a thousand are below.
    pub p999: f64,
    /// The largest.
    pub most: f64,
    /// The distribution: milliseconds and the share of values up to them.
    pub curve: Vec<(f64, f64)>,
}

/// One second of a run.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Second {
    /// Requests that were due.
    pub due: u64,
    /// Requests that ended.
    pub ended: u64,
    /// Chunks of output that arrived.
    pub chunks: u64,
}

/// One round against one target.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Round {
    /// The target.
    pub target: String,
    /// Streams of a closed loop, or requests a second of an open one.
    pub load: f64,
    /// Number of the round.
    pub round: usize,
    /// Requests that were measured.
    pub sent: u64,
    /// Complete answers.
    pub ok: u64,
    /// Abandoned by the client as planned.
    pub aborted: u64,
    /// Refusals by status.
    pub refused: BTreeMap<String, u64>,
    /// Failures by kind.
    pub failed: BTreeMap<String, u64>,
    /// Complete answers within the scenario's limits.
    pub good: u64,
    /// From when the first measured request was due to the end of the last.
    pub duration_s: f64,
    /// By the server's usage.
    pub prompt_tokens: u64,
    /// By the server's usage.
    pub cached_tokens: u64,
    /// By the server's usage.
    pub output_tokens: u64,
    /// Output tokens a second.
    pub output_tokens_per_s: f64,
    /// Prompt tokens a second.
    pub prompt_tokens_per_s: f64,
    /// Complete answers a second.
    pub requests_per_s: f64,
    /// From due to the first output.
    pub ttft_ms: Latency,
    /// Between two chunks of output.
    pub itl_ms: Latency,
    /// Of a token after the first, on average over an answer.
    pub tpot_ms: Latency,
    /// From due to the end.
    pub e2e_ms: Latency,
    /// From due to sent: the harness's own lateness.
    pub lag_ms: Latency,
    /// Every second.
    pub seconds: Vec<Second>,
    /// Median and greatest time to a first token of the requests due in each second.
    #[serde(default)]
    pub ttft_by_second_ms: Vec<Option<(f64, f64)>>,
    /// What a reader should know.
    pub warnings: Vec<String>,
}

/// Everything of one command.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Record {
    /// Version of the harness.
    pub version: String,
    /// Seconds since 1970 at the start.
    pub started_unix_s: u64,
    /// Processor, kernel, cores.
    pub machine: BTreeMap<String, String>,
    /// As it was run, defaults included.
    pub scenario: Scenario,
    /// Targets and their addresses.
    pub targets: BTreeMap<String, String>,
    /// Every round.
    pub rounds: Vec<Round>,
}

impl Latency {
    /// Of values in seconds.
    pub fn of(values: impl Iterator<Item = f64>) -> Self {
        // Microseconds up to a day, three digits.
        let mut histogram =
            Histogram::<u64>::new_with_bounds(1, 86_400_000_000, 3).expect("the bounds are right");
        for value in values {
            histogram.saturating_record(((value * 1e6) as u64).max(1));
        }
        if histogram.is_empty() {
            return Self::default();
        }
        let at = |quantile: f64| histogram.value_at_quantile(quantile) as f64 / 1e3;
        let shares = (0..=50).map(|step| f64::from(step) / 50.0).chain([0.99, 0.995, 0.999]);
        let mut shares: Vec<f64> = shares.collect();
        shares.sort_by(f64::total_cmp);
        Self {
            count: histogram.len(),
            p50: at(0.5),
            p90: at(0.9),
            p99: at(0.99),
            p999: at(0.999),
            most: histogram.max() as f64 / 1e3,
            curve: shares.into_iter().map(|share| (at(share), share)).collect(),
        }
    }
}

impl Round {
    /// Sums up the measured requests of a round.
    pub fn of(scenario: &Scenario, target: &str, load: f64, round: usize, outcomes: &[Outcome]) -> Self {
        let ok: Vec<&Outcome> = outcomes.iter().filter(|outcome| outcome.end == End::Done).collect();
        let first_s = outcomes.iter().map(|outcome| outcome.due_s).fold(f64::INFINITY, f64::min);
        let last_s = outcomes.iter().map(|outcome| outcome.due_s + outcome.end_s).fold(0.0, f64::max);
        let duration_s = (last_s - first_s).max(1e-9);
        let (mut refused, mut failed) = (BTreeMap::new(), BTreeMap::new());
        for outcome in outcomes {
            match outcome.end {
                End::Refused(status) => *refused.entry(status.to_string()).or_insert(0) += 1,
                End::Failed(kind) => *failed.entry(kind.to_owned()).or_insert(0) += 1,
                End::Done | End::Aborted => {}
            }
        }
        let sum = |part: fn(&Outcome) -> u64| ok.iter().map(|outcome| part(outcome)).sum::<u64>();
        let (prompt_tokens, output_tokens) = (sum(|o| o.prompt_tokens), sum(|o| o.output_tokens));
        let ttft = |outcome: &Outcome| outcome.chunks_s.first().copied();
        let tpot = |outcome: &Outcome| {
            let (first, last) = (outcome.chunks_s.first()?, outcome.chunks_s.last()?);
            (outcome.output_tokens > 1).then(|| (last - first) / (outcome.output_tokens - 1) as f64)
        };
        let keeps = |value: Option<f64>, most_ms: Option<f64>| {
            most_ms.is_none_or(|most| value.is_some_and(|value| value * 1e3 <= most))
        };
        let limits = scenario.goodput;
        let good =
            ok.iter().filter(|o| keeps(ttft(o), limits.ttft_ms) && keeps(tpot(o), limits.tpot_ms)).count();
        let gaps = ok.iter().flat_map(|o| o.chunks_s.windows(2).map(|pair| pair[1] - pair[0]));
        let mut warnings = Vec::new();
        if (ok.len() as u64) < FEW {
            warnings.push(format!("99th percentiles of time to first token rest on {} requests", ok.len()));
        }
        let again = outcomes.iter().filter(|outcome| outcome.again).count();
        if again > 0 {
            warnings
                .push(format!("{again} requests were sent again after the server closed a kept connection"));
        }
        let lag_ms = Latency::of(outcomes.iter().map(|outcome| outcome.lag_s));
        if lag_ms.p99 > 5.0 {
            warnings.push(format!("the harness sent 1 % of requests {:.1} ms late or more", lag_ms.p99));
        }
        Self {
            target: target.to_owned(),
            load,
            round,
            sent: outcomes.len() as u64,
            ok: ok.len() as u64,
            aborted: outcomes.iter().filter(|outcome| outcome.end == End::Aborted).count() as u64,
            refused,
            failed,
            good: good as u64,
            duration_s,
            prompt_tokens,
            cached_tokens: sum(|o| o.cached_tokens),
            output_tokens,
            output_tokens_per_s: output_tokens as f64 / duration_s,
            prompt_tokens_per_s: prompt_tokens as f64 / duration_s,
            requests_per_s: ok.len() as f64 / duration_s,
            ttft_ms: Latency::of(ok.iter().filter_map(|o| ttft(o))),
            itl_ms: Latency::of(gaps),
            tpot_ms: Latency::of(ok.iter().filter_map(|o| tpot(o))),
            e2e_ms: Latency::of(ok.iter().map(|outcome| outcome.end_s)),
            lag_ms,
            seconds: seconds(outcomes, first_s),
            ttft_by_second_ms: ttft_by_second_ms(outcomes, first_s),
            warnings,
        }
    }

    /// One line for a terminal.
    pub fn line(&self) -> String {
        let count = |map: &BTreeMap<String, u64>| map.values().sum::<u64>();
        format!(
            "{:<10} load {:>6.1}  ok {:>5} refused {} failed {}  out {:>7.1} tok/s  in {:>8.1} tok/s  ttft {:.0}/{:.0} ms  itl {:.1}/{:.1} ms",
            self.target,
            self.load,
            self.ok,
            count(&self.refused),
            count(&self.failed),
            self.output_tokens_per_s,
            self.prompt_tokens_per_s,
            self.ttft_ms.p50,
            self.ttft_ms.p99,
            self.itl_ms.p50,
            self.itl_ms.p99,
        )
    }
}

/// What happened in each second after the first request was due.
fn seconds(outcomes: &[Outcome], first_s: f64) -> Vec<Second> {
    let mut seconds: Vec<Second> = Vec::new();
    let mut at = |time_s: f64, count: fn(&mut Second)| {
        // Bounded by the deadline and the number of requests; a day at most.
        let index = ((time_s - first_s).max(0.0) as usize).min(86_400);
        if seconds.len() <= index {
            seconds.resize_with(index + 1, Second::default);
        }
        count(&mut seconds[index]);
    };
    for outcome in outcomes {
        at(outcome.due_s, |second| second.due += 1);
        at(outcome.due_s + outcome.end_s, |second| second.ended += 1);
        for chunk_s in &outcome.chunks_s {
            at(outcome.due_s + chunk_s, |second| second.chunks += 1);
        }
    }
    seconds
}

/// The machine in words.
pub fn machine() -> BTreeMap<String, String> {
    let read = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
    let cpuinfo = read("/proc/cpuinfo");
    let model = cpuinfo.lines().find_map(|line| line.strip_prefix("model name")).unwrap_or("");
    let cores = std::thread::available_parallelism().map_or(0, std::num::NonZero::get);
    BTreeMap::from([
        ("processor".into(), model.trim_start_matches([' ', '\t', ':']).to_owned()),
        ("cores".into(), cores.to_string()),
        ("kernel".into(), read("/proc/sys/kernel/osrelease").trim().to_owned()),
        ("load_average".into(), read("/proc/loadavg").trim().to_owned()),
    ])
}
