//! What a load test sends: arrivals, lengths, and what is asked of the server. The rule: everything random follows
//! from the scenario's seed, and a field nobody knows is an error.

use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use serde::{Deserialize, Serialize};

/// The most requests of one run.
const MOST_REQUESTS: usize = 1_000_000;
/// The most streams of a closed loop, and the most requests in flight of an open one.
const MOST_STREAMS: usize = 10_000;
/// The most tokens of a prompt or an output.
const MOST_TOKENS: u32 = 131_072;

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
        field: &'static str,
        /// What it holds.
        value: String,
        /// What it must be.
        remedy: String,
    },
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
    /// Requests that are measured.
    pub requests: usize,
    /// Requests before them that are not.
    #[serde(default)]
    pub warmup: usize,
    /// When requests are sent.
    pub arrivals: Arrivals,
    /// Lengths of prompts, in tokens, one drawn for each request.
    pub prompt_tokens: Vec<u32>,
    /// Least and most tokens of an output.
    pub output_tokens: [u32; 2],
    /// Tokens that all prompts of a group begin with.
    #[serde(default)]
    pub shared_prefix_tokens: u32,
    /// Groups that share a prefix.
    #[serde(default = "one")]
    pub prefix_groups: u32,
    /// Whether answers are streamed.
    #[serde(default = "yes")]
    pub stream: bool,
    /// Share of requests that the client abandons in mid-stream.
    #[serde(default)]
    pub abort_share: f64,
    /// Seconds after which a request counts as failed.
    #[serde(default = "two_minutes")]
    pub deadline_s: f64,
    /// Limits a request must keep to count as good.
    #[serde(default)]
    pub goodput: Goodput,
    /// Further fields of each request's body.
    #[serde(default)]
    pub body: serde_json::Map<String, serde_json::Value>,
}

/// When requests are sent.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "lowercase", deny_unknown_fields)]
pub enum Arrivals {
    /// So many streams, each sending as its last request ends.
    Closed {
        /// How many.
        streams: usize,
    },
    /// Independent users: exponential gaps.
    Poisson {
        /// Mean requests a second.
        rate: f64,
    },
    /// Bursts: gaps of a gamma distribution.
    Gamma {
        /// Mean requests a second.
        rate: f64,
        /// Coefficient of variation of the gaps; 1 is Poisson, more is burstier.
        cv: f64,
    },
    /// A rate that rises evenly.
    Ramp {
        /// At the start.
        from_rate: f64,
        /// At the end.
        to_rate: f64,
    },
}

/// What makes a request good.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Goodput {
    /// Most milliseconds to the first token.
    pub ttft_ms: Option<f64>,
    /// Most milliseconds an output token.
    pub tpot_ms: Option<f64>,
}

fn one() -> u32 {
    1
}

fn yes() -> bool {
    true
}

fn two_minutes() -> f64 {
    120.0
}

/// One request as planned.
#[derive(Clone, Debug, PartialEq)]
pub struct Planned {
    /// Its number.
    pub index: usize,
    /// Seconds after the start at which it is due; none in a closed loop.
    pub due_s: Option<f64>,
    /// The prompt.
    pub prompt: String,
    /// Tokens to generate.
    pub output_tokens: u32,
    /// Tokens after which the client goes away.
    pub abort_after: Option<u32>,
}

impl Scenario {
    /// Reads and checks a scenario.
    ///
    /// # Errors
    /// Bad TOML, an unknown field, or a value out of range.
    pub fn parse(text: &str) -> Result<Self, ScenarioError> {
        let scenario: Self = toml::from_str(text)?;
        scenario.check()?;
        Ok(scenario)
    }

    /// Checks every bound.
    ///
    /// # Errors
    /// The first value out of range.
    pub fn check(&self) -> Result<(), ScenarioError> {
        let within = |field, value: f64, least: f64, most: f64| {
            let fits = value >= least && value <= most;
            let remedy = format!("use a number from {least} to {most}");
            if fits { Ok(()) } else { Err(ScenarioError::Value { field, value: value.to_string(), remedy }) }
        };
        within("requests", self.requests as f64, 1.0, MOST_REQUESTS as f64)?;
        within("warmup", self.warmup as f64, 0.0, MOST_REQUESTS as f64)?;
        within("prompt_tokens (their count)", self.prompt_tokens.len() as f64, 1.0, 64.0)?;
        for &tokens in &self.prompt_tokens {
            within("prompt_tokens", f64::from(tokens), 1.0, f64::from(MOST_TOKENS))?;
        }
        within("output_tokens", f64::from(self.output_tokens[0]), 1.0, f64::from(self.output_tokens[1]))?;
        within("output_tokens", f64::from(self.output_tokens[1]), 1.0, f64::from(MOST_TOKENS))?;
        within("shared_prefix_tokens", f64::from(self.shared_prefix_tokens), 0.0, f64::from(MOST_TOKENS))?;
        within("prefix_groups", f64::from(self.prefix_groups), 1.0, 1e6)?;
        within("abort_share", self.abort_share, 0.0, 1.0)?;
        within("deadline_s", self.deadline_s, 0.001, 86_400.0)?;
        match self.arrivals {
            Arrivals::Closed { streams } => {
                within("arrivals.streams", streams as f64, 1.0, MOST_STREAMS as f64)
            }
            Arrivals::Poisson { rate } => within("arrivals.rate", rate, 1e-3, 1e5),
            Arrivals::Gamma { rate, cv } => {
                within("arrivals.rate", rate, 1e-3, 1e5)?;
                within("arrivals.cv", cv, 0.05, 50.0)
            }
            Arrivals::Ramp { from_rate, to_rate } => {
                within("arrivals.from_rate", from_rate, 1e-3, 1e5)?;
                within("arrivals.to_rate", to_rate, 1e-3, 1e5)
            }
        }
    }

    /// All requests, warm-up first. `salt` makes another round's prompts differ, so that no cache knows them.
    pub fn plan(&self, salt: u64) -> Vec<Planned> {
        let mut rng = SmallRng::seed_from_u64(self.seed.wrapping_mul(0x9e37_79b9).wrapping_add(salt));
        let mut due_s = 0.0;
        let total = self.warmup + self.requests;
        (0..total)
            .map(|index| {
                let gap = self.arrivals.gap_s(&mut rng, index as f64 / total as f64);
                due_s += gap.unwrap_or(0.0);
                let length = self.prompt_tokens[rng.random_range(0..self.prompt_tokens.len())];
                let output = rng.random_range(self.output_tokens[0]..=self.output_tokens[1]);
                let aborts = rng.random::<f64>() < self.abort_share;
                let group = rng.random_range(0..self.prefix_groups);
                Planned {
                    index,
                    due_s: gap.is_some().then_some(due_s),
                    prompt: self.prompt(&mut rng, length, group, salt),
                    output_tokens: output,
                    abort_after: aborts.then(|| rng.random_range(1..=output)),
                }
            })
            .collect()
    }

    fn prompt(&self, rng: &mut SmallRng, tokens: u32, group: u32, salt: u64) -> String {
        let mut text = String::new();
        let mut shared = SmallRng::seed_from_u64(self.seed ^ salt ^ (u64::from(group) << 32));
        for _ in 0..self.shared_prefix_tokens {
            push_word(&mut text, &mut shared);
        }
        for _ in 0..tokens {
            push_word(&mut text, rng);
        }
        text
    }
}

impl Arrivals {
    /// Seconds to the next arrival; none in a closed loop. `progress` is the share of requests before it.
    fn gap_s(&self, rng: &mut SmallRng, progress: f64) -> Option<f64> {
        let exponential = |rng: &mut SmallRng| -(1.0 - rng.random::<f64>()).ln();
        match *self {
            Self::Closed { .. } => None,
            Self::Poisson { rate } => Some(exponential(rng) / rate),
            Self::Gamma { rate, cv } => Some(gamma(rng, 1.0 / (cv * cv)) * cv * cv / rate),
            Self::Ramp { from_rate, to_rate } => {
                Some(exponential(rng) / (from_rate + (to_rate - from_rate) * progress))
            }
        }
    }
}

/// A gamma-distributed number of this shape and scale one (Marsaglia and Tsang, 2000).
fn gamma(rng: &mut SmallRng, shape: f64) -> f64 {
    if shape < 1.0 {
        let boost = (1.0 - rng.random::<f64>()).powf(1.0 / shape);
        return gamma(rng, shape + 1.0) * boost;
    }
    let d = shape - 1.0 / 3.0;
    let c = 1.0 / (9.0 * d).sqrt();
    loop {
        // Box and Muller's normal number.
        let radius = (-2.0 * (1.0 - rng.random::<f64>()).ln()).sqrt();
        let x = radius * (std::f64::consts::TAU * rng.random::<f64>()).cos();
        let v = (1.0 + c * x).powi(3);
        let u = 1.0 - rng.random::<f64>();
        if v > 0.0 && u.ln() < 0.5 * x * x + d - d * v + d * v.ln() {
            return d * v;
        }
    }
}

/// Words that are one token each, with their space, in the usual vocabularies.
const WORDS: [&str; 64] = [
    "time", "year", "people", "way", "day", "man", "thing", "woman", "life", "child", "world", "school",
    "state", "family", "student", "group", "country", "problem", "hand", "part", "place", "case", "week",
    "company", "system", "program", "question", "work", "number", "night", "point", "home", "water", "room",
    "mother", "area", "money", "story", "fact", "month", "lot", "right", "study", "book", "eye", "job",
    "word", "business", "issue", "side", "kind", "head", "house", "service", "friend", "father", "power",
    "hour", "game", "line", "end", "member", "law", "car",
];

fn push_word(text: &mut String, rng: &mut SmallRng) {
    if !text.is_empty() {
        text.push(' ');
    }
    text.push_str(WORDS[rng.random_range(0..WORDS.len())]);
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "name = 'x'\nrequests = 4000\nprompt_tokens = [32, 128]\noutput_tokens = [64, 128]\n";

    fn with(arrivals: &str) -> Result<Scenario, ScenarioError> {
        Scenario::parse(&format!("{TEXT}[arrivals]\n{arrivals}"))
    }

    #[test]
    fn a_plan_follows_from_seed_and_salt_alone_and_prompts_differ() {
        let scenario = with("kind = 'closed'\nstreams = 4").expect("it is right");
        assert_eq!(scenario.plan(1), scenario.plan(1));
        let (one, two) = (scenario.plan(1), scenario.plan(2));
        assert_ne!(one[0].prompt, two[0].prompt);
        assert_ne!(one[0].prompt, one[1].prompt);
        assert!(one.iter().all(|request| (64..=128).contains(&request.output_tokens)));
        assert!(one.iter().all(|request| matches!(request.prompt.split(' ').count(), 32 | 128)));
    }

    #[test]
    fn gaps_have_the_mean_and_the_variation_that_are_asked_for() {
        for (arrivals, cv) in [
            ("kind = 'poisson'\nrate = 50.0", 1.0),
            ("kind = 'gamma'\nrate = 50.0\ncv = 3.0", 3.0),
            ("kind = 'gamma'\nrate = 50.0\ncv = 0.5", 0.5),
        ] {
            let plan = with(arrivals).expect("it is right").plan(3);
            let due: Vec<f64> = plan.iter().filter_map(|request| request.due_s).collect();
            let gaps: Vec<f64> = due.windows(2).map(|pair| pair[1] - pair[0]).collect();
            let mean = gaps.iter().sum::<f64>() / gaps.len() as f64;
            let variance = gaps.iter().map(|gap| (gap - mean).powi(2)).sum::<f64>() / gaps.len() as f64;
            assert!((mean * 50.0 - 1.0).abs() < 0.12, "{arrivals}: mean {mean}");
            assert!(
                (variance.sqrt() / mean / cv - 1.0).abs() < 0.2,
                "{arrivals}: {}",
                variance.sqrt() / mean
            );
        }
    }

    #[test]
    fn a_ramp_grows_denser() {
        let plan = with("kind = 'ramp'\nfrom_rate = 5.0\nto_rate = 100.0").expect("it is right").plan(3);
        let at = |index: usize| plan[index].due_s.expect("an open loop has times");
        assert!(at(1000) - at(0) > 2.0 * (at(3999) - at(2999)));
    }

    #[test]
    fn mistakes_name_the_field() {
        let message = |arrivals: &str| with(arrivals).expect_err("it is wrong").to_string();
        assert!(message("kind = 'closed'\nstreams = 0").contains("arrivals.streams is 0"));
        assert!(message("kind = 'poisson'\nrate = -1.0").contains("arrivals.rate is -1"));
        assert!(message("kind = 'closed'\nstreams = 1\nspeed = 3").contains("speed"));
        assert!(message("kind = 'sometimes'").contains("sometimes"));
    }

    #[test]
    fn a_group_shares_its_prefix() {
        let text = format!(
            "{TEXT}shared_prefix_tokens = 50\nprefix_groups = 1\n[arrivals]\nkind = 'closed'\nstreams = 1"
        );
        let plan = Scenario::parse(&text).expect("it is right").plan(7);
        let head = |index: usize| plan[index].prompt.split(' ').take(50).collect::<Vec<_>>();
        assert_eq!(head(0), head(1));
        assert_ne!(plan[0].prompt, plan[1].prompt);
    }
}
