//! A brain process on a tiny model, and a gateway's end of a link to it.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use pons_checkpoint::fixture::write_tiny_llama;
use pons_protocol::PROTOCOL_VERSION;
use pons_protocol::capacity::Capacity;
use pons_protocol::id::{SequenceId, TenantId, TokenId};
use pons_protocol::inference::{BrainHello, ClientHello, Finish, FromBrain, Submit, ToBrain};
use pons_protocol::sampling::{SamplingParams, StopParams};
use pons_protocol::wire::{Encoder, FrameReader, decode_from_brain, encode_to_brain};

/// Longest wait for anything; only a failing test waits this long.
const PATIENCE: Duration = Duration::from_secs(60);

/// A running brain and its files.
pub(crate) struct Brain {
    pub(crate) child: Child,
    pub(crate) socket: PathBuf,
    dir: tempfile::TempDir,
}

impl Brain {
    /// Starts one and waits until it listens.
    pub(crate) fn start(options: &[&str]) -> Self {
        let dir = tempfile::tempdir().expect("temporary directory");
        write_tiny_llama(&dir.path().join("tiny"), 1, &[]).expect("the model is written");
        let socket = dir.path().join("run").join("brain.sock");
        let child = command(dir.path(), &socket).args(options).spawn().expect("the brain starts");
        let mut brain = Self { child, socket, dir };
        brain.await_socket();
        brain
    }

    fn await_socket(&mut self) {
        let began = Instant::now();
        while UnixStream::connect(&self.socket).is_err() {
            if let Some(status) = self.child.try_wait().expect("the child can be asked") {
                panic!("the brain ended with {status} before it listened");
            }
            assert!(began.elapsed() < PATIENCE, "the brain does not listen");
            std::thread::yield_now();
        }
    }

    /// Where packed weights are kept: beside the model's own files.
    pub(crate) fn model_dir(&self) -> PathBuf {
        self.dir.path().join("tiny")
    }

    /// Starts another on the same model and socket, and waits for its end.
    pub(crate) fn rival(&self) -> std::process::Output {
        command(self.dir.path(), &self.socket).stderr(Stdio::piped()).output().expect("the rival starts")
    }

    /// Ends it without warning and starts another in its place.
    pub(crate) fn restart(&mut self) {
        self.child.kill().expect("the brain can be killed");
        self.child.wait().expect("the brain ends");
        assert!(self.socket.exists(), "a killed brain leaves its socket file");
        self.child = command(self.dir.path(), &self.socket).spawn().expect("the brain starts");
        self.await_socket();
    }

    pub(crate) fn signal(&self, signal: &str) {
        let pid = self.child.id().to_string();
        let sent = Command::new("kill").args(["-s", signal, &pid]).status().expect("kill runs");
        assert!(sent.success());
    }

    pub(crate) fn end(&mut self) -> ExitStatus {
        let began = Instant::now();
        loop {
            if let Some(status) = self.child.try_wait().expect("the child can be asked") {
                return status;
            }
            assert!(began.elapsed() < PATIENCE, "the brain does not end");
            std::thread::yield_now();
        }
    }

    pub(crate) fn connect(&self) -> Gateway {
        let mut gateway = Gateway::unheard(&self.socket);
        let hello = gateway.greet(PROTOCOL_VERSION);
        assert_eq!(hello.protocol_version, PROTOCOL_VERSION);
        gateway
    }
}

impl Drop for Brain {
    fn drop(&mut self) {
        // It has ended already in the tests that end it.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The command that serves the tiny model of a directory.
pub(crate) fn command(dir: &Path, socket: &Path) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_pons-brain"));
    command
        .arg("--model")
        .arg(dir.join("tiny"))
        .arg("--listen")
        .arg(format!("unix:{}", socket.display()))
        .args(["--threads", "1", "--kv-memory", "8MiB", "--max-sequences", "8", "--log", "warn"]);
    command
}

/// One link.
pub(crate) struct Gateway<S = UnixStream> {
    stream: S,
    frames: FrameReader,
    encoder: Encoder,
}

impl Gateway {
    /// A link without a hello.
    pub(crate) fn unheard(socket: &Path) -> Self {
        let stream = UnixStream::connect(socket).expect("the brain listens");
        stream.set_read_timeout(Some(PATIENCE)).expect("a timeout can be set");
        Self::over(stream)
    }
}

impl<S: Read + Write> Gateway<S> {
    /// A link over a stream.
    pub(crate) fn over(stream: S) -> Self {
        Self { stream, frames: FrameReader::new(), encoder: Encoder::new() }
    }

    pub(crate) fn greet(&mut self, protocol_version: u32) -> BrainHello {
        self.send(&ToBrain::Hello(ClientHello { protocol_version, software: "test".to_owned() }));
        match self.next() {
            Some(FromBrain::Hello(hello)) => hello,
            other => panic!("a hello is answered first, not with {other:?}"),
        }
    }

    pub(crate) fn send(&mut self, message: &ToBrain) {
        let frame = encode_to_brain(message, &mut self.encoder);
        self.send_bytes(&frame);
    }

    pub(crate) fn send_bytes(&mut self, bytes: &[u8]) {
        self.stream.write_all(bytes).expect("the link takes bytes");
    }

    /// The next message, or none at the end of the link.
    pub(crate) fn next(&mut self) -> Option<FromBrain> {
        let mut buffer = [0; 4096];
        loop {
            if let Some(frame) = self.frames.next_frame().expect("lengths are right") {
                return Some(decode_from_brain(frame).expect("frames are whole"));
            }
            match self.stream.read(&mut buffer) {
                Ok(0) => return None,
                Ok(count) => self.frames.push(&buffer[..count]),
                Err(reset) if reset.kind() == std::io::ErrorKind::ConnectionReset => return None,
                Err(error) => panic!("nothing arrives: {error}"),
            }
        }
    }

    /// The next message that is not a heartbeat.
    pub(crate) fn next_event(&mut self) -> FromBrain {
        loop {
            match self.next().expect("the link is open") {
                FromBrain::Heartbeat(_) => {}
                event => return event,
            }
        }
    }

    pub(crate) fn submit(&mut self, submits: Vec<Submit>) {
        self.send(&ToBrain::Submit(submits));
    }

    /// Reads until the sequence ends; returns its tokens and its end.
    pub(crate) fn finish(&mut self, sequence: u64) -> (Vec<TokenId>, Finish) {
        let mut tokens = Vec::new();
        loop {
            match self.next_event() {
                FromBrain::Step(step) => {
                    for output in step.outputs {
                        if output.sequence != SequenceId(sequence) {
                            continue;
                        }
                        tokens.extend(output.tokens);
                        if let Some(finish) = output.finish {
                            return (tokens, finish);
                        }
                    }
                }
                FromBrain::Accepted(_) => {}
                other => panic!("{other:?} came before the end"),
            }
        }
    }

    /// Heartbeats until the state is as wanted.
    pub(crate) fn await_capacity(&mut self, wanted: impl Fn(&Capacity) -> bool) -> Capacity {
        let began = Instant::now();
        loop {
            let capacity = match self.next().expect("the link is open") {
                FromBrain::Heartbeat(capacity) => capacity,
                FromBrain::Step(step) => step.capacity,
                _ => continue,
            };
            if wanted(&capacity) {
                return capacity;
            }
            assert!(began.elapsed() < PATIENCE, "still {capacity:?}");
        }
    }
}

/// A sequence that samples greedily to its full length.
pub(crate) fn submit(sequence: u64, prompt: &[TokenId], max_tokens: u32) -> Submit {
    Submit {
        sequence: SequenceId(sequence),
        tenant: TenantId(1),
        cache_salt: [1; 16],
        priority: 0,
        prompt: prompt.to_vec(),
        generated: Vec::new(),
        sampling: SamplingParams { temperature: 0.0, ..SamplingParams::default() },
        stop: StopParams { max_tokens, ignore_eos: true, ..StopParams::default() },
        grammar: None,
        queue_timeout_ms: 0,
    }
}
