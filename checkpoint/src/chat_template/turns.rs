//! Fits a conversation to a template that is strict about turns, without losing or reordering what was said.
//!
//! Each arrangement is tried in order and only if the one before was refused: as sent; neighbours of one role
//! merged; all system turns merged at the front; the system text at the head of the first user turn.

use serde_json::{Map, Value as Json};

/// What merged turns have between them.
const BETWEEN: &str = "\n\n";

/// A way to arrange the turns.
type Arrangement = fn(&[Json]) -> Vec<Json>;

/// Ways to arrange turns that were refused as they are, from the most to the least faithful.
pub(super) const ARRANGEMENTS: [Arrangement; 3] = [merge_neighbours, system_first, system_in_user];

/// What a template knows of.
#[derive(Debug, Clone, Copy)]
pub(super) struct Knows {
    pub(super) developer: bool,
    pub(super) tool_calls: bool,
}

pub(super) fn role(message: &Json) -> &str {
    message.get("role").and_then(Json::as_str).unwrap_or_default()
}

/// Whether a turn instructs the model.
pub(super) fn instructs(message: &Json) -> bool {
    matches!(role(message), "system" | "developer")
}

/// Brings messages into the shape that templates are written for.
pub(super) fn prepare(messages: &[Json], knows: Knows) -> Vec<Json> {
    messages.iter().map(|message| prepare_one(message, knows)).collect()
}

fn prepare_one(message: &Json, knows: Knows) -> Json {
    let Json::Object(map) = message else { return message.clone() };
    let mut map = map.clone();
    if !knows.developer && role(message) == "developer" {
        map.insert("role".to_owned(), Json::from("system"));
    }
    let silent = map.get("content").is_none_or(Json::is_null);
    if silent {
        // A template that knows no tool calls joins the content with text, which fails on null.
        let content = if knows.tool_calls { Json::Null } else { Json::from("") };
        map.insert("content".to_owned(), content);
    }
    if let Some(Json::Array(calls)) = map.get_mut("tool_calls") {
        calls.iter_mut().for_each(parse_arguments);
    }
    Json::Object(map)
}

/// OpenAI sends arguments as a string of JSON; templates expect the object itself.
fn parse_arguments(call: &mut Json) {
    let Some(Json::Object(function)) = call.get_mut("function") else { return };
    let Some(Json::String(text)) = function.get("arguments") else { return };
    if let Ok(object @ Json::Object(_)) = serde_json::from_str(text) {
        function.insert("arguments".to_owned(), object);
    }
}

/// Merges each turn into the one before it if both have one role and speaker.
fn merge_neighbours(messages: &[Json]) -> Vec<Json> {
    let mut out: Vec<Json> = Vec::with_capacity(messages.len());
    for message in messages {
        match out.last_mut() {
            Some(last) if mergeable(last, message) => append(last, message),
            _ => out.push(message.clone()),
        }
    }
    out
}

fn mergeable(last: &Json, next: &Json) -> bool {
    let same = role(last) == role(next) || (instructs(last) && instructs(next));
    let calls = last.get("tool_calls").and_then(Json::as_array).is_some_and(|calls| !calls.is_empty());
    same && role(next) != "tool" && !calls && last.get("name") == next.get("name")
}

/// Adds a turn's content to another's, and its other fields where they are free.
fn append(last: &mut Json, next: &Json) {
    let (Some(last), Some(next)) = (last.as_object_mut(), next.as_object()) else { return };
    let joined = join(last.get("content"), next.get("content"));
    last.insert("content".to_owned(), joined);
    for (key, value) in next {
        if !last.contains_key(key) {
            last.insert(key.clone(), value.clone());
        }
    }
}

fn join(first: Option<&Json>, second: Option<&Json>) -> Json {
    let empty = |content: &&Json| content.is_null() || content.as_str() == Some("");
    match (first.filter(|c| !empty(c)), second.filter(|c| !empty(c))) {
        (None, None) => Json::from(""),
        (Some(only), None) | (None, Some(only)) => only.clone(),
        (Some(Json::String(first)), Some(Json::String(second))) => {
            Json::from(format!("{first}{BETWEEN}{second}"))
        }
        (Some(first), Some(second)) => Json::Array(parts(first).into_iter().chain(parts(second)).collect()),
    }
}

fn parts(content: &Json) -> Vec<Json> {
    match content {
        Json::Array(parts) => parts.clone(),
        Json::String(text) => {
            let mut part = Map::new();
            part.insert("type".to_owned(), Json::from("text"));
            part.insert("text".to_owned(), Json::from(text.as_str()));
            vec![Json::Object(part)]
        }
        other => vec![other.clone()],
    }
}

/// All instructions in their order as one first turn, then the rest.
fn system_first(messages: &[Json]) -> Vec<Json> {
    let (system, rest): (Vec<&Json>, Vec<&Json>) = messages.iter().partition(|message| instructs(message));
    let ordered: Vec<Json> = system.into_iter().chain(rest).cloned().collect();
    merge_neighbours(&ordered)
}

/// For templates without a system turn: the instructions head the first user turn.
fn system_in_user(messages: &[Json]) -> Vec<Json> {
    let mut turns = system_first(messages);
    let is_user = |message: &Json| role(message) == "user";
    if turns.first().is_some_and(instructs) && turns.get(1).is_some_and(is_user) {
        let user = turns.remove(1);
        turns[0]["role"] = Json::from("user");
        append(&mut turns[0], &user);
    }
    turns
}

/// The texts of a turn's content.
pub(super) fn texts(message: &Json) -> Vec<&str> {
    match message.get("content") {
        Some(Json::String(text)) => vec![text],
        Some(Json::Array(parts)) => parts.iter().filter_map(|part| part.get("text")?.as_str()).collect(),
        _ => Vec::new(),
    }
}
