//! Every request as a row. The rule: nothing is summed up, so that whoever doubts a percentile can work it out.
//!
//! Times are seconds after the start of the run; `first_s` is empty where no output came.

use std::io::Write;

use crate::client::{End, Outcome};
use crate::scenario::Load;

/// The first line.
pub const HEADER: &str = "target,load,round,group,index,turn,tenant,intended_s,sent_s,first_s,last_s,prompt_tokens,\
                          cached_tokens,output_tokens,chunks,good,outcome";

/// Writes the first line.
///
/// # Errors
/// The file can't be written.
pub fn header(file: &mut impl Write) -> std::io::Result<()> {
    writeln!(file, "{HEADER}")
}

/// Writes a round's requests.
///
/// # Errors
/// The file can't be written.
pub fn rows(
    file: &mut impl Write,
    (target, load, round): (&str, f64, usize),
    loads: &[Load],
    outcomes: &[Outcome],
) -> std::io::Result<()> {
    for outcome in outcomes {
        let seconds = |after_s: f64| format!("{:.6}", outcome.due_s + after_s);
        let first_s = outcome.ttft_s().map_or(String::new(), seconds);
        let group = loads.get(outcome.group);
        let good = outcome.end == End::Done && group.is_some_and(|load| load.slo.kept_by(outcome));
        let ended = match outcome.end {
            End::Done => "ok".to_owned(),
            End::Aborted => "aborted".to_owned(),
            End::Refused(status) => format!("refused {status}"),
            End::Failed(kind) => kind.to_owned(),
        };
        let cells = [
            quoted(target),
            load.to_string(),
            round.to_string(),
            quoted(group.map_or("", |load| &load.name)),
            outcome.index.to_string(),
            outcome.turn.to_string(),
            quoted(outcome.tenant.as_deref().unwrap_or("")),
            seconds(0.0),
            seconds(outcome.lag_s),
            first_s,
            seconds(outcome.end_s),
            outcome.prompt_tokens.to_string(),
            outcome.cached_tokens.to_string(),
            outcome.output_tokens.to_string(),
            outcome.chunks_s.len().to_string(),
            good.to_string(),
            quoted(&ended),
        ];
        writeln!(file, "{}", cells.join(","))?;
    }
    Ok(())
}

/// A cell as RFC 4180 wants it.
fn quoted(text: &str) -> String {
    if text.contains([',', '"', '\n', '\r']) {
        format!("\"{}\"", text.replace('"', "\"\""))
    } else {
        text.to_owned()
    }
}
