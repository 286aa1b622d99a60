//! Frames of a stream: their order, their shape, heartbeats between them, and how a stream that fails ends.

use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::cases::harness::{CHAT, COMPLETIONS, Stack, chat, check_error_object, completion};
use crate::cases::raw_http::{Connection, Request};
use crate::cases::reading::Reading;
use crate::cases::scripted::{Act, Script, Writes};
use crate::cases::sse::{Event, events};

#[tokio::test]
async fn c_streaming_framing_01_chunk_skeleton_of_an_ordinary_stream() {
    let stack = Stack::start().await;
    // `Reading` holds every stream to the rules: one role frame first, constant ids, one finish, the terminator.
    let reading = Reading::of(&stack.chat(json!({"stream": true, "max_tokens": 16})).await);
    assert_eq!((reading.only().text.as_str(), reading.only().finish.as_str()), ("Hello, world.", "stop"));
    assert!(reading.id.starts_with("chatcmpl-"), "{}", reading.id);
    let first = &reading.frames[0]["choices"][0];
    assert_eq!(first["delta"], json!({"role": "assistant", "content": ""}));
    let last = &reading.frames.last().unwrap()["choices"][0];
    assert_eq!((&last["delta"], &last["finish_reason"]), (&json!({}), &json!("stop")));
    let reading = Reading::of(&stack.complete(json!({"stream": true})).await);
    assert_eq!((reading.only().text.as_str(), reading.only().finish.as_str()), ("Hello, world.", "stop"));
    assert!(reading.id.starts_with("cmpl-"), "{}", reading.id);
}

/// Heartbeats every 100 ms stand for those every 15 s, silences of 600 ms for those of 40 s. The official SDKs
/// read a live server in their own suite.
#[tokio::test]
async fn c_streaming_framing_02_heartbeats_fill_every_silence_with_comments() {
    let stack = Stack::with("heartbeat_s = 0.1").await;
    let silence = Act::Wait(Duration::from_millis(600));
    let acts = vec![silence.clone(), Act::piece("one"), silence, Act::piece("two"), Act::Eos];
    stack.brain.always(Script::acts(acts));
    for request in [chat(json!({"stream": true})), completion(json!({"stream": true}))] {
        let path = if request.get("prompt").is_some() { COMPLETIONS } else { CHAT };
        let began = Instant::now();
        let answer = stack.post(path, &request).await;
        assert_eq!(Reading::of(&answer).only().text, "onetwo");
        let comments = |event: &Event| matches!(event, Event::Comment(text) if text.starts_with(':'));
        let events = events(answer.text());
        let token = |piece: &str| {
            events.iter().position(|e| matches!(e, Event::Data(v) if v.to_string().contains(piece)))
        };
        let (one, two) = (token("one").unwrap(), token("two").unwrap());
        assert!(events[..one].iter().filter(|e| comments(e)).count() >= 3, "{}", answer.text());
        assert!(events[one..two].iter().filter(|e| comments(e)).count() >= 3, "{}", answer.text());
        let mut last = began;
        for (at, _) in &answer.pieces {
            assert!(*at - last < Duration::from_millis(500), "silence of {:?}", *at - last);
            last = *at;
        }
    }
}

#[tokio::test]
async fn c_streaming_framing_03_frames_that_arrive_in_one_segment_stay_apart() {
    let stack = Stack::start().await;
    stack.brain.writes(Writes::Together);
    let answer = stack.chat(json!({"stream": true, "stream_options": {"include_usage": true}})).await;
    let events = events(answer.text());
    let tail: Vec<&Event> = events.iter().rev().take(3).rev().collect();
    let (Event::Data(finish), Event::Data(usage), Event::Done) = (tail[0], tail[1], tail[2]) else {
        panic!("{}", answer.text());
    };
    assert_eq!(finish["choices"][0]["finish_reason"], "stop");
    assert_eq!(usage["choices"], json!([]));
    assert_eq!(usage["usage"]["completion_tokens"], 4);
    for line in answer.text().lines().filter(|line| !line.is_empty() && !line.starts_with(':')) {
        assert!(line.starts_with("data: "), "{line:?}");
    }
}

/// What the client gets, without what differs from request to request.
fn comparable(answer: &crate::cases::raw_http::Answer) -> Vec<Value> {
    let mut frames = Reading::of(answer).frames;
    for frame in &mut frames {
        for key in ["id", "created"] {
            frame.as_object_mut().unwrap().remove(key);
        }
    }
    frames
}

/// The brain's link stands for the upstream: its frames are cut at every byte up to the longest frame's length.
#[tokio::test]
async fn c_streaming_framing_04_a_frame_of_the_brain_cut_at_every_byte() {
    let stack = Stack::start().await;
    stack.brain.always(Script::burst(&["one", "two", "早上好", " 🚀", "ñ"]));
    let request =
        json!({"stream": true, "stream_options": {"include_usage": true}, "logprobs": true, "seed": 1});
    let whole = comparable(&stack.chat(request.clone()).await);
    assert_eq!(whole.last().unwrap()["usage"]["completion_tokens"], 6);
    for cut in 1..=300 {
        stack.brain.writes(Writes::CutAt(cut));
        assert_eq!(comparable(&stack.chat(request.clone()).await), whole, "cut at {cut}");
    }
    assert_eq!(stack.brain.log().links, 1, "no cut may cost the link");
}

#[tokio::test]
async fn c_streaming_framing_05_failure_after_the_first_token() {
    let stack = Stack::start().await;
    let words = ["one", "two", "one", "two", "ok"];
    for failing in [Act::Fail, Act::OutOfOrder] {
        let acts = words.iter().map(|piece| Act::piece(piece)).chain([failing]).collect();
        stack.brain.always(Script::acts(acts));
        let options = json!({"stream": true, "stream_options": {"include_usage": true}});
        for (path, body) in [(CHAT, chat(options.clone())), (COMPLETIONS, completion(options))] {
            let mut connection = Connection::open(stack.address()).await;
            let answer = connection.send(&Request::post(path, &body)).await;
            assert_eq!((answer.status(), answer.whole), (200, true));
            assert!(connection.is_closed().await, "the connection closes after the error frame");
            let events = events(answer.text());
            let Some(Event::Data(last)) = events.last() else { panic!("{}", answer.text()) };
            assert_eq!(last.as_object().unwrap().len(), 1, "{last}");
            check_error_object(&last["error"]);
            let mut text = String::new();
            for event in &events[..events.len() - 1] {
                let Event::Data(frame) = event else { continue };
                let choice = &frame["choices"][0];
                assert!(choice["finish_reason"].is_null(), "{frame}");
                assert!(frame["usage"].is_null(), "{frame}");
                text.push_str(
                    choice["delta"]["content"].as_str().or(choice["text"].as_str()).unwrap_or_default(),
                );
            }
            assert_eq!(text, words.concat());
            assert!(!answer.text().contains("[DONE]"));
        }
        stack.assert_healthy().await;
    }
}
