//! What the gateway adds to a request. The rule: gateway, brain, floor and load generator are four processes, and
//! floor and gateway take turns in every round.

use std::io::{BufRead, BufReader, Write};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use anyhow::{Context, ensure};
use clap::{Args, Parser, Subcommand};
use pons_benches::floor::{Canned, Floor};
use pons_benches::gateway_process::{GatewayProcess, GatewaySetup};
use pons_benches::instant_brain::{InstantBrain, Script};
use pons_benches::load::{self, Target, WARM_UP};
use pons_benches::machine::{self, Machine};
use pons_benches::plan::{Load, Pace, Shape};
use pons_benches::reply::Expected;
use pons_benches::report::{Record, Round, Series};

/// Name of the floor in tables.
const FLOOR: &str = "floor (bare hyper)";
/// Kept in memory, so that a state directory here shows what the disk costs.
const MEMORY_DIR: &str = "/dev/shm";

/// Gateway overhead against an instant brain, beside a bare hyper server with the same answer
#[derive(Parser)]
struct Arguments {
    #[command(subcommand)]
    role: Option<Role>,
    #[command(flatten)]
    options: Options,
}

#[derive(Args)]
struct Options {
    /// The gateway's executable [default: pons beside this one]
    #[arg(long, value_name = "FILE")]
    pons: Option<PathBuf>,
    /// Tokens of each answer, the end token included
    #[arg(long, default_value_t = 32, value_parser = clap::value_parser!(u32).range(1..=512))]
    tokens: u32,
    /// Rounds; the table shows medians
    #[arg(long, default_value_t = 3)]
    rounds: usize,
    /// Length of each load in a round
    #[arg(long, default_value_t = 3.0, value_name = "SECONDS")]
    seconds: f64,
    /// Connections of the closed loops
    #[arg(long, value_delimiter = ',', default_values_t = [1, 32])]
    connections: Vec<usize>,
    /// Rates of the open loops in requests a second
    #[arg(long, value_delimiter = ',', default_values_t = [1000.0])]
    rate: Vec<f64>,
    /// Connections of the open loops
    #[arg(long, default_value_t = 32)]
    open_connections: usize,
    /// Folders in which gateways keep their state, each a target [default: the temporary and the memory one]
    #[arg(long, value_name = "DIR")]
    state: Vec<PathBuf>,
    /// Log filter of the gateway
    #[arg(long, default_value = "info")]
    log: String,
    /// Write all rounds to this file as JSON
    #[arg(long, value_name = "FILE")]
    record: Option<PathBuf>,
}

#[derive(Subcommand)]
enum Role {
    /// Serve as the instant brain (started by the benchmark itself)
    Brain {
        /// Socket to listen on
        socket: PathBuf,
        /// Tokens of each answer
        tokens: u32,
        /// End token
        eos: u32,
        /// Size of the vocabulary
        vocab_size: u32,
    },
    /// Serve as the floor (started by the benchmark itself)
    Floor {
        /// File with the plain body
        plain: PathBuf,
        /// File with the event stream
        stream: PathBuf,
    },
}

fn main() -> anyhow::Result<()> {
    let arguments = Arguments::parse();
    // One thread each: the gateway gets what the machine has besides.
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    match arguments.role {
        None => runtime.block_on(measure(&arguments.options)),
        Some(Role::Brain { socket, tokens, eos, vocab_size }) => runtime.block_on(async {
            let brain = InstantBrain::bind(&socket, Script { tokens, eos, vocab_size })?;
            say("listening")?;
            brain.serve().await
        }),
        Some(Role::Floor { plain, stream }) => runtime.block_on(async {
            let canned = Canned::new(std::fs::read(plain)?, &std::fs::read(stream)?);
            let floor = Floor::bind(canned).await?;
            say(&floor.address()?.to_string())?;
            floor.serve().await
        }),
    }
}

fn say(text: &str) -> anyhow::Result<()> {
    let mut out = std::io::stdout().lock();
    writeln!(out, "{text}").and_then(|()| out.flush()).context("can't write to standard output")
}

/// A process of this executable in another role; it ends with the handle.
struct OwnProcess {
    child: Child,
}

impl OwnProcess {
    /// Starts it and returns the line it says when it listens.
    fn start(arguments: &[&dyn AsRef<std::ffi::OsStr>]) -> anyhow::Result<(Self, String)> {
        let own = std::env::current_exe().context("this executable has no path")?;
        let child = Command::new(own)
            .args(arguments.iter().map(|argument| argument.as_ref()))
            .stdout(Stdio::piped())
            .spawn()
            .context("can't start a process")?;
        let mut process = Self { child };
        let output = process.child.stdout.take().context("the process has no output")?;
        let mut line = String::new();
        BufReader::new(output).read_line(&mut line)?;
        ensure!(!line.is_empty(), "a process of the benchmark ended before it listened");
        Ok((process, line.trim().to_owned()))
    }
}

impl Drop for OwnProcess {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Somebody who is measured.
struct Contestant {
    name: String,
    pid: u32,
    target: Target,
    expected: [Expected; 2],
}

impl Contestant {
    /// Checks the answers in full; returns their bytes too.
    async fn meet(
        name: String,
        pid: u32,
        target: Target,
        tokens: u32,
    ) -> anyhow::Result<(Self, [Vec<u8>; 2])> {
        let failed = || format!("{name} does not answer as it should");
        let (plain, of_plain) = load::verify(&target, Shape::Plain, tokens).await.with_context(failed)?;
        let (stream, of_stream) =
            load::verify(&target, Shape::Streamed, tokens).await.with_context(failed)?;
        Ok((Self { name, pid, target, expected: [of_plain, of_stream] }, [plain, stream]))
    }

    async fn round(&self, load: Load) -> anyhow::Result<Round> {
        let expected = self.expected[usize::from(load.shape == Shape::Streamed)];
        let before = machine::processor_time(self.pid)?;
        let outcome = load::run(&self.target, load, expected)
            .await
            .with_context(|| format!("{} under {}", self.name, load.name()))?;
        let processor = machine::processor_time(self.pid)?.saturating_sub(before);
        Ok(Round::new(&outcome, processor, (load.connections * WARM_UP) as u64))
    }
}

async fn measure(options: &Options) -> anyhow::Result<()> {
    let machine = Machine::now();
    let folder = tempfile::tempdir()?;
    let (model, brain) = (folder.path().join("model"), folder.path().join("brain.sock"));
    let script = Script::with_model(&model, options.tokens)?;
    let numbers = [script.tokens, script.eos, script.vocab_size].map(|number| number.to_string());
    let (_brain, _) = OwnProcess::start(&[&"brain", &brain, &numbers[0], &numbers[1], &numbers[2]])?;

    let mut gateways = Vec::new();
    let mut contestants = Vec::new();
    let mut canned = None;
    for place in state_places(options) {
        let state = tempfile::tempdir_in(&place).context("can't make a state folder")?;
        let setup = GatewaySetup {
            program: pons(options)?,
            model: model.clone(),
            brain: brain.clone(),
            state: state.path().to_path_buf(),
            log: options.log.clone(),
        };
        let gateway = GatewayProcess::start(&setup)?;
        let name = format!("pons ({})", place.display());
        let (contestant, bodies) =
            Contestant::meet(name, gateway.pid(), gateway.target().clone(), options.tokens).await?;
        contestants.push(contestant);
        canned.get_or_insert(bodies);
        gateways.push((gateway, state));
    }
    let [plain, stream] = canned.context("there is no gateway to measure")?;
    let files = [folder.path().join("plain.json"), folder.path().join("stream.txt")];
    std::fs::write(&files[0], plain)?;
    std::fs::write(&files[1], stream)?;
    let (floor, address) = OwnProcess::start(&[&"floor", &files[0], &files[1]])?;
    let target = Target { address: address.parse::<SocketAddr>()?, authorization: None };
    let (contestant, _) =
        Contestant::meet(FLOOR.to_owned(), floor.child.id(), target, options.tokens).await?;
    contestants.insert(0, contestant);

    let series = interleave(options, &contestants).await?;
    let record = Record {
        benchmark: "gateway_overhead".to_owned(),
        machine,
        load_average_after: machine::load_average(),
        tokens: options.tokens,
        round_seconds: options.seconds,
        series,
    };
    say(&record.table(FLOOR))?;
    if let Some(path) = &options.record {
        machine::write_record(path, &record)?;
    }
    ensure!(record.is_right(), "some answers were wrong; the numbers mean nothing");
    Ok(())
}

/// Every round takes each load in turn, and under each load every contestant.
async fn interleave(options: &Options, contestants: &[Contestant]) -> anyhow::Result<Vec<Series>> {
    ensure!(options.seconds > 0.0 && options.seconds <= 600.0, "--seconds must be above 0 and at most 600");
    let loads = loads(options);
    let mut series = Vec::new();
    for load in &loads {
        for contestant in contestants {
            series.push(Series { load: load.name(), target: contestant.name.clone(), rounds: Vec::new() });
        }
    }
    for _ in 0..options.rounds.max(1) {
        let mut slots = series.iter_mut();
        for load in &loads {
            for (contestant, slot) in contestants.iter().zip(&mut slots) {
                slot.rounds.push(contestant.round(*load).await?);
            }
        }
    }
    Ok(series)
}

fn loads(options: &Options) -> Vec<Load> {
    let closed = options.connections.iter().map(|connections| (*connections, Pace::Closed));
    let open = options.rate.iter().map(|rate| (options.open_connections, Pace::Open { rate: *rate }));
    let paces: Vec<_> = closed.chain(open).collect();
    let duration = Duration::from_secs_f64(options.seconds);
    let load =
        |shape, (connections, pace)| Load { shape, connections, pace, duration, most_requests: u64::MAX };
    Shape::ALL.into_iter().flat_map(|shape| paces.iter().map(move |pace| load(shape, *pace))).collect()
}

fn state_places(options: &Options) -> Vec<PathBuf> {
    if !options.state.is_empty() {
        return options.state.clone();
    }
    let memory = Path::new(MEMORY_DIR).is_dir().then(|| PathBuf::from(MEMORY_DIR));
    std::iter::once(std::env::temp_dir()).chain(memory).collect()
}

fn pons(options: &Options) -> anyhow::Result<PathBuf> {
    match &options.pons {
        Some(path) => Ok(path.clone()),
        None => Ok(std::env::current_exe().context("this executable has no path")?.with_file_name("pons")),
    }
}
