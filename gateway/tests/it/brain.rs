//! A brain that follows a script over the real protocol: it accepts whatever comes, answers with a fixed text
//! token by token, and can be told where to stop.

use pons_checkpoint::{Checkpoint, Tokenizer};
use pons_protocol::PROTOCOL_VERSION;
use pons_protocol::capacity::Capacity;
use pons_protocol::id::SequenceId;
use pons_protocol::inference::{
    BrainHello, Finish, FinishReason, FromBrain, SequenceOutput, StepOutput, Submit, ToBrain,
};
use pons_protocol::wire::{Encoder, FrameReader, decode_to_brain, encode_from_brain};
use std::path::Path;
use std::sync::{Arc, Mutex};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::watch;

/// The text it answers with.
pub(crate) const TEXT: &str = "one two three";

/// What it does with the next sequences.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Script {
    /// Sends so many tokens and then nothing more; `None` sends all of them and the finish.
    pub(crate) stall_after: Option<usize>,
}

#[derive(Debug, Default)]
struct State {
    script: Option<Script>,
    submitted: u64,
}

/// See the module.
pub(crate) struct ScriptedBrain {
    state: Arc<Mutex<State>>,
    aborted: watch::Receiver<Vec<SequenceId>>,
    task: tokio::task::JoinHandle<()>,
    /// Tokens of [`TEXT`].
    pub(crate) tokens: usize,
}

impl ScriptedBrain {
    pub(crate) fn start(model: &Path, socket: &Path) -> Self {
        let checkpoint = Checkpoint::open(model).unwrap();
        let tokenizer = Tokenizer::open(&checkpoint).unwrap();
        let tokens = tokenizer.encode(TEXT);
        let hello = BrainHello {
            protocol_version: PROTOCOL_VERSION,
            software: "scripted".to_owned(),
            model: "scripted".to_owned(),
            fingerprint: "fp_scripted".to_owned(),
            vocab_size: tokenizer.vocab_size() as u32,
            context_tokens: 4096,
            eos_token_ids: checkpoint.config().eos.clone(),
            max_sequences: 64,
            max_waiting: 64,
            max_waiting_tokens: 1 << 20,
            block_tokens: 16,
            blocks_total: 1024,
            step_tokens: 256,
            calibration: None,
        };
        let listener = UnixListener::bind(socket).unwrap();
        let state = Arc::new(Mutex::new(State::default()));
        let (aborts, aborted) = watch::channel(Vec::new());
        let player = Player { state: Arc::clone(&state), aborts, hello, tokens: tokens.clone() };
        let task = tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                player.play(stream).await;
            }
        });
        Self { state, aborted, task, tokens: tokens.len() }
    }

    /// From now on sequences stop getting tokens after so many.
    pub(crate) fn stall_after(&self, tokens: usize) {
        self.state.lock().unwrap().script = Some(Script { stall_after: Some(tokens) });
    }

    /// How many sequences have come so far.
    pub(crate) fn submitted(&self) -> u64 {
        self.state.lock().unwrap().submitted
    }

    /// Waits until so many sequences were aborted.
    pub(crate) async fn until_aborted(&mut self, count: usize) {
        let wait = self.aborted.wait_for(|ids| ids.len() >= count);
        let waited = tokio::time::timeout(crate::harness::PATIENCE, wait).await;
        assert!(waited.is_ok_and(|result| result.is_ok()), "the brain was told to abort");
    }
}

impl Drop for ScriptedBrain {
    fn drop(&mut self) {
        self.task.abort();
    }
}

struct Player {
    state: Arc<Mutex<State>>,
    aborts: watch::Sender<Vec<SequenceId>>,
    hello: BrainHello,
    tokens: Vec<u32>,
}

impl Player {
    async fn play(&self, mut stream: UnixStream) {
        let mut reader = FrameReader::new();
        let mut buffer = vec![0; 64 << 10];
        let mut beat = tokio::time::interval(std::time::Duration::from_millis(500));
        loop {
            let read = tokio::select! {
                read = stream.read(&mut buffer) => read,
                _ = beat.tick() => {
                    send(&mut stream, &FromBrain::Heartbeat(capacity())).await;
                    continue;
                }
            };
            let Ok(count @ 1..) = read else { return };
            reader.push(&buffer[..count]);
            while let Some(frame) = reader.next_frame().unwrap() {
                let message = decode_to_brain(frame).unwrap();
                self.react(&mut stream, message).await;
            }
        }
    }

    async fn react(&self, stream: &mut UnixStream, message: ToBrain) {
        match message {
            ToBrain::Hello(_) => send(stream, &FromBrain::Hello(self.hello.clone())).await,
            ToBrain::Abort(ids) => self.aborts.send_modify(|all| all.extend(ids)),
            ToBrain::Drain => {}
            ToBrain::Submit(submits) => {
                let ids = submits.iter().map(|submit| submit.sequence).collect();
                send(stream, &FromBrain::Accepted(ids)).await;
                for submit in &submits {
                    self.generate(stream, submit).await;
                }
            }
        }
    }

    async fn generate(&self, stream: &mut UnixStream, submit: &Submit) {
        let script = {
            let mut state = self.state.lock().unwrap();
            state.submitted += 1;
            state.script
        };
        let all = self.tokens.len().min(submit.stop.max_tokens as usize);
        let count = script.and_then(|script| script.stall_after).map_or(all, |stall| stall.min(all));
        for (position, token) in self.tokens[..count].iter().enumerate() {
            let last = position + 1 == all && count == all && script.is_none();
            let finish = last.then_some(Finish {
                reason: if all < self.tokens.len() { FinishReason::Length } else { FinishReason::GrammarEnd },
                prompt_tokens: submit.prompt.len() as u32,
                cached_tokens: 0,
                output_tokens: all as u32,
                queue_us: 1000,
                prefill_us: 2000,
                decode_us: 3000,
                preemptions: 0,
            });
            let output = SequenceOutput {
                sequence: submit.sequence,
                position: position as u32,
                cached_tokens: 0,
                tokens: vec![*token],
                logprobs: Vec::new(),
                prompt_logprobs: Vec::new(),
                finish,
            };
            let step = StepOutput { step: position as u64, outputs: vec![output], capacity: capacity() };
            send(stream, &FromBrain::Step(step)).await;
        }
    }
}

fn capacity() -> Capacity {
    Capacity { blocks_free: 1000, blocks_held: 24, blocks_total: 1024, ..Capacity::default() }
}

async fn send(stream: &mut UnixStream, message: &FromBrain) {
    // The gateway may have gone; the next read says so.
    let _ = stream.write_all(&encode_from_brain(message, &mut Encoder::new())).await;
}
