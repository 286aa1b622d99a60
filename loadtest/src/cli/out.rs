//! Records and pages as files. The rule: a page is made from the record alone, so that `report` makes the same one.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::BufWriter;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::{Context, bail};
use pons_loadtest::client::Target;
use pons_loadtest::page;
use pons_loadtest::record::{Record, machine, raw};
use pons_loadtest::scenario::Scenario;
use serde_json::Value;

/// A record without rounds.
pub(crate) fn empty(scenario: &Scenario, targets: &[Target]) -> Record {
    let started = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
    let names =
        targets.iter().map(|target| (target.name.clone(), format!("{} model {}", target.url, target.model)));
    Record {
        version: env!("CARGO_PKG_VERSION").to_owned(),
        started_unix_s: started,
        machine: machine(),
        scenario: scenario.clone(),
        targets: names.collect::<BTreeMap<_, _>>(),
        rounds: Vec::new(),
    }
}

/// The rounds of a record.
pub(crate) fn rounds(record: &Value) -> &[Value] {
    record["rounds"].as_array().map_or(&[], Vec::as_slice)
}

/// Reads a record of this or an earlier version.
pub(crate) fn read(file: &Path) -> anyhow::Result<Value> {
    let text = std::fs::read(file).with_context(|| format!("{} can't be read", file.display()))?;
    let record: Value =
        serde_json::from_slice(&text).with_context(|| format!("{} is not JSON", file.display()))?;
    if !record["rounds"].is_array() {
        bail!("{} has no rounds; give a record that run, compare or sweep wrote", file.display());
    }
    Ok(record)
}

/// The record and its page.
pub(crate) fn write(out: &Path, record: &Value) -> anyhow::Result<()> {
    page(&keep(out, record)?, record)
}

/// The record alone, as it is so far: what ends a run early leaves the rounds that were complete.
pub(crate) fn keep(out: &Path, record: &Value) -> anyhow::Result<PathBuf> {
    let (file, new) = (out.join("loadtest.json"), out.join("loadtest.json.new"));
    let written = std::fs::write(&new, serde_json::to_vec_pretty(record)?);
    // Renamed when it is whole, so that nobody ever reads half of one.
    written
        .and_then(|()| std::fs::rename(&new, &file))
        .with_context(|| format!("{} can't be written", file.display()))?;
    Ok(file)
}

/// The page beside a record.
pub(crate) fn page(file: &Path, record: &Value) -> anyhow::Result<()> {
    let page_file = file.with_extension("html");
    std::fs::write(&page_file, page::page(record))
        .with_context(|| format!("{} can't be written", page_file.display()))?;
    eprintln!("{} and {}", file.display(), page_file.display());
    Ok(())
}

/// The file of every request, its first line written, where it is asked for.
pub(crate) fn rows(out: &Path, asked: bool) -> anyhow::Result<Option<BufWriter<File>>> {
    if !asked {
        return Ok(None);
    }
    let path = out.join("requests.csv");
    let file = File::create(&path).with_context(|| format!("{} can't be written", path.display()))?;
    let mut file = BufWriter::new(file);
    raw::header(&mut file)?;
    Ok(Some(file))
}
