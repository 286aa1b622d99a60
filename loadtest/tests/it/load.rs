//! What is sent: groups, conversations, tenants, traces, and the rows and counts that are kept of them.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use pons_loadtest::record::{Record, raw};
use pons_loadtest::run::{Settings, measure};
use pons_loadtest::scenario::Scenario;

use super::{Behaviour, Mock, against, closed, even, run, scenario, settings, target};

fn ms(count: u64) -> Duration {
    Duration::from_millis(count)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn groups_run_at_the_same_time_and_are_counted_apart() {
    let behaviour =
        Behaviour { first: ms(10), between: ms(10), slow_when_long: true, ..Behaviour::default() };
    let groups = "duration_s = 2.0\n[[group]]\nname = 'chats'\narrivals = { kind = 'closed', streams = 2 }\n\
                  [[group]]\nname = 'intruder'\nstart_s = 0.5\nprompt_tokens = [2000]\n\
                  arrivals = { kind = 'even', rate = 0.5 }\nstream = true\n";
    let round = run(behaviour, 1_000, groups).await.round;
    let (chats, intruder) = (&round.groups["chats"], &round.groups["intruder"]);
    assert_eq!(round.ok, chats.ok + intruder.ok);
    assert_eq!(intruder.ok, 1, "one at half a second, and the next would be due when the time is over");
    assert!((990.0..1_200.0).contains(&intruder.ttft_ms.p50), "{:?}", intruder.ttft_ms);
    assert!(chats.ttft_ms.p99 < 500.0, "{:?}", chats.ttft_ms);
    assert!((15..=60).contains(&chats.ok), "{} chats in two seconds", chats.ok);
    // The mock serves them independently: as many gaps in the intruder's second as in the other.
    let count = |part: &Option<pons_loadtest::record::Latency>| part.as_ref().expect("told apart").count;
    let (quiet, disturbed) = (count(&chats.itl_quiet_ms), count(&chats.itl_disturbed_ms));
    assert_eq!(quiet + disturbed, chats.itl_ms.count);
    assert!(quiet * 3 > disturbed && disturbed * 3 > quiet, "{quiet} and {disturbed}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_turn_sends_all_that_was_said_and_waits_as_a_user_thinks() {
    let chunks = vec!["so ".to_owned(), "it ".to_owned(), "is".to_owned()];
    let mock = Mock::new(Behaviour { chunks, first: ms(20), ..Behaviour::default() });
    let talks = scenario(4, &format!("turns = 3\nthink_s = [0.1, 0.1]\n{}", closed(1)));
    let measured = against(&mock, &talks).await;
    let round = &measured.round;
    assert_eq!((round.sent, round.ok), (12, 12));
    assert_eq!(round.turns.iter().map(|turn| turn.ok).collect::<Vec<_>>(), [4, 4, 4]);
    assert!(round.turns[2].ttft_ms.p50 < 100.0, "thinking isn't waiting: {:?}", round.turns[2].ttft_ms);
    assert!(round.duration_s > 4.0 * 2.0 * 0.1, "they think: {}", round.duration_s);
    let seen = mock.seen();
    let messages: Vec<_> = seen[2].body["messages"].as_array().expect("a list").clone();
    let roles: Vec<_> = messages.iter().filter_map(|message| message["role"].as_str()).collect();
    assert_eq!(roles, ["user", "assistant", "user", "assistant", "user"]);
    assert_eq!(messages[1]["content"], "so it is");
    assert_eq!(messages[0], seen[0].body["messages"][0], "history is sent as it was");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_conversation_ends_with_a_turn_that_fails() {
    let cut = Behaviour { cut: Some(1), ..Behaviour::default() };
    let round = run(cut, 5, &format!("turns = 4\n{}", even(100.0))).await.round;
    assert_eq!((round.sent, round.failed.get("cut")), (5, Some(&5)));
    assert!(
        round.warnings.iter().any(|text| text.starts_with("15 turns were not sent")),
        "{:?}",
        round.warnings
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tenants_send_with_keys_of_their_own() {
    let mock = Mock::new(Behaviour::default());
    let tenants = format!(
        "{}[[tenant]]\nname = 'large'\nkey = 'L'\nweight = 3\n[[tenant]]\nname = 'small'\nkey = 'S'\n\
         [[tenant]]\nname = 'plain'\nweight = 0.5\n",
        closed(8)
    );
    let round = against(&mock, &scenario(400, &tenants)).await.round;
    let sent: BTreeMap<&str, u64> =
        round.tenants.iter().map(|(name, part)| (name.as_str(), part.ok)).collect();
    assert_eq!(sent.values().sum::<u64>(), 400);
    assert!(sent["large"] > 2 * sent["small"] && sent["plain"] > 0, "{sent:?}");
    let with = |key: &str| {
        let header = format!("Bearer {key}");
        mock.seen().iter().filter(|seen| seen.key.as_deref() == Some(&header)).count() as u64
    };
    assert_eq!((with("L"), with("S"), with("key")), (sent["large"], sent["small"], sent["plain"]));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_key_that_is_missing_from_the_environment_is_named() {
    let text = format!("{}[[tenant]]\nname = 'a'\nkey_env = 'PONS_LOADTEST_NO_SUCH_KEY'\n", closed(1));
    let address = Mock::new(Behaviour::default()).serve().await;
    let error = measure(&scenario(1, &text), &target(address), &settings()).await.expect_err("it is missing");
    assert!(error.to_string().contains("tenant a: key_env names PONS_LOADTEST_NO_SUCH_KEY"), "{error}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_trace_is_sent_as_it_came_only_faster() {
    let folder = tempfile::tempdir().expect("a folder");
    let trace = "at_s,prompt_tokens,output_tokens,session\n0,5,7,s\n1,6,8,\n2,9,3,s\n";
    std::fs::write(folder.path().join("t.csv"), trace).expect("written");
    let path = folder.path().join("s.toml");
    let text = "name = 'x'\nrequests = 10\narrivals = { kind = 'trace', file = 't.csv', speed = 4.0 }\n";
    std::fs::write(&path, text).expect("written");
    let mock = Mock::new(Behaviour::default());
    let measured = against(&mock, &Scenario::read(&path).expect("it is right")).await;
    assert_eq!(measured.round.ok, 3);
    let due: Vec<f64> = measured.outcomes.iter().map(|outcome| outcome.due_s).collect();
    for (due_s, wanted) in due.iter().zip([0.0, 0.5, 0.25]) {
        assert!((due_s - wanted).abs() < 1e-3, "{due:?}");
    }
    let lengths: Vec<u64> = mock.seen().iter().filter_map(|seen| seen.body["max_tokens"].as_u64()).collect();
    assert_eq!(lengths, [7, 8, 3]);
    assert_eq!(mock.seen()[2].body["messages"].as_array().map(Vec::len), Some(3), "the session goes on");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn warm_up_is_sent_and_not_counted_and_rows_and_progress_agree() {
    let mock = Mock::new(Behaviour { first: ms(5), ..Behaviour::default() });
    let scenario = scenario(20, &format!("warmup = 5\n{}", closed(2)));
    let address = mock.serve().await;
    let settings = Settings { progress: Arc::default(), ..settings() };
    let measured = measure(&scenario, &target(address), &settings).await.expect("no key is missing");
    assert_eq!((mock.seen().len(), measured.round.ok, measured.outcomes.len()), (25, 20, 20));
    let progress = &settings.progress;
    assert_eq!(progress.ok.load(Ordering::Relaxed), 25);
    assert_eq!(progress.in_flight.load(Ordering::Relaxed), 0);
    assert_eq!(progress.output_tokens.load(Ordering::Relaxed), 200);
    assert_eq!(progress.recent_ttft_s(Duration::from_secs(60)).len(), 25);
    assert_eq!(progress.recent_itl_s(Duration::from_secs(60)).len(), 25 * 7);
    let mut file = Vec::new();
    raw::rows(&mut file, ("mock", 2.0, 0), &scenario.loads(), &measured.outcomes).expect("memory takes it");
    let text = String::from_utf8(file).expect("text");
    assert_eq!(text.lines().count(), 20);
    for line in text.lines() {
        let cells: Vec<&str> = line.split(',').collect();
        let seconds: Vec<f64> = cells[7..11].iter().map(|cell| cell.parse().expect("a number")).collect();
        assert!(seconds.is_sorted(), "intended, sent, first and last come in order: {line}");
        assert_eq!((cells[13], cells[16]), ("8", "ok"));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn connections_are_kept_from_one_answer_to_the_next() {
    let mock = Mock::new(Behaviour::default());
    let measured = against(&mock, &scenario(200, &closed(2))).await;
    assert_eq!(measured.round.ok, 200);
    assert!(mock.connections() <= 8, "{} connections for 2 streams", mock.connections());
}

#[test]
fn a_record_of_an_earlier_version_can_be_read() {
    let text = r#"{"version":"0.1.0","started_unix_s":1,"machine":{},"targets":{},"scenario":{"name":"x","requests":1,
        "arrivals":{"kind":"closed","streams":1},"prompt_tokens":[1],"output_tokens":[1,1],
        "goodput":{"ttft_ms":800.0,"tpot_ms":null}},"rounds":[{"target":"t","load":1.0,"round":0,"sent":1,"ok":1,
        "aborted":0,"refused":{},"failed":{},"good":1,"duration_s":1.0,"prompt_tokens":1,"cached_tokens":0,
        "output_tokens":1,"output_tokens_per_s":1.0,"prompt_tokens_per_s":1.0,"requests_per_s":1.0,
        "ttft_ms":L,"itl_ms":L,"tpot_ms":L,"e2e_ms":L,"lag_ms":L,
        "seconds":[{"due":3,"ended":2,"chunks":1}],"warnings":[]}]}"#;
    let latency = r#"{"count":1,"p50":1.0,"p90":1.0,"p99":1.0,"p999":1.0,"most":1.0,"curve":[[1.0,1.0]]}"#;
    let record: Record = serde_json::from_str(&text.replace('L', latency)).expect("it is read");
    assert_eq!(record.scenario.slo.ttft_ms, Some(800.0));
    assert_eq!((record.rounds[0].seconds[0].arrivals, record.rounds[0].seconds[0].completions), (3, 2));
}
