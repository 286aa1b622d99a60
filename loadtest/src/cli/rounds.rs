//! `run` and `compare`: every level, round by round. The rule: within a round all targets get the same prompts, one
//! target after another, and who goes first takes turns.

use std::io::Write;
use std::sync::Arc;

use anyhow::{Context, bail};
use pons_loadtest::client::{Target, Tls};
use pons_loadtest::compare;
use pons_loadtest::live::View;
use pons_loadtest::record::{Record, Round, raw};
use pons_loadtest::run::{self, Measured, Progress, Settings};
use pons_loadtest::scenario::{Arrivals, Scenario};
use pons_loadtest::server::Fleet;
use serde_json::{Value, json};

use super::{Options, out};

/// Measures, writes and prints.
pub(crate) async fn run(options: &Options, rounds: usize) -> anyhow::Result<()> {
    let mut ready = options.ready().await?;
    let (scenario, targets) = (&ready.scenario, &ready.targets);
    let mut record = out::empty(scenario, targets);
    let mut rows = out::rows(&options.out, options.raw)?;
    let mut levels: Vec<Scenario> = Vec::new();
    for &streams in &options.streams {
        let level = Scenario { arrivals: Arrivals::Closed { streams }, ..scenario.clone() };
        level.check()?;
        reached(&level, streams as f64)?;
        levels.push(level);
    }
    if levels.is_empty() {
        levels.push(scenario.clone());
    }
    for number in 0..options.rounds.unwrap_or(rounds).max(1) {
        for (index, level) in levels.iter().enumerate() {
            let salt = (number * levels.len() + index) as u64 + record.started_unix_s * 1_000_003;
            // Who goes first takes turns; results keep the order of the command line.
            let mut done: Vec<(usize, Round)> = Vec::new();
            for step in 0..targets.len() {
                let which = (step + number) % targets.len();
                ready.fleet.turn(&targets[which].name).await?;
                let measured =
                    watched(options, level, &targets[which], settings(number, salt, &ready.tls)).await?;
                if let Some(file) = &mut rows {
                    let of = (measured.round.target.as_str(), measured.round.load, number);
                    raw::rows(file, of, &level.loads(), &measured.outcomes)?;
                }
                done.push((which, measured.round));
            }
            done.sort_by_key(|(which, _)| *which);
            record.rounds.extend(done.into_iter().map(|(_, round)| round));
            out::keep(&options.out, &summed(options, &record, &ready.fleet)?)?;
        }
    }
    if let Some(mut file) = rows {
        file.flush().context("requests.csv can't be written")?;
    }
    let value = summed(options, &record, &ready.fleet)?;
    // What was started ends before the page is made, so that a reader of the terminal sees the outcome last.
    drop(ready);
    out::write(&options.out, &value)?;
    eprint!("{}", compare::table(&compare::ratios(out::rounds(&value))));
    Ok(())
}

/// The record with what follows from its rounds, and how servers were started.
fn summed(options: &Options, record: &Record, fleet: &Fleet) -> anyhow::Result<Value> {
    let mut value = serde_json::to_value(record)?;
    value["ratios"] = serde_json::to_value(compare::ratios(out::rounds(&value)))?;
    if !fleet.starts.is_empty() {
        value["starts"] = json!(fleet.starts);
    }
    if let Some(alone) = options.alone {
        value["alone"] = json!(format!("{alone:?}").to_lowercase());
    }
    Ok(value)
}

/// Ends where a scenario's groups all have arrivals of their own, so that a load from the command line reaches none.
pub(crate) fn reached(level: &Scenario, load: f64) -> anyhow::Result<()> {
    if level.loads().iter().any(|one| (one.arrivals.load() - load).abs() <= 1e-9 * load) {
        return Ok(());
    }
    bail!(
        "a load of {load} reaches no group of {}; leave out the arrivals of the group that is to follow it",
        level.name
    )
}

/// What a round needs beside scenario and target.
pub(crate) fn settings(number: usize, salt: u64, tls: &Tls) -> Settings {
    Settings { number, salt, tls: tls.clone(), progress: Arc::new(Progress::default()) }
}

/// One round with a live view, and its line afterwards.
pub(crate) async fn watched(
    options: &Options,
    level: &Scenario,
    target: &Target,
    settings: Settings,
) -> anyhow::Result<Measured> {
    let load = level.loads().first().map_or(0.0, |load| load.arrivals.load());
    let title = format!("{} load {load} round {}", target.name, settings.number);
    let total = (level.requests + level.warmup) as u64;
    let view = View::start(&settings.progress, &title, total, options.quiet);
    let measured = run::measure(level, target, &settings).await?;
    drop(view);
    eprintln!("{}", measured.round.line());
    Ok(measured)
}
