//! The harness against servers whose behaviour is known. The rule: what the harness reports is compared with what
//! the server did.

mod accuracy;
mod command;
mod failures;
mod load;
mod mock;
mod secure;
mod servers;

use std::net::SocketAddr;
use std::sync::Arc;

use mock::{Behaviour, Mock};
use pons_loadtest::client::{Target, Tls};
use pons_loadtest::run::{Measured, Settings, measure};
use pons_loadtest::scenario::Scenario;

/// A scenario of `requests` and more lines, arrivals among them.
fn scenario(requests: usize, more: &str) -> Scenario {
    let text = format!(
        "name = 'test'\nrequests = {requests}\nprompt_tokens = [32]\noutput_tokens = [8, 8]\n{more}\n"
    );
    Scenario::parse(&text).unwrap_or_else(|error| panic!("{error}\n{text}"))
}

fn target(address: SocketAddr) -> Target {
    Target {
        name: "mock".into(),
        url: format!("http://{address}"),
        model: "m".into(),
        key: Some("key".into()),
        headers: Vec::new(),
    }
}

fn settings() -> Settings {
    let tls = Tls::new(None).expect("the authorities are built in");
    Settings { number: 0, salt: 1, tls, progress: Arc::default() }
}

/// Runs a scenario against a mock.
async fn against(mock: &Mock, scenario: &Scenario) -> Measured {
    let address = mock.serve().await;
    measure(scenario, &target(address), &settings()).await.expect("no key is missing")
}

/// The same of a behaviour, where the mock isn't asked afterwards.
async fn run(behaviour: Behaviour, requests: usize, more: &str) -> Measured {
    against(&Mock::new(behaviour), &scenario(requests, more)).await
}

/// A closed loop of so many streams.
fn closed(streams: usize) -> String {
    format!("arrivals = {{ kind = 'closed', streams = {streams} }}\n")
}

/// An open loop of even gaps.
fn even(rate: f64) -> String {
    format!("arrivals = {{ kind = 'even', rate = {rate:.3} }}\n")
}
