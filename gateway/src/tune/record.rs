//! Reads what the harness wrote. The rule: the record is another program's; what is missing in it is an error that
//! names the field, never a zero.

use std::io::Read;
use std::path::{Path, PathBuf};

use serde::Serialize;
use serde_json::Value;

use super::TuneError;

/// Most bytes of a record.
const MOST_BYTES: u64 = 256 << 20;
/// Levels of the record that are looked through for the summary.
const MOST_DEPTH: usize = 8;

/// What a trial's choice depends on.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Measured {
    /// P99 of the time to the first token.
    pub p99_ttft_ms: f64,
    /// P99 of the time between tokens.
    pub p99_itl_ms: f64,
    /// Generated tokens a second.
    pub output_tokens_per_s: f64,
    /// Requests served.
    pub ok: u64,
    /// Requests refused or failed.
    pub unserved: u64,
}

impl Measured {
    /// Share of the requests that were refused or failed.
    pub fn unserved_share(&self) -> f64 {
        self.unserved as f64 / (self.ok + self.unserved).max(1) as f64
    }
}

/// Reads the record in a folder that the harness was told to write to.
pub fn read(dir: &Path) -> Result<Measured, TuneError> {
    let failed = |path: &Path, reason: String| TuneError::Record { path: path.to_path_buf(), reason };
    let path = find(dir).ok_or_else(|| failed(dir, "isn't there".to_owned()))?;
    let mut text = String::new();
    let read = std::fs::File::open(&path).and_then(|file| file.take(MOST_BYTES).read_to_string(&mut text));
    read.map_err(|error| failed(&path, format!("can't be read: {error}")))?;
    let record: Value =
        serde_json::from_str(&text).map_err(|error| failed(&path, format!("is no JSON: {error}")))?;
    let summary = summary(&record, 0)
        .ok_or_else(|| failed(&path, "has no object with ttft_ms and itl_ms".to_owned()))?;
    measured(summary).map_err(|field| failed(&path, format!("has no number {field} in its summary")))
}

/// The newest JSON file of the folder; the harness writes one.
fn find(dir: &Path) -> Option<PathBuf> {
    let files = std::fs::read_dir(dir).ok()?.take(1024).flatten().map(|entry| entry.path());
    let mut files: Vec<PathBuf> =
        files.filter(|path| path.extension().is_some_and(|e| e == "json")).collect();
    files.sort_by_key(|path| path.metadata().and_then(|metadata| metadata.modified()).ok());
    files.pop()
}

/// The first object that has the latencies, the outermost first.
fn summary(value: &Value, depth: usize) -> Option<&Value> {
    if depth > MOST_DEPTH {
        return None;
    }
    match value {
        Value::Object(fields) if fields.contains_key("ttft_ms") && fields.contains_key("itl_ms") => {
            Some(value)
        }
        Value::Object(fields) => fields.values().find_map(|field| summary(field, depth + 1)),
        Value::Array(items) => items.iter().find_map(|item| summary(item, depth + 1)),
        _ => None,
    }
}

fn measured(summary: &Value) -> Result<Measured, &'static str> {
    let number = |field: &'static str, pointer: &str| {
        summary.pointer(pointer).and_then(Value::as_f64).filter(|number| number.is_finite()).ok_or(field)
    };
    Ok(Measured {
        p99_ttft_ms: number("ttft_ms.p99", "/ttft_ms/p99")?,
        p99_itl_ms: number("itl_ms.p99", "/itl_ms/p99")?,
        output_tokens_per_s: number("output_tokens_per_s", "/output_tokens_per_s")?,
        ok: total(summary.get("ok")).ok_or("ok")?,
        unserved: total(summary.get("refused")).ok_or("refused")?
            + total(summary.get("failed")).ok_or("failed")?,
    })
}

/// A count, or the sum of counts by kind.
fn total(value: Option<&Value>) -> Option<u64> {
    match value? {
        Value::Object(kinds) => kinds.values().map(Value::as_u64).sum(),
        value => value.as_u64(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read_text(text: &str) -> Result<Measured, String> {
        let dir = tempfile::tempdir().expect("temporary directory");
        std::fs::write(dir.path().join("run.json"), text).expect("written");
        read(dir.path()).map_err(|error| error.to_string())
    }

    #[test]
    fn a_summary_is_found_wherever_the_record_has_it() {
        let summary = r#"{"ttft_ms": {"p50": 1, "p99": 300.5}, "itl_ms": {"p99": 20}, "output_tokens_per_s": 90.5,
            "ok": 40, "refused": {"429": 2, "503": 1}, "failed": {}}"#;
        let expected =
            Measured { p99_ttft_ms: 300.5, p99_itl_ms: 20.0, output_tokens_per_s: 90.5, ok: 40, unserved: 3 };
        let nested = format!(r#"{{"scenario": {{"x": 1}}, "rounds": [{{"summary": {summary}}}]}}"#);
        assert_eq!(read_text(&nested), Ok(expected.clone()));
        assert_eq!(read_text(summary), Ok(expected));
    }

    #[test]
    fn what_is_missing_is_named() {
        let error = |text: &str| read_text(text).expect_err("incomplete");
        assert!(error("{").contains("is no JSON"));
        assert!(error("{}").contains("no object with ttft_ms and itl_ms"));
        assert!(error(r#"{"ttft_ms": {"p99": null}, "itl_ms": {}}"#).contains("ttft_ms.p99"));
        let dir = tempfile::tempdir().expect("temporary directory");
        assert!(read(dir.path()).expect_err("empty").to_string().contains("isn't there"));
    }
}
