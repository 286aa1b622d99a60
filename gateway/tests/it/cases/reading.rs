//! One view of an answer, however it came. The rule: a streamed answer is put together from its frames and held
//! to the rules of every stream on the way, so that tests compare it with the whole one field by field.

use serde_json::{Value, json};

use crate::cases::raw_http::Answer;
use crate::cases::sse::{Event, events};

/// One call of a tool.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Call {
    pub(crate) id: String,
    pub(crate) name: String,
    pub(crate) arguments: String,
}

/// One choice.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Choice {
    pub(crate) text: String,
    pub(crate) reasoning: String,
    pub(crate) finish: String,
    pub(crate) calls: Vec<Call>,
    /// Chat: the entries. Completions: the object of arrays, put together.
    pub(crate) logprobs: Value,
}

/// A whole answer, streamed or not.
#[derive(Clone, Debug)]
pub(crate) struct Reading {
    pub(crate) choices: Vec<Choice>,
    pub(crate) usage: Value,
    pub(crate) id: String,
    /// Frames of a stream; empty for a whole answer.
    pub(crate) frames: Vec<Value>,
}

impl Reading {
    #[track_caller]
    pub(crate) fn of(answer: &Answer) -> Self {
        assert_eq!(answer.status(), 200, "{}", answer.text());
        assert!(answer.whole, "the body was cut: {}", answer.text());
        match answer.head.header("content-type") {
            Some("application/json") => whole(&answer.json()),
            Some("text/event-stream; charset=utf-8") => {
                assert_eq!(answer.head.header("cache-control"), Some("no-cache, no-transform"));
                assert_eq!(answer.head.header("x-accel-buffering"), Some("no"));
                streamed(answer.text())
            }
            other => panic!("content type {other:?}"),
        }
    }

    #[track_caller]
    pub(crate) fn only(&self) -> &Choice {
        assert_eq!(self.choices.len(), 1);
        &self.choices[0]
    }

    pub(crate) fn completion_tokens(&self) -> u64 {
        self.usage["completion_tokens"].as_u64().expect("usage was asked for")
    }
}

const FINISHES: [&str; 4] = ["stop", "length", "tool_calls", "function_call"];

#[track_caller]
fn whole(body: &Value) -> Reading {
    let chat = body["object"] == "chat.completion";
    assert!(chat || body["object"] == "text_completion", "{body}");
    check_usage(&body["usage"]);
    let choices = body["choices"].as_array().expect("choices is a list");
    let choices = choices.iter().enumerate().map(|(index, choice)| {
        assert_eq!(choice["index"], index, "{body}");
        assert!(FINISHES.contains(&choice["finish_reason"].as_str().unwrap_or_default()), "{body}");
        let mut out =
            Choice { finish: text(&choice["finish_reason"]), logprobs: Value::Null, ..Choice::default() };
        if chat {
            let message = &choice["message"];
            assert_eq!(message["role"], "assistant");
            assert!(message.get("content").is_some() && message.get("refusal").is_some(), "{body}");
            out.text = text(&message["content"]);
            out.reasoning = text(&message["reasoning_content"]);
            assert_eq!(message.get("reasoning"), message.get("reasoning_content"));
            if let Some(calls) = message.get("tool_calls") {
                out.calls = calls.as_array().expect("a list").iter().map(call).collect();
                assert!(!out.calls.is_empty(), "{body}");
            }
            out.logprobs = choice["logprobs"]["content"].clone();
        } else {
            out.text = choice["text"].as_str().expect("text is a string").to_owned();
            out.logprobs = choice["logprobs"].clone();
        }
        out
    });
    Reading {
        choices: choices.collect(),
        usage: body["usage"].clone(),
        id: text(&body["id"]),
        frames: Vec::new(),
    }
}

fn call(call: &Value) -> Call {
    assert_eq!(call["type"], "function");
    let field = |value: &Value| value.as_str().expect("a string").to_owned();
    Call {
        id: field(&call["id"]),
        name: field(&call["function"]["name"]),
        arguments: field(&call["function"]["arguments"]),
    }
}

fn text(value: &Value) -> String {
    value.as_str().unwrap_or_default().to_owned()
}

#[track_caller]
pub(crate) fn check_usage(usage: &Value) {
    let number = |key: &str| usage[key].as_u64().unwrap_or_else(|| panic!("{key} in {usage}"));
    assert_eq!(number("total_tokens"), number("prompt_tokens") + number("completion_tokens"), "{usage}");
}

#[track_caller]
fn streamed(body: &str) -> Reading {
    let events = events(body);
    assert!(body.ends_with("data: [DONE]\n\n"), "{body:?}");
    assert_eq!(events.iter().filter(|event| **event == Event::Done).count(), 1);
    let frames: Vec<Value> = events
        .into_iter()
        .filter_map(|event| if let Event::Data(value) = event { Some(value) } else { None })
        .collect();
    let mut reading = Reading {
        choices: Vec::new(),
        usage: Value::Null,
        id: text(&frames[0]["id"]),
        frames: frames.clone(),
    };
    let chat = frames[0]["object"] == "chat.completion.chunk";
    assert!(chat || frames[0]["object"] == "text_completion", "{body}");
    for (at, frame) in frames.iter().enumerate() {
        for key in ["id", "created", "model", "object"] {
            assert_eq!(frame[key], frames[0][key], "{key} changes: {body}");
        }
        assert!(reading.usage.is_null(), "a frame after the usage frame: {body}");
        let choices = frame["choices"].as_array().expect("choices is always a list");
        if choices.is_empty() {
            assert_eq!(at, frames.len() - 1, "the usage frame is not the last: {body}");
            check_usage(&frame["usage"]);
            reading.usage = frame["usage"].clone();
        }
        for choice in choices {
            let index = choice["index"].as_u64().expect("every choice has its index") as usize;
            // Completions have no first frames, so their choices begin in any order.
            if !chat && index >= reading.choices.len() {
                reading.choices.resize(index + 1, Choice::default());
            }
            if chat && index == reading.choices.len() {
                reading.choices.push(Choice::default());
                assert_eq!(
                    choice["delta"]["role"], "assistant",
                    "the first frame of {index} has no role: {body}"
                );
            } else {
                assert!(choice["delta"].get("role").is_none(), "a second role: {body}");
            }
            assert!(index < reading.choices.len(), "choice {index} comes too early: {body}");
            add(&mut reading.choices[index], choice, chat);
        }
    }
    assert!(
        reading.choices.iter().all(|choice| !choice.finish.is_empty()),
        "a choice without its end: {body}"
    );
    reading
}

#[track_caller]
fn add(choice: &mut Choice, frame: &Value, chat: bool) {
    assert!(choice.finish.is_empty(), "a frame after the finish: {frame}");
    if chat {
        let delta = frame["delta"].as_object().expect("delta is always an object");
        if let Some(content) = delta.get("content") {
            choice.text.push_str(content.as_str().unwrap_or_default());
        }
        assert_eq!(delta.get("reasoning"), delta.get("reasoning_content"));
        if let Some(reasoning) = delta.get("reasoning_content") {
            choice.reasoning.push_str(reasoning.as_str().expect("reasoning is text"));
        }
        if let Some(calls) = delta.get("tool_calls") {
            let calls = calls.as_array().expect("a list");
            assert!(!calls.is_empty(), "{frame}");
            calls.iter().for_each(|fragment| add_fragment(&mut choice.calls, fragment));
        }
        if let Some(entries) = frame["logprobs"]["content"].as_array() {
            let mut all = choice.logprobs.as_array().cloned().unwrap_or_default();
            all.extend(entries.iter().cloned());
            choice.logprobs = Value::Array(all);
        }
        if !frame["finish_reason"].is_null() {
            assert!(delta.is_empty(), "the finish frame has a delta: {frame}");
        }
    } else {
        choice.text.push_str(frame["text"].as_str().expect("text is a string"));
        add_legacy(&mut choice.logprobs, &frame["logprobs"]);
    }
    if let Some(finish) = frame["finish_reason"].as_str() {
        assert!(FINISHES.contains(&finish), "{frame}");
        finish.clone_into(&mut choice.finish);
    } else {
        assert!(frame.get("finish_reason").is_some_and(Value::is_null), "{frame}");
    }
}

#[track_caller]
fn add_fragment(calls: &mut Vec<Call>, fragment: &Value) {
    let index = fragment["index"].as_u64().unwrap_or_else(|| panic!("no index in {fragment}")) as usize;
    if index == calls.len() {
        calls.push(call(fragment));
        return;
    }
    assert_eq!(index + 1, calls.len(), "fragments of two calls are mixed: {fragment}");
    for key in ["id", "type"] {
        assert!(fragment.get(key).is_none(), "{key} again: {fragment}");
    }
    assert!(fragment["function"].get("name").is_none(), "the name again: {fragment}");
    calls[index].arguments.push_str(fragment["function"]["arguments"].as_str().expect("a string"));
}

fn add_legacy(all: &mut Value, part: &Value) {
    let Some(part) = part.as_object() else { return };
    if all.is_null() {
        *all = json!({"tokens": [], "token_logprobs": [], "top_logprobs": [], "text_offset": []});
    }
    for (key, list) in part {
        if let (Some(target), Some(list)) = (all.get_mut(key).and_then(Value::as_array_mut), list.as_array())
        {
            target.extend(list.iter().cloned());
        }
    }
}
