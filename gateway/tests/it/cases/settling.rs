//! What goes out when: comments in a silence, and the end of an answer only after its record. The rule: whatever
//! a client has read is already settled.

use std::time::Duration;

use pons_protocol::inference::RejectReason;
use serde_json::json;

use super::harness::{CHAT, COMPLETIONS, Stack, chat, completion};
use super::raw_http::{Chunk, Connection, Request};
use super::scripted::{Act, Reception, Script};

/// Every token is held back, since the stop string could still match.
#[tokio::test]
async fn c_timeouts_and_keepalive_01_comments_while_tokens_come_and_no_text_may_go_out() {
    let stack = Stack::with("heartbeat_s = 0.2").await;
    let step = [Act::piece("x"), Act::Wait(Duration::from_millis(20))];
    let acts = step.iter().cycle().take(100).cloned().chain([Act::Eos]).collect();
    stack.brain.next(Script::acts(acts));
    let answer = stack.chat(json!({"stream": true, "stop": ["x".repeat(900)]})).await;
    let comments = answer.text().matches(": ping\n\n").count();
    assert!(comments >= 3, "{}", answer.text());
    assert!(answer.text().contains(&"x".repeat(50)), "{}", answer.text());
}

/// A client may leave as soon as it has a finish reason; by then the whole answer is recorded.
#[tokio::test]
async fn c_disconnect_and_abort_04_the_finish_reason_comes_after_the_record() {
    let stack = Stack::start().await;
    for (path, body) in [(CHAT, chat(json!({"stream": true}))), (COMPLETIONS, completion(json!({"stream": true})))] {
        for script in [Script::default(), Script::burst(&["Hello", ", wor", "ld."])] {
            stack.brain.next(script);
            let before = stack.ledger().await.len();
            let mut connection = Connection::open(stack.address()).await;
            connection.begin(&Request::post(path, &body)).await;
            let end = loop {
                let Chunk::Data(chunk) = connection.chunk().await else { panic!("no finish reason came") };
                let text = String::from_utf8(chunk).expect("frames are text");
                if text.contains("\"finish_reason\":\"stop\"") {
                    break text;
                }
            };
            drop(connection);
            // The end is one piece: nothing can fail between the finish reason and the marker.
            assert!(end.ends_with("data: [DONE]\n\n"), "{end}");
            let records = stack.ledger().await;
            assert_eq!(records.len(), before + 1);
            assert!(records.iter().all(|record| record["outcome"] == "completed"), "{records:?}");
        }
    }
}

#[tokio::test]
async fn a_failure_is_recorded_before_its_client_hears_of_it() {
    let stack = Stack::start().await;
    for round in 0..10 {
        for stream in [false, true] {
            stack.brain.next(Script::acts(vec![Act::piece("Hello"), Act::Fail]));
            let answer = stack.chat(json!({"stream": stream})).await;
            assert!(answer.text().contains("\"upstream_error\""), "{}", answer.text());
            // No waiting here: the error had arrived.
            let records = stack.ledger().await;
            assert_eq!(records.len(), 2 * round + 1 + usize::from(stream));
            assert!(records.iter().all(|record| record["outcome"] == "failed"), "{records:?}");
        }
    }
}

/// A refusal before acceptance made no tokens, so there is nothing to bill.
#[tokio::test]
async fn a_refused_request_has_no_record() {
    let stack = Stack::start().await;
    let refusal = Reception::Reject(RejectReason::QueueFull, "the queue is full".to_owned());
    stack.brain.next(Script::default().received(refusal));
    assert_eq!(stack.chat(json!({})).await.status(), 503);
    stack.assert_healthy().await;
    assert_eq!(stack.ledger().await.len(), 1);
}
