//! Measures what this machine can do at most, with one thread and with all, and derives what a step of a model can
//! take at the least. The rule: what is not measured says why.

use std::io::Write;
use std::path::PathBuf;

use anyhow::Context;
use clap::Parser;
use pons_benches::limits::{self, Caches, Effort, Limits};
use pons_benches::machine::{self, Machine};
use pons_benches::roofline::{self, Bound};
use serde::Serialize;

/// Bandwidth of each level of memory, peak of each arithmetic unit, time to wake a pool
#[derive(Parser)]
struct Arguments {
    /// Write every try to this file as JSON
    #[arg(long, value_name = "FILE")]
    record: Option<PathBuf>,
    /// Take a second or two instead of half a minute
    #[arg(long)]
    brief: bool,
}

/// Everything about one run.
#[derive(Serialize)]
struct Record {
    benchmark: &'static str,
    machine: Machine,
    load_average_after: String,
    caches: Caches,
    limits: Vec<Limits>,
    /// With all threads.
    bounds: Vec<Bound>,
}

fn main() -> anyhow::Result<()> {
    let arguments = Arguments::parse();
    let machine = Machine::now();
    let limits = limits::one_and_all(if arguments.brief { Effort::BRIEF } else { Effort::FULL });
    let mut out = std::io::stdout().lock();
    for limits in &limits {
        write!(out, "{}", limits.table()).context("can't write to standard output")?;
    }
    let caches = Caches::of_this_machine();
    let bounds = limits.last().map(|limits| roofline::bounds(limits, caches)).unwrap_or_default();
    write!(out, "{}", roofline::table(&bounds)).context("can't write to standard output")?;
    if let Some(path) = &arguments.record {
        let record = Record {
            benchmark: "machine_limits",
            machine,
            load_average_after: machine::load_average(),
            caches,
            limits,
            bounds,
        };
        machine::write_record(path, &record)?;
    }
    Ok(())
}
