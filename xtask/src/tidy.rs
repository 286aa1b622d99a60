//! `cargo xtask tidy`: rules that no compiler checks.
//!
//! The rule: a finding names file and line and says what is wanted; all findings are shown at once.

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::{Context, bail};

use crate::run::{cargo, command, output, root};

/// Crates of the workspace and which of each other they may import (tests included).
const IMPORTS: [(&str, &[&str]); 8] = [
    ("pons-protocol", &[]),
    ("pons-kernels", &[]),
    ("pons-checkpoint", &[]),
    ("pons-gateway", &["pons-checkpoint", "pons-protocol"]),
    ("pons-gpu-worker", &["pons-checkpoint", "pons-kernels", "pons-protocol"]),
    (
        "pons-benches",
        &["pons-checkpoint", "pons-gateway", "pons-gpu-worker", "pons-kernels", "pons-protocol"],
    ),
    ("pons-loadtest", &[]),
    ("xtask", &[]),
];
/// Most lines of a file.
const FILE_LINES: usize = 800;
/// Names that say nothing about what is inside.
const EMPTY_NAMES: [&str; 5] = ["utils", "common", "helpers", "misc", "manager"];
/// The brain's deciding half, and what it may not name.
const DECIDERS: [&str; 3] = ["gpu-worker/src/scheduler", "gpu-worker/src/kv", "gpu-worker/src/sequence"];
const COMPUTE: [&str; 4] = ["crate::model", "crate::backend", "pons_kernels", "cudarc"];
/// Where unsafe code may be allowed.
const UNSAFE_PLACES: [&str; 3] = ["kernels/", "checkpoint/src/mapped.rs", "protocol/src/wire/generated/"];

/// Checks everything and fails with the list of findings.
pub(crate) fn tidy() -> anyhow::Result<()> {
    let mut findings = imports()?;
    let files = output(command("git").args(["ls-files", "--cached", "--others", "--exclude-standard"]))?;
    for file in files.lines() {
        let path = root().join(file);
        // Deleted but not yet committed.
        let Ok(bytes) = std::fs::read(&path) else { continue };
        let Ok(text) = String::from_utf8(bytes) else { continue };
        check_text(file, &text, &mut findings);
        if Path::new(file).extension().is_some_and(|e| e == "rs") {
            check_rust(file, &text, &mut findings);
        }
    }
    if findings.is_empty() {
        return Ok(());
    }
    bail!("{} findings:\n{}", findings.len(), findings.join("\n"));
}

/// The import rule, from cargo's own view of the workspace.
fn imports() -> anyhow::Result<Vec<String>> {
    let metadata = output(cargo().args(["metadata", "--format-version", "1", "--no-deps"]))?;
    let metadata: serde_json::Value =
        serde_json::from_str(&metadata).context("cargo metadata is not JSON")?;
    let allowed: BTreeMap<_, _> = IMPORTS.into_iter().collect();
    let mut findings = Vec::new();
    for package in metadata["packages"].as_array().context("cargo metadata has no packages")? {
        let name = package["name"].as_str().context("a package has no name")?;
        let Some(may) = allowed.get(name) else {
            findings.push(format!(
                "{name}: not in the import table of xtask/src/tidy.rs; say what it may import"
            ));
            continue;
        };
        for dependency in package["dependencies"].as_array().context("a package has no dependencies")? {
            let other = dependency["name"].as_str().context("a dependency has no name")?;
            if allowed.contains_key(other) && other != name && !may.contains(&other) {
                findings.push(format!("{name}: may not import {other}; see the table in ARCHITECTURE.md"));
            }
        }
    }
    Ok(findings)
}

/// Rules for every text file of the repository.
fn check_text(file: &str, text: &str, findings: &mut Vec<String>) {
    if file.ends_with(".lock") || file.starts_with("xtask/src/tidy.rs") {
        return;
    }
    for (number, line) in text.lines().enumerate() {
        for mark in ["TODO", "FIXME", "XXX", "HACK", "/root/", "/work/", "/home/"] {
            if line.contains(mark) {
                findings.push(format!(
                    "{file}:{}: {mark:?}: finish it, or remove the machine's path",
                    number + 1
                ));
            }
        }
    }
}

fn check_rust(file: &str, text: &str, findings: &mut Vec<String>) {
    let generated = file.contains("/generated/");
    let lines = text.lines().count();
    if lines > FILE_LINES && !generated {
        findings.push(format!("{file}: {lines} lines; split it by idea, at most {FILE_LINES}"));
    }
    if !generated && !file.ends_with("tests.rs") && !text.starts_with("//!") {
        findings.push(format!("{file}:1: say in a //! line what the file is and the one rule it keeps"));
    }
    let stem = Path::new(file).components().filter_map(|c| c.as_os_str().to_str());
    for part in stem {
        if EMPTY_NAMES.contains(&part.trim_end_matches(".rs")) {
            findings.push(format!("{file}: the name {part} says nothing; name the idea"));
        }
    }
    if file.starts_with("xtask/") {
        return;
    }
    for (number, line) in text.lines().enumerate() {
        let at = format!("{file}:{}", number + 1);
        if line.contains("allow(unsafe_code)") && !UNSAFE_PLACES.iter().any(|p| file.starts_with(p)) {
            findings.push(format!("{at}: unsafe code is not allowed here; see ARCHITECTURE.md"));
        }
        if line.trim_start().starts_with("#[ignore") {
            findings.push(format!("{at}: an ignored test proves nothing; make it run or remove it"));
        }
        let decider = DECIDERS.iter().any(|d| file.starts_with(d)) && !line.trim_start().starts_with("//");
        if let Some(name) = COMPUTE.iter().find(|name| decider && line.contains(**name)) {
            findings.push(format!("{at}: the deciding half may not name {name}"));
        }
    }
}
