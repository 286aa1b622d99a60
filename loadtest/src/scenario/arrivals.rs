//! When requests are sent. The rule: an open loop's times follow from the seed or from a recorded file alone, never
//! from how the server fares.

use std::path::PathBuf;
use std::sync::Arc;

use rand::Rng;
use rand::rngs::SmallRng;
use serde::{Deserialize, Serialize};

use super::trace::Trace;
use super::{MOST_STREAMS, ScenarioError, within};

/// The most steps of one scenario.
const MOST_STEPS: f64 = 1_000.0;

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
    /// The same gap again and again.
    Even {
        /// Requests a second.
        rate: f64,
    },
    /// One rate after the other, exponential gaps within each.
    Step {
        /// In order.
        steps: Vec<Step>,
    },
    /// As they once came, from a file.
    Trace {
        /// A CSV; a path that isn't absolute is taken from the scenario's folder.
        file: PathBuf,
        /// How many times faster than it was recorded.
        #[serde(default = "as_recorded")]
        speed: f64,
        /// What the file holds, once it is read.
        #[serde(skip)]
        rows: Arc<Trace>,
    },
}

/// A rate that holds for a while.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Step {
    /// Mean requests a second; zero is a pause.
    pub rate: f64,
    /// For how long.
    pub seconds: f64,
}

fn as_recorded() -> f64 {
    1.0
}

impl Arrivals {
    /// Checks every bound.
    pub(super) fn check(&self) -> Result<(), ScenarioError> {
        match self {
            Self::Closed { streams } => within("arrivals.streams", *streams as f64, 1.0, MOST_STREAMS as f64),
            Self::Poisson { rate } | Self::Even { rate } => within("arrivals.rate", *rate, 1e-3, 1e5),
            Self::Gamma { rate, cv } => {
                within("arrivals.rate", *rate, 1e-3, 1e5)?;
                within("arrivals.cv", *cv, 0.05, 50.0)
            }
            Self::Ramp { from_rate, to_rate } => {
                within("arrivals.from_rate", *from_rate, 1e-3, 1e5)?;
                within("arrivals.to_rate", *to_rate, 1e-3, 1e5)
            }
            Self::Step { steps } => {
                within("arrivals.steps (their count)", steps.len() as f64, 1.0, MOST_STEPS)?;
                for step in steps {
                    within("arrivals.steps.rate", step.rate, 0.0, 1e5)?;
                    within("arrivals.steps.seconds", step.seconds, 1e-3, 86_400.0)?;
                }
                let most = steps.iter().map(|step| step.rate).fold(0.0, f64::max);
                within("arrivals.steps.rate (the highest)", most, 1e-3, 1e5)
            }
            Self::Trace { speed, .. } => within("arrivals.speed", *speed, 1e-3, 1e4),
        }
    }

    /// Streams of a closed loop; none of an open one.
    pub fn streams(&self) -> Option<usize> {
        if let Self::Closed { streams } = self { Some(*streams) } else { None }
    }

    /// What a level is called by: streams, or mean requests a second.
    pub fn load(&self) -> f64 {
        match self {
            Self::Closed { streams } => *streams as f64,
            Self::Poisson { rate } | Self::Gamma { rate, .. } | Self::Even { rate } => *rate,
            Self::Ramp { from_rate, to_rate } => f64::midpoint(*from_rate, *to_rate),
            Self::Step { steps } => {
                let sent: f64 = steps.iter().map(|step| step.rate * step.seconds).sum();
                sent / steps.iter().map(|step| step.seconds).sum::<f64>()
            }
            Self::Trace { speed, rows, .. } => rows.rate() * speed,
        }
    }

    /// The same kind of arrivals at another level; steps, ramps and traces become independent users at that rate.
    #[must_use]
    pub fn at_load(&self, load: f64) -> Self {
        match self {
            Self::Closed { .. } => Self::Closed { streams: (load.round() as usize).max(1) },
            Self::Gamma { cv, .. } => Self::Gamma { rate: load, cv: *cv },
            Self::Even { .. } => Self::Even { rate: load },
            Self::Poisson { .. } | Self::Ramp { .. } | Self::Step { .. } | Self::Trace { .. } => {
                Self::Poisson { rate: load }
            }
        }
    }

    /// When request `index` of `total` is due, in seconds, the one before having been due at `last_s`. None when
    /// there are no more; zero in a closed loop, where nothing is due but when a stream is free.
    pub(super) fn next_s(&self, rng: &mut SmallRng, last_s: f64, index: usize, total: usize) -> Option<f64> {
        let exponential = |rng: &mut SmallRng| -(1.0 - rng.random::<f64>()).ln();
        match self {
            Self::Closed { .. } => Some(0.0),
            Self::Poisson { rate } => Some(last_s + exponential(rng) / rate),
            Self::Even { rate } => Some(index as f64 / rate),
            Self::Gamma { rate, cv } => Some(last_s + gamma(rng, 1.0 / (cv * cv)) * cv * cv / rate),
            Self::Ramp { from_rate, to_rate } => {
                let progress = index as f64 / total.max(1) as f64;
                Some(last_s + exponential(rng) / (from_rate + (to_rate - from_rate) * progress))
            }
            Self::Step { steps } => after_steps(steps, last_s, exponential(rng)),
            Self::Trace { speed, rows, .. } => rows.rows().get(index).map(|row| row.at_s / speed),
        }
    }
}

/// The time at which the rate's integral has grown by `events` since `last_s`; none if the steps end before.
fn after_steps(steps: &[Step], last_s: f64, mut events: f64) -> Option<f64> {
    let mut start_s = 0.0;
    for step in steps {
        let end_s = start_s + step.seconds;
        let from_s = last_s.max(start_s);
        if from_s < end_s {
            let holds = (end_s - from_s) * step.rate;
            if events <= holds && step.rate > 0.0 {
                return Some(from_s + events / step.rate);
            }
            events -= holds;
        }
        start_s = end_s;
    }
    None
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
        // A normal number (Box and Muller, 1958).
        let radius = (-2.0 * (1.0 - rng.random::<f64>()).ln()).sqrt();
        let x = radius * (std::f64::consts::TAU * rng.random::<f64>()).cos();
        let v = (1.0 + c * x).powi(3);
        let u = 1.0 - rng.random::<f64>();
        if v > 0.0 && u.ln() < 0.5 * x * x + d - d * v + d * v.ln() {
            return d * v;
        }
    }
}
