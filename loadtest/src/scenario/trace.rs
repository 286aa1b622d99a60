//! Recorded arrivals. The rule: a file is taken whole or not at all, and what is wrong with it is named by line and
//! column.
//!
//! Two headers are known. `at_s,prompt_tokens,output_tokens` with `tenant` and `session` behind them if wished, and
//! `TIMESTAMP,ContextTokens,GeneratedTokens`, that of the public traces of Azure's language model service.

use std::path::Path;
use std::sync::Arc;

use super::{MOST_REQUESTS, MOST_TOKENS, ScenarioError};

/// The most bytes of a file.
const MOST_BYTES: u64 = 256 << 20;

/// One request as it once came.
#[derive(Clone, Debug, PartialEq)]
pub struct Row {
    /// Seconds after the first row.
    pub at_s: f64,
    /// Length of its prompt.
    pub prompt_tokens: u32,
    /// Length of its answer.
    pub output_tokens: u32,
    /// Who sent it.
    pub tenant: Option<Arc<str>>,
    /// The conversation it belongs to.
    pub session: Option<Arc<str>>,
}

/// Requests in the order they came.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Trace {
    rows: Vec<Row>,
}

/// Which column holds what.
struct Columns {
    at: usize,
    prompt: usize,
    output: usize,
    tenant: Option<usize>,
    session: Option<usize>,
    /// Whether times are dates.
    dates: bool,
    names: Vec<String>,
}

impl Trace {
    /// Reads a file.
    ///
    /// # Errors
    /// No file, too large a file, or the first line and column that is wrong.
    pub fn read(path: &Path) -> Result<Self, ScenarioError> {
        let io = |source| ScenarioError::File { path: path.to_owned(), source };
        let bytes = std::fs::metadata(path).map_err(io)?.len();
        if bytes > MOST_BYTES {
            let remedy = format!("cut it to at most {MOST_BYTES} bytes");
            let field = "arrivals.file (its bytes)".into();
            return Err(ScenarioError::Value { field, value: bytes.to_string(), remedy });
        }
        Self::parse(&std::fs::read_to_string(path).map_err(io)?)
    }

    /// Reads a file's text.
    ///
    /// # Errors
    /// The first line and column that is wrong.
    pub fn parse(text: &str) -> Result<Self, ScenarioError> {
        let mut lines = text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty());
        let header = lines.next().map_or("", |(_, line)| line);
        let columns = Columns::of(header.trim_start_matches('\u{feff}'))?;
        let mut rows: Vec<Row> = Vec::new();
        let mut first_s = None;
        for (number, line) in lines {
            let row = columns.row(number + 1, line)?;
            let first_s = *first_s.get_or_insert(row.at_s);
            let at_s = row.at_s - first_s;
            let last_s = rows.last().map_or(0.0, |row| row.at_s);
            if at_s < last_s {
                let problem =
                    format!("is {:.3} s before the line above; sort the rows by time", last_s - at_s);
                return Err(trace(number + 1, &columns.names[columns.at], problem));
            }
            if rows.len() == MOST_REQUESTS {
                return Err(trace(
                    number + 1,
                    "",
                    format!("is one row more than {MOST_REQUESTS}; cut the file"),
                ));
            }
            rows.push(Row { at_s, ..row });
        }
        if rows.is_empty() {
            return Err(trace(2, "", "is missing; give at least one row".into()));
        }
        Ok(Self { rows })
    }

    /// In order of time.
    pub fn rows(&self) -> &[Row] {
        &self.rows
    }

    /// Mean requests a second, as recorded.
    pub fn rate(&self) -> f64 {
        let span_s = self.rows.last().map_or(0.0, |row| row.at_s);
        if span_s > 0.0 { self.rows.len() as f64 / span_s } else { self.rows.len() as f64 }
    }
}

fn trace(line: usize, column: &str, problem: String) -> ScenarioError {
    ScenarioError::Trace { line, column: column.to_owned(), problem }
}

impl Columns {
    fn of(header: &str) -> Result<Self, ScenarioError> {
        let names: Vec<String> = header.split(',').map(|name| name.trim().to_owned()).collect();
        let find = |name: &str| names.iter().position(|other| other == name);
        let known = ["at_s", "prompt_tokens", "output_tokens", "tenant", "session"];
        if let (Some(at), Some(prompt), Some(output)) =
            (find("TIMESTAMP"), find("ContextTokens"), find("GeneratedTokens"))
        {
            return Ok(Self { at, prompt, output, tenant: None, session: None, dates: true, names });
        }
        if let Some(other) = names.iter().find(|name| !known.contains(&name.as_str())) {
            let problem = "is no column that is known; use at_s,prompt_tokens,output_tokens[,tenant][,session] \
                           or TIMESTAMP,ContextTokens,GeneratedTokens";
            return Err(trace(1, other, problem.into()));
        }
        let need = |name: &str| find(name).ok_or_else(|| trace(1, name, "is missing; add the column".into()));
        Ok(Self {
            at: need("at_s")?,
            prompt: need("prompt_tokens")?,
            output: need("output_tokens")?,
            tenant: find("tenant"),
            session: find("session"),
            dates: false,
            names,
        })
    }

    fn row(&self, line: usize, text: &str) -> Result<Row, ScenarioError> {
        let cells: Vec<&str> = text.split(',').map(str::trim).collect();
        if cells.len() != self.names.len() {
            let problem = format!("has {} cells; the header has {}", cells.len(), self.names.len());
            return Err(trace(line, "", problem));
        }
        let wrong = |column: usize, wanted: &str| {
            let cell: String = cells[column].chars().take(40).collect();
            trace(line, &self.names[column], format!("is '{cell}'; use {wanted}"))
        };
        let tokens = |column: usize| {
            let count = cells[column].parse::<u32>().ok().filter(|tokens| (1..=MOST_TOKENS).contains(tokens));
            count.ok_or_else(|| wrong(column, &format!("a whole number from 1 to {MOST_TOKENS}")))
        };
        let name = |column: Option<usize>| {
            column.map(|column| cells[column]).filter(|cell| !cell.is_empty()).map(Arc::from)
        };
        let at_s = if self.dates {
            date_s(cells[self.at])
                .ok_or_else(|| wrong(self.at, "a date as in 2023-11-16 18:17:03.9799600"))?
        } else {
            let number = cells[self.at].parse::<f64>().ok().filter(|at_s| (0.0..=1e9).contains(at_s));
            number.ok_or_else(|| wrong(self.at, "seconds from 0 to 1e9"))?
        };
        Ok(Row {
            at_s,
            prompt_tokens: tokens(self.prompt)?,
            output_tokens: tokens(self.output)?,
            tenant: name(self.tenant),
            session: name(self.session),
        })
    }
}

/// Seconds since 1970 of `2023-11-16 18:17:03.9799600`, with or without `+00:00` behind it.
fn date_s(text: &str) -> Option<f64> {
    let text = text.strip_suffix("+00:00").or_else(|| text.strip_suffix('Z')).unwrap_or(text);
    let (date, time) = text.split_once([' ', 'T'])?;
    let whole = |text: &str, least: i64, most: i64| {
        let digits = !text.is_empty() && text.len() <= 4 && text.bytes().all(|byte| byte.is_ascii_digit());
        text.parse::<i64>().ok().filter(|number| digits && (least..=most).contains(number))
    };
    let mut parts = date.split('-');
    let year = whole(parts.next()?, 1970, 9999)?;
    let month = whole(parts.next()?, 1, 12)?;
    let day = whole(parts.next()?, 1, 31)?;
    let mut clock = time.split(':');
    let hour = whole(clock.next()?, 0, 23)?;
    let minute = whole(clock.next()?, 0, 59)?;
    let second = clock.next()?;
    let digits = second.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.');
    let second = second.parse::<f64>().ok().filter(|second| digits && *second < 61.0)?;
    if parts.next().is_some() || clock.next().is_some() {
        return None;
    }
    // Days of the proleptic Gregorian calendar, its years beginning in March so that the leap day comes last.
    let (years, months) = if month > 2 { (year, month - 3) } else { (year - 1, month + 9) };
    let days =
        years * 365 + years / 4 - years / 100 + years / 400 + (months * 153 + 2) / 5 + day - 1 - 719_468;
    Some((days * 86_400 + hour * 3_600 + minute * 60) as f64 + second)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_public_traces_of_azure_are_read() {
        let text = "TIMESTAMP,ContextTokens,GeneratedTokens\r\n2023-11-16 18:17:03.9799600,4808,10\r\n\
                    2023-11-16 18:17:04.0319600,3180,8\r\n";
        let trace = Trace::parse(text).expect("it is right");
        assert_eq!(trace.rows().len(), 2);
        assert_eq!((trace.rows()[0].prompt_tokens, trace.rows()[0].output_tokens), (4808, 10));
        assert_eq!(trace.rows()[0].at_s, 0.0);
        assert!((trace.rows()[1].at_s - 0.052).abs() < 1e-5, "{}", trace.rows()[1].at_s);
        let later = "TIMESTAMP,ContextTokens,GeneratedTokens\n2024-02-28 23:59:59.5+00:00,1,1\n\
                     2024-03-01 00:00:00+00:00,1,1\n";
        let trace = Trace::parse(later).expect("it is right");
        assert_eq!(trace.rows()[1].at_s, 86_400.5, "the leap day counts");
        assert_eq!(date_s("1970-01-01 00:00:00"), Some(0.0));
        assert_eq!(date_s("2000-03-01 00:00:01"), Some(951_868_801.0));
    }

    #[test]
    fn our_own_columns_are_read_in_any_order_with_tenant_and_session() {
        let text = "session,at_s,prompt_tokens,output_tokens,tenant\ns1,2.5,10,20,acme\n,3.0,11,21,\n";
        let trace = Trace::parse(text).expect("it is right");
        let first = &trace.rows()[0];
        assert_eq!(
            (first.at_s, first.tenant.as_deref(), first.session.as_deref()),
            (0.0, Some("acme"), Some("s1"))
        );
        let second = &trace.rows()[1];
        assert_eq!((second.at_s, second.tenant.as_deref(), second.output_tokens), (0.5, None, 21));
        assert_eq!(trace.rate(), 4.0);
    }

    proptest::proptest! {
        #[test]
        fn no_text_makes_the_reader_panic(text in "[0-9a-zA-Z_,.:+ \n\r-]{0,200}", own: bool) {
            let head = "at_s,prompt_tokens,output_tokens\n";
            let azure = "TIMESTAMP,ContextTokens,GeneratedTokens\n";
            let text = format!("{}{text}", if own { head } else { azure });
            if let Ok(trace) = Trace::parse(&text) {
                proptest::prop_assert!(trace.rows().is_sorted_by_key(|row| (row.at_s * 1e6) as u64));
                proptest::prop_assert!(trace.rows().iter().all(|row| row.prompt_tokens > 0));
            }
        }
    }

    #[test]
    fn mistakes_name_line_and_column() {
        let message = |text: &str| Trace::parse(text).expect_err("it is wrong").to_string();
        let head = "at_s,prompt_tokens,output_tokens\n";
        let lines = message(&format!("{head}0,1,1\n1,zwei,1\n"));
        assert!(lines.contains("line 3, column prompt_tokens: is 'zwei'"), "{lines}");
        assert!(message(&format!("{head}-1,1,1\n")).contains("line 2, column at_s"));
        assert!(message(&format!("{head}nan,1,1\n")).contains("column at_s"));
        assert!(message(&format!("{head}1,1,0\n")).contains("column output_tokens: is '0'"));
        assert!(message(&format!("{head}1,1\n")).contains("line 2: has 2 cells"));
        assert!(message(&format!("{head}2,1,1\n1,1,1\n")).contains("line 3, column at_s: is 1.000 s before"));
        assert!(message(head).contains("line 2: is missing"));
        assert!(message("").contains("column"));
        assert!(message("at_s,prompt_tokens\n0,1\n").contains("column output_tokens: is missing"));
        assert!(message("at_s,prompt_tokens,colour\n0,1\n").contains("column colour"));
    }
}
