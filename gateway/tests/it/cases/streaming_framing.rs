//! Frames of a stream: their order, their shape, heartbeats between them, and how a stream that fails ends.

use std::time::Duration;

use serde_json::json;

use crate::harness::{CHAT, COMPLETIONS, Stack, chat, check_error_object, completion};
use crate::raw_http::Request;
use crate::reading::Reading;
use crate::scripted::{Act, Script, Writes};
use crate::sse::{Event, events};

#[tokio::test]
async fn c_streaming_framing_01_chunk_skeleton_of_an_ordinary_stream() {
    let stack = Stack::start().await;
    let answer = stack.chat(json!({"stream": true, "max_tokens": 16})).await;
    let reading = Reading::of(&answer);
    assert_eq!((reading.only().text.as_str(), reading.only().finish.as_str()), ("Hello, world.", "stop"));
    let first = &reading.frames[0]["choices"][0];
    assert_eq!(first["delta"], json!({"role": "assistant", "content": ""}));
    let last = &reading.frames.last().unwrap()["choices"][0];
    assert_eq!((&last["delta"], &last["finish_reason"]), (&json!({}), &json!("stop")));
    let text = &stack.complete(json!({"stream": true})).await;
    assert_eq!(Reading::of(text).only().text, "Hello, world.");
}
