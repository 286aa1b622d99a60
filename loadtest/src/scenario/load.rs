//! What one group of requests is like. The rule: a group says what differs from the scenario; once resolved, nothing
//! is inherited any more.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::{Arrivals, MOST_REQUESTS, MOST_TOKENS, Scenario, ScenarioError, Slo, Structured, within};

/// The most turns of a conversation.
pub const MOST_TURNS: u32 = 64;
/// The most tokens of all prompts of a group together: they are made before the first is sent.
const MOST_PROMPT_TOKENS: f64 = 2e8;

/// One kind of requests among several: a name, and what differs from the scenario.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Group {
    /// Shown in reports.
    pub name: String,
    /// Seconds after the start of the run at which it begins.
    #[serde(default)]
    pub start_s: f64,
    /// As the scenario's field of this name, and so is each below.
    pub requests: Option<usize>,
    /// See the scenario.
    pub warmup: Option<usize>,
    /// See the scenario; counted from this group's start.
    pub duration_s: Option<f64>,
    /// See the scenario.
    pub arrivals: Option<Arrivals>,
    /// See the scenario.
    pub prompt_tokens: Option<Vec<u32>>,
    /// See the scenario.
    pub output_tokens: Option<[u32; 2]>,
    /// See the scenario.
    pub shared_prefix_tokens: Option<u32>,
    /// See the scenario.
    pub prefix_groups: Option<u32>,
    /// See the scenario.
    pub stream: Option<bool>,
    /// See the scenario.
    pub abort_share: Option<f64>,
    /// See the scenario.
    pub deadline_s: Option<f64>,
    /// See the scenario.
    pub turns: Option<Turns>,
    /// See the scenario.
    pub think_s: Option<[f64; 2]>,
    /// The one tenant that sends it; all tenants by their weights without it.
    pub tenant: Option<String>,
    /// See the scenario.
    pub structured: Option<Structured>,
    /// See the scenario.
    pub slo: Option<Slo>,
    /// Further fields of each request's body, beside the scenario's own.
    #[serde(default)]
    pub body: Map<String, Value>,
}

/// How many turns a conversation has.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(untagged, expecting = "turns: use a number, [least, most], or { mean = 3.0, most = 16 }")]
pub enum Turns {
    /// Always as many.
    Fixed(u32),
    /// Each number from the least to the most as often.
    Between([u32; 2]),
    /// After each turn the user stays with the same chance (geometric), up to a bound.
    Geometric {
        /// Mean, were there no bound.
        mean: f64,
        /// The bound.
        most: u32,
    },
}

impl Default for Turns {
    fn default() -> Self {
        Self::Fixed(1)
    }
}

impl Turns {
    /// The most there can be.
    pub fn most(self) -> u32 {
        match self {
            Self::Fixed(turns) | Self::Between([_, turns]) | Self::Geometric { most: turns, .. } => turns,
        }
    }

    fn check(self) -> Result<(), ScenarioError> {
        within("turns (the most)", f64::from(self.most()), 1.0, f64::from(MOST_TURNS))?;
        match self {
            Self::Fixed(_) => Ok(()),
            Self::Between([least, most]) => {
                within("turns (the least)", f64::from(least), 1.0, f64::from(most))
            }
            Self::Geometric { mean, .. } => within("turns.mean", mean, 1.0, f64::from(MOST_TURNS)),
        }
    }
}

/// A group with everything settled.
#[derive(Clone, Debug)]
pub struct Load {
    /// The group's name, or the scenario's where it has no groups.
    pub name: String,
    /// Seconds after the start of the run at which it begins.
    pub start_s: f64,
    /// Requests (first turns of conversations) that are measured.
    pub requests: usize,
    /// Requests before them that are not.
    pub warmup: usize,
    /// Seconds after its start from which no further request is sent.
    pub duration_s: Option<f64>,
    /// When they are sent.
    pub arrivals: Arrivals,
    /// Lengths of prompts, one drawn for each turn.
    pub prompt_tokens: Vec<u32>,
    /// Least and most tokens of an output.
    pub output_tokens: [u32; 2],
    /// Tokens that all prompts of a prefix group begin with.
    pub shared_prefix_tokens: u32,
    /// Prefix groups.
    pub prefix_groups: u32,
    /// Whether answers are streamed.
    pub stream: bool,
    /// Share of requests abandoned in mid-stream.
    pub abort_share: f64,
    /// Seconds from when a request is due to when it is cancelled.
    pub deadline_s: f64,
    /// Turns of a conversation.
    pub turns: Turns,
    /// Least and most seconds between an answer and the next turn.
    pub think_s: [f64; 2],
    /// The one tenant that sends it.
    pub tenant: Option<String>,
    /// What answers must be like.
    pub structured: Option<Structured>,
    /// Limits of a good request.
    pub slo: Slo,
    /// Further fields of each request's body.
    pub body: Map<String, Value>,
}

impl Load {
    /// The scenario's own values with a group's put over them.
    pub(super) fn resolve(scenario: &Scenario, group: &Group) -> Self {
        let mut body = scenario.body.clone();
        body.extend(group.body.clone());
        Self {
            name: group.name.clone(),
            start_s: group.start_s,
            requests: group.requests.unwrap_or(scenario.requests),
            warmup: group.warmup.unwrap_or(scenario.warmup),
            duration_s: group.duration_s.or(scenario.duration_s),
            arrivals: group.arrivals.clone().unwrap_or_else(|| scenario.arrivals.clone()),
            prompt_tokens: group.prompt_tokens.clone().unwrap_or_else(|| scenario.prompt_tokens.clone()),
            output_tokens: group.output_tokens.unwrap_or(scenario.output_tokens),
            shared_prefix_tokens: group.shared_prefix_tokens.unwrap_or(scenario.shared_prefix_tokens),
            prefix_groups: group.prefix_groups.unwrap_or(scenario.prefix_groups),
            stream: group.stream.unwrap_or(scenario.stream),
            abort_share: group.abort_share.unwrap_or(scenario.abort_share),
            deadline_s: group.deadline_s.unwrap_or(scenario.deadline_s),
            turns: group.turns.unwrap_or(scenario.turns),
            think_s: group.think_s.unwrap_or(scenario.think_s),
            tenant: group.tenant.clone(),
            structured: group.structured.clone().or_else(|| scenario.structured.clone()),
            slo: group.slo.unwrap_or(scenario.slo),
            body,
        }
    }

    /// Checks every bound.
    pub(super) fn check(&self) -> Result<(), ScenarioError> {
        within("requests", self.requests as f64, 1.0, MOST_REQUESTS as f64)?;
        within("warmup", self.warmup as f64, 0.0, MOST_REQUESTS as f64)?;
        within("start_s", self.start_s, 0.0, 86_400.0)?;
        if let Some(duration_s) = self.duration_s {
            within("duration_s", duration_s, 0.001, 86_400.0)?;
        }
        self.arrivals.check()?;
        self.turns.check()?;
        within("shared_prefix_tokens", f64::from(self.shared_prefix_tokens), 0.0, f64::from(MOST_TOKENS))?;
        within("prefix_groups", f64::from(self.prefix_groups), 1.0, 1e6)?;
        within("abort_share", self.abort_share, 0.0, 1.0)?;
        if self.abort_share > 0.0 && !self.stream {
            let remedy = "set stream = true: there is no middle of an answer that comes whole".into();
            let value = self.abort_share.to_string();
            return Err(ScenarioError::Value { field: "abort_share".into(), value, remedy });
        }
        within("deadline_s", self.deadline_s, 0.001, 86_400.0)?;
        within("think_s (the least)", self.think_s[0], 0.0, self.think_s[1])?;
        within("think_s (the most)", self.think_s[1], 0.0, 3_600.0)?;
        self.slo.check()?;
        self.structured.as_ref().map_or(Ok(()), Structured::check)?;
        self.check_lengths()
    }

    /// Checks the lengths of prompts and outputs, which a trace brings along, and what all prompts come to.
    fn check_lengths(&self) -> Result<(), ScenarioError> {
        let most = (self.requests + self.warmup) as f64;
        let (conversations, said) = if let Arrivals::Trace { rows, .. } = &self.arrivals {
            let said: f64 = rows.rows().iter().map(|row| f64::from(row.prompt_tokens)).sum();
            (most.min(rows.rows().len() as f64), said)
        } else {
            within("prompt_tokens (their count)", self.prompt_tokens.len() as f64, 1.0, 64.0)?;
            for &tokens in &self.prompt_tokens {
                within("prompt_tokens", f64::from(tokens), 1.0, f64::from(MOST_TOKENS))?;
            }
            let [least, longest] = self.output_tokens;
            within("output_tokens (the least)", f64::from(least), 1.0, f64::from(longest))?;
            within("output_tokens (the most)", f64::from(longest), 1.0, f64::from(MOST_TOKENS))?;
            let longest = self.prompt_tokens.iter().copied().max().unwrap_or(0);
            (most, most * f64::from(longest) * f64::from(self.turns.most()))
        };
        let instruction = self.structured.as_ref().and_then(|asked| asked.instruction.as_ref());
        // Four characters are a token, near enough for a bound on memory.
        let instructed =
            instruction.map_or(0.0, |text| text.len() as f64 / 4.0) * f64::from(self.turns.most());
        let all = said + conversations * (f64::from(self.shared_prefix_tokens) + instructed);
        within("the length of all prompts at their longest, in tokens,", all, 0.0, MOST_PROMPT_TOKENS)
    }
}
