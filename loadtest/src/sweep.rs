//! The search for the highest load that keeps its limits. The rule: an answer is believed only after a longer run at
//! it; one that fails there steps down.

use serde::Serialize;
use serde_json::Value;

/// The most points of a search, confirmations included.
const MOST_POINTS: usize = 40;
/// A load that fails its longer run is lowered to this share of itself.
const STEP_DOWN: f64 = 0.9;
/// An open loop is not searched below this share of its first load.
const LEAST_SHARE: f64 = 1.0 / 64.0;

/// What a load must keep.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Limits {
    /// Most milliseconds to the first token, at the 99th percentile.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub p99_ttft_ms: Option<f64>,
    /// Most milliseconds between two chunks, at the 99th percentile.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub p99_itl_ms: Option<f64>,
    /// Most milliseconds to the end, at the 99th percentile.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub p99_e2e_ms: Option<f64>,
}

impl Limits {
    /// Those that a record declares: those of its sweep, or else those of its scenario, which it asks of every
    /// request and a page asks of the 99th percentile.
    pub fn of(record: &Value) -> Self {
        let sweep = &record["sweep"]["limits"];
        let scenario = |name: &str| {
            let slo = record["scenario"]["slo"][name].as_f64();
            slo.or_else(|| record["scenario"]["goodput"][name].as_f64())
        };
        if sweep.is_object() {
            let limit = |name: &str| sweep[name].as_f64();
            return Self {
                p99_ttft_ms: limit("p99_ttft_ms"),
                p99_itl_ms: limit("p99_itl_ms"),
                p99_e2e_ms: limit("p99_e2e_ms"),
            };
        }
        Self {
            p99_ttft_ms: scenario("ttft_ms"),
            p99_itl_ms: scenario("itl_ms"),
            p99_e2e_ms: scenario("e2e_ms"),
        }
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// What a round did not keep, in words; nothing when it kept all.
    pub fn broken(&self, round: &Value) -> Vec<String> {
        let mut broken = Vec::new();
        for (name, field, most) in [
            ("first token", "ttft_ms", self.p99_ttft_ms),
            ("between tokens", "itl_ms", self.p99_itl_ms),
            ("end to end", "e2e_ms", self.p99_e2e_ms),
        ] {
            let (Some(most), Some(p99)) = (most, round[field]["p99"].as_f64()) else { continue };
            if p99 > most {
                broken.push(format!("P99 {name} {p99:.0} ms > {most:.0} ms"));
            }
        }
        let count = |name: &str| round[name].as_u64().unwrap_or(0);
        let sum = |name: &str| {
            round[name].as_object().map_or(0, |map| map.values().filter_map(Value::as_u64).sum::<u64>())
        };
        let (refused, failed) = (sum("refused"), sum("failed"));
        if refused > 0 {
            broken.push(format!("{refused} of {} requests refused", count("sent")));
        }
        if failed > 0 {
            broken.push(format!("{failed} of {} requests failed", count("sent")));
        }
        if count("ok") == 0 {
            broken.push("no request was answered".to_owned());
        }
        broken
    }
}

/// What to do next.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Step {
    /// A run at this load.
    Try(f64),
    /// A longer run at this load.
    Confirm(f64),
    /// The highest load that kept the limits in a longer run.
    Done(Option<f64>),
}

/// One point, for the record.
#[derive(Clone, Debug, Serialize)]
pub struct Point {
    /// Streams, or requests a second.
    pub load: f64,
    /// Whether it was a longer run.
    pub longer: bool,
    /// Whether the limits were kept.
    pub met: bool,
    /// What was not kept.
    pub broken: Vec<String>,
}

/// A search under way.
#[derive(Clone, Debug)]
pub struct Search {
    /// Loads are whole numbers: streams.
    whole: bool,
    first: f64,
    most: f64,
    /// How near the bounds come, as a share of the upper one.
    within: f64,
    /// The highest load that was met.
    low: f64,
    /// The lowest that was not.
    high: Option<f64>,
    /// The load of the longer run that is due, once the search has come near enough.
    confirm: Option<f64>,
    answer: Option<f64>,
    points: usize,
    done: bool,
}

impl Search {
    /// From a first load up to a highest.
    pub fn new(whole: bool, first: f64, most: f64, within: f64) -> Self {
        let first = if whole { first.round().max(1.0) } else { first };
        Self {
            whole,
            first: first.min(most),
            most,
            within,
            low: 0.0,
            high: None,
            confirm: None,
            answer: None,
            points: 0,
            done: false,
        }
    }

    /// What to do next.
    pub fn next(&self) -> Step {
        if self.done || self.points >= MOST_POINTS {
            return Step::Done(self.answer);
        }
        if let Some(load) = self.confirm {
            return Step::Confirm(load);
        }
        match self.high {
            None if self.low == 0.0 => Step::Try(self.first),
            None => Step::Try((self.low * 2.0).min(self.most)),
            Some(high) => {
                let load = f64::midpoint(self.low, high);
                Step::Try(if self.whole { load.floor() } else { load })
            }
        }
    }

    /// Takes in how the run went that `next` asked for.
    pub fn report(&mut self, met: bool) {
        let step = self.next();
        self.points += 1;
        match step {
            Step::Done(_) => {}
            Step::Confirm(load) if met => (self.answer, self.done) = (Some(load), true),
            Step::Confirm(load) => self.step_down(load),
            Step::Try(load) => {
                if met {
                    self.low = load;
                } else {
                    self.high = Some(load);
                }
                self.settle();
            }
        }
    }

    /// Ends the search when its bounds are near enough.
    fn settle(&mut self) {
        let near = match self.high {
            None => self.low >= self.most,
            Some(high) => {
                let gap = high - self.low;
                (self.whole && gap <= 1.0) || (self.low > 0.0 && gap <= high * self.within)
            }
        };
        let too_low = self.high.is_some_and(|high| high <= self.first * LEAST_SHARE);
        if near && self.low > 0.0 {
            self.confirm = Some(self.low);
        }
        self.done = (near && self.low == 0.0) || too_low;
    }

    fn step_down(&mut self, failed: f64) {
        let load = failed * STEP_DOWN;
        let load = if self.whole { load.floor() } else { load };
        let least = if self.whole { 1.0 } else { self.first * LEAST_SHARE };
        self.confirm = (load >= least).then_some(load);
        self.done = self.confirm.is_none();
    }
}

#[cfg(test)]
mod tests;
