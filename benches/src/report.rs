//! From rounds to a table and a record. The rule: a number in the table is the median of its rounds, and the
//! record holds every round.

use std::fmt::Write as _;
use std::time::Duration;

use serde::Serialize;

use crate::load::Outcome;
use crate::machine::Machine;

/// What one round of one load gave on one target.
#[derive(Clone, Debug, Serialize)]
pub struct Round {
    /// Right answers.
    pub right: u64,
    /// Wrong answers.
    pub wrong: u64,
    /// Requests that were due and not sent.
    pub unsent: u64,
    /// Seconds it took.
    pub seconds: f64,
    /// Right answers a second.
    pub rate: f64,
    /// Microseconds to the first byte of the body, half of them faster.
    pub first_p50_us: f64,
    /// The same, 99 of 100 faster.
    pub first_p99_us: f64,
    /// Microseconds to the end of the answer, half of them faster.
    pub whole_p50_us: f64,
    /// The same, 99 of 100 faster.
    pub whole_p99_us: f64,
    /// Processor time of the server for one request in microseconds.
    pub cpu_us: f64,
}

impl Round {
    /// Sums up an outcome for which the server used `processor` time, warm-up included.
    pub fn new(outcome: &Outcome, processor: Duration, warm_up: u64) -> Self {
        let us = |histogram: &hdrhistogram::Histogram<u64>, quantile: f64| {
            histogram.value_at_quantile(quantile) as f64 / 1000.0
        };
        let served = (outcome.right + outcome.wrong + warm_up).max(1);
        Self {
            right: outcome.right,
            wrong: outcome.wrong,
            unsent: outcome.unsent,
            seconds: outcome.elapsed.as_secs_f64(),
            rate: outcome.rate(),
            first_p50_us: us(&outcome.first, 0.5),
            first_p99_us: us(&outcome.first, 0.99),
            whole_p50_us: us(&outcome.whole, 0.5),
            whole_p99_us: us(&outcome.whole, 0.99),
            cpu_us: processor.as_secs_f64() * 1e6 / served as f64,
        }
    }
}

/// All rounds of one load on one target.
#[derive(Clone, Debug, Serialize)]
pub struct Series {
    /// The load.
    pub load: String,
    /// The target.
    pub target: String,
    /// In the order they were run.
    pub rounds: Vec<Round>,
}

impl Series {
    fn median(&self, of: impl Fn(&Round) -> f64) -> f64 {
        let mut values: Vec<f64> = self.rounds.iter().map(of).collect();
        values.sort_by(f64::total_cmp);
        match values.len() {
            0 => f64::NAN,
            length if length % 2 == 1 => values[length / 2],
            length => f64::midpoint(values[length / 2 - 1], values[length / 2]),
        }
    }
}

/// Everything about one run.
#[derive(Clone, Debug, Serialize)]
pub struct Record {
    /// Name of the benchmark.
    pub benchmark: String,
    /// Where it ran.
    pub machine: Machine,
    /// Load averages when it ended.
    pub load_average_after: String,
    /// Tokens of each answer.
    pub tokens: u32,
    /// Seconds of each round.
    pub round_seconds: f64,
    /// All numbers.
    pub series: Vec<Series>,
}

impl Record {
    /// Whether every answer was right.
    pub fn is_right(&self) -> bool {
        self.series.iter().flat_map(|series| &series.rounds).all(|round| round.wrong == 0)
    }

    /// The medians; what is added is a target's value minus that of `floor` under the same load.
    pub fn table(&self, floor: &str) -> String {
        let mut out = format!(
            "{} | {} cores | kernel {} | load {} to {} | {}\n",
            self.machine.cpu,
            self.machine.cores,
            self.machine.kernel,
            self.machine.load_average,
            self.load_average_after,
            self.machine.revision,
        );
        let head =
            ["rate/s", "first P50", "first P99", "P50", "P99", "added P50", "added P99", "cpu", "unsent"];
        let _ = write!(out, "{:<32} {:<22}", "load (times in microseconds)", "target");
        for cell in head {
            let _ = write!(out, "{cell:>11}");
        }
        for series in &self.series {
            let base = self.series.iter().find(|base| base.target == floor && base.load == series.load);
            let added = |of: fn(&Round) -> f64| match base {
                Some(base) if series.target != floor => format!("{:.0}", series.median(of) - base.median(of)),
                _ => "-".to_owned(),
            };
            let median = |of: fn(&Round) -> f64| format!("{:.0}", series.median(of));
            let _ = write!(out, "\n{:<32} {:<22}", series.load, series.target);
            for cell in [
                median(|round| round.rate),
                median(|round| round.first_p50_us),
                median(|round| round.first_p99_us),
                median(|round| round.whole_p50_us),
                median(|round| round.whole_p99_us),
                added(|round| round.whole_p50_us),
                added(|round| round.whole_p99_us),
                median(|round| round.cpu_us),
                median(|round| round.unsent as f64),
            ] {
                let _ = write!(out, "{cell:>11}");
            }
        }
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn round(rate: f64) -> Round {
        Round {
            right: 1,
            wrong: 0,
            unsent: 0,
            seconds: 1.0,
            rate,
            first_p50_us: 1.0,
            first_p99_us: 2.0,
            whole_p50_us: 1000.0 - rate,
            whole_p99_us: 4.0,
            cpu_us: 5.0,
        }
    }

    #[test]
    fn the_table_shows_medians_and_what_is_added_to_the_floor() {
        let series = |target: &str, rates: [f64; 3]| Series {
            load: "l".to_owned(),
            target: target.to_owned(),
            rounds: rates.into_iter().map(round).collect(),
        };
        let record = Record {
            benchmark: "b".to_owned(),
            machine: Machine::now(),
            load_average_after: "0 0 0".to_owned(),
            tokens: 1,
            round_seconds: 1.0,
            series: vec![series("floor", [900.0, 100.0, 800.0]), series("pons", [500.0, 300.0, 301.0])],
        };
        let table = record.table("floor");
        let cells: Vec<_> = table.lines().last().unwrap().split_whitespace().collect();
        assert_eq!(cells[..3], ["l", "pons", "301"]);
        // 1000 - 301 against 1000 - 800.
        assert_eq!(cells[7], "499");
    }
}
