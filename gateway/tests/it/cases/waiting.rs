//! Silence: who may be silent for how long, and what is said meanwhile. Seconds of the cases are scaled down to
//! tenths, with the limits of the configuration.

use std::sync::Arc;
use std::time::{Duration, Instant};

use serde_json::json;
use tokio::sync::Semaphore;

use super::harness::{CHAT, COMPLETIONS, Stack, chat, check_error, check_error_object, completion};
use super::raw_http::{Connection, Request};
use super::reading::Reading;
use super::scripted::{Act, Reception, Script, Writes};
use super::sse::{Event, events};

#[tokio::test]
async fn c_timeouts_and_keepalive_01_comments_until_the_first_token_comes() {
    let stack = Stack::with("heartbeat_s = 0.1").await;
    stack.brain.next(Script::acts(vec![Act::Wait(Duration::from_millis(900)), Act::piece("ok"), Act::Eos]));
    let answer = stack.chat(json!({"stream": true})).await;
    assert_eq!(Reading::of(&answer).only().text, "ok");
    let silence = |pair: &[(Instant, Vec<u8>)]| pair[1].0 - pair[0].0;
    assert!(answer.pieces.windows(2).map(silence).max() < Some(Duration::from_millis(300)), "a silence");
    let comments = events(answer.text()).into_iter().filter(|event| matches!(event, Event::Comment(_)));
    assert!(comments.count() >= 5, "{}", answer.text());
}

#[tokio::test]
async fn c_timeouts_and_keepalive_01_no_byte_before_the_brain_accepts() {
    let stack = Stack::with("heartbeat_s = 0.1").await;
    let gate = Arc::new(Semaphore::new(0));
    let refusal = Reception::Reject(pons_protocol::inference::RejectReason::TooLong, "too long".to_owned());
    // A refusal that comes after several heartbeat periods still has its status.
    stack.brain.next(Script::default().received(Reception::AcceptAfter(Arc::clone(&gate))));
    let mut connection = Connection::open(stack.address()).await;
    connection.write(&Request::post(CHAT, &chat(json!({"stream": true}))).bytes()).await;
    stack.brain.until("the submission", |log| log.submits.len() == 1).await;
    let head = tokio::time::timeout(Duration::from_millis(350), connection.head()).await;
    assert!(head.is_err(), "an answer began before it was certain: {head:?}");
    stack.brain.next(Script::default().received(refusal));
    check_error(&stack.chat(json!({"stream": true})).await, 400, None, Some("context_length_exceeded"));
}

/// The brain writes half of each frame, waits, and writes the rest; heartbeats are due all the time.
#[tokio::test]
async fn c_timeouts_and_keepalive_02_heartbeats_only_between_events() {
    let stack = Stack::with("heartbeat_s = 0.05").await;
    stack.brain.writes(Writes::Slowly);
    for path in [CHAT, COMPLETIONS] {
        let fields = json!({"stream": true, "logprobs": if path == CHAT { json!(true) } else { json!(2) }});
        let answer = stack.post(path, &if path == CHAT { chat(fields) } else { completion(fields) }).await;
        // `Reading` fails on an event with anything inside it.
        assert_eq!(Reading::of(&answer).only().text, "Hello, world.");
        assert!(answer.text().contains(": ping\n\n"), "{}", answer.text());
    }
}

#[tokio::test]
async fn c_timeouts_and_keepalive_03_a_brain_that_never_answers() {
    let limits =
        "[limits]\nin_flight = 1\nledger_slots = 10\n[timeouts]\nfirst_token_s = 0.5\ninter_token_s = 0.4";
    let stack = Stack::with(limits).await;
    let silent = Script::acts(vec![Act::Silence]);
    let scripts = [Script::default().received(Reception::Never), silent.clone()];
    for script in scripts {
        for (path, body) in [(CHAT, chat(json!({}))), (COMPLETIONS, completion(json!({})))] {
            stack.brain.next(script.clone());
            let began = Instant::now();
            let answer = stack.post(path, &body).await;
            assert!(
                began.elapsed() >= Duration::from_millis(400) && began.elapsed() < Duration::from_secs(3)
            );
            // The only place for requests is free again, so the next one is served.
            stack.assert_error(&answer, 504, None, Some("timeout")).await;
        }
    }
    // Streamed: a status while nothing was said, an error frame after that.
    stack.brain.next(Script::default().received(Reception::Never));
    stack.assert_error(&stack.chat(json!({"stream": true})).await, 504, None, Some("timeout")).await;
    for acts in
        [vec![Act::Silence], vec![Act::piece("one"), Act::piece("two"), Act::piece("one"), Act::Silence]]
    {
        stack.brain.next(Script::acts(acts.clone()));
        let answer = stack.chat(json!({"stream": true})).await;
        let events = events(answer.text());
        let Some(Event::Data(last)) = events.last() else { panic!("{}", answer.text()) };
        check_error_object(&last["error"]);
        assert_eq!(last["error"]["code"], "timeout");
        let pieces = ["one", "two"].map(|piece| answer.text().matches(piece).count());
        assert_eq!(pieces.iter().sum::<usize>(), acts.len() - 1);
        assert!(!answer.text().contains("\"finish_reason\":\"stop\""), "{}", answer.text());
        stack.assert_healthy().await;
    }
    assert_eq!(stack.brain.log().live(), 0, "what the brain did for them is aborted");
}
