//! `cargo xtask serve`: from a fresh clone to a server that answers.

use anyhow::Context;

use crate::run::{cargo, command, run, target_dir};

/// Builds both programs in release.
pub(crate) fn build_release() -> anyhow::Result<()> {
    run(cargo().args(["build", "--release", "--package", "pons-gateway", "--package", "pons-gpu-worker"]))
}

/// Builds, then hands the terminal over to `pons serve`, which fetches the default model if it is missing.
pub(crate) fn serve(arguments: &[String]) -> anyhow::Result<()> {
    build_release()?;
    let mut serve = command(target_dir().join("release/pons"));
    serve.arg("serve").args(arguments);
    // The server replaces this process, so that signals reach it and its exit status is the task's.
    let error = std::os::unix::process::CommandExt::exec(&mut serve);
    Err(error).context("cannot start target/release/pons")
}
