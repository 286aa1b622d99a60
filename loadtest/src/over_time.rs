//! How a latency went over a run. The rule: a request counts in the second in which it was due, which is when its
//! user began to wait.

use crate::client::Outcome;

/// The most seconds kept.
const MOST_SECONDS: usize = 86_400;

/// For each second, the median and the greatest time to a first token, in milliseconds, of requests due in it.
pub fn ttft_by_second_ms(outcomes: &[Outcome], first_s: f64) -> Vec<Option<(f64, f64)>> {
    let mut seconds: Vec<Vec<f64>> = Vec::new();
    for outcome in outcomes {
        let Some(&first) = outcome.chunks_s.first() else { continue };
        let index = ((outcome.due_s - first_s).max(0.0) as usize).min(MOST_SECONDS);
        if seconds.len() <= index {
            seconds.resize_with(index + 1, Vec::new);
        }
        seconds[index].push(first * 1e3);
    }
    let summed = seconds.into_iter().map(|mut values| {
        values.sort_by(f64::total_cmp);
        Some((*values.get(values.len() / 2)?, *values.last()?))
    });
    summed.collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::client::End;

    fn outcome(due_s: f64, first_s: Option<f64>) -> Outcome {
        Outcome {
            group: 0,
            index: 0,
            turn: 0,
            tenant: None,
            end: End::Done,
            due_s,
            lag_s: 0.0,
            again: false,
            chunks_s: first_s.into_iter().collect(),
            end_s: 1.0,
            prompt_tokens: 0,
            output_tokens: 0,
            cached_tokens: 0,
        }
    }

    #[test]
    fn requests_count_where_they_were_due_and_those_without_an_answer_nowhere() {
        let outcomes = [
            outcome(10.1, Some(5.0)),
            outcome(10.9, Some(0.1)),
            outcome(10.2, Some(0.2)),
            outcome(12.5, Some(0.3)),
            outcome(11.0, None),
        ];
        let by_second = ttft_by_second_ms(&outcomes, 10.0);
        assert_eq!(by_second, [Some((200.0, 5000.0)), None, Some((300.0, 300.0))]);
    }
}
