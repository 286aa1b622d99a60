//! What a load test sends: arrivals, lengths, who sends, and what is asked of the server. The rule: everything random
//! follows from the scenario's seed, and a field nobody knows is an error.

mod arrivals;
mod load;
mod plan;
mod structured;
mod trace;

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde::{Deserialize, Serialize};

pub use arrivals::{Arrivals, Step};
pub use load::{Group, Load, MOST_TURNS, Turns};
pub use plan::{Planned, Turn};
pub use structured::Structured;
pub use trace::{Row, Trace};

/// The most requests of one group.
const MOST_REQUESTS: usize = 1_000_000;
/// The most streams of a closed loop, and the most requests in flight of an open one.
const MOST_STREAMS: usize = 10_000;
/// The most tokens of a prompt or an output.
const MOST_TOKENS: u32 = 131_072;
/// The most groups, and the most tenants.
const MOST_NAMES: usize = 64;

/// What is wrong with a scenario.
#[derive(Debug, thiserror::Error)]
pub enum ScenarioError {
    /// It is not TOML, or a field has a wrong name or type.
    #[error("{0}")]
    Syntax(#[from] toml::de::Error),
    /// A value is out of its range.
    #[error("{field} is {value}; {remedy}")]
    Value {
        /// The field.
        field: String,
        /// What it holds.
        value: String,
        /// What it must be.
        remedy: String,
    },
    /// A file can't be read.
    #[error("{path} can't be read: {source}; give a file that exists, as UTF-8 text")]
    File {
        /// The file.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// A trace has a cell that is wrong.
    #[error("{}", place(*line, column, problem))]
    Trace {
        /// From one, the header's being the first.
        line: usize,
        /// Its name; empty where the line as a whole is wrong.
        column: String,
        /// What is wrong and what would be right.
        problem: String,
    },
}

fn place(line: usize, column: &str, problem: &str) -> String {
    let column = if column.is_empty() { String::new() } else { format!(", column {column}") };
    format!("trace line {line}{column}: {problem}")
}

/// That a number is within its bounds.
fn within(field: &str, value: f64, least: f64, most: f64) -> Result<(), ScenarioError> {
    if value >= least && value <= most {
        return Ok(());
    }
    let remedy = format!("use a number from {least} to {most}");
    Err(ScenarioError::Value { field: field.to_owned(), value: value.to_string(), remedy })
}

/// A load test.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Scenario {
    /// Shown in reports.
    pub name: String,
    /// Everything random follows from it.
    #[serde(default)]
    pub seed: u64,
    /// Requests that are measured, of each group; conversations where there are several turns.
    pub requests: usize,
    /// Requests before them that are not.
    #[serde(default)]
    pub warmup: usize,
    /// Seconds from which no further request is sent, however many are left.
    #[serde(default)]
    pub duration_s: Option<f64>,
    /// When requests are sent; may be missing where every group has its own.
    #[serde(default = "none_given")]
    pub arrivals: Arrivals,
    /// Lengths of prompts, in tokens, one drawn for each request.
    #[serde(default)]
    pub prompt_tokens: Vec<u32>,
    /// Least and most tokens of an output.
    #[serde(default)]
    pub output_tokens: [u32; 2],
    /// Tokens that all prompts of a prefix group begin with.
    #[serde(default)]
    pub shared_prefix_tokens: u32,
    /// Prefix groups: sets of requests that share a prefix.
    #[serde(default = "one")]
    pub prefix_groups: u32,
    /// Whether answers are streamed.
    #[serde(default = "yes")]
    pub stream: bool,
    /// Share of requests that the client abandons in mid-stream.
    #[serde(default)]
    pub abort_share: f64,
    /// Seconds after which a request, counted from when it was due, is cancelled and counts as failed.
    #[serde(default = "two_minutes")]
    pub deadline_s: f64,
    /// Turns of a conversation; each sends all that was said before, the answers that came included.
    #[serde(default)]
    pub turns: Turns,
    /// Least and most seconds between an answer and the next turn.
    #[serde(default)]
    pub think_s: [f64; 2],
    /// What answers must be like.
    #[serde(default)]
    pub structured: Option<Structured>,
    /// Limits a request must keep to count as good.
    #[serde(default, alias = "goodput")]
    pub slo: Slo,
    /// Most requests of open loops in flight at a time; one more is not sent, and counts as failed.
    #[serde(default = "most_in_flight")]
    pub max_in_flight: usize,
    /// Kinds of requests that are sent at the same time; the scenario's own alone without it.
    #[serde(default)]
    pub group: Vec<Group>,
    /// Who sends; nobody in particular without it.
    #[serde(default)]
    pub tenant: Vec<Tenant>,
    /// What tokens and the machine cost.
    #[serde(default)]
    pub cost: Option<Cost>,
    /// Further fields of each request's body.
    #[serde(default)]
    pub body: serde_json::Map<String, serde_json::Value>,
}

/// What makes a request good. A limit that is missing is kept by all.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Slo {
    /// Most milliseconds from when it was due to the first token.
    pub ttft_ms: Option<f64>,
    /// Most milliseconds between any two of its chunks of output.
    #[serde(default)]
    pub itl_ms: Option<f64>,
    /// Most milliseconds an output token after the first, on average.
    pub tpot_ms: Option<f64>,
    /// Most milliseconds from when it was due to its end.
    #[serde(default)]
    pub e2e_ms: Option<f64>,
}

/// One who sends requests with a key of its own.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Tenant {
    /// Shown in reports.
    pub name: String,
    /// Its key. Records don't hold it.
    #[serde(default, skip_serializing)]
    pub key: Option<String>,
    /// The variable of the environment that holds its key.
    #[serde(default)]
    pub key_env: Option<String>,
    /// Its share of requests, against the others' weights.
    #[serde(default = "alike")]
    pub weight: f64,
}

/// Prices, in whatever currency.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Cost {
    /// Of a million prompt tokens.
    pub prompt_per_million: Option<f64>,
    /// Of a million prompt tokens that were found in a cache; the price of the others without it.
    pub cached_per_million: Option<f64>,
    /// Of a million output tokens.
    pub output_per_million: Option<f64>,
    /// Of the machine, an hour.
    pub machine_per_hour: Option<f64>,
}

fn one() -> u32 {
    1
}

fn yes() -> bool {
    true
}

fn alike() -> f64 {
    1.0
}

fn two_minutes() -> f64 {
    120.0
}

fn most_in_flight() -> usize {
    4_096
}

/// No streams: out of range, so that arrivals can't be forgotten.
fn none_given() -> Arrivals {
    Arrivals::Closed { streams: 0 }
}

impl Scenario {
    /// Reads and checks a scenario file; a trace that it names is looked for beside it.
    ///
    /// # Errors
    /// No such file, bad TOML, an unknown field, a value out of range, or a trace that is wrong.
    pub fn read(path: &Path) -> Result<Self, ScenarioError> {
        let text = std::fs::read_to_string(path)
            .map_err(|source| ScenarioError::File { path: path.to_owned(), source })?;
        Self::parse_in(&text, path.parent().unwrap_or(Path::new("")))
    }

    /// Reads and checks a scenario; a trace that it names is looked for in the current folder.
    ///
    /// # Errors
    /// Bad TOML, an unknown field, a value out of range, or a trace that is wrong.
    pub fn parse(text: &str) -> Result<Self, ScenarioError> {
        Self::parse_in(text, Path::new(""))
    }

    fn parse_in(text: &str, folder: &Path) -> Result<Self, ScenarioError> {
        let mut scenario: Self = toml::from_str(text)?;
        let groups = scenario.group.iter_mut().filter_map(|group| group.arrivals.as_mut());
        for arrivals in std::iter::once(&mut scenario.arrivals).chain(groups) {
            if let Arrivals::Trace { file, rows, .. } = arrivals {
                *rows = Arc::new(Trace::read(&folder.join(&*file))?);
            }
        }
        scenario.check()?;
        Ok(scenario)
    }

    /// The groups with everything settled: one of the scenario's name where it has none.
    pub fn loads(&self) -> Vec<Load> {
        if self.group.is_empty() {
            let whole = Group { name: self.name.clone(), ..Group::default() };
            return vec![Load::resolve(self, &whole)];
        }
        self.group.iter().map(|group| Load::resolve(self, group)).collect()
    }

    /// Checks every bound.
    ///
    /// # Errors
    /// The first value out of range.
    pub fn check(&self) -> Result<(), ScenarioError> {
        within("max_in_flight", self.max_in_flight as f64, 1.0, MOST_STREAMS as f64)?;
        within("group (their count)", self.group.len() as f64, 0.0, MOST_NAMES as f64)?;
        within("tenant (their count)", self.tenant.len() as f64, 0.0, MOST_NAMES as f64)?;
        apart("group.name", self.group.iter().map(|group| group.name.as_str()))?;
        apart("tenant.name", self.tenant.iter().map(|tenant| tenant.name.as_str()))?;
        for tenant in &self.tenant {
            within("tenant.weight", tenant.weight, 1e-6, 1e6)?;
            if tenant.key.is_some() && tenant.key_env.is_some() {
                let remedy = "give one of the two".into();
                let value = format!("of {} given beside key_env", tenant.name);
                return Err(ScenarioError::Value { field: "tenant.key".into(), value, remedy });
            }
        }
        if let Some(cost) = &self.cost {
            cost.check()?;
        }
        for load in self.loads() {
            load.check()?;
            self.check_tenants(&load)?;
        }
        Ok(())
    }

    /// That a group's tenants, and those of its trace, are declared.
    fn check_tenants(&self, load: &Load) -> Result<(), ScenarioError> {
        let mut named: BTreeSet<&str> = load.tenant.as_deref().into_iter().collect();
        let mut from_trace = BTreeSet::new();
        if let Arrivals::Trace { rows, .. } = &load.arrivals {
            from_trace.extend(rows.rows().iter().filter_map(|row| row.tenant.as_deref()));
        }
        within("tenants of the trace (their count)", from_trace.len() as f64, 0.0, MOST_NAMES as f64)?;
        // A trace's tenants are labels alone where the scenario declares none.
        if !self.tenant.is_empty() {
            named.extend(from_trace);
        }
        let unknown = named.into_iter().find(|name| self.tenant.iter().all(|tenant| tenant.name != *name));
        unknown.map_or(Ok(()), |name| {
            let remedy = "declare it as a [[tenant]]".into();
            Err(ScenarioError::Value {
                field: format!("tenant of {}", load.name),
                value: name.into(),
                remedy,
            })
        })
    }
}

impl Slo {
    fn check(&self) -> Result<(), ScenarioError> {
        let limits = [
            ("slo.ttft_ms", self.ttft_ms),
            ("slo.itl_ms", self.itl_ms),
            ("slo.tpot_ms", self.tpot_ms),
            ("slo.e2e_ms", self.e2e_ms),
        ];
        let given = limits.into_iter().filter_map(|(field, limit)| Some((field, limit?)));
        given.into_iter().try_for_each(|(field, limit)| within(field, limit, 1e-3, 86_400_000.0))
    }
}

impl Cost {
    fn check(&self) -> Result<(), ScenarioError> {
        let prices = [
            ("cost.prompt_per_million", self.prompt_per_million),
            ("cost.cached_per_million", self.cached_per_million),
            ("cost.output_per_million", self.output_per_million),
            ("cost.machine_per_hour", self.machine_per_hour),
        ];
        let given = prices.into_iter().filter_map(|(field, price)| Some((field, price?)));
        given.into_iter().try_for_each(|(field, price)| within(field, price, 0.0, 1e9))
    }
}

/// That names are there and differ.
fn apart<'a>(field: &str, names: impl Iterator<Item = &'a str>) -> Result<(), ScenarioError> {
    let mut seen = BTreeSet::new();
    for name in names {
        if name.is_empty() || name.len() > 64 || !seen.insert(name) {
            let remedy = "give each a name of its own of 1 to 64 characters".into();
            return Err(ScenarioError::Value { field: field.into(), value: format!("'{name}'"), remedy });
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests;
