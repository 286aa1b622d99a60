//! Checks JSON Schemas from requests before anything is compiled or generated.
//!
//! The rule: every keyword is enforced by the grammar compiler, is an annotation, or is refused with its JSON
//! pointer; and depth, size and references are bounded, so that no schema can hang or crash what walks it next.

use serde_json::{Map, Value};

use super::fields::type_name;
use super::json;
use crate::error::ApiError;

/// Most levels of arrays and objects in a schema.
pub(crate) const MAX_SCHEMA_DEPTH: usize = 64;
/// Most subschemas.
const MAX_NODES: usize = 5_000;
/// Most values of all `enum`s together.
const MAX_ENUM_VALUES: usize = 10_000;
/// Longest regular expression in bytes.
const MAX_PATTERN_BYTES: usize = 4_096;
/// Most references followed before a schema is reached.
const MAX_REFERENCES: usize = 32;

/// Keywords whose value is one schema.
const ONE: [&str; 3] = ["items", "additionalItems", "additionalProperties"];
/// Keywords whose value is a list of schemas.
const MANY: [&str; 4] = ["anyOf", "oneOf", "allOf", "prefixItems"];
/// Keywords whose value maps names to schemas.
const NAMED: [&str; 4] = ["properties", "patternProperties", "$defs", "definitions"];
/// Keywords whose value is a count.
const COUNTS: [&str; 6] =
    ["minItems", "maxItems", "minProperties", "maxProperties", "minLength", "maxLength"];
/// Keywords whose value is a number.
const NUMBERS: [&str; 5] = ["minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"];
/// Lower and upper ends of ranges, and whether equal ends leave nothing.
const RANGES: [(&str, &str, bool); 7] = [
    ("minimum", "maximum", false),
    ("exclusiveMinimum", "maximum", true),
    ("minimum", "exclusiveMaximum", true),
    ("exclusiveMinimum", "exclusiveMaximum", true),
    ("minLength", "maxLength", false),
    ("minItems", "maxItems", false),
    ("minProperties", "maxProperties", false),
];
/// Further keywords that are enforced or only describe.
const OTHERS: [&str; 20] = [
    "$ref",
    "const",
    "enum",
    "type",
    "required",
    "pattern",
    "format",
    "$anchor",
    "$schema",
    "$id",
    "id",
    "$comment",
    "title",
    "description",
    "default",
    "readOnly",
    "writeOnly",
    "examples",
    "contentMediaType",
    "contentEncoding",
];
/// Annotations that the grammar compiler doesn't know; they are allowed and left out.
const DROPPED: [&str; 2] = ["deprecated", "$vocabulary"];
/// Keywords of JSON Schema that no grammar here enforces.
const UNENFORCED: [&str; 18] = [
    "not",
    "if",
    "then",
    "else",
    "propertyNames",
    "dependentRequired",
    "dependentSchemas",
    "dependencies",
    "unevaluatedProperties",
    "unevaluatedItems",
    "contains",
    "minContains",
    "maxContains",
    "uniqueItems",
    "$dynamicRef",
    "$dynamicAnchor",
    "$recursiveRef",
    "$recursiveAnchor",
];
/// Types a value can have.
const TYPES: [&str; 7] = ["null", "boolean", "object", "array", "number", "string", "integer"];
/// Formats that the grammar compiler enforces; others are annotations unless the schema is strict.
const FORMATS: [&str; 11] =
    ["date-time", "time", "date", "duration", "email", "hostname", "ipv4", "ipv6", "uuid", "uri", "unknown"];

/// Checks the schema found at `param`. Strict schemas may hold no keyword that isn't known.
pub(crate) fn check(schema: &Value, param: &str, strict: bool) -> Result<(), ApiError> {
    check_depth(schema, param)?;
    if let Value::Bool(false) = schema {
        return Err(ApiError::invalid_schema(param, format!("{param}: the schema false allows no value")));
    }
    let mut walker = Walker { root: schema, param, strict, nodes: 0, enum_values: 0 };
    walker.schema(schema, &mut String::new())
}

/// Refuses values nested deeper than schemas may be.
pub(crate) fn check_depth(value: &Value, param: &str) -> Result<(), ApiError> {
    if json::depth(value) <= MAX_SCHEMA_DEPTH {
        return Ok(());
    }
    let message = format!("{param} is nested deeper than {MAX_SCHEMA_DEPTH} levels; flatten it");
    Err(ApiError::invalid_schema(param, message))
}

/// Checks a regular expression.
pub(crate) fn check_pattern(pattern: &str, param: &str) -> Result<(), ApiError> {
    if pattern.len() > MAX_PATTERN_BYTES {
        let message = format!("{param}: a pattern must have at most {MAX_PATTERN_BYTES} bytes; shorten it");
        return Err(ApiError::invalid_schema(param, message));
    }
    let parsed = regex_syntax::ParserBuilder::new().nest_limit(64).build().parse(pattern);
    let reason = match &parsed {
        Ok(parsed) if parsed.properties().look_set().contains_word() => {
            let message = format!(
                "{param}: the pattern {pattern:?} has a word boundary, which can't be enforced; leave out \\b and \\B"
            );
            return Err(ApiError::invalid_schema(param, message));
        }
        Ok(_) => return Ok(()),
        Err(regex_syntax::Error::Parse(error)) => error.kind().to_string(),
        Err(regex_syntax::Error::Translate(error)) => error.kind().to_string(),
        Err(_) => "it can't be read".to_owned(),
    };
    let message = format!("{param}: the pattern {pattern:?} is no valid regular expression: {reason}");
    Err(ApiError::invalid_schema(param, message))
}

/// The schema without keywords that aren't JSON Schema, which the grammar compiler might read in its own way.
pub(crate) fn without_unknown(mut schema: Value) -> Value {
    strip(&mut schema);
    schema
}

/// Depth is bounded by [`check`].
fn strip(schema: &mut Value) {
    let Value::Object(map) = schema else { return };
    map.retain(|key, value| {
        is_known(key) && !(key == "format" && value.as_str().is_some_and(|format| !FORMATS.contains(&format)))
    });
    for (key, value) in map.iter_mut() {
        let key = key.as_str();
        match value {
            _ if ONE.contains(&key) => strip(value),
            Value::Array(items) if MANY.contains(&key) || key == "items" => items.iter_mut().for_each(strip),
            Value::Object(named) if NAMED.contains(&key) => named.values_mut().for_each(strip),
            _ => {}
        }
    }
}

fn is_known(keyword: &str) -> bool {
    [&ONE[..], &MANY, &NAMED, &COUNTS, &NUMBERS, &OTHERS].iter().any(|list| list.contains(&keyword))
}

struct Walker<'s> {
    root: &'s Value,
    param: &'s str,
    strict: bool,
    nodes: usize,
    enum_values: usize,
}

impl<'s> Walker<'s> {
    fn wrong(&self, pointer: &str, what: &str) -> ApiError {
        let place = if pointer.is_empty() { "/" } else { pointer };
        ApiError::invalid_schema(self.param, format!("{}: invalid schema at {place}: {what}", self.param))
    }

    /// One schema. Depth was checked, so this recursion is bounded.
    fn schema(&mut self, schema: &'s Value, pointer: &mut String) -> Result<(), ApiError> {
        self.nodes += 1;
        if self.nodes > MAX_NODES {
            return Err(self.wrong(pointer, &format!("more than {MAX_NODES} subschemas; make it smaller")));
        }
        match schema {
            Value::Bool(_) => Ok(()),
            Value::Object(map) => {
                map.iter().try_for_each(|(key, value)| self.keyword(key, value, map, pointer))?;
                self.ranges(map, pointer)
            }
            other => {
                let found = type_name(other);
                Err(self.wrong(pointer, &format!("a schema must be an object or a boolean, but is {found}")))
            }
        }
    }

    /// A range that nothing fits is a mistake, and would make a grammar that allows no text.
    fn ranges(&self, map: &Map<String, Value>, pointer: &str) -> Result<(), ApiError> {
        for (low, high, open) in RANGES {
            let number = |key: &str| map.get(key).and_then(Value::as_f64);
            let (Some(least), Some(most)) = (number(low), number(high)) else { continue };
            if least > most || (open && least >= most) {
                let what = format!("{low} ({least}) and {high} ({most}) leave no value; change one of them");
                return Err(self.wrong(&format!("{pointer}/{low}"), &what));
            }
        }
        Ok(())
    }

    fn keyword(
        &mut self,
        key: &'s str,
        value: &'s Value,
        map: &'s Map<String, Value>,
        pointer: &mut String,
    ) -> Result<(), ApiError> {
        if UNENFORCED.contains(&key) && !harmless(key, value) {
            let what = format!("the keyword {key} is not supported; leave it out");
            return Err(self.wrong(&format!("{pointer}/{key}"), &what));
        }
        let before = pointer.len();
        push_pointer(pointer, key);
        let outcome = if MANY.contains(&key) || (key == "items" && value.is_array()) {
            self.many(value, pointer)
        } else if ONE.contains(&key) {
            self.schema(value, pointer)
        } else if NAMED.contains(&key) {
            self.named(key, value, pointer)
        } else {
            self.plain(key, value, map, pointer)
        };
        pointer.truncate(before);
        outcome
    }

    fn many(&mut self, value: &'s Value, pointer: &mut String) -> Result<(), ApiError> {
        let items = value.as_array().filter(|items| !items.is_empty());
        let items = items.ok_or_else(|| self.wrong(pointer, "must be a list of at least one schema"))?;
        for (index, item) in items.iter().enumerate() {
            let before = pointer.len();
            push_pointer(pointer, &index.to_string());
            self.schema(item, pointer)?;
            pointer.truncate(before);
        }
        Ok(())
    }

    fn named(&mut self, key: &str, value: &'s Value, pointer: &mut String) -> Result<(), ApiError> {
        let map = value.as_object().ok_or_else(|| self.wrong(pointer, "must map names to schemas"))?;
        for (name, item) in map {
            let before = pointer.len();
            push_pointer(pointer, name);
            if key == "patternProperties" {
                self.pattern(name, pointer)?;
            }
            self.schema(item, pointer)?;
            pointer.truncate(before);
        }
        Ok(())
    }

    fn plain(
        &mut self,
        key: &str,
        value: &'s Value,
        map: &'s Map<String, Value>,
        pointer: &str,
    ) -> Result<(), ApiError> {
        let expect = |fits: bool, what: &str| if fits { Ok(()) } else { Err(self.wrong(pointer, what)) };
        match key {
            "type" => expect(is_type(value), "must be a type name or a list of them"),
            "required" => expect(is_names(value), "must be a list of property names"),
            "pattern" => match value.as_str() {
                Some(pattern) => self.pattern(pattern, pointer),
                None => expect(false, "must be a string"),
            },
            "format" => {
                let format = value.as_str().ok_or_else(|| self.wrong(pointer, "must be a string"))?;
                let known = FORMATS.contains(&format) || !self.strict;
                expect(known, &format!("the format {format:?} is not supported; leave it out"))
            }
            "enum" => {
                let count = value.as_array().map_or(0, Vec::len);
                self.enum_values += count;
                let fits = count > 0 && self.enum_values <= MAX_ENUM_VALUES;
                if fits { Ok(()) } else { Err(self.wrong(pointer, "must list 1 to 10000 values in all")) }
            }
            "$ref" => self.reference(map, pointer),
            _ if COUNTS.contains(&key) => expect(is_count(value), "must be a whole number from 0 to 100000"),
            _ if NUMBERS.contains(&key) => expect(value.is_number(), "must be a number"),
            _ if is_known(key) || UNENFORCED.contains(&key) || DROPPED.contains(&key) => Ok(()),
            _ => expect(!self.strict, "the keyword is not supported in a strict schema; leave it out"),
        }
    }

    fn pattern(&self, pattern: &str, pointer: &str) -> Result<(), ApiError> {
        check_pattern(pattern, self.param).map_err(|error| {
            ApiError::invalid_schema(self.param, format!("{} (at {pointer})", error.message))
        })
    }

    /// A reference must lead to a schema inside of this document, and not back to itself.
    fn reference(&self, map: &'s Map<String, Value>, pointer: &str) -> Result<(), ApiError> {
        let mut current = map;
        for _ in 0..MAX_REFERENCES {
            let Some(target) = current.get("$ref") else { return Ok(()) };
            let text = target.as_str().ok_or_else(|| self.wrong(pointer, "must be a string"))?;
            let shown: String = text.chars().take(80).collect();
            let inside = text.strip_prefix('#').ok_or_else(|| {
                self.wrong(pointer, &format!("{shown:?} leads out of the schema; only #/… can be followed"))
            })?;
            let found = self.root.pointer(&percent_decoded(inside)).ok_or_else(|| {
                self.wrong(pointer, &format!("{shown:?} leads nowhere; define it under #/$defs"))
            })?;
            let Value::Object(next) = found else { return Ok(()) };
            current = next;
        }
        Err(self.wrong(pointer, "the reference never reaches a schema; break the cycle"))
    }
}

/// Whether an unenforced keyword has a value that demands nothing.
fn harmless(key: &str, value: &Value) -> bool {
    match key {
        "uniqueItems" => *value == Value::Bool(false),
        "$dynamicAnchor" | "$recursiveAnchor" => true,
        _ => false,
    }
}

fn is_type(value: &Value) -> bool {
    let named = |value: &Value| value.as_str().is_some_and(|name| TYPES.contains(&name));
    named(value) || value.as_array().is_some_and(|list| !list.is_empty() && list.iter().all(named))
}

fn is_names(value: &Value) -> bool {
    value.as_array().is_some_and(|list| list.iter().all(Value::is_string))
}

fn is_count(value: &Value) -> bool {
    super::fields::as_integer(value).is_some_and(|count| (0..=100_000).contains(&count))
}

/// Appends one step to a JSON pointer (RFC 6901).
fn push_pointer(pointer: &mut String, step: &str) {
    pointer.push('/');
    pointer.push_str(&step.replace('~', "~0").replace('/', "~1"));
}

/// Undoes percent-coding in a fragment; what isn't well coded stays.
fn percent_decoded(fragment: &str) -> String {
    let bytes = fragment.as_bytes();
    let mut out = Vec::with_capacity(bytes.len());
    let mut at = 0;
    while at < bytes.len() {
        let code = (bytes[at] == b'%').then(|| fragment.get(at + 1..at + 3)).flatten();
        match code.and_then(|code| u8::from_str_radix(code, 16).ok()) {
            Some(byte) => {
                out.push(byte);
                at += 3;
            }
            None => {
                out.push(bytes[at]);
                at += 1;
            }
        }
    }
    String::from_utf8_lossy(&out).into_owned()
}

#[cfg(test)]
mod tests;
