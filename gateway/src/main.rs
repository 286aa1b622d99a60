//! `pons`: the gateway and its command line. The rule: `main` only reports; everything else is in the library.

use clap::Parser;
use pons_gateway::cli::{Arguments, run};
use std::process::ExitCode;

fn main() -> ExitCode {
    match run(Arguments::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            // The log may not be running yet, and a person is reading.
            use std::io::Write;
            let _ = writeln!(std::io::stderr(), "pons: {error:#}");
            ExitCode::FAILURE
        }
    }
}
