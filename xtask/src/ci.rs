//! `cargo xtask ci`: every check, cheapest first, so that a slip is told early.

use std::time::Instant;

use crate::run::{cargo, run};
use crate::{generate, test, tidy};

/// Runs all checks and says how long each took.
pub(crate) fn ci() -> anyhow::Result<()> {
    step("format", || run(cargo().args(["fmt", "--all", "--", "--check"])))?;
    step("tidy", tidy::tidy)?;
    step("generated code", || generate::generate(true))?;
    step("clippy", || {
        let clippy = ["clippy", "--workspace", "--all-targets", "--all-features", "--", "-D", "warnings"];
        run(cargo().args(clippy))
    })?;
    step("tests", || test::test(&[]))?;
    step("documentation", || {
        let doc = ["doc", "--workspace", "--no-deps", "--document-private-items"];
        run(cargo().args(doc).env("RUSTDOCFLAGS", "-D warnings"))
    })
}

fn step(name: &str, work: impl FnOnce() -> anyhow::Result<()>) -> anyhow::Result<()> {
    eprintln!("== {name}");
    let begun = Instant::now();
    work()?;
    eprintln!("== {name}: passed in {:.0} s", begun.elapsed().as_secs_f64());
    Ok(())
}
