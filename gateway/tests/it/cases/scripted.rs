//! A brain whose every answer is written down by the test. The rule: it speaks the real protocol over a real
//! socket, so that only the model is pretended and everything on the way to the client is the product's.

mod engine;
mod script;

use std::collections::{HashMap, VecDeque};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use pons_protocol::PROTOCOL_VERSION;
use pons_protocol::capacity::Capacity;
use pons_protocol::id::{SequenceId, TokenId};
use pons_protocol::inference::{BrainHello, FromBrain, Submit, ToBrain};
use pons_protocol::wire::{Encoder, FrameReader, decode_to_brain, encode_from_brain};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::{mpsc, watch};
use tokio::task::JoinHandle;

pub(crate) use script::{Act, Reception, Script};

/// Period of the beats, well under what the gateway takes for silence.
const BEAT: Duration = Duration::from_millis(200);

/// Silence in the middle of a frame, several heartbeats of the tests that use it.
const SLOW_PAUSE: Duration = Duration::from_millis(160);

/// How the bytes of a link are cut into writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Writes {
    /// Each frame in one write.
    Whole,
    /// Each frame in two writes, the first of this many bytes.
    CutAt(usize),
    /// Each frame in two halves with a long silence between them.
    Slowly,
    /// All frames that are ready, and those of the next few milliseconds, in one write.
    Together,
}

/// What a brain was asked, in the order it was asked.
#[derive(Clone, Debug, Default)]
pub(crate) struct Log {
    pub(crate) submits: Vec<Submit>,
    pub(crate) aborts: Vec<SequenceId>,
    /// Sequences whose last output was sent.
    pub(crate) finished: Vec<SequenceId>,
    /// Links opened by the gateway.
    pub(crate) links: u64,
    /// Tokens sent, whoever read them.
    pub(crate) tokens_sent: u64,
}

impl Log {
    /// Sequences that are neither finished nor aborted.
    pub(crate) fn live(&self) -> usize {
        let ended = |id: &SequenceId| self.aborts.contains(id) || self.finished.contains(id);
        self.submits.iter().filter(|submit| !ended(&submit.sequence)).count()
    }
}

/// Identity of a sequence across links: the gateway gives it a new id when it moves.
type Identity = (Vec<TokenId>, u32, u64);

struct Shared {
    hello: BrainHello,
    writes: Mutex<Writes>,
    scripts: Mutex<VecDeque<Script>>,
    /// For requests that find no script waiting.
    usual: Mutex<Script>,
    begun: Mutex<HashMap<Identity, Script>>,
    /// Whether the log is kept; long runs only count.
    log: watch::Sender<Log>,
    keep_log: std::sync::atomic::AtomicBool,
    running: AtomicU64,
    steps: AtomicU64,
}

/// A scripted brain that listens until it is dropped.
pub(crate) struct ScriptedBrain {
    shared: Arc<Shared>,
    serving: JoinHandle<()>,
}

impl Drop for ScriptedBrain {
    fn drop(&mut self) {
        self.serving.abort();
    }
}

/// What a scripted brain says of itself; `eos` are the fixture's.
pub(crate) fn hello(model: &str, vocab_size: u32, context_tokens: u32, eos: Vec<TokenId>) -> BrainHello {
    BrainHello {
        protocol_version: PROTOCOL_VERSION,
        software: "scripted".to_owned(),
        model: model.to_owned(),
        fingerprint: "fp_scripted".to_owned(),
        vocab_size,
        context_tokens,
        eos_token_ids: eos,
        max_sequences: 4096,
        max_waiting: 4096,
        max_waiting_tokens: 1 << 30,
        block_tokens: 16,
        blocks_total: 1 << 16,
        step_tokens: 8192,
        calibration: None,
    }
}

impl ScriptedBrain {
    /// Listens at `path`.
    pub(crate) fn start(path: &Path, hello: BrainHello) -> Self {
        let listener = UnixListener::bind(path).expect("the folder is ours");
        let shared = Arc::new(Shared {
            hello,
            writes: Mutex::new(Writes::Whole),
            scripts: Mutex::default(),
            usual: Mutex::new(Script::default()),
            begun: Mutex::default(),
            log: watch::Sender::new(Log::default()),
            keep_log: true.into(),
            running: AtomicU64::new(0),
            steps: AtomicU64::new(0),
        });
        let serving = tokio::spawn(listen(listener, Arc::clone(&shared)));
        Self { shared, serving }
    }

    /// The next sequence without a script follows this one.
    pub(crate) fn next(&self, script: Script) {
        self.shared.scripts.lock().expect("no test panics with it").push_back(script);
    }

    /// Every sequence without a script of its own follows this one.
    pub(crate) fn always(&self, script: Script) {
        *self.shared.usual.lock().expect("no test panics with it") = script;
    }

    pub(crate) fn writes(&self, writes: Writes) {
        *self.shared.writes.lock().expect("no test panics with it") = writes;
    }

    /// Stops to write down requests, for runs of many thousand.
    pub(crate) fn forget(&self) {
        self.shared.keep_log.store(false, Ordering::Relaxed);
        self.shared.log.send_modify(|log| *log = Log::default());
        self.shared.begun.lock().expect("no test panics with it").clear();
    }

    pub(crate) fn log(&self) -> Log {
        self.shared.log.borrow().clone()
    }

    pub(crate) fn last_submit(&self) -> Submit {
        self.shared.log.borrow().submits.last().cloned().expect("a request reached the brain")
    }

    /// Sequences that the brain works on.
    pub(crate) fn running(&self) -> u64 {
        self.shared.running.load(Ordering::Relaxed)
    }

    /// Waits until the log fulfils a condition.
    pub(crate) async fn until(&self, what: &str, mut condition: impl FnMut(&Log) -> bool) {
        let mut log = self.shared.log.subscribe();
        let wait = tokio::time::timeout(crate::cases::raw_http::PATIENCE, log.wait_for(|log| condition(log)));
        match wait.await {
            Ok(result) => drop(result.expect("the brain lives")),
            Err(_) => panic!("{what} did not happen; {:?}", self.log()),
        }
    }
}

async fn listen(listener: UnixListener, shared: Arc<Shared>) {
    let mut links = tokio::task::JoinSet::new();
    while let Ok((socket, _)) = listener.accept().await {
        let shared = Arc::clone(&shared);
        links.spawn(async move { serve(socket, &shared).await });
    }
}

/// Serves one link. All sequences of the link live in its join set, so that they end with it.
async fn serve(socket: UnixStream, shared: &Arc<Shared>) {
    let (mut input, output) = socket.into_split();
    let (send, outbox) = mpsc::channel(1024);
    let (die, mut death) = mpsc::channel(1);
    let mut sequences = tokio::task::JoinSet::new();
    let mut handles = HashMap::new();
    let mut reader = FrameReader::new();
    let mut buffer = vec![0; 64 << 10];
    let mut beat = tokio::time::interval(BEAT);
    let mut writer = tokio::task::JoinSet::new();
    writer.spawn(write(output, outbox, Arc::clone(shared)));
    loop {
        while let Some(frame) = reader.next_frame().expect("the gateway frames well") {
            match decode_to_brain(frame).expect("the gateway writes valid messages") {
                ToBrain::Hello(_) => {
                    note(shared, |log| log.links += 1);
                    let _ = send.send(FromBrain::Hello(shared.hello.clone())).await;
                }
                ToBrain::Submit(submits) => {
                    for submit in submits {
                        let script = assign(shared, &submit);
                        let id = submit.sequence;
                        let run = engine::run(Arc::clone(shared), submit, script, send.clone(), die.clone());
                        handles.insert(id, sequences.spawn(run));
                    }
                }
                ToBrain::Abort(ids) => {
                    ids.iter().filter_map(|id| handles.remove(id)).for_each(|handle| handle.abort());
                    note(shared, |log| log.aborts.extend(ids));
                }
                ToBrain::Drain => return,
            }
        }
        while sequences.try_join_next().is_some() {}
        handles.retain(|_, handle| !handle.is_finished());
        tokio::select! {
            read = input.read(&mut buffer) => match read {
                Ok(0) | Err(_) => return,
                Ok(n) => reader.push(&buffer[..n]),
            },
            _ = beat.tick() => drop(send.try_send(FromBrain::Heartbeat(capacity(shared)))),
            _ = death.recv() => return,
        }
    }
}

/// The script of a new sequence, or the one that a moved sequence began with.
fn assign(shared: &Shared, submit: &Submit) -> Script {
    let keep = shared.keep_log.load(Ordering::Relaxed);
    let mut begun = shared.begun.lock().expect("no test panics with it");
    let identity = (submit.prompt.clone(), submit.sampling.choice, submit.sampling.seed);
    let moved = begun.get(&identity).filter(|script| !submit.generated.is_empty() || script.repeats());
    let script = moved.cloned().unwrap_or_else(|| {
        let next = shared.scripts.lock().expect("no test panics with it").pop_front();
        next.unwrap_or_else(|| shared.usual.lock().expect("no test panics with it").clone())
    });
    if keep {
        begun.insert(identity, script.clone());
        shared.log.send_modify(|log| log.submits.push(submit.clone()));
    }
    script
}

fn note(shared: &Shared, change: impl FnOnce(&mut Log)) {
    if shared.keep_log.load(Ordering::Relaxed) {
        shared.log.send_modify(change);
    }
}

fn capacity(shared: &Shared) -> Capacity {
    let running = shared.running.load(Ordering::Relaxed) as u32;
    let total = shared.hello.blocks_total;
    Capacity {
        running,
        blocks_free: total - running.min(total),
        blocks_held: running.min(total),
        blocks_total: total,
        steps: shared.steps.load(Ordering::Relaxed),
        ..Capacity::default()
    }
}

/// Writes frames one after another, cut as the test wants.
async fn write(
    mut output: tokio::net::unix::OwnedWriteHalf,
    mut outbox: mpsc::Receiver<FromBrain>,
    shared: Arc<Shared>,
) {
    let mut encoder = Encoder::new();
    while let Some(message) = outbox.recv().await {
        let mut bytes = encode_from_brain(&message, &mut encoder);
        let writes = *shared.writes.lock().expect("no test panics with it");
        let cut = match writes {
            Writes::Whole => 0,
            Writes::CutAt(at) => at.min(bytes.len()),
            Writes::Slowly => bytes.len() / 2,
            Writes::Together => {
                // Long enough for the script's next tokens to be ready, so that they share a segment.
                tokio::time::sleep(Duration::from_millis(5)).await;
                while let Ok(more) = outbox.try_recv() {
                    bytes.extend(encode_from_brain(&more, &mut encoder));
                }
                0
            }
        };
        if cut > 0 {
            let first = output.write_all(&bytes[..cut]).await;
            // Lets the gateway read the first part by itself.
            let pause = if writes == Writes::Slowly { SLOW_PAUSE } else { Duration::from_millis(1) };
            tokio::time::sleep(pause).await;
            if first.is_err() {
                return;
            }
        }
        if output.write_all(&bytes[cut..]).await.is_err() {
            return;
        }
    }
}
