//! What some of a round's requests came to: all of them, those of a group, of a tenant, or of a turn. The rule: each
//! part is counted as the whole is, so that they can be set side by side.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::latency::Latency;
use crate::client::{End, NOT_SENT, Outcome};
use crate::scenario::{Load, Slo};

/// Counts, rates and percentiles of some requests.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Part {
    /// Requests that were measured, those the harness couldn't send included.
    pub sent: u64,
    /// Complete answers.
    pub ok: u64,
    /// Abandoned by the client as planned.
    pub aborted: u64,
    /// Refusals by status.
    pub refused: BTreeMap<String, u64>,
    /// Failures by kind.
    pub failed: BTreeMap<String, u64>,
    /// Complete answers within all limits.
    pub good: u64,
    /// Of the requests that weren't abandoned as planned.
    pub good_share: f64,
    /// Good answers a second.
    pub good_per_s: f64,
    /// From when the first request of the part was due to the end of its last.
    pub duration_s: f64,
    /// By the server's usage.
    pub prompt_tokens: u64,
    /// By the server's usage.
    pub cached_tokens: u64,
    /// By the server's usage.
    pub output_tokens: u64,
    /// Output tokens a second.
    pub output_tokens_per_s: f64,
    /// Prompt tokens a second.
    pub prompt_tokens_per_s: f64,
    /// Complete answers a second.
    pub requests_per_s: f64,
    /// From due to the first output.
    pub ttft_ms: Latency,
    /// Between two chunks of output.
    pub itl_ms: Latency,
    /// Of a token after the first, on average over an answer.
    pub tpot_ms: Latency,
    /// From due to the end.
    pub e2e_ms: Latency,
    /// Of a group: between two chunks while no request of another group waited for its first output.
    #[serde(default)]
    pub itl_quiet_ms: Option<Latency>,
    /// Of a group: between two chunks while one did.
    #[serde(default)]
    pub itl_disturbed_ms: Option<Latency>,
}

impl Part {
    /// Sums up requests.
    pub(super) fn of(loads: &[Load], outcomes: &[&Outcome]) -> Self {
        let ok: Vec<&Outcome> = outcomes.iter().copied().filter(|outcome| outcome.end == End::Done).collect();
        let first_s = outcomes.iter().map(|outcome| outcome.due_s).fold(f64::INFINITY, f64::min);
        let last_s = outcomes.iter().map(|outcome| outcome.due_s + outcome.end_s).fold(0.0, f64::max);
        let duration_s = (last_s - first_s).max(1e-9);
        let (mut refused, mut failed) = (BTreeMap::new(), BTreeMap::new());
        let mut aborted = 0;
        for outcome in outcomes {
            match outcome.end {
                End::Refused(status) => *refused.entry(status.to_string()).or_insert(0) += 1,
                End::Failed(kind) => *failed.entry(kind.to_owned()).or_insert(0) += 1,
                End::Aborted => aborted += 1,
                End::Done => {}
            }
        }
        let sum = |part: fn(&Outcome) -> u64| ok.iter().map(|outcome| part(outcome)).sum::<u64>();
        let (prompt_tokens, output_tokens) = (sum(|o| o.prompt_tokens), sum(|o| o.output_tokens));
        let good = ok.iter().filter(|outcome| loads[outcome.group].slo.kept_by(outcome)).count() as u64;
        let sent = outcomes.len() as u64;
        Self {
            sent,
            ok: ok.len() as u64,
            aborted,
            refused,
            failed,
            good,
            good_share: good as f64 / (sent - aborted).max(1) as f64,
            good_per_s: good as f64 / duration_s,
            duration_s,
            prompt_tokens,
            cached_tokens: sum(|o| o.cached_tokens),
            output_tokens,
            output_tokens_per_s: output_tokens as f64 / duration_s,
            prompt_tokens_per_s: prompt_tokens as f64 / duration_s,
            requests_per_s: ok.len() as f64 / duration_s,
            ttft_ms: Latency::of(ok.iter().filter_map(|outcome| outcome.ttft_s())),
            itl_ms: Latency::of(ok.iter().flat_map(|outcome| outcome.gaps_s())),
            tpot_ms: Latency::of(ok.iter().filter_map(|outcome| outcome.tpot_s())),
            e2e_ms: Latency::of(ok.iter().map(|outcome| outcome.end_s)),
            itl_quiet_ms: None,
            itl_disturbed_ms: None,
        }
    }

    /// Requests apart by what `key` says of each; those of which it says nothing are left out.
    pub(super) fn each<K: Ord>(
        loads: &[Load],
        outcomes: &[Outcome],
        key: impl Fn(&Outcome) -> Option<K>,
    ) -> BTreeMap<K, Self> {
        let mut apart: BTreeMap<K, Vec<&Outcome>> = BTreeMap::new();
        for outcome in outcomes {
            if let Some(key) = key(outcome) {
                apart.entry(key).or_default().push(outcome);
            }
        }
        apart.into_iter().map(|(key, outcomes)| (key, Self::of(loads, &outcomes))).collect()
    }

    /// The percentiles alone: tenants and turns may be many.
    pub(super) fn without_curves(self) -> Self {
        Self {
            ttft_ms: self.ttft_ms.without_curve(),
            itl_ms: self.itl_ms.without_curve(),
            tpot_ms: self.tpot_ms.without_curve(),
            e2e_ms: self.e2e_ms.without_curve(),
            ..self
        }
    }

    /// Tells a group's gaps between chunks apart by whether another group's request was being prefilled.
    pub(super) fn disturbance(&mut self, group: usize, outcomes: &[Outcome]) {
        let prefills = prefills(group, outcomes);
        let (mut quiet, mut disturbed) = (Vec::new(), Vec::new());
        let own = outcomes.iter().filter(|outcome| outcome.group == group && outcome.end == End::Done);
        for outcome in own {
            for pair in outcome.chunks_s.windows(2) {
                let (from_s, to_s) = (outcome.due_s + pair[0], outcome.due_s + pair[1]);
                // The last prefill that began before the gap's end; they are apart and in order.
                let before = prefills.partition_point(|(begun_s, _)| *begun_s < to_s);
                let overlaps = before > 0 && prefills[before - 1].1 > from_s;
                (if overlaps { &mut disturbed } else { &mut quiet }).push(pair[1] - pair[0]);
            }
        }
        self.itl_quiet_ms = Some(Latency::of(quiet.into_iter()));
        self.itl_disturbed_ms = Some(Latency::of(disturbed.into_iter()));
    }
}

/// From when other groups' requests were sent to their first output, or to their end where none came; merged where
/// they overlap.
fn prefills(group: usize, outcomes: &[Outcome]) -> Vec<(f64, f64)> {
    let others =
        outcomes.iter().filter(|outcome| outcome.group != group && outcome.end != End::Failed(NOT_SENT));
    let mut spans: Vec<(f64, f64)> =
        others.map(|o| (o.due_s + o.lag_s, o.due_s + o.ttft_s().unwrap_or(o.end_s))).collect();
    spans.sort_by(|one, other| one.0.total_cmp(&other.0));
    let mut merged: Vec<(f64, f64)> = Vec::new();
    for (from_s, to_s) in spans {
        match merged.last_mut() {
            Some(last) if from_s <= last.1 => last.1 = last.1.max(to_s),
            _ => merged.push((from_s, to_s)),
        }
    }
    merged
}

impl Slo {
    /// Whether a complete answer kept every limit.
    pub fn kept_by(&self, outcome: &Outcome) -> bool {
        let keeps = |value_s: Option<f64>, most_ms: Option<f64>| {
            most_ms.is_none_or(|most| value_s.is_some_and(|value| value * 1e3 <= most))
        };
        let longest_gap_s = outcome.gaps_s().fold(0.0, f64::max);
        // An answer of one token has none after the first, and keeps every limit on those.
        let tpot_s = outcome.tpot_s().unwrap_or(0.0);
        keeps(outcome.ttft_s(), self.ttft_ms)
            && keeps(Some(longest_gap_s), self.itl_ms)
            && keeps(Some(tpot_s), self.tpot_ms)
            && keeps(Some(outcome.end_s), self.e2e_ms)
    }
}
