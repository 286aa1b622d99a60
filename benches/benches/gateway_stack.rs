//! The request path: from a body to the frame for the brain, and a whole request over a loopback socket. The rule:
//! the frame is decoded and compared before it is timed, and so is every timed answer; the rivals are serde_json
//! reading the same body, and a bare hyper server with the same answer.

use std::hint::black_box;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use bytes::Bytes;
use criterion::Bencher;
use pons_benches::floor::{Canned, Floor};
use pons_benches::instant_brain::{InstantBrain, Script};
use pons_benches::load::{self, Target};
use pons_benches::plan::{Load, MODEL, Pace, Shape};
use pons_benches::reply::Expected;
use pons_benches::suite::{Case, Suite};
use pons_checkpoint::{ChatTemplate, Checkpoint, Tokenizer};
use pons_gateway::config::{self, Overrides};
use pons_gateway::openai::{self, RequestContext, ServedModel};
use pons_gateway::server::{self, RunningServer};
use pons_protocol::id::{SequenceId, TenantId};
use pons_protocol::inference::{Submit, ToBrain};
use pons_protocol::wire::{Encoder, decode_to_brain, encode_to_brain};
use serde_json::Value;
use tokio::runtime::Runtime;

/// Tokens of each answer.
const TOKENS: u32 = 32;
/// A file system in memory, on most systems.
const MEMORY_DIR: &str = "/dev/shm";

fn main() -> anyhow::Result<()> {
    let mut suite = Suite::start("gateway_stack")?;
    // In memory where that can be, so that the ledger's wait for a disk is not what is timed.
    let folder = tempfile::tempdir_in(MEMORY_DIR).or_else(|_| tempfile::tempdir())?;
    let path = folder.path().join("model");
    let script = Script::with_model(&path, TOKENS)?;
    to_brain(&mut suite, &served(&path, script)?)?;
    over_loopback(&mut suite, folder.path(), &path, script)?;
    suite.finish()
}

fn served(path: &Path, script: Script) -> anyhow::Result<Arc<ServedModel>> {
    let checkpoint = Checkpoint::open(path)?;
    let tokenizer = Tokenizer::open(&checkpoint)?;
    let template = ChatTemplate::open(&checkpoint, &tokenizer)?;
    Ok(Arc::new(ServedModel {
        name: MODEL.to_owned(),
        tokenizer: Arc::new(tokenizer),
        template: Arc::new(template),
        context_tokens: 4096,
        vocab_size: script.vocab_size,
        eos: vec![script.eos],
        fingerprint: "fp_bench".to_owned(),
        created: 1_700_000_000,
        limits: Default::default(),
    }))
}

/// Parsing, checking, template, tokens, frame: all that a request costs before the brain has it.
fn to_brain(suite: &mut Suite, model: &Arc<ServedModel>) -> anyhow::Result<()> {
    let bodies = Shape::Streamed.bodies();
    let body = bodies.first().context("there are bodies")?;
    let mut encoder = Encoder::new();
    let frame = frame(body, model, &mut encoder);
    let ToBrain::Submit(submits) = decode_to_brain(&frame)? else { anyhow::bail!("not a submission") };
    let asked: Value = serde_json::from_slice(body)?;
    // The template of the model, written down plainly.
    let text: String =
        asked["messages"].as_array().context("no messages")?.iter().fold(String::new(), |text, message| {
            let of = |key: &str| message[key].as_str().unwrap_or_default();
            text + &format!("<|im_start|>{}\n{}<|im_end|>\n", of("role"), of("content"))
        });
    let wanted = model.tokenizer.encode_with_control(&(text + "<|im_start|>assistant\n"));
    assert_eq!(submits.len(), 1);
    assert_eq!(submits[0].prompt, wanted);
    assert_eq!((submits[0].stop.max_tokens, submits[0].sampling.temperature), (512, 0.0));

    let case = |name: &str| Case::new("to_brain", name);
    suite.time(case("body_to_frame").beside("serde_json_reads_the_body"), |bencher| {
        bencher.iter(|| self::frame(black_box(body), model, &mut encoder));
    });
    suite.time(case("serde_json_reads_the_body"), |bencher| {
        bencher.iter(|| serde_json::from_slice::<Value>(black_box(body)));
    });
    Ok(())
}

fn frame(body: &Bytes, model: &Arc<ServedModel>, encoder: &mut Encoder) -> Vec<u8> {
    let value = openai::json::parse(body).expect("the body is JSON");
    let context = RequestContext { id: "0123456789abcdef".to_owned(), created: 1_700_000_001, entropy: 42 };
    let prepared = openai::prepare_chat(value, model, context).expect("the request is valid");
    let submits = prepared.sequences.into_iter().map(|sequence| Submit {
        sequence: SequenceId(1),
        tenant: TenantId(1),
        cache_salt: [1; 16],
        priority: 0,
        prompt: sequence.prompt.to_vec(),
        generated: Vec::new(),
        sampling: sequence.sampling,
        stop: sequence.stop,
        grammar: sequence.grammar,
        queue_timeout_ms: 0,
    });
    encode_to_brain(&ToBrain::Submit(submits.collect()), encoder)
}

/// Whole requests, one after the other on one connection.
fn over_loopback(suite: &mut Suite, folder: &Path, model: &Path, script: Script) -> anyhow::Result<()> {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    let (server, target) = runtime.block_on(start(folder, model, script))?;
    let (plain, of_plain) = runtime.block_on(load::verify(&target, Shape::Plain, TOKENS))?;
    let (stream, of_streamed) = runtime.block_on(load::verify(&target, Shape::Streamed, TOKENS))?;
    let floor = runtime.block_on(Floor::bind(Canned::new(plain, &stream)))?;
    let floor_target = Target { address: floor.address()?, authorization: None };
    runtime.spawn(floor.serve());
    for (shape, expected) in [(Shape::Plain, of_plain), (Shape::Streamed, of_streamed)] {
        let group = format!("loopback_{}", shape.name());
        suite.time(Case::new(&group, "gateway").beside("bare_hyper"), |bencher| {
            requests(bencher, &runtime, &target, shape, expected);
        });
        suite.time(Case::new(&group, "bare_hyper"), |bencher| {
            requests(bencher, &runtime, &floor_target, shape, expected);
        });
    }
    runtime.block_on(server.shutdown());
    Ok(())
}

/// A gateway with a key, and its brain.
async fn start(folder: &Path, model: &Path, script: Script) -> anyhow::Result<(RunningServer, Target)> {
    let socket = folder.join("brain.sock");
    tokio::spawn(InstantBrain::bind(&socket, script)?.serve());
    let text = format!(
        "listen = \"127.0.0.1:0\"\nstate_dir = {:?}\n[[model]]\nname = \"{MODEL}\"\npath = {model:?}\nbrain = \"unix:{}\"\n",
        folder.join("state"),
        socket.display(),
    );
    let raw = config::parse(&folder.join("pons.toml"), &text)?;
    let server = server::start(config::resolve(raw, Overrides::default())?).await?;
    server.ready().await;
    let key = server.app().store.create_key("bench").await?.key;
    let target = Target { address: server.address(), authorization: Some(format!("Bearer {key}")) };
    Ok((server, target))
}

fn requests(bencher: &mut Bencher<'_>, runtime: &Runtime, target: &Target, shape: Shape, expected: Expected) {
    bencher.iter_custom(|count| {
        let load = Load {
            shape,
            connections: 1,
            pace: Pace::Closed,
            duration: Duration::from_secs(600),
            most_requests: count,
        };
        let outcome = runtime.block_on(load::run(target, load, expected)).expect("the server answers");
        assert_eq!((outcome.right, outcome.wrong), (count, 0), "answers must be right to be counted");
        outcome.elapsed
    });
}
