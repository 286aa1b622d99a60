//! `pons config`. The rule: what is shown is what `pons serve` would run with, every default included.

use super::{Place, answer};
use crate::config::{Overrides, ResolvedConfig};
use clap::{Args, Subcommand};

#[derive(Debug, Subcommand)]
pub(super) enum ConfigCommand {
    /// Check the configuration and say what is wrong
    Check(ConfigArguments),
    /// Show the whole configuration, defaults included, as TOML
    Show(ConfigArguments),
}

#[derive(Debug, Args)]
pub(super) struct ConfigArguments {
    #[command(flatten)]
    place: Place,
}

pub(super) fn run(command: &ConfigCommand) -> anyhow::Result<()> {
    match command {
        ConfigCommand::Check(arguments) => {
            resolve(arguments)?;
            answer("the configuration is fine")
        }
        ConfigCommand::Show(arguments) => answer(toml::to_string(&resolve(arguments)?)?.trim_end()),
    }
}

fn resolve(arguments: &ConfigArguments) -> anyhow::Result<ResolvedConfig> {
    arguments.place.resolve(Overrides::default())
}
