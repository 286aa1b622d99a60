//! Strict reading of a request body.
//!
//! The rule: two readers of one body must never disagree, so duplicate keys, broken text, numbers without a finite
//! value and nesting beyond the limit are refused, before anything recursive touches the bytes.

use std::borrow::Cow;
use std::collections::HashSet;

use serde::Deserialize as _;
use serde_json::Value;

use crate::error::ApiError;

/// Most levels of arrays and objects in a body.
pub const MAX_DEPTH: usize = 128;
/// Keys of one object that are compared one by one; more are hashed.
const LINEAR_KEYS: usize = 24;

/// Reads a body: UTF-8 with or without a byte order mark, at most [`MAX_DEPTH`] levels, no key twice.
pub fn parse(body: &[u8]) -> Result<Value, ApiError> {
    let body = body.strip_prefix(b"\xef\xbb\xbf").unwrap_or(body);
    let text = std::str::from_utf8(body).map_err(|error| {
        let at = error.valid_up_to();
        ApiError::invalid_json(format!("the request body is not valid UTF-8 at byte {at}; send UTF-8"))
    })?;
    Scanner::new(text).scan()?;
    let mut reader = serde_json::Deserializer::from_str(text);
    // The scanner has bounded the depth; serde's own limit of 127 would make ours unreachable.
    reader.disable_recursion_limit();
    let value = Value::deserialize(&mut reader).map_err(|error| malformed(&error))?;
    reader.end().map_err(|error| malformed(&error))?;
    Ok(value)
}

fn malformed(error: &serde_json::Error) -> ApiError {
    ApiError::invalid_json(format!("the request body is not valid JSON: {error}"))
}

/// Levels of arrays and objects in a value; a scalar has none. Values are bounded by [`parse`].
pub(crate) fn depth(value: &Value) -> usize {
    match value {
        Value::Array(items) => 1 + items.iter().map(depth).max().unwrap_or(0),
        Value::Object(map) => 1 + map.values().map(depth).max().unwrap_or(0),
        _ => 0,
    }
}

/// One open array or object.
struct Frame<'t> {
    /// Index of the element for arrays; unused for objects.
    index: usize,
    object: bool,
    /// Where this object's keys begin in the scanner's list.
    first_key: usize,
    /// The same keys, once there are many.
    hashed: Option<HashSet<Cow<'t, str>>>,
    /// Whether the next string is a key.
    expects_key: bool,
}

/// Walks the tokens of a text without recursion. On text that isn't JSON it may stop anywhere; the parser that
/// follows refuses it.
struct Scanner<'t> {
    text: &'t str,
    at: usize,
    frames: Vec<Frame<'t>>,
    keys: Vec<Cow<'t, str>>,
}

impl<'t> Scanner<'t> {
    fn new(text: &'t str) -> Self {
        Self { text, at: 0, frames: Vec::new(), keys: Vec::new() }
    }

    fn scan(mut self) -> Result<(), ApiError> {
        let bytes = self.text.as_bytes();
        while let Some(byte) = bytes.get(self.at) {
            match byte {
                b'{' | b'[' => self.open(*byte == b'{')?,
                b'}' | b']' => {
                    if let Some(frame) = self.frames.pop() {
                        self.keys.truncate(frame.first_key);
                    }
                    self.at += 1;
                }
                b',' => {
                    if let Some(frame) = self.frames.last_mut() {
                        frame.index += 1;
                        frame.expects_key = frame.object;
                    }
                    self.at += 1;
                }
                b'"' => self.string()?,
                b'-' | b'0'..=b'9' => self.number()?,
                _ => self.at += 1,
            }
        }
        Ok(())
    }

    fn open(&mut self, object: bool) -> Result<(), ApiError> {
        if self.frames.len() == MAX_DEPTH {
            let message = format!("the request body is nested deeper than {MAX_DEPTH} levels; flatten it");
            return Err(ApiError::invalid_json(message).with_param(self.path()));
        }
        let first_key = self.keys.len();
        self.frames.push(Frame { index: 0, object, first_key, hashed: None, expects_key: object });
        self.at += 1;
        Ok(())
    }

    fn string(&mut self) -> Result<(), ApiError> {
        let bytes = self.text.as_bytes();
        let start = self.at;
        let (mut end, mut escaped) = (start + 1, false);
        loop {
            match bytes.get(end) {
                None | Some(b'"') => break,
                Some(b'\\') => {
                    escaped = true;
                    end += 2;
                }
                Some(_) => end += 1,
            }
        }
        self.at = (end + 1).min(bytes.len());
        let is_key = self.frames.last().is_some_and(|frame| frame.expects_key);
        if !is_key || end >= bytes.len() {
            return Ok(());
        }
        let key = if escaped {
            // Names are compared as they read: `mod\u0065l` is `model`. A broken escape is the parser's to report.
            serde_json::from_str::<String>(&self.text[start..=end]).map_err(|error| malformed(&error))?.into()
        } else {
            Cow::Borrowed(&self.text[start + 1..end])
        };
        self.key(key)
    }

    fn key(&mut self, key: Cow<'t, str>) -> Result<(), ApiError> {
        let Some(frame) = self.frames.last_mut() else { return Ok(()) };
        frame.expects_key = false;
        let known = &self.keys[frame.first_key..];
        let seen = match &mut frame.hashed {
            Some(set) => !set.insert(key.clone()),
            None if known.len() < LINEAR_KEYS => known.contains(&key),
            None => {
                let mut set: HashSet<_> = known.iter().cloned().collect();
                let seen = !set.insert(key.clone());
                frame.hashed = Some(set);
                seen
            }
        };
        self.keys.push(key);
        if seen {
            let path = self.path();
            let message = format!("the key {path:?} appears twice in the request body; send it once");
            return Err(ApiError::invalid_json(message).with_code("duplicate_key").with_param(path));
        }
        Ok(())
    }

    fn number(&mut self) -> Result<(), ApiError> {
        let rest = &self.text.as_bytes()[self.at..];
        let len =
            rest.iter().take_while(|b| matches!(b, b'-' | b'+' | b'.' | b'e' | b'E' | b'0'..=b'9')).count();
        let number = &self.text[self.at..self.at + len];
        self.at += len;
        let infinite = number.parse::<f64>().is_ok_and(|value| !value.is_finite());
        if infinite {
            let path = self.path();
            let shown: String = number.chars().take(40).collect();
            return Err(ApiError::invalid(
                path.clone(),
                format!("{path}: the number {shown} is out of range"),
            ));
        }
        Ok(())
    }

    /// The place that is being read, such as `messages[0].content`, cut where it gets long.
    fn path(&self) -> String {
        let mut path = String::new();
        for (level, frame) in self.frames.iter().enumerate() {
            if path.len() > 200 {
                path.push('…');
                break;
            }
            if frame.object {
                let end = self.frames.get(level + 1).map_or(self.keys.len(), |next| next.first_key);
                if let Some(key) = self.keys[frame.first_key..end].last() {
                    let dot = if path.is_empty() { "" } else { "." };
                    path.extend([dot, key.as_ref()]);
                }
            } else {
                path.push_str(&format!("[{}]", frame.index));
            }
        }
        path
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn code(body: impl AsRef<[u8]>) -> Option<String> {
        parse(body.as_ref()).err().map(|error| {
            assert_eq!(error.status.as_u16(), 400);
            assert_eq!(error.kind, "invalid_request_error");
            error.code.unwrap().into_owned()
        })
    }

    #[test]
    fn c_input_parsing_01_a_lone_surrogate_is_refused_and_a_pair_is_one_character() {
        for bad in [r#"{"a":"cut here \ud83e"}"#, r#"{"a":"\udd84 tail"}"#, r#"{"\ud83e":1}"#] {
            assert_eq!(code(bad).as_deref(), Some("invalid_json"), "{bad}");
        }
        let value = parse(br#"{"a":"fine \ud83e\udd84"}"#).unwrap();
        assert_eq!(value["a"], "fine 🦄");
    }

    #[test]
    fn c_input_parsing_02_a_key_that_appears_twice_is_refused_at_any_depth() {
        for bad in [
            r#"{"model":"small","model":"large","messages":[]}"#,
            r#"{"model":"small","mod\u0065l":"large"}"#,
            r#"{"x":[{"y":{"k":1,"z":[],"k":2}}]}"#,
            r#"{"x":{"a":1}, "y":[1,2], "x":0}"#,
        ] {
            assert_eq!(code(bad).as_deref(), Some("duplicate_key"), "{bad}");
        }
        let many: Vec<String> = (0..200).map(|n| format!("\"k{n}\":{n}")).collect();
        assert!(parse(format!("{{{}}}", many.join(",")).as_bytes()).is_ok());
        assert_eq!(code(format!("{{{},\"k7\":1}}", many.join(","))).as_deref(), Some("duplicate_key"));
        let deep = parse(br#"{"x":[{"y":{"k":1,"k":2}}]}"#).unwrap_err();
        assert_eq!(deep.param.as_deref(), Some("x[0].y.k"));
        assert!(parse(br#"[{"a":1},{"a":2},{"b":{"a":3}}]"#).is_ok());
    }

    #[test]
    fn c_input_parsing_03_deep_nesting_is_refused_quickly_and_the_limit_is_sharp() {
        let arrays = |n: usize| format!("{}{}", "[".repeat(n), "]".repeat(n));
        assert!(parse(arrays(128).as_bytes()).is_ok());
        for n in [129, 4_000, 100_000] {
            assert_eq!(code(arrays(n)).as_deref(), Some("invalid_json"));
            assert_eq!(code("{\"a\":".repeat(n)).as_deref(), Some("invalid_json"));
        }
        let objects = format!("{}1{}", "{\"a\":".repeat(128), "}".repeat(128));
        assert_eq!(depth(&parse(objects.as_bytes()).unwrap()), 128);
    }

    #[test]
    fn c_input_parsing_04_bytes_that_are_no_utf8_are_refused_and_a_bom_is_skipped() {
        for bad in [b"\xff".as_slice(), b"\xe4\xbd", b"\xc0\x80", b"\xed\xa0\x80"] {
            let body = [b"{\"a\":\"".as_slice(), bad, b"\"}"].concat();
            assert_eq!(code(body).as_deref(), Some("invalid_json"));
        }
        assert_eq!(parse(b"\xef\xbb\xbf{\"a\":1}").unwrap()["a"], 1);
        assert_eq!(parse(br#"{"a":"\u0000"}"#).unwrap()["a"], "\0");
    }

    #[test]
    fn a_number_out_of_range_is_named() {
        let error = parse(br#"{"x":[1,{"temperature":1e999}]}"#).unwrap_err();
        assert_eq!(error.param.as_deref(), Some("x[1].temperature"));
        assert!(parse(br#"{"t":1e308,"s":18446744073709551616}"#).is_ok());
    }

    #[test]
    fn what_is_no_json_is_refused() {
        for bad in
            ["", " ", "{", "{\"a\"", "nul", "{\"a\":NaN}", "{} {}", "[1,]", "{\"a\":1,}", "\"\\", "'a'"]
        {
            assert_eq!(code(bad).as_deref(), Some("invalid_json"), "{bad}");
        }
    }

    proptest! {
        #[test]
        fn no_bytes_make_it_panic(body in prop::collection::vec(any::<u8>(), 0..200)) {
            let _ = parse(&body).is_ok();
        }

        #[test]
        fn no_json_like_text_makes_it_panic(body in "[\\[\\]{},:\"\\\\a1eE.+-]{0,60}") {
            let _ = parse(body.as_bytes()).is_ok();
        }
    }
}
