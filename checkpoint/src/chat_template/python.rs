//! What Hugging Face's renderer adds to Jinja: Python's `json.dumps`, `raise_exception` and `strftime_now`.
//!
//! Output matches Python to the byte, since one space more or less is another prompt.

use std::time::{SystemTime, UNIX_EPOCH};

use minijinja::value::{Kwargs, ValueKind};
use minijinja::{Environment, Error, ErrorKind, Output, State, Value};

use super::guard::MAX_DEPTH;

/// The text that a template gave to `raise_exception`.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub(super) struct Raised(pub(super) String);

/// Teaches an environment Python's ways.
pub(super) fn install(env: &mut Environment<'static>) {
    env.set_unknown_method_callback(minijinja_contrib::pycompat::unknown_method_callback);
    env.set_formatter(write_value);
    env.add_filter("tojson", to_json);
    env.add_filter("string", |value: &Value| to_text(value));
    env.add_function("raise_exception", |message: &Value| -> Result<Value, Error> {
        let message = message.to_string();
        Err(Error::new(ErrorKind::InvalidOperation, message.clone()).with_source(Raised(message)))
    });
    env.add_function("strftime_now", |format: &str| strftime(format, unix_time_s()));
}

/// Python's `str()`: only floats differ from the engine's own way.
fn to_text(value: &Value) -> String {
    match float(value) {
        Some(number) => float_text(number),
        None => value.to_string(),
    }
}

fn write_value(out: &mut Output<'_>, state: &mut State<'_, '_>, value: &Value) -> Result<(), Error> {
    match float(value) {
        Some(number) => out.write_str(&float_text(number)).map_err(Error::from),
        None => minijinja::escape_formatter(out, state, value),
    }
}

fn float(value: &Value) -> Option<f64> {
    if value.is_number() && !value.is_integer() { f64::try_from(value.clone()).ok() } else { None }
}

/// Python's `repr` of a float: the shortest digits, an exponent below 1e-4 and from 1e16 on.
fn float_text(number: f64) -> String {
    if number.is_nan() {
        return "NaN".to_owned();
    }
    if number.is_infinite() {
        return if number > 0.0 { "Infinity".to_owned() } else { "-Infinity".to_owned() };
    }
    let scientific = format!("{number:e}");
    let (digits, exponent) = scientific.split_once('e').unwrap_or((&scientific, "0"));
    let exponent: i32 = exponent.parse().unwrap_or(0);
    if number != 0.0 && !(-4..16).contains(&exponent) {
        let sign = if exponent < 0 { '-' } else { '+' };
        return format!("{digits}e{sign}{:02}", exponent.abs());
    }
    let plain = number.to_string();
    if plain.contains('.') { plain } else { plain + ".0" }
}

/// `json.dumps(value, ensure_ascii, indent, separators, sort_keys)` with Hugging Face's defaults.
fn to_json(value: &Value, indent: Option<&Value>, options: Kwargs) -> Result<Value, Error> {
    let ascii: Option<bool> = options.get("ensure_ascii")?;
    let sorted: Option<bool> = options.get("sort_keys")?;
    let named: Option<usize> = options.get("indent")?;
    let separators: Option<(String, String)> = match options.get::<Option<Value>>("separators")? {
        Some(pair) if !pair.is_none() => {
            Some((pair.get_item_by_index(0)?.to_string(), pair.get_item_by_index(1)?.to_string()))
        }
        _ => None,
    };
    options.assert_all_used()?;
    let indent = named.or_else(|| indent.and_then(Value::as_usize)).map(|spaces| spaces.min(16));
    let (item, key) =
        separators.unwrap_or_else(|| (if indent.is_some() { "," } else { ", " }.to_owned(), ": ".to_owned()));
    let mut writer = JsonWriter {
        out: String::new(),
        indent,
        item,
        key,
        ascii: ascii.unwrap_or(false),
        sorted: sorted.unwrap_or(false),
    };
    writer.value(value, 0)?;
    Ok(Value::from_safe_string(writer.out))
}

struct JsonWriter {
    out: String,
    indent: Option<usize>,
    item: String,
    key: String,
    ascii: bool,
    sorted: bool,
}

impl JsonWriter {
    fn value(&mut self, value: &Value, depth: usize) -> Result<(), Error> {
        // A level of the request's JSON is at most one level here; the rest is the template's own nesting.
        if depth > MAX_DEPTH + 16 {
            return Err(Error::new(ErrorKind::BadSerialization, "tojson: the value is nested too deep"));
        }
        match value.kind() {
            ValueKind::None => self.out.push_str("null"),
            ValueKind::Bool => self.out.push_str(if value.is_true() { "true" } else { "false" }),
            ValueKind::Number => self.out.push_str(&to_text(value)),
            ValueKind::String => self.text(value.as_str().unwrap_or_default()),
            ValueKind::Seq | ValueKind::Iterable => self.sequence(value, depth)?,
            ValueKind::Map => self.map(value, depth)?,
            kind => {
                return Err(Error::new(
                    ErrorKind::BadSerialization,
                    format!("{kind} is not JSON serializable"),
                ));
            }
        }
        Ok(())
    }

    fn sequence(&mut self, value: &Value, depth: usize) -> Result<(), Error> {
        self.out.push('[');
        let mut empty = true;
        for item in value.try_iter()? {
            self.begin_item(empty, depth);
            empty = false;
            self.value(&item, depth + 1)?;
        }
        self.end(']', empty, depth);
        Ok(())
    }

    fn map(&mut self, value: &Value, depth: usize) -> Result<(), Error> {
        let mut keys: Vec<Value> = value.try_iter()?.collect();
        if self.sorted {
            keys.sort();
        }
        self.out.push('{');
        let empty = keys.is_empty();
        for (index, key) in keys.iter().enumerate() {
            self.begin_item(index == 0, depth);
            let name = match key.kind() {
                ValueKind::Bool => if key.is_true() { "true" } else { "false" }.to_owned(),
                ValueKind::None => "null".to_owned(),
                _ => to_text(key),
            };
            self.text(&name);
            let between = self.key.clone();
            self.out.push_str(&between);
            self.value(&value.get_item(key)?, depth + 1)?;
        }
        self.end('}', empty, depth);
        Ok(())
    }

    fn begin_item(&mut self, first: bool, depth: usize) {
        if !first {
            let between = self.item.clone();
            self.out.push_str(&between);
        }
        self.new_line(depth + 1);
    }

    fn end(&mut self, close: char, empty: bool, depth: usize) {
        if !empty {
            self.new_line(depth);
        }
        self.out.push(close);
    }

    fn new_line(&mut self, depth: usize) {
        if let Some(spaces) = self.indent {
            self.out.push('\n');
            self.out.extend(std::iter::repeat_n(' ', spaces * depth));
        }
    }

    fn text(&mut self, text: &str) {
        self.out.push('"');
        for c in text.chars() {
            match c {
                '"' => self.out.push_str("\\\""),
                '\\' => self.out.push_str("\\\\"),
                '\n' => self.out.push_str("\\n"),
                '\r' => self.out.push_str("\\r"),
                '\t' => self.out.push_str("\\t"),
                '\u{8}' => self.out.push_str("\\b"),
                '\u{c}' => self.out.push_str("\\f"),
                c if c < ' ' || (self.ascii && !c.is_ascii()) => {
                    for unit in c.encode_utf16(&mut [0; 2]) {
                        self.out.push_str(&format!("\\u{unit:04x}"));
                    }
                }
                c => self.out.push(c),
            }
        }
        self.out.push('"');
    }
}

/// A text as `json.dumps` writes it, without the quotes.
pub(super) fn json_escaped(text: &str) -> String {
    let mut writer = JsonWriter {
        out: String::new(),
        indent: None,
        item: String::new(),
        key: String::new(),
        ascii: false,
        sorted: false,
    };
    writer.text(text);
    writer.out[1..writer.out.len() - 1].to_owned()
}

fn unix_time_s() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}

const MONTHS: [&str; 12] = [
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
];
const WEEKDAYS: [&str; 7] = ["Thursday", "Friday", "Saturday", "Sunday", "Monday", "Tuesday", "Wednesday"];

/// Year, month (1-12), day and day of the year (1-366) of a day counted from 1 January 1970.
fn civil(days: u64) -> (u64, usize, u64, u64) {
    let leap = |year: u64| year.is_multiple_of(4) && (!year.is_multiple_of(100) || year.is_multiple_of(400));
    let mut year = 1970;
    let mut rest = days;
    while rest >= 365 + u64::from(leap(year)) {
        rest -= 365 + u64::from(leap(year));
        year += 1;
    }
    let day_of_year = rest + 1;
    let february = 28 + u64::from(leap(year));
    let mut month = 1;
    for length in [31, february, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31] {
        if rest < length {
            break;
        }
        rest -= length;
        month += 1;
    }
    (year, month, rest + 1, day_of_year)
}

/// The common part of C's strftime, in UTC; an unknown directive stays as it is.
fn strftime(format: &str, unix_s: u64) -> String {
    // The year 9999 bounds the walk over years, whatever the clock says.
    let days = (unix_s / 86_400).min(2_932_896);
    let (year, month, day, day_of_year) = civil(days);
    let (hour, minute, second) = (unix_s / 3600 % 24, unix_s / 60 % 60, unix_s % 60);
    let weekday = WEEKDAYS[(days % 7) as usize];
    let month_name = MONTHS[month - 1];
    let mut out = String::new();
    let mut chars = format.chars();
    while let Some(c) = chars.next() {
        if c != '%' {
            out.push(c);
            continue;
        }
        match chars.next() {
            Some('Y') => out.push_str(&year.to_string()),
            Some('y') => out.push_str(&format!("{:02}", year % 100)),
            Some('m') => out.push_str(&format!("{month:02}")),
            Some('d') => out.push_str(&format!("{day:02}")),
            Some('e') => out.push_str(&format!("{day:2}")),
            Some('j') => out.push_str(&format!("{day_of_year:03}")),
            Some('B') => out.push_str(month_name),
            Some('b' | 'h') => out.push_str(&month_name[..3]),
            Some('A') => out.push_str(weekday),
            Some('a') => out.push_str(&weekday[..3]),
            Some('H') => out.push_str(&format!("{hour:02}")),
            Some('I') => out.push_str(&format!("{:02}", (hour + 11) % 12 + 1)),
            Some('M') => out.push_str(&format!("{minute:02}")),
            Some('S') => out.push_str(&format!("{second:02}")),
            Some('p') => out.push_str(if hour < 12 { "AM" } else { "PM" }),
            Some('F') => out.push_str(&format!("{year}-{month:02}-{day:02}")),
            Some('T') => out.push_str(&format!("{hour:02}:{minute:02}:{second:02}")),
            Some('Z') => out.push_str("UTC"),
            Some('%') => out.push('%'),
            Some(other) => out.extend(['%', other]),
            None => out.push('%'),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn floats_are_written_as_python_writes_them() {
        let cases =
            [(1.0, "1.0"), (0.1, "0.1"), (1e16, "1e+16"), (1.5e-7, "1.5e-07"), (123456.75, "123456.75")];
        for (number, text) in cases {
            assert_eq!(float_text(number), text);
        }
    }

    #[test]
    fn dates_are_those_of_the_calendar() {
        assert_eq!(strftime("%d %b %Y, %A %H:%M:%S %j", 1_709_210_096), "29 Feb 2024, Thursday 12:34:56 060");
        assert_eq!(strftime("%B %e %I%p %% %q %", 0), "January  1 12AM % %q %");
        assert!(strftime("%Y", u64::MAX).starts_with("9999"));
    }
}
