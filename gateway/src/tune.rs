//! Finds the settings of a model that serve most within the promised latencies, by trying them.
//!
//! The rule: what is tried and what is chosen is decided by pure functions of the trials so far; processes and files
//! are on the other side, in [`trial`].

pub mod record;
pub mod search;
pub mod trial;

use std::path::PathBuf;

use serde::Serialize;

pub use record::Measured;
pub use search::{Candidate, Limits, Search, Space, Trial};
pub use trial::Runner;

/// Why tuning could not be done.
#[derive(Debug, thiserror::Error)]
pub enum TuneError {
    /// The harness is nowhere.
    #[error(
        "no {program} is beside {own} or in PATH; build it with `cargo build --release -p pons-loadtest`, or give \
         --harness"
    )]
    NoHarness {
        /// Its name.
        program: &'static str,
        /// Where it was looked for first.
        own: PathBuf,
    },
    /// There is no scenario to run.
    #[error("no scenario {path} is there; give --scenario FILE, a scenario of the harness")]
    NoScenario {
        /// The file.
        path: PathBuf,
    },
    /// A limit needs another value to be checked.
    #[error(
        "--max-cost is {value}: no price is known; give --machine-price-per-hour, or price_output in --config"
    )]
    NoPrice {
        /// The limit.
        value: f64,
    },
    /// A process could not be started, or did not do what it should.
    #[error("{what}: {reason}")]
    Process {
        /// What was tried.
        what: String,
        /// Why it failed.
        reason: String,
    },
    /// The harness's record lacks what is needed.
    #[error("the harness's record {path} {reason}; use the pons-loadtest of this release")]
    Record {
        /// The file, or its folder.
        path: PathBuf,
        /// What is wrong with it.
        reason: String,
    },
}

/// What tuning found, whole, for whoever doubts the choice.
#[derive(Debug, Serialize)]
pub struct Evidence {
    /// The program that tuned.
    pub software: String,
    /// When, in seconds since 1970.
    pub began_unix_s: u64,
    /// Where.
    pub machine: Machine,
    /// The model.
    pub model: String,
    /// The harness.
    pub harness: PathBuf,
    /// Its scenario, as text.
    pub scenario: String,
    /// What had to be met.
    pub limits: Limits,
    /// Every trial, in order.
    pub trials: Vec<Trial>,
    /// Index of the chosen trial; none where none met the limits.
    pub chosen: Option<usize>,
    /// Why that one, or which came nearest.
    pub reason: String,
    /// Why no more were tried.
    pub ended_because: String,
}

/// The machine that the numbers hold for.
#[derive(Debug, Serialize)]
pub struct Machine {
    /// The processor's name.
    pub processor: String,
    /// Threads the process may use.
    pub threads: usize,
    /// Memory in bytes.
    pub memory_bytes: u64,
}

impl Machine {
    /// This machine.
    pub fn this() -> Self {
        let read = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
        let field = |text: &str, name: &str| {
            let line = text.lines().find_map(|line| line.strip_prefix(name).map(str::to_owned));
            line.and_then(|line| line.split_once(':').map(|(_, value)| value.trim().to_owned()))
        };
        let memory = field(&read("/proc/meminfo"), "MemTotal").unwrap_or_default();
        let memory_kib: u64 = memory.trim_end_matches("kB").trim().parse().unwrap_or(0);
        Self {
            processor: field(&read("/proc/cpuinfo"), "model name").unwrap_or_else(|| "unknown".to_owned()),
            threads: std::thread::available_parallelism().map_or(1, usize::from),
            memory_bytes: memory_kib.saturating_mul(1024),
        }
    }
}
