//! `pons-loadtest`: load tests of OpenAI-compatible servers from the command line.

use std::collections::BTreeMap;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::{Context, bail};
use clap::{Args, Parser, Subcommand};
use pons_loadtest::client::{Target, Tls, first_model};
use pons_loadtest::record::{Record, Round, machine, raw};
use pons_loadtest::run::{self, Settings};
use pons_loadtest::scenario::{Arrivals, Scenario};
use pons_loadtest::{compare, page};

/// Load tests of OpenAI-compatible servers.
#[derive(Parser)]
#[command(name = "pons-loadtest", version)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Run a scenario against one server
    Run(Options),
    /// Run rounds against several servers in turn, and print how many times better the first is
    Compare(Options),
    /// Find the highest load at which the 99th percentiles keep their limits
    Sweep {
        #[command(flatten)]
        options: Options,
        /// Most milliseconds to the first token, at the 99th percentile
        #[arg(long, default_value_t = 800.0)]
        p99_ttft_ms: f64,
        /// Most milliseconds between two chunks, at the 99th percentile
        #[arg(long, default_value_t = 100.0)]
        p99_itl_ms: f64,
        /// The highest load to try: streams or requests a second
        #[arg(long, default_value_t = 64.0)]
        most: f64,
    },
    /// Write the page of a record again
    Report {
        /// A record
        file: PathBuf,
    },
}

#[derive(Args)]
struct Options {
    /// Scenario, a TOML file
    scenario: PathBuf,
    /// Servers: NAME=URL, or a URL alone
    #[arg(long, required = true, value_name = "NAME=URL")]
    target: Vec<String>,
    /// Model to ask for: NAME=MODEL for one target, or MODEL for all; the first that a server lists without it
    #[arg(long, value_name = "[NAME=]MODEL")]
    model: Vec<String>,
    /// Key to send
    #[arg(long, env = "PONS_KEY")]
    key: Option<String>,
    /// Streams of a closed loop, several for several levels; the scenario's own without it
    #[arg(long, value_delimiter = ',')]
    streams: Vec<usize>,
    /// Measured requests of each round; the scenario's own without it
    #[arg(long)]
    requests: Option<usize>,
    /// Rounds at each level
    #[arg(long, default_value_t = 1)]
    rounds: usize,
    /// Folder for the record and its page
    #[arg(long, default_value = "loadtest-results")]
    out: PathBuf,
    /// Write every measured request as a row of requests.csv beside the record
    #[arg(long)]
    raw: bool,
    /// Certificates of a private authority to believe, a PEM file, for targets that begin with https://
    #[arg(long, value_name = "FILE")]
    ca: Option<PathBuf>,
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> anyhow::Result<()> {
    match Arguments::parse().command {
        Command::Run(options) | Command::Compare(options) => {
            let (scenario, targets) = options.resolve().await?;
            let record = rounds(&options, &scenario, &targets).await?;
            write(&options.out, &record)?;
            eprint!("{}", compare::table(&compare::ratios(&record.rounds)));
        }
        Command::Sweep { options, p99_ttft_ms, p99_itl_ms, most } => {
            sweep(&options, p99_ttft_ms, p99_itl_ms, most).await?;
        }
        Command::Report { file } => {
            let text = std::fs::read(&file).with_context(|| format!("{} can't be read", file.display()))?;
            let record: Record =
                serde_json::from_slice(&text).with_context(|| format!("{} is no record", file.display()))?;
            std::fs::write(file.with_extension("html"), page::page(&record))?;
        }
    }
    Ok(())
}

impl Options {
    async fn resolve(&self) -> anyhow::Result<(Scenario, Vec<Target>)> {
        let mut scenario = Scenario::read(&self.scenario)
            .with_context(|| format!("scenario {}", self.scenario.display()))?;
        scenario.requests = self.requests.unwrap_or(scenario.requests);
        scenario.check()?;
        let mut targets = Vec::new();
        for (index, target) in self.target.iter().enumerate() {
            // An equals sign in a URL alone can only follow its query.
            let named = target.split_once('=').filter(|(name, _)| !name.contains(':'));
            let (name, url) = named
                .map_or((format!("target{index}"), target.as_str()), |(name, url)| (name.to_owned(), url));
            let url = url.trim_end_matches('/').to_owned();
            if !url.starts_with("http://") && !url.starts_with("https://") {
                bail!("--target is {target}; give an address that starts with http:// or https://");
            }
            let own = format!("{name}=");
            let model = self.model.iter().find_map(|model| model.strip_prefix(&own));
            let model =
                model.or_else(|| self.model.iter().map(String::as_str).find(|model| !model.contains('=')));
            let model = match model {
                Some(model) => model.to_owned(),
                None => first_model(&url, self.key.as_deref(), &self.tls()?).await?,
            };
            targets.push(Target { name, url, model, key: self.key.clone() });
        }
        Ok((scenario, targets))
    }

    fn tls(&self) -> anyhow::Result<Tls> {
        Ok(Tls::new(self.ca.as_deref())?)
    }

    /// The file of rows, its first line written, where it is asked for.
    fn rows(&self) -> anyhow::Result<Option<std::io::BufWriter<std::fs::File>>> {
        if !self.raw {
            return Ok(None);
        }
        let path = self.out.join("requests.csv");
        std::fs::create_dir_all(&self.out)
            .with_context(|| format!("{} can't be made", self.out.display()))?;
        let file =
            std::fs::File::create(&path).with_context(|| format!("{} can't be written", path.display()))?;
        let mut file = std::io::BufWriter::new(file);
        raw::header(&mut file)?;
        Ok(Some(file))
    }
}

/// The scenario at one level.
fn at(scenario: &Scenario, streams: usize) -> Scenario {
    Scenario { arrivals: Arrivals::Closed { streams }, ..scenario.clone() }
}

async fn rounds(options: &Options, scenario: &Scenario, targets: &[Target]) -> anyhow::Result<Record> {
    let mut record = empty(scenario, targets);
    let (tls, mut rows) = (options.tls()?, options.rows()?);
    let mut levels: Vec<Scenario> = options.streams.iter().map(|&streams| at(scenario, streams)).collect();
    if levels.is_empty() {
        levels.push(scenario.clone());
    }
    for number in 0..options.rounds {
        for (index, level) in levels.iter().enumerate() {
            let salt = (number * levels.len() + index) as u64 + record.started_unix_s * 1_000_003;
            // Who goes first takes turns; results keep the order of the command line.
            let mut done: Vec<(usize, Round)> = Vec::new();
            for step in 0..targets.len() {
                let which = (step + number) % targets.len();
                let settings = Settings { number, salt, tls: tls.clone(), progress: Arc::default() };
                let measured = run::measure(level, &targets[which], &settings).await?;
                let round = measured.round;
                if let Some(file) = &mut rows {
                    let of = (round.target.as_str(), round.load, number);
                    raw::rows(file, of, &level.loads(), &measured.outcomes)?;
                }
                eprintln!("{}", round.line());
                done.push((which, round));
            }
            done.sort_by_key(|(which, _)| *which);
            record.rounds.extend(done.into_iter().map(|(_, round)| round));
        }
    }
    if let Some(mut file) = rows {
        file.flush().context("requests.csv can't be written")?;
    }
    Ok(record)
}

async fn sweep(options: &Options, p99_ttft_ms: f64, p99_itl_ms: f64, most: f64) -> anyhow::Result<()> {
    let (scenario, targets) = options.resolve().await?;
    let mut record = empty(&scenario, &targets[..1]);
    let (mut low, mut high, tls) = (0.0, most, options.tls()?);
    // Twelve halvings find any load to a part in a thousand.
    for number in 0..12 {
        let load = if number == 0 { most } else { f64::midpoint(low, high) };
        let load =
            if matches!(scenario.arrivals, Arrivals::Closed { .. }) { load.round().max(1.0) } else { load };
        let arrivals = scenario.arrivals.at_load(load);
        let level = Scenario { arrivals, ..scenario.clone() };
        let settings = Settings { number, salt: number as u64, tls: tls.clone(), progress: Arc::default() };
        let round = run::measure(&level, &targets[0], &settings).await?.round;
        let met =
            round.ok == round.sent && round.ttft_ms.p99 <= p99_ttft_ms && round.itl_ms.p99 <= p99_itl_ms;
        eprintln!("{}  {}", round.line(), if met { "met" } else { "not met" });
        record.rounds.push(round);
        if met {
            low = load
        } else {
            high = load
        }
        let done = matches!(scenario.arrivals, Arrivals::Closed { .. }) && high - low <= 1.0;
        if low >= most || done || high - low <= high * 0.02 {
            break;
        }
    }
    write(&options.out, &record)?;
    if low == 0.0 {
        bail!(
            "no load up to {most} keeps a first token of {p99_ttft_ms} ms and {p99_itl_ms} ms between tokens"
        );
    }
    eprintln!("highest load that keeps the limits: {low:.2}");
    Ok(())
}

fn empty(scenario: &Scenario, targets: &[Target]) -> Record {
    let started = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
    let names =
        targets.iter().map(|target| (target.name.clone(), format!("{} model {}", target.url, target.model)));
    Record {
        version: env!("CARGO_PKG_VERSION").to_owned(),
        started_unix_s: started,
        machine: machine(),
        scenario: scenario.clone(),
        targets: names.collect::<BTreeMap<_, _>>(),
        rounds: Vec::new(),
    }
}

/// The record, its ratios, and its page.
fn write(out: &Path, record: &Record) -> anyhow::Result<()> {
    std::fs::create_dir_all(out).with_context(|| format!("{} can't be made", out.display()))?;
    let file = out.join("loadtest.json");
    let mut value = serde_json::to_value(record)?;
    value["ratios"] = serde_json::to_value(compare::ratios(&record.rounds))?;
    std::fs::write(&file, serde_json::to_vec_pretty(&value)?)?;
    std::fs::write(file.with_extension("html"), page::page(record))?;
    eprintln!("{} and {}", file.display(), file.with_extension("html").display());
    Ok(())
}
