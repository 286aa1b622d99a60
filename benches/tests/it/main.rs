//! The overhead benchmark in small: the gateway in this process, a few hundred requests, nothing timed.

use std::time::Duration;

use pons_benches::floor::{Canned, Floor};
use pons_benches::instant_brain::{InstantBrain, Script};
use pons_benches::load::{self, Target};
use pons_benches::plan::{Load, MODEL, Pace, Shape};
use pons_gateway::config::{self, Overrides};
use pons_gateway::server::{self, RunningServer};

const TOKENS: u32 = 32;

/// A gateway with a key, its brain, and the files of both.
struct Bench {
    server: RunningServer,
    target: Target,
    _folder: tempfile::TempDir,
}

impl Bench {
    async fn start() -> anyhow::Result<Self> {
        let folder = tempfile::tempdir()?;
        let (model, socket) = (folder.path().join("model"), folder.path().join("brain.sock"));
        let script = Script::with_model(&model, TOKENS)?;
        tokio::spawn(InstantBrain::bind(&socket, script)?.serve());
        let text = format!(
            "listen = \"127.0.0.1:0\"\nstate_dir = {:?}\n[[model]]\nname = \"{MODEL}\"\npath = {model:?}\nbrain = \"unix:{}\"\n",
            folder.path().join("state"),
            socket.display(),
        );
        let raw = config::parse(&folder.path().join("pons.toml"), &text)?;
        let server = server::start(config::resolve(raw, Overrides::default())?).await?;
        server.ready().await;
        let key = server.app().store.create_key("bench").await?.key;
        let target = Target { address: server.address(), authorization: Some(format!("Bearer {key}")) };
        Ok(Self { server, target, _folder: folder })
    }
}

fn load(shape: Shape, pace: Pace, most_requests: u64) -> Load {
    Load { shape, connections: 4, pace, duration: Duration::from_secs(120), most_requests }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_answer_of_gateway_and_floor_is_right() {
    let bench = Bench::start().await.unwrap();
    let (plain, of_plain) = load::verify(&bench.target, Shape::Plain, TOKENS).await.unwrap();
    let (stream, of_streamed) = load::verify(&bench.target, Shape::Streamed, TOKENS).await.unwrap();
    assert!(of_streamed.events > TOKENS as usize, "{} events", of_streamed.events);

    let floor = Floor::bind(Canned::new(plain, &stream)).await.unwrap();
    let floor_target = Target { address: floor.address().unwrap(), authorization: None };
    tokio::spawn(floor.serve());
    for target in [&bench.target, &floor_target] {
        for (shape, expected) in [(Shape::Plain, of_plain), (Shape::Streamed, of_streamed)] {
            assert_eq!(load::verify(target, shape, TOKENS).await.unwrap().1, expected);
            for pace in [Pace::Closed, Pace::Open { rate: 2000.0 }] {
                let outcome = load::run(target, load(shape, pace, 60), expected).await.unwrap();
                assert_eq!((outcome.right, outcome.wrong, outcome.unsent), (60, 0, 0), "{shape:?} {pace:?}");
                assert_eq!(outcome.whole.len(), 60);
            }
        }
    }
    bench.server.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stranger_is_told_apart_from_a_right_answer() {
    let bench = Bench::start().await.unwrap();
    let expected = load::verify(&bench.target, Shape::Plain, TOKENS).await.unwrap().1;
    let stranger = Target { authorization: None, ..bench.target.clone() };
    let refused = load::verify(&stranger, Shape::Plain, TOKENS).await.unwrap_err();
    assert!(refused.to_string().contains("status 401"), "{refused}");
    let outcome = load::run(&stranger, load(Shape::Plain, Pace::Closed, 8), expected).await.unwrap();
    assert_eq!((outcome.right, outcome.wrong), (0, 8));
    bench.server.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_answer_of_another_length_is_wrong() {
    let bench = Bench::start().await.unwrap();
    let error = load::verify(&bench.target, Shape::Streamed, TOKENS + 1).await.unwrap_err();
    assert!(format!("{error:#}").contains("content is"), "{error:#}");
    bench.server.shutdown().await;
}
