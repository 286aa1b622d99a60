//! Typed reading of request fields.
//!
//! The rule: null is absent, `5.0` is an integer, and a wrong type or range is a 400 that names the field's path.

use serde_json::{Map, Value};

use crate::error::ApiError;

/// Integers up to here are exact when they come as floats.
const EXACT_FLOAT: f64 = 9_007_199_254_740_992.0;

/// The fields of one object, with the path that leads to it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Fields<'v> {
    map: &'v Map<String, Value>,
    path: &'v str,
}

/// What a value is, in words for an error.
pub(crate) fn type_name(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "a boolean",
        Value::Number(number) if number.is_f64() => "a number with a fraction or out of range",
        Value::Number(_) => "an integer",
        Value::String(_) => "a string",
        Value::Array(_) => "an array",
        Value::Object(_) => "an object",
    }
}

/// An integer, also when it is written as `5.0`.
pub(crate) fn as_integer(value: &Value) -> Option<i64> {
    let number = value.as_number()?;
    number.as_i64().or_else(|| {
        let float = number.as_f64().filter(|_| number.is_f64())?;
        (float.fract() == 0.0 && float.abs() <= EXACT_FLOAT).then_some(float as i64)
    })
}

impl<'v> Fields<'v> {
    /// The fields of a body's top level.
    pub(crate) fn top(body: &'v Value) -> Result<Self, ApiError> {
        let map = body.as_object().ok_or_else(|| {
            let found = type_name(body);
            ApiError::invalid_json(format!("the request body must be a JSON object, but is {found}"))
        })?;
        Ok(Self { map, path: "" })
    }

    /// The fields of the object at `path`.
    pub(crate) fn of(value: &'v Value, path: &'v str) -> Result<Self, ApiError> {
        let map =
            value.as_object().ok_or_else(|| ApiError::invalid_type(path, "an object", type_name(value)))?;
        Ok(Self { map, path })
    }

    /// Full path of a field.
    pub(crate) fn path_of(&self, name: &str) -> String {
        if self.path.is_empty() { name.to_owned() } else { format!("{}.{name}", self.path) }
    }

    /// Names of all fields, null ones too.
    pub(crate) fn names(&self) -> impl Iterator<Item = &'v str> {
        self.map.keys().map(String::as_str)
    }

    /// The value, unless absent or null.
    pub(crate) fn get(&self, name: &str) -> Option<&'v Value> {
        self.map.get(name).filter(|value| !value.is_null())
    }

    fn wrong(&self, name: &str, expected: &str, value: &Value) -> ApiError {
        ApiError::invalid_type(self.path_of(name), expected, type_name(value))
    }

    pub(crate) fn bool(&self, name: &str) -> Result<Option<bool>, ApiError> {
        let Some(value) = self.get(name) else { return Ok(None) };
        value.as_bool().map(Some).ok_or_else(|| self.wrong(name, "a boolean", value))
    }

    pub(crate) fn string(&self, name: &str) -> Result<Option<&'v str>, ApiError> {
        let Some(value) = self.get(name) else { return Ok(None) };
        value.as_str().map(Some).ok_or_else(|| self.wrong(name, "a string", value))
    }

    pub(crate) fn array(&self, name: &str) -> Result<Option<&'v [Value]>, ApiError> {
        let Some(value) = self.get(name) else { return Ok(None) };
        value
            .as_array()
            .map(|items| Some(items.as_slice()))
            .ok_or_else(|| self.wrong(name, "an array", value))
    }

    pub(crate) fn object(&self, name: &str) -> Result<Option<&'v Map<String, Value>>, ApiError> {
        let Some(value) = self.get(name) else { return Ok(None) };
        value.as_object().map(Some).ok_or_else(|| self.wrong(name, "an object", value))
    }

    /// An integer in a range; outside of it the error names both ends.
    pub(crate) fn integer(&self, name: &str, min: i64, max: i64) -> Result<Option<i64>, ApiError> {
        let Some(value) = self.get(name) else { return Ok(None) };
        let number = as_integer(value).ok_or_else(|| self.wrong(name, "an integer", value))?;
        if (min..=max).contains(&number) {
            return Ok(Some(number));
        }
        let path = self.path_of(name);
        let message = match (min, max) {
            (min, i64::MAX) => format!("{path} must be at least {min}, but is {number}"),
            _ => format!("{path} must be between {min} and {max}, but is {number}"),
        };
        Err(ApiError::invalid(path, message))
    }

    /// An integer in a range of `u32`.
    pub(crate) fn count(&self, name: &str, min: u32, max: u32) -> Result<Option<u32>, ApiError> {
        let number = self.integer(name, i64::from(min), i64::from(max))?;
        Ok(number.and_then(|number| u32::try_from(number).ok()))
    }

    /// A finite number in a range.
    pub(crate) fn number(&self, name: &str, min: f64, max: f64) -> Result<Option<f64>, ApiError> {
        let Some(value) = self.get(name) else { return Ok(None) };
        let number = value.as_f64().ok_or_else(|| self.wrong(name, "a number", value))?;
        if number >= min && number <= max {
            return Ok(Some(number));
        }
        let path = self.path_of(name);
        Err(ApiError::invalid(&*path, format!("{path} must be between {min} and {max}, but is {number}")))
    }

    /// One of a closed set of words.
    pub(crate) fn one_of(&self, name: &str, words: &[&str]) -> Result<Option<&'v str>, ApiError> {
        let Some(word) = self.string(name)? else { return Ok(None) };
        if words.contains(&word) {
            return Ok(Some(word));
        }
        let path = self.path_of(name);
        let shown: String = word.chars().take(60).collect();
        let message = format!("{path} must be one of {}, but is {shown:?}", words.join(", "));
        Err(ApiError::invalid(path, message))
    }

    /// A string of bounded length in characters.
    pub(crate) fn short_string(&self, name: &str, max_chars: usize) -> Result<Option<&'v str>, ApiError> {
        let Some(text) = self.string(name)? else { return Ok(None) };
        if text.chars().nth(max_chars).is_none() {
            return Ok(Some(text));
        }
        let path = self.path_of(name);
        let message = format!("{path} must have at most {max_chars} characters; shorten it");
        Err(ApiError::invalid(path, message))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn null_is_absent_and_a_whole_float_is_an_integer() {
        let body = json!({"a": null, "b": 5.0, "c": 5.5, "d": "5", "e": 1e20, "f": true});
        let fields = Fields::top(&body).unwrap();
        assert_eq!(fields.integer("a", 0, 9).unwrap(), None);
        assert_eq!(fields.integer("b", 0, 9).unwrap(), Some(5));
        for bad in ["c", "d", "e", "f"] {
            let error = fields.integer(bad, 0, i64::MAX).unwrap_err();
            assert_eq!((error.param.as_deref(), error.code.as_deref()), (Some(bad), Some("invalid_type")));
        }
        assert_eq!(fields.integer("b", 6, 9).unwrap_err().code.as_deref(), Some("invalid_value"));
        assert_eq!(fields.number("b", 0.0, 9.0).unwrap(), Some(5.0));
    }

    #[test]
    fn errors_carry_the_whole_path() {
        let value = json!({"role": 7});
        let fields = Fields::of(&value, "messages[3]").unwrap();
        assert_eq!(fields.string("role").unwrap_err().param.as_deref(), Some("messages[3].role"));
        assert_eq!(Fields::of(&json!(1), "tools[0]").unwrap_err().param.as_deref(), Some("tools[0]"));
    }
}
