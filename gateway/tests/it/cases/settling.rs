//! What goes out when: comments in a silence, and the end of an answer only after its record. The rule: whatever
//! a client has read is already settled.

use std::time::Duration;

use serde_json::json;

use super::harness::Stack;
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
