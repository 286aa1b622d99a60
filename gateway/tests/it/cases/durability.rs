//! What a client was told is on the disk. The rule: the server is killed the moment the last byte has arrived, and
//! the ledger is read from what is left.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use super::harness::{CHAT, chat};
use super::process::ServerProcess;
use super::raw_http::{Connection, Request};
use super::scripted::Script;

#[tokio::test]
async fn every_answer_that_was_read_to_its_end_is_in_the_ledger_after_kill_9() {
    for round in 0..4 {
        let mut server = ServerProcess::start(4096).await;
        server.brain.always(Script::pieces(&["Hello", ", wor", "ld."]));
        let clients: Vec<_> = (0..8)
            .map(|client| {
                let address = server.address;
                tokio::spawn(async move {
                    let mut connection = Connection::open(address).await;
                    let id = format!("round-{round}-client-{client}");
                    let body = chat(json!({"stream": client % 2 == 0}));
                    let answer = connection.send(&Request::post(CHAT, &body).with("x-request-id", &id)).await;
                    assert_eq!((answer.status(), answer.whole), (200, true));
                    id
                })
            })
            .collect();
        let mut answered = BTreeSet::new();
        for client in clients {
            answered.insert(client.await.expect("the client got its answer"));
        }
        server.kill_9();
        let recorded: BTreeSet<String> = server
            .ledger_after_its_end()
            .iter()
            .map(|record: &Value| record["request_id"].as_str().expect("each record has an id").to_owned())
            .collect();
        assert_eq!(recorded, answered, "round {round}");
    }
}
