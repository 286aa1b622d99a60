//! `sweep`: the highest load that keeps its limits. The rule: every point stands in the record, whether it was met or
//! not.

use anyhow::bail;
use clap::Args;
use pons_loadtest::record::Record;
use pons_loadtest::scenario::{Arrivals, Scenario};
use pons_loadtest::sweep::{Limits, Point, Search, Step};
use serde_json::{Value, json};

use super::{Options, out, rounds};

/// What a sweep takes.
#[derive(Args)]
pub(crate) struct SweepOptions {
    #[command(flatten)]
    options: Options,
    /// Most milliseconds to the first token, at the 99th percentile
    #[arg(long, default_value_t = 800.0)]
    p99_ttft_ms: f64,
    /// Most milliseconds between two chunks, at the 99th percentile
    #[arg(long, default_value_t = 100.0)]
    p99_itl_ms: f64,
    /// Most milliseconds to the end of an answer, at the 99th percentile; none without it
    #[arg(long)]
    p99_e2e_ms: Option<f64>,
    /// The first load to try: streams or requests a second
    #[arg(long, default_value_t = 1.0)]
    least: f64,
    /// The highest load to try: streams or requests a second
    #[arg(long, default_value_t = 64.0)]
    most: f64,
    /// How near the answer comes, as a share of it
    #[arg(long, default_value_t = 0.05)]
    within: f64,
    /// How many times longer the run is that confirms the answer
    #[arg(long, default_value_t = 3)]
    confirm: usize,
}

/// Searches, writes and prints.
pub(crate) async fn run(sweep: &SweepOptions) -> anyhow::Result<()> {
    let options = &sweep.options;
    sweep.check()?;
    let mut ready = options.ready().await?;
    let (scenario, target) = (&ready.scenario, &ready.targets[0]);
    ready.fleet.turn(&target.name).await?;
    let mut record = out::empty(scenario, &ready.targets[..1]);
    let limits = Limits {
        p99_ttft_ms: Some(sweep.p99_ttft_ms),
        p99_itl_ms: Some(sweep.p99_itl_ms),
        p99_e2e_ms: sweep.p99_e2e_ms,
    };
    let streams = matches!(scenario.arrivals, Arrivals::Closed { .. });
    let kind = if streams { "streams" } else { "requests/s" };
    let starts = std::mem::take(&mut ready.fleet.starts);
    let summed = |record: &Record, answer: Option<f64>, points: &[Point]| -> anyhow::Result<Value> {
        let mut value = serde_json::to_value(record)?;
        value["sweep"] = json!({ "limits": limits, "answer": answer, "load": kind, "points": points });
        if !starts.is_empty() {
            value["starts"] = json!(starts);
        }
        Ok(value)
    };
    let mut search = Search::new(streams, sweep.least, sweep.most, sweep.within);
    let mut points = Vec::new();
    let answer = loop {
        let (load, longer) = match search.next() {
            Step::Done(answer) => break answer,
            Step::Try(load) => (load, false),
            Step::Confirm(load) => (load, true),
        };
        let level = at(scenario, load, if longer { sweep.confirm } else { 1 });
        level.check()?;
        rounds::reached(&level, load)?;
        let number = points.len();
        let salt = number as u64 + record.started_unix_s * 1_000_003;
        let settings = rounds::settings(number, salt, &ready.tls);
        let round = rounds::watched(options, &level, target, settings).await?.round;
        let broken = limits.broken(&serde_json::to_value(&round)?);
        let met = broken.is_empty();
        eprintln!(
            "{:<10} {}",
            if longer { "confirm" } else { "" },
            if met { "met".to_owned() } else { broken.join("; ") }
        );
        search.report(met);
        points.push(Point { load, longer, met, broken });
        record.rounds.push(round);
        out::keep(&options.out, &summed(&record, None, &points)?)?;
    };
    let value = summed(&record, answer, &points)?;
    drop(ready);
    out::write(&options.out, &value)?;
    match answer {
        Some(load) => eprintln!("highest load that keeps the limits in a longer run: {load:.2} {kind}"),
        None => bail!("no load up to {} {kind} keeps the limits; see the points in the record", sweep.most),
    }
    Ok(())
}

impl SweepOptions {
    fn check(&self) -> anyhow::Result<()> {
        if self.options.target.len() != 1 {
            bail!("--target is given {} times; a sweep takes one", self.options.target.len());
        }
        if !(self.least > 0.0 && self.least <= self.most && self.most <= 1e5) {
            bail!("--least is {} and --most {}; use 0 < least <= most <= 100000", self.least, self.most);
        }
        if !(0.001..=0.5).contains(&self.within) {
            bail!("--within is {}; use a share from 0.001 to 0.5", self.within);
        }
        if !(1..=100).contains(&self.confirm) {
            bail!("--confirm is {}; use a factor from 1 to 100", self.confirm);
        }
        Ok(())
    }
}

/// The scenario at one load, so many times as long.
fn at(scenario: &Scenario, load: f64, times: usize) -> Scenario {
    let arrivals = scenario.arrivals.at_load(load);
    // A level of many streams needs several requests of each, or it only measures the start.
    let streams = if let Arrivals::Closed { streams } = arrivals { streams } else { 0 };
    let requests = scenario.requests.max(streams * 2).saturating_mul(times);
    Scenario { arrivals, requests, warmup: scenario.warmup.max(streams), ..scenario.clone() }
}
