//! The command line. The rule: standard output is the answer and nothing else, so that it can be piped.

mod config_command;
mod key;
mod ledger;
mod link;
mod model;
mod serve;
mod tune;

use crate::config::{self, Overrides, ResolvedConfig};
use clap::{Args, Parser, Subcommand};
use std::io::Write;
use std::path::PathBuf;

/// OpenAI-compatible inference gateway with its own transformer workers
#[derive(Debug, Parser)]
#[command(name = "pons", version, max_term_width = 100)]
pub struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Serve models over HTTP
    Serve(serve::ServeArguments),
    /// Fetch, list and inspect model files
    #[command(subcommand)]
    Model(model::ModelCommand),
    /// Create, list and revoke keys; works with and without a running server
    #[command(subcommand)]
    Key(key::KeyCommand),
    /// Read what requests used; works with and without a running server
    #[command(subcommand)]
    Ledger(ledger::LedgerCommand),
    /// Find the settings that serve most within the promised latencies, by trying them
    Tune(tune::TuneArguments),
    /// Check and show the configuration
    #[command(subcommand)]
    Config(config_command::ConfigCommand),
}

/// Where the configuration and the state are.
#[derive(Clone, Debug, Args)]
pub(crate) struct Place {
    /// Configuration file
    #[arg(long, value_name = "FILE", env = "PONS_CONFIG")]
    config: Option<PathBuf>,

    /// Directory of the durable state [default: pons in the platform's data directory]
    #[arg(long, value_name = "DIR", env = "PONS_STATE_DIR")]
    state_dir: Option<PathBuf>,
}

impl Place {
    fn resolve(&self, overrides: Overrides) -> anyhow::Result<ResolvedConfig> {
        let overrides = Overrides { state_dir: self.state_dir.clone(), ..overrides };
        Ok(config::load(self.config.as_deref(), overrides)?)
    }
}

/// Runs a command.
pub fn run(arguments: Arguments) -> anyhow::Result<()> {
    match arguments.command {
        Command::Serve(arguments) => serve::run(&arguments),
        Command::Model(command) => model::run(command),
        Command::Key(command) => key::run(command),
        Command::Ledger(command) => ledger::run(command),
        Command::Tune(arguments) => tune::run(&arguments),
        Command::Config(command) => config_command::run(&command),
    }
}

/// Writes an answer. A reader that has seen enough (`| head`) is no error.
fn answer(text: &str) -> anyhow::Result<()> {
    match writeln!(std::io::stdout().lock(), "{text}") {
        Err(error) if error.kind() != std::io::ErrorKind::BrokenPipe => Err(error.into()),
        _ => Ok(()),
    }
}

/// Lines of columns, as wide as their widest cell.
fn table(header: &[&str], rows: &[Vec<String>]) -> String {
    let mut widths: Vec<usize> = header.iter().map(|cell| cell.len()).collect();
    for row in rows {
        for (width, cell) in widths.iter_mut().zip(row) {
            *width = (*width).max(cell.chars().count());
        }
    }
    let line = |cells: Vec<&str>| {
        let padded: Vec<String> =
            cells.iter().zip(&widths).map(|(cell, width)| format!("{cell:<width$}")).collect();
        padded.join("  ").trim_end().to_owned()
    };
    let mut lines = vec![line(header.to_vec())];
    lines.extend(rows.iter().map(|row| line(row.iter().map(String::as_str).collect())));
    lines.join("\n")
}

/// A time as people and sorting tools read it, in UTC.
fn utc(seconds: u64) -> String {
    // Days to a date: Howard Hinnant, "chrono-compatible low-level date algorithms".
    let days = (seconds / 86_400) as i64 + 719_468;
    let era = days.div_euclid(146_097);
    let day_of_era = days.rem_euclid(146_097);
    let year_of_era = (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let shifted_month = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * shifted_month + 2) / 5 + 1;
    let month = if shifted_month < 10 { shifted_month + 3 } else { shifted_month - 9 };
    let year = year_of_era + era * 400 + i64::from(month <= 2);
    let (hour, minute, second) = (seconds / 3600 % 24, seconds / 60 % 60, seconds % 60);
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}Z")
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_command_line_is_consistent() {
        Arguments::command().debug_assert();
    }

    #[test]
    fn every_command_and_option_explains_itself() {
        fn check(command: &clap::Command) {
            assert!(command.get_about().is_some(), "{} has no help", command.get_name());
            for argument in command.get_arguments() {
                assert!(argument.get_help().is_some(), "{} {}", command.get_name(), argument.get_id());
            }
            command.get_subcommands().for_each(check);
        }
        check(&Arguments::command());
    }

    #[test]
    fn times_are_written_in_utc() {
        assert_eq!(utc(0), "1970-01-01T00:00:00Z");
        assert_eq!(utc(951_827_696), "2000-02-29T12:34:56Z");
        assert_eq!(utc(4_102_444_799), "2099-12-31T23:59:59Z");
    }

    #[test]
    fn columns_are_aligned_and_lines_have_no_tail() {
        let rows = vec![vec!["a".to_owned(), "long cell".to_owned()], vec!["bbb".to_owned(), String::new()]];
        assert_eq!(table(&["x", "y"], &rows), "x    y\na    long cell\nbbb");
    }
}
