//! Turns a request's JSON into template values in which no added token of the model can be read.
//!
//! Contents are data: after the first character of anything that reads as an added token stands the guard, a
//! noncharacter found nowhere in the request. It is taken out again when the prompt becomes ids or text.

use minijinja::Value;
use serde_json::Value as Json;

use super::error::TemplateError;
use crate::tokenizer::AddedTokens;

/// The most levels of JSON below one field.
pub(super) const MAX_DEPTH: usize = 160;

/// The noncharacters a guard is chosen from; no text in any language holds one.
const GUARDS: std::ops::RangeInclusive<char> = '\u{FDD0}'..='\u{FDEF}';

/// How much a text is trusted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Trust {
    /// What an assistant said: `<think>` or `<tool_call>` may be its own marks, control tokens may not.
    Assistant,
    /// Anything else: no added token is believed.
    Data,
}

/// Chooses the guard of one request and puts it in.
pub(super) struct Guard<'t> {
    added: &'t AddedTokens,
    mark: char,
}

/// Which guards a text rules out, one bit each.
fn taken(text: &str) -> u32 {
    text.chars()
        .filter(|c| GUARDS.contains(c))
        .fold(0, |bits, c| bits | 1 << (c as u32 - *GUARDS.start() as u32))
}

/// Which guards a value rules out, in keys as well as in texts.
fn taken_in(value: &Json, field: &str, depth: usize) -> Result<u32, TemplateError> {
    if depth == 0 {
        return Err(TemplateError::TooDeep { field: field.to_owned(), limit: MAX_DEPTH });
    }
    match value {
        Json::String(text) => Ok(taken(text)),
        Json::Array(items) => {
            items.iter().try_fold(0, |bits, item| Ok(bits | taken_in(item, field, depth - 1)?))
        }
        Json::Object(map) => map
            .iter()
            .try_fold(0, |bits, (key, item)| Ok(bits | taken(key) | taken_in(item, field, depth - 1)?)),
        Json::Null | Json::Bool(_) | Json::Number(_) => Ok(0),
    }
}

impl<'t> Guard<'t> {
    /// Chooses a guard that neither the template nor any value holds, and checks how deep the values are.
    pub(super) fn choose<'v>(
        added: &'t AddedTokens,
        template: &str,
        values: impl Iterator<Item = (&'v str, &'v Json)>,
    ) -> Result<Self, TemplateError> {
        let mut bits = taken(template);
        for (field, value) in values {
            bits |= taken_in(value, field, MAX_DEPTH)?;
        }
        let mark = GUARDS.clone().nth(bits.trailing_ones() as usize).ok_or(TemplateError::NoGuardLeft)?;
        Ok(Self { added, mark })
    }

    pub(super) fn mark(&self) -> char {
        self.mark
    }

    /// One text with the guard wherever an added token could be read, or could begin at its end.
    pub(super) fn text(&self, text: &str, trust: Trust) -> String {
        let mut places = Vec::new();
        let mut from = 0;
        while let Some(found) = self.added.find(text, from) {
            from = found.start + first_len(&text[found.start..]);
            // White space that is a token of its own steers nothing, and templates trim and split at it.
            let blank = text[found.start..found.end].trim().is_empty();
            if !blank && (found.control || trust == Trust::Data) {
                places.push(from);
            }
        }
        if let Some(start) = self.added.unfinished_at_end(text) {
            let at = start + first_len(&text[start..]);
            // A letter or a space may end an innocent word that the template compares or trims.
            if text[start..].starts_with(|c: char| c.is_ascii_punctuation()) && places.last() < Some(&at) {
                places.push(at);
            }
        }
        let mut out = String::with_capacity(text.len() + places.len() * self.mark.len_utf8());
        let mut done = 0;
        for at in places {
            out.push_str(&text[done..at]);
            out.push(self.mark);
            done = at;
        }
        out.push_str(&text[done..]);
        out
    }

    /// A JSON value as a template value. Depth was checked by [`Self::choose`].
    pub(super) fn value(&self, json: &Json, trust: Trust) -> Value {
        match json {
            Json::Null => Value::from(()),
            Json::Bool(yes) => Value::from(*yes),
            Json::Number(number) => number_value(number),
            Json::String(text) => Value::from(self.text(text, trust)),
            Json::Array(items) => items.iter().map(|item| self.value(item, trust)).collect(),
            Json::Object(map) => Value::from_pairs(
                map.iter().map(|(key, item)| (self.text(key, Trust::Data), self.value(item, trust))),
            ),
        }
    }

    /// A message, whose content is trusted according to its role.
    pub(super) fn message(&self, message: &Json) -> Value {
        let Json::Object(map) = message else { return self.value(message, Trust::Data) };
        let assistant = map.get("role").and_then(Json::as_str) == Some("assistant");
        Value::from_pairs(map.iter().map(|(key, item)| {
            let trust = match key.as_str() {
                "content" | "reasoning_content" if assistant => Trust::Assistant,
                _ => Trust::Data,
            };
            (self.text(key, Trust::Data), self.value(item, trust))
        }))
    }
}

/// How many bytes the first character takes.
fn first_len(text: &str) -> usize {
    text.chars().next().map_or(0, char::len_utf8)
}

fn number_value(number: &serde_json::Number) -> Value {
    if let Some(whole) = number.as_i64() {
        Value::from(whole)
    } else if let Some(whole) = number.as_u64() {
        Value::from(whole)
    } else {
        Value::from(number.as_f64().unwrap_or(f64::NAN))
    }
}
