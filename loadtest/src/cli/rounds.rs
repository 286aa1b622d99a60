//! `run` and `compare`: every level, round by round. The rule: within a round all targets get the same prompts, one
//! target after another, and who goes first takes turns.

use std::sync::Arc;

use pons_loadtest::client::Target;
use pons_loadtest::compare;
use pons_loadtest::live::{Progress, View};
use pons_loadtest::record::Round;
use pons_loadtest::run;
use pons_loadtest::scenario::{Arrivals, Scenario};
use serde_json::json;

use super::{Options, out};

/// Measures, writes and prints.
pub(crate) async fn run(options: &Options, rounds: usize) -> anyhow::Result<()> {
    let mut ready = options.ready().await?;
    let (scenario, targets) = (&ready.scenario, &ready.targets);
    let mut record = out::empty(scenario, targets);
    let mut levels: Vec<Scenario> = Vec::new();
    for &streams in &options.streams {
        let level = Scenario { arrivals: Arrivals::Closed { streams }, ..scenario.clone() };
        level.check()?;
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
                let round = watched(options, level, &targets[which], number, salt).await;
                done.push((which, round));
            }
            done.sort_by_key(|(which, _)| *which);
            record.rounds.extend(done.into_iter().map(|(_, round)| round));
        }
    }
    let starts = std::mem::take(&mut ready.fleet.starts);
    // What was started ends before the page is made, so that a reader of the terminal sees the outcome last.
    drop(ready);
    let mut value = serde_json::to_value(&record)?;
    let ratios = compare::ratios(out::rounds(&value));
    value["ratios"] = serde_json::to_value(&ratios)?;
    if !starts.is_empty() {
        value["starts"] = json!(starts);
    }
    if let Some(alone) = options.alone {
        value["alone"] = json!(format!("{alone:?}").to_lowercase());
    }
    out::write(&options.out, &value)?;
    eprint!("{}", compare::table(&ratios));
    Ok(())
}

/// One round with a live view, and its line afterwards.
pub(crate) async fn watched(
    options: &Options,
    level: &Scenario,
    target: &Target,
    number: usize,
    salt: u64,
) -> Round {
    let progress = Arc::new(Progress::default());
    let title = format!("{} load {} round {number}", target.name, run::load(&level.arrivals));
    let total = (level.requests + level.warmup) as u64;
    let view = View::start(&progress, &title, total, options.quiet);
    let round = run::watched(level, target, number, salt, &progress).await;
    drop(view);
    eprintln!("{}", round.line());
    round
}
