//! `pons tune`. The rule: what was tried is written down whether or not anything was found; a configuration is
//! written only if it met every limit.

use super::{Place, answer, table};
use crate::config::{Overrides, ResolvedConfig};
use crate::tune::search::{best, nearest};
use crate::tune::{Candidate, Evidence, Limits, Machine, Runner, Search, Space, Trial, TuneError};
use anyhow::{Context, bail};
use clap::Args;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// The harness's executable.
const HARNESS: &str = "pons-loadtest";

#[derive(Debug, Args)]
pub(super) struct TuneArguments {
    #[command(flatten)]
    place: Place,

    /// Model to tune: a known name, a .gguf file or a model directory [default: the configuration's first]
    #[arg(long, value_name = "NAME|PATH")]
    model: Option<String>,

    /// Most that the P99 of the time to the first token may be [default: the configuration's]
    #[arg(long, value_name = "MS")]
    p99_ttft_ms: Option<u32>,

    /// Most that the P99 of the time between two tokens may be [default: the configuration's]
    #[arg(long, value_name = "MS")]
    p99_itl_ms: Option<u32>,

    /// Most that a thousand generated tokens may cost
    #[arg(long, value_name = "PRICE")]
    max_cost: Option<f64>,

    /// What this machine costs an hour; without it the model's price_output is the cost
    #[arg(long, value_name = "PRICE")]
    machine_price_per_hour: Option<f64>,

    /// What the harness runs against each candidate
    #[arg(long, value_name = "FILE", default_value = "loadtest/scenarios/chat32.toml")]
    scenario: PathBuf,

    /// The harness [default: pons-loadtest beside this program or in PATH]
    #[arg(long, value_name = "PROGRAM")]
    harness: Option<PathBuf>,

    /// A further argument for the harness; may be repeated
    #[arg(long, value_name = "ARGUMENT", allow_hyphen_values = true)]
    harness_argument: Vec<String>,

    /// Most minutes that all trials together may take
    #[arg(long, value_name = "MINUTES", default_value_t = 5.0)]
    budget_minutes: f64,

    /// Most candidates that are tried
    #[arg(long, value_name = "N", default_value_t = 24)]
    max_trials: usize,

    /// Where the best configuration is written
    #[arg(long, value_name = "FILE", default_value = "pons.tuned.toml")]
    out: PathBuf,

    /// Where all trials are written
    #[arg(long, value_name = "FILE", default_value = "tune-evidence.json")]
    evidence: PathBuf,
}

/// Which programs a tuning runs, and where its trials live.
struct Programs {
    server: PathBuf,
    harness: PathBuf,
    trials_dir: PathBuf,
}

pub(super) fn run(arguments: &TuneArguments) -> anyhow::Result<()> {
    let harness = match &arguments.harness {
        Some(program) => program.clone(),
        None => find_harness()?,
    };
    let server = std::env::current_exe().context("this program's own file can't be found")?;
    let trials_dir = std::env::temp_dir().join(format!("pons-tune-{}", crate::app::random_id(16)));
    let programs = Programs { server, harness, trials_dir: trials_dir.clone() };
    let result = tune(arguments, &programs);
    // Logs of a failed trial are repeated in its error, so nothing is lost with the folder.
    let _ = std::fs::remove_dir_all(&trials_dir);
    result
}

/// The executable beside ours (a test's is one folder deeper), else the one in `PATH`.
fn find_harness() -> Result<PathBuf, TuneError> {
    let own = std::env::current_exe().unwrap_or_default();
    let beside = own.ancestors().skip(1).take(2).map(|dir| dir.join(HARNESS));
    let path = std::env::var_os("PATH").unwrap_or_default();
    let mut candidates = beside.chain(std::env::split_paths(&path).map(|dir| dir.join(HARNESS)));
    candidates.find(|program| program.is_file()).ok_or(TuneError::NoHarness { program: HARNESS, own })
}

fn tune(arguments: &TuneArguments, programs: &Programs) -> anyhow::Result<()> {
    let config = base_config(arguments)?;
    let limits = limits(arguments, &config)?;
    let budget = budget(arguments)?;
    let scenario = std::fs::read_to_string(&arguments.scenario)
        .map_err(|_| TuneError::NoScenario { path: arguments.scenario.clone() })?;
    super::model::ensure(&config.models[0].path)?;
    let runner = Runner {
        server: programs.server.clone(),
        harness: programs.harness.clone(),
        harness_arguments: arguments.harness_argument.clone(),
        scenario: arguments.scenario.clone(),
        base: config.clone(),
    };
    let began = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let (trials, ended_because) =
        runtime.block_on(try_candidates(&runner, limits, budget, arguments.max_trials, &programs.trials_dir));
    let chosen = best(&trials);
    let evidence = Evidence {
        software: concat!("pons ", env!("CARGO_PKG_VERSION")).to_owned(),
        began_unix_s: began,
        machine: Machine::this(),
        model: config.models[0].name.clone(),
        harness: programs.harness.clone(),
        scenario,
        limits,
        chosen,
        reason: reason(&trials, chosen, &limits),
        trials,
        ended_because,
    };
    let text = serde_json::to_string_pretty(&evidence)?;
    write_whole(&arguments.evidence, &text)?;
    answer(&trial_table(&evidence))?;
    let Some(index) = chosen else { bail!("no configuration is written: {}", evidence.reason) };
    let tuned = tuned_config(arguments, &config, evidence.trials[index].candidate, &limits, &evidence)?;
    write_whole(&arguments.out, &tuned)?;
    answer(&format!(
        "{}\nwritten: {} and {}",
        evidence.reason,
        arguments.out.display(),
        arguments.evidence.display()
    ))
}

/// The configuration with exactly the model to tune.
fn base_config(arguments: &TuneArguments) -> anyhow::Result<ResolvedConfig> {
    let mut config = arguments.place.resolve(Overrides::default())?;
    if let Some(wanted) = &arguments.model {
        config.models.retain(|model| model.name == *wanted);
        if config.models.is_empty() {
            let overrides = Overrides { models: vec![wanted.clone()], ..Overrides::default() };
            config = arguments.place.resolve(overrides)?;
        }
    }
    config.models.truncate(1);
    if let Some(address) = &config.models[0].brain {
        bail!("the model's brain runs at {address}; tune it where its process can be started, without brain");
    }
    Ok(config)
}

fn limits(arguments: &TuneArguments, config: &ResolvedConfig) -> anyhow::Result<Limits> {
    let model = &config.models[0];
    let target = |name: &str, given: Option<u32>, default: u32, most: u32| {
        let value = given.unwrap_or(default);
        if (1..=most).contains(&value) {
            Ok(f64::from(value))
        } else {
            bail!("--{name} is {value}; give 1 to {most}")
        }
    };
    let price = |name: &str, value: Option<f64>| match value {
        Some(value) if !(value.is_finite() && value > 0.0) => {
            bail!("--{name} is {value}; give a number above 0")
        }
        value => Ok(value),
    };
    // Prices are millionths of the currency's unit for a million tokens.
    let output_price = (model.prices.output > 0).then(|| model.prices.output as f64 / 1e9);
    let limits = Limits {
        p99_ttft_ms: target("p99-ttft-ms", arguments.p99_ttft_ms, model.p99_ttft_ms, 600_000)?,
        p99_itl_ms: target("p99-itl-ms", arguments.p99_itl_ms, model.p99_itl_ms, 60_000)?,
        max_cost: price("max-cost", arguments.max_cost)?,
        machine_price_per_hour: price("machine-price-per-hour", arguments.machine_price_per_hour)?,
        output_price,
    };
    match limits.max_cost {
        Some(value) if limits.machine_price_per_hour.is_none() && output_price.is_none() => {
            Err(TuneError::NoPrice { value }.into())
        }
        _ => Ok(limits),
    }
}

fn budget(arguments: &TuneArguments) -> anyhow::Result<Duration> {
    let minutes = arguments.budget_minutes;
    if !(minutes.is_finite() && (0.01..=1440.0).contains(&minutes)) {
        bail!("--budget-minutes is {minutes}; give 0.01 to 1440");
    }
    if !(1..=1000).contains(&arguments.max_trials) {
        bail!("--max-trials is {}; give 1 to 1000", arguments.max_trials);
    }
    Ok(Duration::from_secs_f64(minutes * 60.0))
}

/// Tries candidates until none is left, the time is used up, or the first of them shows that none can work.
async fn try_candidates(
    runner: &Runner,
    limits: Limits,
    budget: Duration,
    max_trials: usize,
    trials_dir: &Path,
) -> (Vec<Trial>, String) {
    let began = Instant::now();
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let mut search = Search::new(Space { threads, p99_itl_ms: limits.p99_itl_ms }, limits);
    let mut trials: Vec<Trial> = Vec::new();
    loop {
        let left = budget.saturating_sub(began.elapsed());
        let longest = trials.iter().map(|trial| trial.took_s).fold(0.0, f64::max);
        if left.as_secs_f64() < longest || left.is_zero() {
            return (trials, "the time was used up".to_owned());
        }
        if trials.len() >= max_trials {
            return (trials, "as many were tried as --max-trials allows".to_owned());
        }
        let Some(candidate) = search.next(&trials) else {
            return (trials, "nothing was left to vary".to_owned());
        };
        let dir = trials_dir.join(format!("trial-{}", trials.len()));
        let trial = try_one(runner, limits, candidate, &dir, left).await;
        tell(&trial, trials.len() + 1);
        let hopeless = trials.is_empty() && trial.failure.is_some();
        trials.push(trial);
        if hopeless {
            return (trials, "the first trial failed, with the settings that the brain chooses".to_owned());
        }
    }
}

async fn try_one(
    runner: &Runner,
    limits: Limits,
    candidate: Candidate,
    dir: &Path,
    within: Duration,
) -> Trial {
    let began = Instant::now();
    let model = candidate.apply(&runner.base.models[0], &limits);
    let (measured, failure) = match runner.run(dir, model, within).await {
        Ok(measured) => (Some(measured), None),
        Err(error) => (None, Some(error.to_string())),
    };
    let met = measured.as_ref().is_some_and(|measured| limits.met(measured));
    Trial { candidate, measured, failure, met, took_s: began.elapsed().as_secs_f64() }
}

/// Progress, on standard error.
fn tell(trial: &Trial, number: usize) {
    use std::io::Write;
    let outcome = match (&trial.measured, &trial.failure) {
        (Some(measured), _) => format!("{:.1} tokens/s", measured.output_tokens_per_s),
        (None, failure) => failure.clone().unwrap_or_default(),
    };
    // Nobody to tell is no reason to stop.
    let _ = writeln!(std::io::stderr(), "trial {number}: {}: {outcome}", trial.candidate.describe());
}

fn reason(trials: &[Trial], chosen: Option<usize>, limits: &Limits) -> String {
    let met = trials.iter().filter(|trial| trial.met).count();
    let words = |index: usize| {
        let trial = &trials[index];
        let measured = trial.measured.as_ref();
        let numbers = measured.map_or_else(String::new, |m| {
            format!(
                "{:.1} output tokens/s, P99 to the first token {:.0} ms, between tokens {:.1} ms, {} unserved",
                m.output_tokens_per_s, m.p99_ttft_ms, m.p99_itl_ms, m.unserved
            )
        });
        (trial.candidate.describe(), numbers)
    };
    match (chosen, nearest(trials, limits)) {
        (Some(index), _) => {
            let (candidate, numbers) = words(index);
            format!("{candidate} generates most of the {met} that meet the limits: {numbers}")
        }
        (None, Some(index)) => {
            let (candidate, numbers) = words(index);
            format!(
                "none of {} candidates meets the limits; {candidate} came nearest: {numbers}; raise --p99-ttft-ms, \
                 --p99-itl-ms or --max-cost, or offer less load in the scenario",
                trials.len()
            )
        }
        (None, None) => {
            let failure = trials.iter().find_map(|trial| trial.failure.clone());
            format!("no trial could be measured: {}", failure.unwrap_or_else(|| "none was run".to_owned()))
        }
    }
}

fn trial_table(evidence: &Evidence) -> String {
    let rows: Vec<Vec<String>> = evidence
        .trials
        .iter()
        .enumerate()
        .map(|(index, trial)| {
            let number =
                |value: Option<f64>| value.map_or_else(|| "-".to_owned(), |value| format!("{value:.1}"));
            let measured = trial.measured.as_ref();
            let cost = measured.and_then(|m| evidence.limits.cost(m));
            let verdict = match (evidence.chosen == Some(index), trial.met) {
                (true, _) => "chosen",
                (false, true) => "met",
                (false, false) if trial.failure.is_some() => "failed",
                (false, false) => "missed",
            };
            vec![
                (index + 1).to_string(),
                trial.candidate.describe(),
                number(measured.map(|m| m.output_tokens_per_s)),
                number(measured.map(|m| m.p99_ttft_ms)),
                number(measured.map(|m| m.p99_itl_ms)),
                cost.map_or_else(|| "-".to_owned(), |cost| format!("{cost:.6}")),
                verdict.to_owned(),
            ]
        })
        .collect();
    table(&["trial", "settings", "tokens/s", "P99 TTFT ms", "P99 ITL ms", "cost/1k", "limits"], &rows)
}

/// The configuration file: the given one with the tuned model, or that model alone.
fn tuned_config(
    arguments: &TuneArguments,
    config: &ResolvedConfig,
    candidate: Candidate,
    limits: &Limits,
    evidence: &Evidence,
) -> anyhow::Result<String> {
    #[derive(serde::Serialize)]
    struct ModelOnly<'a> {
        model: [&'a crate::config::ModelConfig; 1],
    }
    let model = candidate.apply(&config.models[0], limits);
    let body = if arguments.place.config.is_some() {
        // The other models of the file stay as they are.
        let mut whole = arguments.place.resolve(Overrides::default())?;
        match whole.models.iter_mut().find(|other| other.name == model.name) {
            Some(other) => *other = model,
            None => whole.models.push(model),
        }
        toml::to_string(&whole)?
    } else {
        toml::to_string(&ModelOnly { model: [&model] })?
    };
    let machine = &evidence.machine;
    Ok(format!(
        "# Tuned by {} on {} ({} threads).\n# {}\n# All trials: {}\n\n{body}",
        evidence.software,
        machine.processor,
        machine.threads,
        evidence.reason,
        arguments.evidence.display(),
    ))
}

/// A file appears whole or not at all.
fn write_whole(path: &Path, text: &str) -> anyhow::Result<()> {
    let mut name = path.as_os_str().to_owned();
    name.push(format!(".{}.tmp", std::process::id()));
    let fresh = PathBuf::from(name);
    std::fs::write(&fresh, text)
        .and_then(|()| std::fs::rename(&fresh, path))
        .with_context(|| format!("{} can't be written", path.display()))
}

#[cfg(test)]
mod tests;
