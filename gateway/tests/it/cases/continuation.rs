//! A brain killed in the middle of an answer. The rule: the client sees the answer that it would have seen.

use std::time::Duration;

use serde_json::{Value, json};

use super::harness::{CHAT, COMPLETIONS, Stack, chat, completion, merged};
use super::raw_http::{Connection, Request};
use super::reading::Reading;
use super::real::RealStack;
use super::scripted::{Act, Script};
use super::sse::{Event, events};

/// Runs the request undisturbed, then with the brain killed once this many tokens were made, and compares.
async fn killed_in_the_middle(
    stack: &RealStack,
    path: &str,
    fields: &Value,
    stream: bool,
    after_tokens: u64,
) {
    let fields = merged(fields.clone(), json!({"stream": stream}));
    let request = Request::post(path, &if path == CHAT { chat(fields) } else { completion(fields) });
    let before = stack.server.app().brains.restarts()[0].1;
    let mut connection = Connection::open(stack.address()).await;
    let undisturbed = Reading::of(&connection.send(&request).await);
    let made = stack.capacity().output_tokens_total;
    let asking = connection.send(&request);
    let killing = async {
        stack.until("tokens", |capacity| capacity.output_tokens_total >= made + after_tokens).await;
        assert!(stack.capacity().running > 0, "the answer ended before the brain could be killed");
        stack.kill_brain();
    };
    let (answer, ()) = tokio::join!(asking, killing);
    let disturbed = Reading::of(&answer);
    assert_eq!(disturbed.choices, undisturbed.choices, "{path}, streamed: {stream}");
    assert_eq!(stack.server.app().brains.restarts()[0].1, before + 1, "the brain was killed once");
    super::harness::ready(stack.address()).await;
}

/// Both routes in both modes.
async fn on_all_routes(fields: Value, after_tokens: u64) {
    let stack = RealStack::start().await;
    for path in [CHAT, COMPLETIONS] {
        for stream in [true, false] {
            killed_in_the_middle(&stack, path, &fields, stream, after_tokens).await;
        }
    }
}

#[tokio::test]
async fn a_killed_brain_changes_no_text() {
    on_all_routes(json!({"seed": 11, "temperature": 1.1, "max_tokens": 2000, "ignore_eos": true}), 100).await;
}

#[tokio::test]
async fn a_killed_brain_changes_no_text_held_to_a_grammar() {
    let fields =
        json!({"seed": 12, "temperature": 1.0, "max_tokens": 2000, "guided_regex": "([a-p]{3} ){400}"});
    on_all_routes(fields, 100).await;
}

#[tokio::test]
async fn a_killed_brain_changes_none_of_three_choices() {
    on_all_routes(
        json!({"seed": 13, "temperature": 1.0, "n": 3, "max_tokens": 800, "ignore_eos": true}),
        150,
    )
    .await;
}

#[tokio::test]
async fn a_killed_brain_changes_no_log_probability() {
    let stack = RealStack::start().await;
    let fields = json!({"seed": 14, "temperature": 0.8, "max_tokens": 1500, "ignore_eos": true});
    for (path, logprobs) in [
        (CHAT, json!({"logprobs": true, "top_logprobs": 3})),
        (COMPLETIONS, json!({"logprobs": 3, "echo": true})),
    ] {
        for stream in [true, false] {
            killed_in_the_middle(&stack, path, &merged(fields.clone(), logprobs.clone()), stream, 100).await;
        }
    }
}

/// A brain that dies with the request it served, before and after the first token, and comes back.
#[tokio::test]
async fn a_scripted_brain_that_dies_in_mid_stream_is_gone_on_with() {
    let deaths = [
        vec![Act::Die, Act::piece("one"), Act::piece("two"), Act::Eos],
        vec![Act::piece("one"), Act::Die, Act::piece("two"), Act::Eos],
        vec![Act::piece("one"), Act::piece("two"), Act::Die, Act::Eos],
    ];
    for acts in deaths {
        for stream in [true, false] {
            for path in [CHAT, COMPLETIONS] {
                let stack = Stack::start().await;
                stack.brain.next(Script::acts(acts.clone()));
                let usage = if stream { json!({"include_usage": true}) } else { json!(null) };
                let fields = json!({"stream": stream, "stream_options": usage, "seed": 9, "logprobs": null});
                let body = if path == CHAT { chat(fields) } else { completion(fields) };
                let reading = Reading::of(&stack.post(path, &body).await);
                assert_eq!(
                    (reading.only().text.as_str(), reading.only().finish.as_str()),
                    ("onetwo", "stop")
                );
                assert_eq!(reading.completion_tokens(), 3);
                assert_eq!(stack.brain.log().links, 2);
                stack.assert_healthy().await;
            }
        }
    }
}

/// Silence while the brain is away is filled as any other.
#[tokio::test]
async fn heartbeats_go_on_while_the_brain_is_away() {
    let stack = Stack::with("heartbeat_s = 0.05").await;
    let acts =
        vec![Act::piece("one"), Act::Die, Act::Wait(Duration::from_millis(300)), Act::piece("two"), Act::Eos];
    stack.brain.next(Script::acts(acts));
    let answer = stack.chat(json!({"stream": true})).await;
    assert_eq!(Reading::of(&answer).only().text, "onetwo");
    let comments = events(answer.text()).into_iter().filter(|event| matches!(event, Event::Comment(_)));
    assert!(comments.count() >= 3, "{}", answer.text());
}
