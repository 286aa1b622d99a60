//! What a run came to. The rule: one JSON holds everything a report shows, percentiles and the curves behind them.

mod bill;
mod latency;
mod part;
pub mod raw;
mod series;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::client::{NOT_SENT, Outcome};
use crate::over_time::ttft_by_second_ms;
use crate::scenario::Scenario;
pub use bill::{Bill, Bills};
pub use latency::Latency;
pub use part::Part;
pub use series::Second;

/// Requests below which a 99th percentile is a guess.
pub const FEW: u64 = 100;
/// Milliseconds from which the harness's own lateness is remarked upon.
const LATE_MS: f64 = 5.0;

/// One round against one target. Fields that later versions added have defaults, so that older records can be read.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Round {
    /// The target.
    pub target: String,
    /// Streams of a closed loop, or requests a second of an open one; the first group's where there are several.
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
    /// Of the requests that weren't abandoned as planned.
    #[serde(default)]
    pub good_share: f64,
    /// Good answers a second: goodput.
    #[serde(default)]
    pub good_per_s: f64,
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
    /// The same of each group, where there are several.
    #[serde(default)]
    pub groups: BTreeMap<String, Part>,
    /// The same of each tenant, without curves.
    #[serde(default)]
    pub tenants: BTreeMap<String, Part>,
    /// The same of each turn of conversations, from the first on, without curves.
    #[serde(default)]
    pub turns: Vec<Part>,
    /// What it cost, where the scenario names prices.
    #[serde(default)]
    pub cost: Option<Bills>,
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

impl Round {
    /// Sums up the measured requests of a round.
    pub fn of(scenario: &Scenario, target: &str, round: usize, outcomes: &[Outcome]) -> Self {
        let loads = scenario.loads();
        let all: Vec<&Outcome> = outcomes.iter().collect();
        let whole = Part::of(&loads, &all);
        let first_s = outcomes.iter().map(|outcome| outcome.due_s).fold(f64::INFINITY, f64::min);
        let lag_ms = Latency::of(outcomes.iter().map(|outcome| outcome.lag_s));
        let mut groups = BTreeMap::new();
        if loads.len() > 1 {
            for (number, mut part) in Part::each(&loads, outcomes, |outcome| Some(outcome.group)) {
                part.disturbance(number, outcomes);
                groups.insert(loads[number].name.clone(), part);
            }
        }
        let tenants = Part::each(&loads, outcomes, |outcome| outcome.tenant.as_deref().map(str::to_owned));
        let mut turns = BTreeMap::new();
        if outcomes.iter().any(|outcome| outcome.turn > 0) {
            turns = Part::each(&loads, outcomes, |outcome| Some(outcome.turn));
        }
        let warnings = warnings(scenario, &whole, &lag_ms, outcomes);
        Self {
            target: target.to_owned(),
            load: loads.first().map_or(0.0, |load| load.arrivals.load()),
            round,
            cost: scenario.cost.as_ref().map(|cost| Bills::of(cost, &whole)),
            sent: whole.sent,
            ok: whole.ok,
            aborted: whole.aborted,
            refused: whole.refused,
            failed: whole.failed,
            good: whole.good,
            good_share: whole.good_share,
            good_per_s: whole.good_per_s,
            duration_s: whole.duration_s,
            prompt_tokens: whole.prompt_tokens,
            cached_tokens: whole.cached_tokens,
            output_tokens: whole.output_tokens,
            output_tokens_per_s: whole.output_tokens_per_s,
            prompt_tokens_per_s: whole.prompt_tokens_per_s,
            requests_per_s: whole.requests_per_s,
            ttft_ms: whole.ttft_ms,
            itl_ms: whole.itl_ms,
            tpot_ms: whole.tpot_ms,
            e2e_ms: whole.e2e_ms,
            lag_ms,
            groups,
            tenants: tenants.into_iter().map(|(name, part)| (name, part.without_curves())).collect(),
            turns: turns.into_values().map(Part::without_curves).collect(),
            seconds: series::seconds(outcomes, first_s),
            ttft_by_second_ms: ttft_by_second_ms(outcomes, first_s),
            warnings,
        }
    }

    /// One line for a terminal, and one more for each group and each warning that must not be missed.
    pub fn line(&self) -> String {
        let count = |map: &BTreeMap<String, u64>| map.values().sum::<u64>();
        let tail = |latency: &Latency, digits: usize| {
            format!("{:.digits$}/{:.digits$}/{:.digits$} ms", latency.p50, latency.p99, latency.p999)
        };
        let mut text = format!(
            "{:<10} load {:>6.1}  ok {:>5} refused {} failed {}  good {:.1} %  out {:>7.1} tok/s  in {:>8.1} tok/s  ttft {}  itl {}",
            self.target,
            self.load,
            self.ok,
            count(&self.refused),
            count(&self.failed),
            self.good_share * 100.0,
            self.output_tokens_per_s,
            self.prompt_tokens_per_s,
            tail(&self.ttft_ms, 0),
            tail(&self.itl_ms, 1),
        );
        for (name, part) in &self.groups {
            let (ttft, itl) = (tail(&part.ttft_ms, 0), tail(&part.itl_ms, 1));
            text += &format!("\n  {name:<12} ok {:>5}  ttft {ttft}  itl {itl}", part.ok);
            if let (Some(quiet), Some(disturbed)) = (&part.itl_quiet_ms, &part.itl_disturbed_ms) {
                text += &format!("  while others prefill {}, else {}", tail(disturbed, 1), tail(quiet, 1));
            }
        }
        for warning in self.warnings.iter().filter(|warning| warning.starts_with(LOUD)) {
            text += &format!("\n  {warning}");
        }
        text
    }
}

/// What a warning begins with that no reader may miss.
const LOUD: &str = "HARNESS BOUND";

/// What a reader should know.
fn warnings(scenario: &Scenario, whole: &Part, lag_ms: &Latency, outcomes: &[Outcome]) -> Vec<String> {
    let mut warnings = Vec::new();
    if let Some(unsent) = whole.failed.get(NOT_SENT) {
        warnings.push(format!(
            "{LOUD}: {unsent} requests were not sent, since {} were in flight; the server fell behind what was \
             asked of it. Raise max_in_flight or lower the rate",
            scenario.max_in_flight
        ));
    }
    if whole.ok < FEW {
        warnings.push(format!("99th percentiles of time to first token rest on {} requests", whole.ok));
    }
    let again = outcomes.iter().filter(|outcome| outcome.again).count();
    if again > 0 {
        warnings.push(format!("{again} requests were sent again after the server closed a kept connection"));
    }
    if lag_ms.p99 > LATE_MS {
        warnings.push(format!("the harness sent 1 % of requests {:.1} ms late or more", lag_ms.p99));
    }
    warnings
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
