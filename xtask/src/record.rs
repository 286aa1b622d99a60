//! `cargo xtask record`: one benchmark, or all, from a fresh build to a file under `benches/record/`.
//!
//! The rule: the benchmark itself writes the record, with the machine, the revision, the date and every sample;
//! this only knows how each is started.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, bail};
use clap::Args;

use crate::run::{cargo, command, root, run, target_dir};

/// The environment variable that tells a criterion benchmark where to write; `benches/src/suite.rs` reads it.
const RECORD_VARIABLE: &str = "PONS_BENCH_RECORD";

/// How a benchmark is started.
enum Start {
    /// A criterion benchmark of `pons-benches`.
    Criterion,
    /// A program of `pons-benches` with `--record FILE`; the packages are built besides, and the arguments come first.
    Program { packages: &'static [&'static str], arguments: &'static [&'static str] },
}

/// Every benchmark that has a record, by the name of its target and of its file.
const BENCHMARKS: [(&str, Start); 10] = [
    ("machine_limits", Start::Program { packages: &[], arguments: &[] }),
    ("kernels", Start::Criterion),
    ("scheduler", Start::Criterion),
    ("kv", Start::Criterion),
    ("wire", Start::Criterion),
    ("stream", Start::Criterion),
    ("gateway_stack", Start::Criterion),
    ("engine", Start::Program { packages: &[], arguments: &[] }),
    ("step_parts", Start::Program { packages: &[], arguments: &[] }),
    ("gateway_overhead", Start::Program { packages: &["pons-gateway"], arguments: &[] }),
];

/// Which, and where to.
#[derive(Args)]
pub(crate) struct Options {
    /// Name of a benchmark, or `all`
    #[arg(value_parser = names())]
    name: String,
    /// Folder for the records
    #[arg(long, value_name = "DIR", default_value = "benches/record")]
    to: PathBuf,
    /// Arguments for the benchmark, as to make it shorter
    #[arg(last = true)]
    arguments: Vec<String>,
}

fn names() -> Vec<&'static str> {
    BENCHMARKS.iter().map(|(name, _)| *name).chain(["all"]).collect()
}

/// Builds in release, runs, and leaves a record of each.
pub(crate) fn record(options: &Options) -> anyhow::Result<()> {
    let folder = root().join(&options.to);
    std::fs::create_dir_all(&folder).with_context(|| format!("cannot make {}", folder.display()))?;
    for (name, start) in &BENCHMARKS {
        if options.name != "all" && options.name != *name {
            continue;
        }
        eprintln!("== {name}");
        let file = folder.join(format!("{name}.json"));
        // Written beside and moved, so that a run that fails leaves the last good record.
        let new = folder.join(format!("{name}.json.new"));
        let done = once(name, start, &new, &options.arguments);
        if done.is_err() {
            let _ = std::fs::remove_file(&new);
        }
        done?;
        std::fs::rename(&new, &file).with_context(|| format!("{name} wrote no record"))?;
        eprintln!("== {name}: {}", file.display());
    }
    Ok(())
}

fn once(name: &str, start: &Start, file: &Path, arguments: &[String]) -> anyhow::Result<()> {
    match start {
        Start::Criterion => run(criterion(name, file).args(arguments))?,
        Start::Program { packages, arguments: own } => {
            let mut build = cargo();
            build.args(["build", "--release", "--package", "pons-benches", "--bin", name]);
            run(&mut build)?;
            for package in *packages {
                run(cargo().args(["build", "--release", "--package", package]))?;
            }
            let mut program = command(target_dir().join("release").join(name));
            run(program.args(*own).args(arguments).arg("--record").arg(file))?;
        }
    }
    if !file.exists() {
        bail!("{name} ended well but wrote no record");
    }
    Ok(())
}

/// `cargo bench` builds in release by itself.
fn criterion(name: &str, file: &Path) -> Command {
    let mut bench = cargo();
    bench.args(["bench", "--package", "pons-benches", "--bench", name, "--", "--noplot"]);
    bench.env(RECORD_VARIABLE, file);
    bench
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
    fn each_benchmark_can_be_named_and_nothing_else() {
        for name in names() {
            let line = Line::try_parse_from(["record", name]).expect("it is in the table");
            assert_eq!(line.options.name, name);
        }
        assert!(Line::try_parse_from(["record", "no_such"]).is_err());
        let line = Line::try_parse_from(["record", "kv", "--to", "x", "--", "--sample-size", "10"]);
        assert_eq!(line.expect("arguments follow the dashes").options.arguments, ["--sample-size", "10"]);
    }

    #[test]
    fn each_name_in_the_table_is_a_target_of_the_benchmarks() {
        let manifest = std::fs::read_to_string(root().join("benches/Cargo.toml")).expect("the file is there");
        for (name, start) in &BENCHMARKS {
            let kind = if matches!(start, Start::Criterion) { "bench" } else { "bin" };
            let wanted = format!("[[{kind}]]\nname = \"{name}\"\n");
            assert!(manifest.contains(&wanted), "{name} is no [[{kind}]]");
        }
        let suite = std::fs::read_to_string(root().join("benches/src/suite.rs")).expect("the file is there");
        assert!(suite.contains(&format!("\"{RECORD_VARIABLE}\"")));
    }
}
