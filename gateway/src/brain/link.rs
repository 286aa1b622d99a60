//! One link to one brain: connect, handshake, route frames, reconnect.
//!
//! The rule: one task owns the socket and the table of live sequences, so no lock is held across a wait, and a
//! lost connection is told to every sequence exactly once.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, RwLock};
use std::time::{Duration, Instant};

use pons_protocol::PROTOCOL_VERSION;
use pons_protocol::capacity::Capacity;
use pons_protocol::id::SequenceId;
use pons_protocol::inference::{
    BrainHello, ClientHello, FromBrain, Rejection, SequenceOutput, Submit, ToBrain,
};
use pons_protocol::sampling::Grammar;
use pons_protocol::wire::{Encoder, FrameReader, decode_from_brain};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::sync::{mpsc, watch};

use super::address::{BrainAddress, Connection};

/// Commands that may wait for the link's task.
const COMMAND_QUEUE: usize = 4096;
/// Commands folded into one frame.
const COMMANDS_PER_FRAME: usize = 256;
/// Bulk after which a further frame is begun, far below what a frame may have.
const FRAME_BYTES: usize = 8 << 20;
/// Bytes read at once.
const READ_BYTES: usize = 256 << 10;
/// A brain beats at least every second; after this long without a byte the link counts as dead.
const SILENCE_LIMIT: Duration = Duration::from_secs(10);
/// Longest time for connecting and the handshake.
const HANDSHAKE_LIMIT: Duration = Duration::from_secs(5);
/// First and longest pause between two attempts to connect.
const RETRY_FIRST: Duration = Duration::from_millis(10);
const RETRY_LAST: Duration = Duration::from_millis(250);

/// What a link tells a generation.
#[derive(Debug)]
pub(super) enum LinkEvent {
    /// All checks passed.
    Accepted(SequenceId),
    /// Refused; nothing follows.
    Rejected(Rejection),
    /// Tokens.
    Output(SequenceOutput),
    /// The connection that carried it is gone.
    Lost(SequenceId),
}

/// Where the events of a generation go. Bounded: one that falls behind by a whole queue is marked, and fails
/// when it next looks.
#[derive(Clone)]
pub(super) struct EventSender {
    pub(super) queue: mpsc::Sender<LinkEvent>,
    pub(super) overflowed: Arc<AtomicBool>,
}

impl EventSender {
    /// Never waits: the link's task serves every other sequence too.
    fn send(&self, event: LinkEvent) {
        if let Err(mpsc::error::TrySendError::Full(_)) = self.queue.try_send(event) {
            self.overflowed.store(true, Ordering::Release);
        }
    }
}

pub(super) enum Command {
    Submit(Vec<Submit>, EventSender),
    Abort(Vec<SequenceId>),
}

/// What is known of a brain. `hello` is `Some` while the link is up.
#[derive(Clone, Default)]
pub(super) struct LinkState {
    pub(super) hello: Option<Arc<BrainHello>>,
}

/// Handle of a link's task.
pub(super) struct Link {
    commands: mpsc::Sender<Command>,
    state: watch::Receiver<LinkState>,
    shared: Arc<Shared>,
}

#[derive(Default)]
struct Shared {
    capacity: RwLock<(Capacity, Option<Instant>)>,
}

impl Shared {
    fn heard(&self, capacity: Option<Capacity>) {
        let mut slot = self.capacity.write().unwrap_or_else(std::sync::PoisonError::into_inner);
        if let Some(capacity) = capacity {
            slot.0 = capacity;
        }
        slot.1 = Some(Instant::now());
    }
}

impl Link {
    /// Starts the link's task; it connects and reconnects until the handle is dropped.
    pub(super) fn start(address: BrainAddress) -> Arc<Link> {
        let (commands, inbox) = mpsc::channel(COMMAND_QUEUE);
        let (publish, state) = watch::channel(LinkState::default());
        let shared = Arc::new(Shared::default());
        let task = LinkTask {
            address,
            inbox,
            publish,
            shared: Arc::clone(&shared),
            routes: HashMap::new(),
            encoder: Encoder::default(),
        };
        tokio::spawn(task.run());
        Arc::new(Link { commands, state, shared })
    }

    pub(super) fn hello(&self) -> Option<Arc<BrainHello>> {
        self.state.borrow().hello.clone()
    }

    pub(super) fn watch(&self) -> watch::Receiver<LinkState> {
        self.state.clone()
    }

    pub(super) fn capacity(&self) -> (Capacity, Option<Instant>) {
        *self.shared.capacity.read().unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    /// Hands sequences to the brain. Their events, `Lost` included, arrive at `events`.
    pub(super) async fn submit(&self, sequences: Vec<Submit>, events: EventSender) {
        // The task ends only after this handle, so a failed send can't happen while `self` lives.
        let _ = self.commands.send(Command::Submit(sequences, events)).await;
    }

    /// Forgets sequences. Never waits: when the queue is full, the abort is sent from a task of its own.
    pub(super) fn abort(&self, sequences: Vec<SequenceId>) {
        if sequences.is_empty() {
            return;
        }
        if let Err(mpsc::error::TrySendError::Full(command)) =
            self.commands.try_send(Command::Abort(sequences))
        {
            let commands = self.commands.clone();
            tokio::spawn(async move { commands.send(command).await });
        }
    }
}

struct LinkTask {
    address: BrainAddress,
    inbox: mpsc::Receiver<Command>,
    publish: watch::Sender<LinkState>,
    shared: Arc<Shared>,
    routes: HashMap<SequenceId, EventSender>,
    encoder: Encoder,
}

/// Why a connection ended.
enum End {
    HandleDropped,
    Broken(String),
}

impl LinkTask {
    async fn run(mut self) {
        let mut pause = RETRY_FIRST;
        loop {
            match tokio::time::timeout(HANDSHAKE_LIMIT, self.handshake()).await {
                Ok(Ok((connection, reader, hello))) => {
                    pause = RETRY_FIRST;
                    tracing::info!(address = %self.address, model = %hello.model, software = %hello.software, "brain connected");
                    self.shared.heard(None);
                    self.publish.send_replace(LinkState { hello: Some(Arc::new(hello)) });
                    let end = self.serve(connection, reader).await;
                    self.publish.send_replace(LinkState::default());
                    self.lose_all();
                    match end {
                        End::HandleDropped => return,
                        End::Broken(reason) => {
                            tracing::warn!(address = %self.address, %reason, "brain link lost")
                        }
                    }
                }
                Ok(Err(reason)) => {
                    tracing::debug!(address = %self.address, %reason, "brain not reachable yet")
                }
                Err(_) => {
                    tracing::warn!(address = %self.address, "brain did not finish the handshake in time")
                }
            }
            if !self.wait_disconnected(pause).await {
                return;
            }
            pause = (pause * 2).min(RETRY_LAST);
        }
    }

    /// Lets `pause` pass; what is submitted meanwhile is lost at once, so that its owner can look elsewhere.
    async fn wait_disconnected(&mut self, pause: Duration) -> bool {
        let until = tokio::time::Instant::now() + pause;
        loop {
            match tokio::time::timeout_at(until, self.inbox.recv()).await {
                Err(_) => return true,
                Ok(None) => return false,
                Ok(Some(Command::Abort(_))) => {}
                Ok(Some(Command::Submit(sequences, events))) => {
                    for submit in &sequences {
                        events.send(LinkEvent::Lost(submit.sequence));
                    }
                }
            }
        }
    }

    async fn handshake(&mut self) -> Result<(Box<dyn Connection>, FrameReader, BrainHello), String> {
        let mut connection = self.address.connect().await.map_err(|e| e.to_string())?;
        let hello = ToBrain::Hello(ClientHello {
            protocol_version: PROTOCOL_VERSION,
            software: concat!("pons/", env!("CARGO_PKG_VERSION")).to_owned(),
        });
        let frame = self.encoder.to_brain(&hello).to_vec();
        connection.write_all(&frame).await.map_err(|e| e.to_string())?;
        let mut reader = FrameReader::new();
        let mut buffer = vec![0; 64 << 10];
        loop {
            let n = connection.read(&mut buffer).await.map_err(|e| e.to_string())?;
            if n == 0 {
                return Err("closed during the handshake".to_owned());
            }
            reader.push(&buffer[..n]);
            let Some(frame) = reader.next_frame().map_err(|e| e.to_string())? else { continue };
            return match decode_from_brain(frame).map_err(|e| e.to_string())? {
                FromBrain::Hello(hello) if hello.protocol_version == PROTOCOL_VERSION => {
                    Ok((connection, reader, hello))
                }
                FromBrain::Hello(hello) => Err(format!(
                    "it speaks protocol version {}, this build {PROTOCOL_VERSION}; run the same version on both ends",
                    hello.protocol_version
                )),
                _ => Err("its first message is not a hello".to_owned()),
            };
        }
    }

    async fn serve(&mut self, connection: Box<dyn Connection>, mut reader: FrameReader) -> End {
        let (mut input, mut output) = tokio::io::split(connection);
        let mut buffer = vec![0; READ_BYTES];
        let mut commands = Vec::with_capacity(COMMANDS_PER_FRAME);
        let mut heard = tokio::time::Instant::now();
        if let Err(reason) = self.dispatch_frames(&mut reader) {
            return End::Broken(reason);
        }
        loop {
            tokio::select! {
                read = tokio::time::timeout_at(heard + SILENCE_LIMIT, input.read(&mut buffer)) => {
                    let n = match read {
                        Err(_) => return End::Broken(format!("nothing heard for {} s", SILENCE_LIMIT.as_secs())),
                        Ok(Err(e)) => return End::Broken(e.to_string()),
                        Ok(Ok(0)) => return End::Broken("the brain closed the connection".to_owned()),
                        Ok(Ok(n)) => n,
                    };
                    heard = tokio::time::Instant::now();
                    reader.push(&buffer[..n]);
                    if let Err(reason) = self.dispatch_frames(&mut reader) {
                        return End::Broken(reason);
                    }
                }
                n = self.inbox.recv_many(&mut commands, COMMANDS_PER_FRAME) => {
                    if n == 0 {
                        return End::HandleDropped;
                    }
                    let bytes = self.encode(&mut commands);
                    match tokio::time::timeout(SILENCE_LIMIT, output.write_all(&bytes)).await {
                        Err(_) => return End::Broken("the brain does not read".to_owned()),
                        Ok(Err(e)) => return End::Broken(e.to_string()),
                        Ok(Ok(())) => {}
                    }
                }
            }
        }
    }

    /// Folds all waiting commands into at most one frame of submissions and one of aborts. Aborts go second, so
    /// that a sequence submitted and aborted in the same moment is really gone.
    fn encode(&mut self, commands: &mut Vec<Command>) -> Vec<u8> {
        let (mut submits, mut aborts) = (Vec::new(), Vec::new());
        for command in commands.drain(..) {
            match command {
                Command::Submit(sequences, events) => {
                    for submit in &sequences {
                        self.routes.insert(submit.sequence, events.clone());
                    }
                    submits.extend(sequences);
                }
                Command::Abort(sequences) => {
                    aborts.extend(sequences.into_iter().filter(|id| self.routes.remove(id).is_some()));
                }
            }
        }
        let mut bytes = Vec::new();
        for submits in frames(submits) {
            bytes.extend_from_slice(self.encoder.to_brain(&ToBrain::Submit(submits)));
        }
        if !aborts.is_empty() {
            bytes.extend_from_slice(self.encoder.to_brain(&ToBrain::Abort(aborts)));
        }
        bytes
    }

    fn dispatch_frames(&mut self, reader: &mut FrameReader) -> Result<(), String> {
        while let Some(frame) = reader.next_frame().map_err(|e| e.to_string())? {
            match decode_from_brain(frame).map_err(|e| e.to_string())? {
                FromBrain::Hello(_) => return Err("a second hello on one connection".to_owned()),
                FromBrain::Heartbeat(capacity) => self.shared.heard(Some(capacity)),
                FromBrain::Accepted(sequences) => {
                    for id in sequences {
                        self.route(id, LinkEvent::Accepted(id));
                    }
                }
                FromBrain::Rejected(rejection) => {
                    let id = rejection.sequence;
                    self.route(id, LinkEvent::Rejected(rejection));
                    self.routes.remove(&id);
                }
                FromBrain::Step(step) => {
                    self.shared.heard(Some(step.capacity));
                    for output in step.outputs {
                        let (id, last) = (output.sequence, output.finish.is_some());
                        self.route(id, LinkEvent::Output(output));
                        if last {
                            self.routes.remove(&id);
                        }
                    }
                }
            }
        }
        Ok(())
    }

    /// A sequence without a route was aborted a moment ago; what still comes for it is dropped.
    fn route(&self, id: SequenceId, event: LinkEvent) {
        if let Some(events) = self.routes.get(&id) {
            events.send(event);
        }
    }

    fn lose_all(&mut self) {
        for (id, events) in self.routes.drain() {
            events.send(LinkEvent::Lost(id));
        }
    }
}

/// Submissions in groups that each fit a frame with room to spare: one request's bulk must not cost the link.
fn frames(submits: Vec<Submit>) -> Vec<Vec<Submit>> {
    let mut frames: Vec<Vec<Submit>> = Vec::new();
    let mut room = 0;
    for submit in submits {
        let grammar = submit.grammar.as_ref().map_or(0, Grammar::text_bytes);
        let bytes = grammar + 4 * (submit.prompt.len() + submit.generated.len());
        match frames.last_mut() {
            Some(frame) if bytes <= room => frame.push(submit),
            _ => {
                room = FRAME_BYTES;
                frames.push(vec![submit]);
            }
        }
        room = room.saturating_sub(bytes);
    }
    frames
}
