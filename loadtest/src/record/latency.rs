//! Distributions of times. The rule: three digits hold from a microsecond to a day, and no value is left out.

use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};

/// Percentiles of one latency, in milliseconds.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Latency {
    /// Values.
    pub count: u64,
    /// On average.
    #[serde(default)]
    pub mean: f64,
    /// Half are below.
    pub p50: f64,
    /// Nine of ten are below.
    pub p90: f64,
    /// All but one in a hundred are below.
    pub p99: f64,
    /// All but one in a thousand are below.
    pub p999: f64,
    /// The largest.
    pub most: f64,
    /// The distribution: milliseconds and the share of values up to them.
    #[serde(default)]
    pub curve: Vec<(f64, f64)>,
}

impl Latency {
    /// Of values in seconds.
    pub fn of(values: impl Iterator<Item = f64>) -> Self {
        let mut histogram =
            Histogram::<u64>::new_with_bounds(1, 86_400_000_000, 3).expect("the bounds are right");
        for value in values {
            histogram.saturating_record(((value * 1e6) as u64).max(1));
        }
        if histogram.is_empty() {
            return Self::default();
        }
        let at = |quantile: f64| histogram.value_at_quantile(quantile) as f64 / 1e3;
        let shares = (0..=50).map(|step| f64::from(step) / 50.0).chain([0.99, 0.995, 0.999]);
        let mut shares: Vec<f64> = shares.collect();
        shares.sort_by(f64::total_cmp);
        Self {
            count: histogram.len(),
            mean: histogram.mean() / 1e3,
            p50: at(0.5),
            p90: at(0.9),
            p99: at(0.99),
            p999: at(0.999),
            most: histogram.max() as f64 / 1e3,
            curve: shares.into_iter().map(|share| (at(share), share)).collect(),
        }
    }

    /// The percentiles alone, where there are many distributions in one record.
    #[must_use]
    pub fn without_curve(self) -> Self {
        Self { curve: Vec::new(), ..self }
    }
}
