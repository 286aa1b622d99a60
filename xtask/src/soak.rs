//! `cargo xtask soak`: many clients against a release build for a while, with its brain killed twice.
//!
//! The rule: the clients know the server only from outside; this starts it, small enough in KV memory that the
//! cache turns over, and reports what the clients found.

use std::path::PathBuf;

use anyhow::bail;
use clap::Args;

use crate::run::{root, run, target_dir};
use crate::serve;
use crate::server::{Launch, Server, release_programs};

/// How long, how many, on what.
#[derive(Args)]
pub(crate) struct Options {
    /// Minutes that the clients ask for.
    #[arg(long, default_value_t = 10.0)]
    minutes: f64,
    /// Clients at the same time.
    #[arg(long, default_value_t = 16, value_parser = clap::value_parser!(u16).range(1..=1024))]
    streams: u16,
    /// A known model's name or a model file.
    #[arg(long, default_value = "smollm2-135m")]
    model: String,
    /// File for samples, counts and findings as JSON.
    #[arg(long)]
    record: Option<PathBuf>,
    /// KV memory of the brain; little, so that blocks are evicted and memory settles early.
    #[arg(long, default_value = "40MiB")]
    kv_memory: String,
    /// Folder with both programs, already built.
    #[arg(long, hide = true)]
    programs: Option<PathBuf>,
}

/// Starts a server, drives it, stops it.
pub(crate) fn soak(options: &Options) -> anyhow::Result<()> {
    if !options.minutes.is_finite() || !(0.1..=100_000.0).contains(&options.minutes) {
        bail!("--minutes is {}; it must be between 0.1 and 100000", options.minutes);
    }
    let programs = match &options.programs {
        Some(folder) => std::path::absolute(folder)?,
        None => {
            serve::build_release()?;
            release_programs()
        }
    };
    let log = target_dir().join("soak.log");
    let config = config(options)?;
    let launch =
        Launch { programs: &programs, purpose: "soak", config: Some(&config), log: Some(log.as_path()) };
    let mut server = Server::start(&launch)?;
    eprintln!("{} runs as process {}, its log is {}", server.url, server.id(), log.display());
    let mut clients = server.client("python3");
    clients
        .arg(root().join("gateway/tests/soak/soak.py"))
        .args(["--minutes", &options.minutes.to_string(), "--streams", &options.streams.to_string()])
        .args(["--server", &server.id().to_string(), "--program"])
        .arg(programs.join("pons"))
        .arg("--state-dir")
        .arg(&server.state)
        .env("PYTHONDONTWRITEBYTECODE", "1");
    if let Some(record) = &options.record {
        clients.arg("--record").arg(std::path::absolute(record)?);
    }
    let result = run(&mut clients);
    server.stop()?;
    result
}

/// The configuration file of the server under test.
fn config(options: &Options) -> anyhow::Result<String> {
    let is_file = options.model.contains('/') || options.model.ends_with(".gguf");
    let path = if is_file { std::path::absolute(&options.model)? } else { PathBuf::from(&options.model) };
    let name = if is_file { path.file_stem().unwrap_or_default() } else { path.as_os_str() };
    // A JSON string is a TOML string too.
    let quoted = |text: &std::ffi::OsStr| serde_json::Value::from(text.to_string_lossy()).to_string();
    Ok(format!(
        "[[model]]\nname = {}\npath = {}\nkv_memory = {}\n",
        quoted(name),
        quoted(path.as_os_str()),
        quoted(options.kv_memory.as_ref()),
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        options: Options,
    }

    #[test]
    fn a_model_file_is_named_by_its_stem_and_a_known_model_by_its_name() {
        let of = |model: &str| config(&Line::parse_from(["soak", "--model", model]).options).expect("a path");
        let file = of("/models/a \"b\".gguf");
        assert!(file.contains("name = \"a \\\"b\\\"\"\npath = \"/models/a \\\"b\\\".gguf\"\n"), "{file}");
        assert!(of("smollm2-135m").contains("name = \"smollm2-135m\"\npath = \"smollm2-135m\"\n"));
    }
}
