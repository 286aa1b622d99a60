//! `pons-loadtest`: load tests of OpenAI-compatible servers from the command line. The rule: whatever ends it, a
//! signal too, ends the servers that it started.

mod cli;

use std::path::PathBuf;

use clap::{Parser, Subcommand};
use pons_loadtest::compare;
use tokio::signal::unix::{SignalKind, signal};

use crate::cli::Options;
use crate::cli::sweep::SweepOptions;

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
    /// Find the highest load at which the 99th percentiles keep their limits, and confirm it with a longer run
    Sweep(SweepOptions),
    /// Write the page of a record again, and print its ratios
    Report {
        /// A record
        file: PathBuf,
    },
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> anyhow::Result<()> {
    let arguments = Arguments::parse();
    let (mut interrupt, mut terminate) = (signal(SignalKind::interrupt())?, signal(SignalKind::terminate())?);
    // Whichever is not chosen is dropped, and servers that were started end with it.
    tokio::select! {
        done = work(arguments.command) => done,
        _ = interrupt.recv() => anyhow::bail!("interrupted: what was started is ended; loadtest.json has the rounds that were complete, if any were"),
        _ = terminate.recv() => anyhow::bail!("terminated: what was started is ended; loadtest.json has the rounds that were complete, if any were"),
    }
}

async fn work(command: Command) -> anyhow::Result<()> {
    match command {
        Command::Run(options) => cli::rounds::run(&options, 1).await,
        // Fewer rounds can't tell a difference from noise.
        Command::Compare(options) => cli::rounds::run(&options, 5).await,
        Command::Sweep(options) => cli::sweep::run(&options).await,
        Command::Report { file } => {
            let record = cli::out::read(&file)?;
            cli::out::page(&file, &record)?;
            eprint!("{}", compare::table(&compare::ratios(cli::out::rounds(&record))));
            Ok(())
        }
    }
}
