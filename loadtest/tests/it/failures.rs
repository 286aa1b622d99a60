//! Ends that are no complete answers: refused, failed, cancelled, abandoned, not sent, not conforming.

use std::time::Duration;

use pons_loadtest::client::{End, NOT_SENT};

use super::{Behaviour, Mock, against, closed, even, run, scenario};

/// Waits until the mock has noticed that so many clients went away.
async fn noticed(mock: &Mock, clients: usize) {
    let all = async {
        while mock.gone() < clients {
            tokio::task::yield_now().await;
        }
    };
    let waited = tokio::time::timeout(Duration::from_secs(10), all).await;
    assert!(waited.is_ok(), "{} of {clients} connections were closed", mock.gone());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn refusals_and_failures_are_told_apart() {
    let status = |status| Behaviour { status, ..Behaviour::default() };
    let refused = run(status(429), 5, &closed(1)).await.round;
    assert_eq!((refused.ok, refused.refused.get("429"), refused.failed.len()), (0, Some(&5), 0));
    let failed = run(status(500), 5, &closed(1)).await.round;
    assert_eq!((failed.ok, failed.failed.get("5xx"), failed.refused.len()), (0, Some(&5), 0));
    let cut = run(Behaviour { cut: Some(3), ..Behaviour::default() }, 5, &closed(1)).await.round;
    assert_eq!((cut.ok, cut.failed.get("cut")), (0, Some(&5)), "{:?}", cut.failed);
    assert_eq!(cut.good_share, 0.0, "a failure is not good, even without limits");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_request_past_its_deadline_is_cancelled_at_the_server_too() {
    let mock = Mock::new(Behaviour { between: Duration::from_secs(30), ..Behaviour::default() });
    let measured = against(&mock, &scenario(3, &format!("deadline_s = 0.2\n{}", closed(3)))).await;
    assert_eq!(measured.round.failed.get("deadline"), Some(&3));
    assert!(measured.outcomes.iter().all(|outcome| (0.19..5.0).contains(&outcome.end_s)));
    noticed(&mock, 3).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_share_that_is_to_be_abandoned_is_abandoned() {
    let mock = Mock::new(Behaviour { between: Duration::from_millis(5), ..Behaviour::default() });
    let measured = against(&mock, &scenario(100, &format!("abort_share = 0.3\n{}", closed(8)))).await;
    let round = &measured.round;
    assert_eq!(round.ok + round.aborted, 100);
    assert!((15..=45).contains(&round.aborted), "{}", round.aborted);
    assert_eq!(round.good_share, 1.0, "those who went away don't count against the server");
    let aborted = measured.outcomes.iter().filter(|outcome| outcome.end == End::Aborted);
    let in_the_middle = aborted.filter(|outcome| outcome.chunks_s.len() < 8).count();
    noticed(&mock, in_the_middle.saturating_sub(5)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_request_beyond_the_harness_bound_is_counted_and_never_put_off() {
    let behaviour = Behaviour { first: Duration::from_millis(500), ..Behaviour::default() };
    let mock = Mock::new(behaviour);
    let bounded = scenario(40, &format!("max_in_flight = 10\n{}", even(1_000.0)));
    let measured = against(&mock, &bounded).await;
    let round = &measured.round;
    assert_eq!((round.ok, round.failed.get(NOT_SENT)), (10, Some(&30)), "{:?}", round.failed);
    assert_eq!(mock.seen().len(), 10);
    assert!(
        round.warnings[0].starts_with("HARNESS BOUND: 30 requests were not sent"),
        "{:?}",
        round.warnings
    );
    let most = round.seconds.iter().map(|second| second.in_flight).max();
    assert_eq!(most, Some(10));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_answer_that_breaks_its_structure_is_a_failure_of_its_own_kind() {
    let asked = format!(
        "structured = {{ schema = {{ type = 'object', required = ['a'], properties = {{ a = {{ type = 'integer' }} }} }} }}\n{}",
        closed(2)
    );
    let answer = |chunks: &[&str], finish_reason| Behaviour {
        chunks: chunks.iter().map(|&chunk| chunk.to_owned()).collect(),
        finish_reason,
        ..Behaviour::default()
    };
    let mock = Mock::new(answer(&["{\"a\"", ": 1}"], "stop"));
    let right = against(&mock, &scenario(6, &asked)).await.round;
    assert_eq!(right.ok, 6, "{:?}", right.failed);
    let format = &mock.seen()[0].body["response_format"];
    assert_eq!(format["type"], "json_schema");
    assert_eq!(format["json_schema"]["schema"]["required"][0], "a");
    for stream in ["", "stream = false\n"] {
        let asked = format!("{stream}{asked}");
        let wrong = run(answer(&["{\"a\": \"x\"}"], "stop"), 6, &asked).await.round;
        assert_eq!((wrong.ok, wrong.failed.get("structure: breaks the schema")), (0, Some(&6)));
        let prose = run(answer(&["Sure! ", "{\"a\": 1}"], "stop"), 6, &asked).await.round;
        assert_eq!((prose.ok, prose.failed.get("structure: not JSON")), (0, Some(&6)));
        let short = run(answer(&["{\"a\": 1"], "length"), 6, &asked).await.round;
        assert_eq!((short.ok, short.failed.get("structure: cut at max_tokens")), (0, Some(&6)));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_is_not_there_is_a_failure_to_connect() {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("loopback");
    let address = listener.local_addr().expect("bound");
    drop(listener);
    let (scenario, settings) = (scenario(2, &closed(1)), super::settings());
    let measured = pons_loadtest::run::measure(&scenario, &super::target(address), &settings).await;
    assert_eq!(measured.expect("no key is missing").round.failed.get("connect"), Some(&2));
}
