//! `cargo xtask model NAME`: a known model into the cache, by the product's own command.

use crate::run::{cargo, run};

/// Models that the tests read.
pub(crate) const TESTED: [&str; 3] = ["smollm2-135m", "qwen2.5-coder-0.5b", "qwen2.5-coder-1.5b"];

/// Fetches a model unless it is there.
pub(crate) fn pull(name: &str) -> anyhow::Result<()> {
    run(cargo().args([
        "run",
        "--quiet",
        "--package",
        "pons-gateway",
        "--bin",
        "pons",
        "--",
        "model",
        "pull",
        name,
    ]))
}
