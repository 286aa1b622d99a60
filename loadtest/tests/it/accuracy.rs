//! Whether numbers are true: known delays, a server that stops, and how fast the harness is by itself.

use std::time::Duration;

use super::{Behaviour, closed, even, run};

fn ms(count: u64) -> Duration {
    Duration::from_millis(count)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn known_delays_are_what_is_reported() {
    let behaviour = Behaviour { first: ms(50), between: ms(10), ..Behaviour::default() };
    let round = run(behaviour, 40, &closed(4)).await.round;
    assert_eq!((round.ok, round.output_tokens, round.prompt_tokens), (40, 320, 1280));
    assert!((49.0..80.0).contains(&round.ttft_ms.p50), "{:?}", round.ttft_ms);
    assert!((9.5..16.0).contains(&round.itl_ms.p50), "{:?}", round.itl_ms);
    assert!((9.5..16.0).contains(&round.tpot_ms.p50), "{:?}", round.tpot_ms);
    assert!((119.0..180.0).contains(&round.e2e_ms.p50), "{:?}", round.e2e_ms);
    // Four streams of eight tokens in at least 120 ms.
    assert!(round.output_tokens_per_s < 4.0 * 8.0 / 0.119, "{}", round.output_tokens_per_s);
    assert_eq!(round.seconds.iter().map(|second| second.chunks).sum::<u64>(), 320);
    let tokens: f64 = round.seconds.iter().map(|second| second.tokens).sum();
    assert!((tokens - 320.0).abs() < 1e-6, "{tokens}");
    let in_flight = round.seconds.iter().map(|second| second.in_flight).max();
    assert_eq!(in_flight, Some(4), "a closed loop has its streams under way");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_answer_that_comes_whole_is_timed_as_a_whole() {
    let behaviour = Behaviour { first: ms(50), ..Behaviour::default() };
    let round = run(behaviour, 20, &format!("stream = false\n{}", closed(2))).await.round;
    assert_eq!((round.ok, round.output_tokens, round.itl_ms.count), (20, 160, 0));
    assert!((49.0..90.0).contains(&round.e2e_ms.p50), "{:?}", round.e2e_ms);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_is_slow_is_not_spared_by_an_open_loop() {
    // 100 requests a second, each of which takes 200 ms before its first token: twenty are under way at a time.
    let behaviour = Behaviour { first: ms(200), ..Behaviour::default() };
    let round = run(behaviour, 60, "arrivals = { kind = 'poisson', rate = 100.0 }").await.round;
    assert_eq!(round.ok, 60);
    assert!(round.ttft_ms.p50 >= 199.0, "{:?}", round.ttft_ms);
    assert!(round.duration_s < 4.0, "requests waited for each other: {} s", round.duration_s);
    let in_flight = round.seconds.iter().map(|second| second.in_flight).max().expect("there are seconds");
    assert!((10..=40).contains(&in_flight), "{in_flight}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_stops_for_a_second_is_seen_by_all_who_would_have_come_meanwhile() {
    // 300 requests in three seconds; from the first second to the second nothing is answered.
    let frozen = Some((ms(1_000), ms(2_000)));
    let behaviour = Behaviour { frozen, first: ms(5), ..Behaviour::default() };
    let measured = run(behaviour.clone(), 300, &even(100.0)).await;
    let latency = &measured.round.ttft_ms;
    assert_eq!(measured.round.ok, 300);
    // A third of all requests came meanwhile, and waited between nothing and a second, half a second on average.
    let slow = measured.outcomes.iter().filter(|outcome| outcome.ttft_s().is_some_and(|s| s > 0.1)).count();
    assert!((80..=110).contains(&slow), "{slow} requests waited for more than 100 ms");
    assert!((850.0..1_400.0).contains(&latency.most), "{latency:?}");
    assert!(latency.p90 > 550.0 && latency.p99 > 850.0, "{latency:?}");
    assert!(latency.p50 < 100.0, "{latency:?}");
    let in_flight = measured.round.seconds.iter().map(|second| second.in_flight).max();
    assert!(in_flight.is_some_and(|most| most > 80), "they pile up: {in_flight:?}");
    // A closed loop sends one request in that second, and hides the rest: why open loops are there.
    let hidden = run(behaviour, 300, &closed(1)).await;
    let slow = hidden.outcomes.iter().filter(|outcome| outcome.ttft_s().is_some_and(|s| s > 0.1)).count();
    assert!((1..=3).contains(&slow), "{slow} requests of a closed loop noticed");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_harness_itself_is_fast_enough_not_to_be_what_is_measured() {
    let round = run(Behaviour::default(), 2_000, &closed(16)).await.round;
    assert_eq!(round.ok, 2_000);
    println!(
        "ceiling, mock and harness on the same cores: {:.0} requests/s, {:.0} chunks/s, ttft p50 {:.3} ms",
        round.requests_per_s, round.output_tokens_per_s, round.ttft_ms.p50
    );
    // A CPU brain gives some thousand tokens a second; the floor leaves room for a slow, shared, unoptimised build.
    assert!(round.output_tokens_per_s > 4_000.0, "{} chunks a second", round.output_tokens_per_s);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_open_loop_keeps_its_times() {
    let measured = run(Behaviour::default(), 400, &even(200.0)).await;
    assert_eq!(measured.round.ok, 400);
    let lag = &measured.round.lag_ms;
    println!("lateness of the harness at 200 requests/s: p50 {:.3} ms, p99 {:.3} ms", lag.p50, lag.p99);
    assert!(lag.p50 < 2.0, "{lag:?}");
    let due: Vec<f64> = measured.outcomes.iter().map(|outcome| outcome.due_s).collect();
    assert!(due.iter().enumerate().all(|(at, due_s)| (due_s - at as f64 / 200.0).abs() < 1e-6));
}
