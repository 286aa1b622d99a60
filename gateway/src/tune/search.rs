//! Which settings are tried next, and which of those tried is best.
//!
//! The rule: it is pure and it ends. One setting at a time is varied around the best so far, first in large steps
//! and then in small ones, and nothing is tried twice.

use serde::Serialize;

use super::record::Measured;
use crate::config::ModelConfig;

/// Settings that are tried; what is absent is left to the brain's own measurement.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Candidate {
    /// Compute threads.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub threads: Option<usize>,
    /// Most sequences that run.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_sequences: Option<u32>,
    /// Most tokens of a step.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub step_tokens: Option<u32>,
    /// Time between tokens that the brain paces prompts for, where it isn't the promised one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub itl_target_ms: Option<u32>,
}

impl Candidate {
    /// A model's configuration with these settings.
    pub fn apply(&self, base: &ModelConfig, limits: &Limits) -> ModelConfig {
        let mut model = base.clone();
        model.threads = self.threads.or(base.threads);
        model.max_sequences = self.max_sequences.or(base.max_sequences);
        model.step_tokens = self.step_tokens.or(base.step_tokens);
        model.p99_ttft_ms = whole_ms(limits.p99_ttft_ms);
        model.p99_itl_ms = self.itl_target_ms.unwrap_or_else(|| whole_ms(limits.p99_itl_ms));
        model
    }

    /// In words, for a table.
    pub fn describe(&self) -> String {
        let mut parts = Vec::new();
        let mut part = |name: &str, value: Option<String>| {
            parts.extend(value.map(|value| format!("{name}={value}")));
        };
        part("threads", self.threads.map(|value| value.to_string()));
        part("max_sequences", self.max_sequences.map(|value| value.to_string()));
        part("step_tokens", self.step_tokens.map(|value| value.to_string()));
        part("p99_itl_ms", self.itl_target_ms.map(|value| value.to_string()));
        if parts.is_empty() { "as measured".to_owned() } else { parts.join(" ") }
    }

    /// Whether a brain would take it: a step has a token for each sequence.
    fn is_valid(&self) -> bool {
        match (self.step_tokens, self.max_sequences) {
            (Some(tokens), Some(sequences)) => tokens >= sequences,
            _ => true,
        }
    }
}

fn whole_ms(ms: f64) -> u32 {
    (ms.round() as u32).max(1)
}

/// What a choice has to meet.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Limits {
    /// P99 of the time to the first token.
    pub p99_ttft_ms: f64,
    /// P99 of the time between tokens.
    pub p99_itl_ms: f64,
    /// Most that a thousand generated tokens may cost.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_cost: Option<f64>,
    /// What the machine costs an hour.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub machine_price_per_hour: Option<f64>,
    /// What a thousand generated tokens are sold for, where the machine's price isn't given.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub output_price: Option<f64>,
}

/// Most requests that may fail or be refused in a trial that counts as met, as a share.
const MOST_UNSERVED: f64 = 0.01;

impl Limits {
    /// Cost of a thousand generated tokens at this rate.
    pub fn cost(&self, measured: &Measured) -> Option<f64> {
        match self.machine_price_per_hour {
            Some(price) => Some(price / (measured.output_tokens_per_s.max(1e-9) * 3.6)),
            None => self.output_price,
        }
    }

    /// How far the worst limit is exceeded: 1 is exactly met, more is a miss.
    pub fn excess(&self, measured: &Measured) -> f64 {
        let cost = match (self.max_cost, self.cost(measured)) {
            (Some(most), Some(cost)) => cost / most,
            _ => 0.0,
        };
        let unserved = measured.unserved_share() / MOST_UNSERVED;
        let worst = (measured.p99_ttft_ms / self.p99_ttft_ms).max(measured.p99_itl_ms / self.p99_itl_ms);
        worst.max(cost).max(unserved)
    }

    /// Whether all are met.
    pub fn met(&self, measured: &Measured) -> bool {
        measured.output_tokens_per_s > 0.0 && self.excess(measured) <= 1.0
    }
}

/// A candidate and what came of it.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Trial {
    /// What was tried.
    pub candidate: Candidate,
    /// What was measured; none where the trial failed.
    pub measured: Option<Measured>,
    /// Why it failed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub failure: Option<String>,
    /// Whether it met the limits.
    pub met: bool,
    /// How long it took, start included.
    pub took_s: f64,
}

/// Index of the best trial: of those that meet the limits the one that generates most; none where none does.
pub fn best(trials: &[Trial]) -> Option<usize> {
    let rate = |trial: &Trial| trial.measured.as_ref().map_or(0.0, |measured| measured.output_tokens_per_s);
    let met = trials.iter().enumerate().filter(|(_, trial)| trial.met);
    met.reduce(|a, b| if rate(b.1) > rate(a.1) { b } else { a }).map(|(index, _)| index)
}

/// Index of the trial that comes nearest to the limits.
pub fn nearest(trials: &[Trial], limits: &Limits) -> Option<usize> {
    let excess = |trial: &Trial| trial.measured.as_ref().map_or(f64::INFINITY, |m| limits.excess(m));
    let measured = trials.iter().enumerate().filter(|(_, trial)| trial.measured.is_some());
    measured.reduce(|a, b| if excess(b.1) < excess(a.1) { b } else { a }).map(|(index, _)| index)
}

/// What may be varied.
#[derive(Clone, Debug, PartialEq)]
pub struct Space {
    /// Threads of the machine.
    pub threads: usize,
    /// The promised time between tokens.
    pub p99_itl_ms: f64,
}

/// The steps of the search, coarse before fine.
const STAGES: usize = 7;

/// Proposes candidates.
#[derive(Debug)]
pub struct Search {
    space: Space,
    limits: Limits,
    stage: usize,
    /// Best as the stage began; kept while it lasts, so that small steps don't become a walk.
    origin: Option<Candidate>,
}

impl Search {
    /// A search from the brain's own settings.
    pub fn new(space: Space, limits: Limits) -> Self {
        Self { space, limits, stage: 0, origin: None }
    }

    /// The next candidate, given all trials so far; none when there is nothing left to vary.
    pub fn next(&mut self, trials: &[Trial]) -> Option<Candidate> {
        let so_far = best(trials).or_else(|| nearest(trials, &self.limits));
        let so_far = so_far.map_or_else(Candidate::default, |index| trials[index].candidate);
        while self.stage < STAGES {
            let origin = *self.origin.get_or_insert(so_far);
            let untried = |candidate: &Candidate| trials.iter().all(|trial| trial.candidate != *candidate);
            let mut around = self.around(origin).into_iter();
            if let Some(candidate) = around.find(|candidate| candidate.is_valid() && untried(candidate)) {
                return Some(candidate);
            }
            self.stage += 1;
            self.origin = None;
        }
        None
    }

    /// The candidates of the present stage around a candidate.
    fn around(&self, origin: Candidate) -> Vec<Candidate> {
        let threads = self.space.threads;
        let sequences = |value: u32| Candidate { max_sequences: Some(value.max(1)), ..origin };
        let step = |value: u32| Candidate { step_tokens: Some(value.max(16)), ..origin };
        let itl = |factor: f64| {
            let target = whole_ms(self.space.p99_itl_ms * factor).min(60_000);
            Candidate { itl_target_ms: Some(target), ..origin }
        };
        match self.stage {
            0 => vec![Candidate::default()],
            1 => [16, 64, 32, 8, 128].map(sequences).to_vec(),
            2 => [0.5, 1.5].map(itl).to_vec(),
            3 => {
                let fewer = [threads.saturating_sub(1), threads / 2];
                let fewer = fewer.into_iter().filter(|count| *count > 0 && *count < threads);
                fewer.map(|count| Candidate { threads: Some(count), ..origin }).collect()
            }
            4 => [512, 128, 2048].map(step).to_vec(),
            5 => origin
                .max_sequences
                .map_or_else(Vec::new, |value| [value * 3 / 4, value * 5 / 4].map(sequences).to_vec()),
            _ => origin
                .step_tokens
                .map_or_else(Vec::new, |value| [value * 3 / 4, value * 3 / 2].map(step).to_vec()),
        }
    }
}

#[cfg(test)]
mod tests;
