//! `cargo xtask test`: all tests, none skipped.

use crate::run::{cargo, run};
use crate::{model, sdk};

/// Fetches the models, runs the Rust tests with `arguments`, then the SDK suites if there are no arguments.
pub(crate) fn test(arguments: &[String]) -> anyhow::Result<()> {
    for name in model::TESTED {
        model::pull(name)?;
    }
    // The gateway's tests start the real brain, which cargo builds for its own package's tests only.
    run(cargo().args(["build", "--workspace", "--bins"]))?;
    run(cargo().args(["test", "--workspace", "--all-features"]).args(arguments))?;
    if arguments.is_empty() { sdk::sdk() } else { Ok(()) }
}
