//! What goes out when: comments in a silence, and the end of an answer only after its record. The rule: whatever
//! a client has read is already settled.

use std::time::Duration;

use serde_json::json;

use super::harness::{CHAT, COMPLETIONS, Stack, chat, completion};
use super::raw_http::{Chunk, Connection, Request};
use super::scripted::{Act, Script};

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
