//! What a round cost. The rule: tokens bought and a machine rented are two bills, never added up; only complete
//! answers are billed by token, since of others no usage is known.

use serde::{Deserialize, Serialize};

use super::part::Part;
use crate::scenario::Cost;

/// One bill, in the scenario's currency.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Bill {
    /// All of it.
    pub total: f64,
    /// A million tokens of output; none where there was no output.
    pub per_million_output_tokens: Option<f64>,
    /// A complete answer.
    pub per_ok_request: Option<f64>,
    /// An answer within all limits.
    pub per_good_request: Option<f64>,
}

/// What a round cost.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Bills {
    /// By the prices of tokens.
    pub tokens: Option<Bill>,
    /// By the price of the machine, for as long as the round took.
    pub machine: Option<Bill>,
}

impl Bills {
    pub(super) fn of(cost: &Cost, part: &Part) -> Self {
        let bill = |total: f64| {
            let per = |count: f64| (count > 0.0).then(|| total / count);
            Bill {
                total,
                per_million_output_tokens: per(part.output_tokens as f64 / 1e6),
                per_ok_request: per(part.ok as f64),
                per_good_request: per(part.good as f64),
            }
        };
        let prompt = cost.prompt_per_million.unwrap_or(0.0);
        let cached_price = cost.cached_per_million.unwrap_or(prompt);
        let cached = part.cached_tokens.min(part.prompt_tokens);
        let tokens = (part.prompt_tokens - cached) as f64 * prompt
            + cached as f64 * cached_price
            + part.output_tokens as f64 * cost.output_per_million.unwrap_or(0.0);
        let priced = cost.prompt_per_million.or(cost.cached_per_million).or(cost.output_per_million);
        Self {
            tokens: priced.map(|_| bill(tokens / 1e6)),
            machine: cost.machine_per_hour.map(|hour| bill(hour * part.duration_s / 3_600.0)),
        }
    }
}
