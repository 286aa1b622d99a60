//! Configuration: what is written in `pons.toml` and on the command line, resolved once.
//!
//! The rule it keeps: after [`resolve`] every value is present and checked, and nothing reads the raw form
//! again. A field nobody knows is an error, not a silent default.

use serde::{Deserialize, Serialize};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

mod model;
#[cfg(test)]
mod tests;

pub use model::{ModelConfig, Prices, RawModel};

/// Model that is served when none is named.
pub const DEFAULT_MODEL: &str = "smollm2-135m";

/// Most models of one gateway; it bounds the metrics' labels.
pub const MAX_MODELS: usize = 64;

/// What is wrong with the configuration.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ConfigError {
    /// The file can't be read.
    #[error("config file {path}: {reason}; check --config")]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// The system's reason.
        reason: String,
    },
    /// It is not TOML, or has a field of a wrong name or type.
    #[error("config file {path}: {reason}")]
    Syntax {
        /// The file.
        path: PathBuf,
        /// Line, field and what was expected.
        reason: String,
    },
    /// A value is out of its range.
    #[error("config field {field} is {value:?}; {remedy}")]
    BadValue {
        /// Field, with its section.
        field: String,
        /// Value.
        value: String,
        /// What it must be.
        remedy: String,
    },
    /// The platform has no data directory.
    #[error("no data directory is known for this user; set state_dir in the config file or give --state-dir")]
    NoStateDir,
}

impl ConfigError {
    pub(crate) fn bad(field: &str, value: impl ToString, remedy: impl Into<String>) -> Self {
        Self::BadValue { field: field.to_owned(), value: value.to_string(), remedy: remedy.into() }
    }
}

/// The file as it is written; every field may be absent.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RawConfig {
    listen: Option<String>,
    state_dir: Option<PathBuf>,
    io_threads: Option<usize>,
    heartbeat_s: Option<f64>,
    drain_s: Option<f64>,
    log: Option<String>,
    log_format: Option<LogFormat>,
    #[serde(default)]
    limits: RawLimits,
    #[serde(default)]
    timeouts: RawTimeouts,
    #[serde(default)]
    model: Vec<RawModel>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct RawLimits {
    body_bytes: Option<usize>,
    bodies_bytes: Option<usize>,
    header_bytes: Option<usize>,
    in_flight: Option<usize>,
    connections: Option<usize>,
    ledger_slots: Option<usize>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct RawTimeouts {
    headers_s: Option<f64>,
    body_s: Option<f64>,
    first_token_s: Option<f64>,
    inter_token_s: Option<f64>,
    total_s: Option<f64>,
    slow_reader_s: Option<f64>,
}

/// What the command line says; it wins over the file.
#[derive(Clone, Debug, Default)]
pub struct Overrides {
    /// `--listen`.
    pub listen: Option<String>,
    /// `--state-dir`.
    pub state_dir: Option<PathBuf>,
    /// `--model`, any number of times; they replace the file's models.
    pub models: Vec<String>,
    /// `--log`.
    pub log: Option<String>,
}

/// Form of the log lines.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LogFormat {
    /// For people.
    Text,
    /// One JSON object a line.
    Json,
}

/// The whole configuration, every value present.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ResolvedConfig {
    /// Address of the HTTP listener; port 0 takes a free one.
    pub listen: SocketAddr,
    /// Where the state lives.
    pub state_dir: PathBuf,
    /// Threads that do the network's work.
    pub io_threads: usize,
    /// Longest silence of a stream before a comment is sent.
    pub heartbeat_s: f64,
    /// How long running requests may go on after a signal to stop.
    pub drain_s: f64,
    /// Log filter, as `tracing` understands it.
    pub log: String,
    /// Form of the log lines.
    pub log_format: LogFormat,
    /// Sizes and counts.
    pub limits: Limits,
    /// Waiting times.
    pub timeouts: Timeouts,
    /// Models served.
    #[serde(rename = "model")]
    pub models: Vec<ModelConfig>,
}

/// Sizes and counts.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Limits {
    /// Largest request body, after decompression too.
    pub body_bytes: usize,
    /// Most bytes of request bodies held at one time, all together; more are answered 503.
    pub bodies_bytes: usize,
    /// Largest request head.
    pub header_bytes: usize,
    /// Most generating requests at one time; more are answered 503.
    pub in_flight: usize,
    /// Most open connections; more wait in the listener's backlog.
    pub connections: usize,
    /// Most ledger records that may be live or waiting for the disk.
    pub ledger_slots: usize,
}

/// Waiting times in seconds.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Timeouts {
    /// For a request's head.
    pub headers_s: f64,
    /// For a request's body.
    pub body_s: f64,
    /// From submission to the first token.
    pub first_token_s: f64,
    /// Between two tokens.
    pub inter_token_s: f64,
    /// For a whole generation.
    pub total_s: f64,
    /// How long a client may take none of the bytes that wait for it.
    pub slow_reader_s: f64,
}

/// Reads and resolves: the file (if one is named), then the command line.
pub fn load(file: Option<&Path>, overrides: Overrides) -> Result<ResolvedConfig, ConfigError> {
    let raw = match file {
        None => RawConfig::default(),
        Some(path) => {
            let text = std::fs::read_to_string(path).map_err(|error| ConfigError::Unreadable {
                path: path.to_path_buf(),
                reason: error.to_string(),
            })?;
            parse(path, &text)?
        }
    };
    resolve(raw, overrides)
}

/// Parses the text of a file; `path` is for the messages.
pub fn parse(path: &Path, text: &str) -> Result<RawConfig, ConfigError> {
    toml::from_str(text).map_err(|error| ConfigError::Syntax {
        path: path.to_path_buf(),
        reason: error.to_string().trim_end().to_owned(),
    })
}

/// Fills in the defaults and checks every value.
pub fn resolve(raw: RawConfig, overrides: Overrides) -> Result<ResolvedConfig, ConfigError> {
    let listen = overrides.listen.or(raw.listen).unwrap_or_else(|| "127.0.0.1:8080".to_owned());
    let listen = listen.parse().map_err(|_| {
        ConfigError::bad(
            "listen",
            &listen,
            "write an address and a port, such as 127.0.0.1:8080 or [::1]:8080",
        )
    })?;
    let state_dir = match overrides.state_dir.or(raw.state_dir) {
        Some(dir) => dir,
        None => dirs::data_dir().ok_or(ConfigError::NoStateDir)?.join("pons"),
    };
    let models = if overrides.models.is_empty() {
        raw.model
    } else {
        overrides.models.iter().map(|model| RawModel::named(model)).collect()
    };
    Ok(ResolvedConfig {
        listen,
        state_dir,
        io_threads: count("io_threads", raw.io_threads, 2, 1..=256)?,
        heartbeat_s: seconds("heartbeat_s", raw.heartbeat_s, 15.0, 0.05)?,
        drain_s: seconds("drain_s", raw.drain_s, 30.0, 0.0)?,
        log: overrides.log.or(raw.log).unwrap_or_else(|| "info".to_owned()),
        log_format: raw.log_format.unwrap_or(LogFormat::Text),
        limits: resolve_limits(&raw.limits)?,
        timeouts: resolve_timeouts(&raw.timeouts)?,
        models: model::resolve(models)?,
    })
}

fn resolve_limits(raw: &RawLimits) -> Result<Limits, ConfigError> {
    let in_flight = count("limits.in_flight", raw.in_flight, 1024, 1..=100_000)?;
    let body_bytes = count("limits.body_bytes", raw.body_bytes, 32 << 20, 1024..=1 << 32)?;
    Ok(Limits {
        body_bytes,
        bodies_bytes: count("limits.bodies_bytes", raw.bodies_bytes, 8 * body_bytes, body_bytes..=1 << 40)?,
        header_bytes: count("limits.header_bytes", raw.header_bytes, 64 << 10, 8192..=1 << 24)?,
        in_flight,
        connections: count("limits.connections", raw.connections, 4096, 1..=1_000_000)?,
        ledger_slots: count("limits.ledger_slots", raw.ledger_slots, 4 * in_flight, in_flight..=1_000_000)?,
    })
}

fn resolve_timeouts(raw: &RawTimeouts) -> Result<Timeouts, ConfigError> {
    Ok(Timeouts {
        headers_s: seconds("timeouts.headers_s", raw.headers_s, 75.0, 0.05)?,
        body_s: seconds("timeouts.body_s", raw.body_s, 60.0, 0.05)?,
        first_token_s: seconds("timeouts.first_token_s", raw.first_token_s, 600.0, 0.05)?,
        inter_token_s: seconds("timeouts.inter_token_s", raw.inter_token_s, 120.0, 0.05)?,
        total_s: seconds("timeouts.total_s", raw.total_s, 3600.0, 0.05)?,
        slow_reader_s: seconds("timeouts.slow_reader_s", raw.slow_reader_s, 60.0, 0.05)?,
    })
}

fn count(
    field: &str,
    value: Option<usize>,
    default: usize,
    range: std::ops::RangeInclusive<usize>,
) -> Result<usize, ConfigError> {
    let value = value.unwrap_or(default);
    if range.contains(&value) {
        return Ok(value);
    }
    let remedy = format!("it must be between {} and {}", range.start(), range.end());
    Err(ConfigError::bad(field, value, remedy))
}

/// A time of at most a week, so that it always fits a timer.
fn seconds(field: &str, value: Option<f64>, default: f64, least: f64) -> Result<f64, ConfigError> {
    let value = value.unwrap_or(default);
    if value.is_finite() && value >= least && value <= 604_800.0 {
        return Ok(value);
    }
    Err(ConfigError::bad(field, value, format!("it must be between {least} and 604800 seconds")))
}
