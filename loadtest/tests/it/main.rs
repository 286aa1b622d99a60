//! The harness against servers whose behaviour is known. The rule: what the harness reports is compared with what
//! the server did.

mod servers;

use std::convert::Infallible;
use std::net::SocketAddr;
use std::time::Duration;

use bytes::Bytes;
use http_body_util::combinators::BoxBody;
use http_body_util::{BodyExt, Full, StreamBody};
use hyper::body::Frame;
use hyper_util::rt::TokioIo;
use pons_loadtest::client::Target;
use pons_loadtest::record::Round;
use pons_loadtest::run;
use pons_loadtest::scenario::Scenario;
use tokio::sync::mpsc;

/// What a mock server does.
#[derive(Clone, Copy)]
struct Mock {
    first: Duration,
    between: Duration,
    tokens: usize,
    /// Chunks after which the connection ends.
    cut: Option<usize>,
    status: u16,
}

const INSTANT: Mock =
    Mock { first: Duration::ZERO, between: Duration::ZERO, tokens: 8, cut: None, status: 200 };

async fn serve(mock: Mock) -> SocketAddr {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("loopback");
    let address = listener.local_addr().expect("bound");
    tokio::spawn(async move {
        while let Ok((socket, _)) = listener.accept().await {
            socket.set_nodelay(true).expect("a loopback socket takes the option");
            let service =
                hyper::service::service_fn(move |_| async move { Ok::<_, Infallible>(answer(mock)) });
            tokio::spawn(
                hyper::server::conn::http1::Builder::new().serve_connection(TokioIo::new(socket), service),
            );
        }
    });
    address
}

fn answer(mock: Mock) -> http::Response<BoxBody<Bytes, std::io::Error>> {
    let response = http::Response::builder().status(mock.status);
    if mock.status != 200 {
        let body = Full::new(Bytes::from_static(b"{}")).map_err(|never| match never {}).boxed();
        return response.body(body).expect("a response");
    }
    let (sender, mut receiver) = mpsc::channel(64);
    tokio::spawn(async move {
        let event = |text: String| Ok(Frame::data(Bytes::from(format!("data: {text}\n\n"))));
        tokio::time::sleep(mock.first).await;
        for token in 0..mock.tokens {
            if mock.cut == Some(token) {
                let _ = sender.send(Err(std::io::Error::other("cut"))).await;
                return;
            }
            if token > 0 {
                tokio::time::sleep(mock.between).await;
            }
            let chunk = r#"{"choices":[{"delta":{"content":"x"},"finish_reason":null}]}"#;
            let _ = sender.send(event(chunk.to_owned())).await;
        }
        let last = r#"{"choices":[{"delta":{},"finish_reason":"length"}]}"#;
        let usage =
            format!(r#"{{"choices":[],"usage":{{"prompt_tokens":32,"completion_tokens":{}}}}}"#, mock.tokens);
        for text in [last.to_owned(), usage, "[DONE]".to_owned()] {
            let _ = sender.send(event(text)).await;
        }
    });
    let frames = futures_util::stream::poll_fn(move |context| receiver.poll_recv(context));
    response.body(BodyExt::boxed(StreamBody::new(frames))).expect("a response")
}

async fn measure(mock: Mock, requests: usize, arrivals: &str) -> Round {
    let address = serve(mock).await;
    let text = format!(
        "name = 'test'\nrequests = {requests}\nprompt_tokens = [32]\noutput_tokens = [8, 8]\n[arrivals]\n{arrivals}"
    );
    let scenario = Scenario::parse(&text).expect("the scenario is right");
    let target =
        Target { name: "mock".into(), url: format!("http://{address}"), model: "m".into(), key: None };
    run::round(&scenario, &target, 0, 1).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn known_delays_are_what_is_reported() {
    let (first, between) = (Duration::from_millis(50), Duration::from_millis(10));
    let round = measure(Mock { first, between, ..INSTANT }, 40, "kind = 'closed'\nstreams = 4").await;
    assert_eq!((round.ok, round.output_tokens, round.prompt_tokens), (40, 320, 1280));
    assert!((49.0..80.0).contains(&round.ttft_ms.p50), "{:?}", round.ttft_ms);
    assert!((9.5..16.0).contains(&round.itl_ms.p50), "{:?}", round.itl_ms);
    assert!((9.5..16.0).contains(&round.tpot_ms.p50), "{:?}", round.tpot_ms);
    assert!((119.0..180.0).contains(&round.e2e_ms.p50), "{:?}", round.e2e_ms);
    // Four streams of eight tokens in at least 120 ms.
    assert!(round.output_tokens_per_s < 4.0 * 8.0 / 0.119, "{}", round.output_tokens_per_s);
    assert_eq!(round.seconds.iter().map(|second| second.chunks).sum::<u64>(), 320);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_is_slow_is_not_spared_by_an_open_loop() {
    // 100 requests a second, each of which takes 200 ms before its first token: twenty are under way at a time.
    let mock = Mock { first: Duration::from_millis(200), ..INSTANT };
    let round = measure(mock, 60, "kind = 'poisson'\nrate = 100.0").await;
    assert_eq!(round.ok, 60);
    assert!(round.ttft_ms.p50 >= 199.0, "{:?}", round.ttft_ms);
    assert!(round.duration_s < 4.0, "requests waited for each other: {} s", round.duration_s);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn refusals_and_failures_are_told_apart() {
    let refused = measure(Mock { status: 429, ..INSTANT }, 5, "kind = 'closed'\nstreams = 1").await;
    assert_eq!((refused.ok, refused.refused.get("429"), refused.failed.len()), (0, Some(&5), 0));
    let failed = measure(Mock { status: 500, ..INSTANT }, 5, "kind = 'closed'\nstreams = 1").await;
    assert_eq!((failed.ok, failed.failed.get("5xx"), failed.refused.len()), (0, Some(&5), 0));
    let cut = measure(Mock { cut: Some(3), ..INSTANT }, 5, "kind = 'closed'\nstreams = 1").await;
    assert_eq!((cut.ok, cut.failed.get("cut")), (0, Some(&5)), "{:?}", cut.failed);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_harness_itself_is_fast_enough_not_to_be_what_is_measured() {
    let round = measure(INSTANT, 2000, "kind = 'closed'\nstreams = 16").await;
    assert_eq!(round.ok, 2000);
    // A CPU brain gives some thousand tokens a second; the floor leaves room for a slow, shared, unoptimised build.
    assert!(round.output_tokens_per_s > 4_000.0, "{} chunks a second", round.output_tokens_per_s);
}
