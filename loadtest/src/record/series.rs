//! A run second by second. The rule: what is shown in a second happened in it, as the client saw it.

use serde::{Deserialize, Serialize};

use crate::client::{End, NOT_SENT, Outcome};

/// The most seconds: a day.
const MOST_SECONDS: usize = 86_400;

/// One second of a run.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Second {
    /// Requests that were due.
    #[serde(alias = "due")]
    pub arrivals: u64,
    /// Requests that ended, however they did.
    #[serde(alias = "ended")]
    pub completions: u64,
    /// Of these, complete answers.
    pub ok: u64,
    /// Of these, refused or failed.
    pub lost: u64,
    /// Chunks of output that arrived.
    pub chunks: u64,
    /// Tokens of output: an answer's tokens, spread evenly over its chunks.
    pub tokens: f64,
    /// The most requests that were under way at one moment.
    pub in_flight: u64,
}

/// What happened in each second after `first_s`.
pub(super) fn seconds(outcomes: &[Outcome], first_s: f64) -> Vec<Second> {
    let mut seconds: Vec<Second> = Vec::new();
    for outcome in outcomes {
        let at = |time_s: f64| ((outcome.due_s + time_s - first_s).max(0.0) as usize).min(MOST_SECONDS);
        let last = at(outcome.end_s);
        if seconds.len() <= last {
            seconds.resize_with(last + 1, Second::default);
        }
        seconds[at(0.0)].arrivals += 1;
        seconds[last].completions += 1;
        seconds[last].ok += u64::from(outcome.end == End::Done);
        seconds[last].lost += u64::from(matches!(outcome.end, End::Refused(_) | End::Failed(_)));
        // Without a usage, as in an answer that was broken off, a chunk counts as a token.
        let chunks = outcome.chunks_s.len();
        let each =
            if outcome.output_tokens > 0 { outcome.output_tokens as f64 / chunks.max(1) as f64 } else { 1.0 };
        for &chunk_s in &outcome.chunks_s {
            // A chunk may be noted a moment after the end, should its clock be read first.
            let second = &mut seconds[at(chunk_s).min(last)];
            second.chunks += 1;
            second.tokens += each;
        }
    }
    in_flight(outcomes, first_s, &mut seconds);
    seconds
}

/// Fills in how many requests were under way.
fn in_flight(outcomes: &[Outcome], first_s: f64, seconds: &mut [Second]) {
    let sent = outcomes.iter().filter(|outcome| outcome.end != End::Failed(NOT_SENT));
    let mut moves: Vec<(f64, i64)> = sent
        .flat_map(|outcome| {
            let sent_s = outcome.due_s + outcome.lag_s - first_s;
            [(sent_s, 1), (outcome.due_s + outcome.end_s - first_s, -1)]
        })
        .collect();
    // An end comes before a start at the same moment, so that a closed loop never shows more than its streams.
    moves.sort_by(|one, other| one.0.total_cmp(&other.0).then(one.1.cmp(&other.1)));
    let mut moves = moves.into_iter().peekable();
    let mut now: i64 = 0;
    for (number, second) in seconds.iter_mut().enumerate() {
        let mut most = now;
        while let Some((_, step)) = moves.next_if(|(at_s, _)| *at_s < (number + 1) as f64) {
            now += step;
            most = most.max(now);
        }
        second.in_flight = most.max(0).unsigned_abs();
    }
}
