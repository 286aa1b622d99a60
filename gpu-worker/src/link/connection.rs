//! One link: a thread that reads and a thread that writes.
//!
//! The rule: the reader trusts no byte, the writer writes all that is ready with one call, and the end of either
//! ends both and tells the engine.

use std::io::{self, Read, Write};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use crossbeam::channel::{RecvTimeoutError, Sender};
use pons_protocol::inference::{ClientHello, FromBrain, ToBrain};
use pons_protocol::wire::{Encoder, FrameReader, MAX_FRAME_BYTES, decode_to_brain};
use pons_protocol::{PROTOCOL_VERSION, ProtocolError};

use super::outbox::{Outbox, Outgoing};
use super::{LinkContext, LinkId, Stream};
use crate::worker::Command;

/// Time a peer gets for its first message.
const HELLO_LIMIT: Duration = Duration::from_secs(10);
/// Time a write may take before the peer counts as dead.
const WRITE_LIMIT: Duration = Duration::from_secs(10);
/// Silence after which a heartbeat is sent; half of what is promised.
const HEARTBEAT: Duration = Duration::from_millis(500);
/// Bytes after which frames are written although more are ready.
const COALESCED_BYTES: usize = 256 << 10;
/// Bytes asked for with one read.
const READ_BYTES: usize = 64 << 10;
/// A write buffer that grew beyond this is given back.
const KEPT_BYTES: usize = 1 << 20;

/// Why a link ended.
#[derive(Debug, thiserror::Error)]
enum LinkEnd {
    #[error("the peer closed it")]
    Closed,
    #[error("the peer closed it in the middle of a frame")]
    Truncated,
    #[error("the first message was not a hello; connect with a pons gateway")]
    NoHello,
    #[error("a second hello arrived")]
    SecondHello,
    #[error("the engine stopped")]
    EngineGone,
    #[error(transparent)]
    Protocol(#[from] ProtocolError),
    #[error(transparent)]
    Io(#[from] io::Error),
}

/// Starts both threads of a link. The last two parts are held until the link has ended: one for whoever waits
/// for the last write, one for the number of links.
pub(super) fn open(
    link: LinkId,
    stream: Stream,
    (context, alive, place): (LinkContext, Sender<()>, Arc<()>),
) -> io::Result<()> {
    stream.prepare(WRITE_LIMIT)?;
    stream.set_read_limit(Some(HELLO_LIMIT))?;
    let (reading, writing) = (stream.try_clone()?, stream.try_clone()?);
    let stream = Arc::new(stream);
    let (outbox, outgoing) = Outbox::new(Some(Arc::clone(&stream)));
    let published = Arc::clone(&context.published);
    let writer = move || {
        let _end = WriterEnd { stream, _alive: alive };
        let written = write(writing, &outgoing, || FromBrain::Heartbeat(published.capacity()));
        if let Err(reason) = written {
            tracing::warn!(link = link.0, %reason, "writing to a link failed");
        }
    };
    thread::Builder::new().name(format!("link-{}-write", link.0)).spawn(writer)?;
    let reader = move || {
        let _place = place;
        let mut open = OpenLink { link, commands: context.commands.clone(), opened: false };
        let end = read(reading, &context, outbox, &mut open).err().unwrap_or(LinkEnd::Closed);
        tracing::info!(link = link.0, reason = %end, "a link ended");
    };
    thread::Builder::new().name(format!("link-{}-read", link.0)).spawn(reader)?;
    Ok(())
}

/// Closes the stream, however its writer ends; that wakes the reader, which tells the engine.
struct WriterEnd {
    stream: Arc<Stream>,
    _alive: Sender<()>,
}

impl Drop for WriterEnd {
    fn drop(&mut self) {
        self.stream.close();
    }
}

/// Tells the engine that a link ended, however its reader ends.
struct OpenLink {
    link: LinkId,
    commands: Sender<Command>,
    opened: bool,
}

impl Drop for OpenLink {
    fn drop(&mut self) {
        if self.opened {
            // The engine may be gone already; then nobody needs to know.
            let _ = self.commands.send(Command::Closed { link: self.link });
        }
    }
}

fn read(
    mut stream: Stream,
    context: &LinkContext,
    outbox: Outbox,
    open: &mut OpenLink,
) -> Result<(), LinkEnd> {
    let mut frames = FrameReader::new();
    let mut buffer = vec![0; READ_BYTES];
    let mut outbox = Some(outbox);
    loop {
        let count = match stream.read(&mut buffer) {
            Ok(0) if frames.pending_bytes() > 0 => return Err(LinkEnd::Truncated),
            Ok(0) => return Err(LinkEnd::Closed),
            Ok(count) => count,
            Err(interrupted) if interrupted.kind() == io::ErrorKind::Interrupted => continue,
            Err(reason) => return Err(reason.into()),
        };
        frames.push(&buffer[..count]);
        while let Some(frame) = frames.next_frame()? {
            let message = decode_to_brain(frame)?;
            let Some(outbox) = outbox.take() else {
                pass_on(open, message)?;
                continue;
            };
            let ToBrain::Hello(hello) = message else { return Err(LinkEnd::NoHello) };
            greet(context, outbox, open, &hello)?;
            stream.set_read_limit(None)?;
        }
    }
}

/// Answers a hello. The answer carries our version, so that a peer of another one can say what is wrong; then
/// the link ends.
fn greet(
    context: &LinkContext,
    outbox: Outbox,
    open: &mut OpenLink,
    hello: &ClientHello,
) -> Result<(), LinkEnd> {
    // The queue is empty, so this can't overflow.
    let _ = outbox.send(FromBrain::Hello((*context.hello).clone()));
    if hello.protocol_version != PROTOCOL_VERSION {
        let theirs = hello.protocol_version;
        return Err(ProtocolError::VersionMismatch { theirs, ours: PROTOCOL_VERSION }.into());
    }
    let software: String = hello.software.chars().filter(|c| !c.is_control()).take(64).collect();
    tracing::info!(link = open.link.0, software, "a gateway connected");
    open.opened = true;
    send(open, Command::Opened { link: open.link, outbox })
}

fn pass_on(open: &OpenLink, message: ToBrain) -> Result<(), LinkEnd> {
    let link = open.link;
    let command = match message {
        ToBrain::Hello(_) => return Err(LinkEnd::SecondHello),
        ToBrain::Submit(submits) => Command::Submit { link, submits },
        ToBrain::Abort(sequences) => Command::Abort { link, sequences },
        ToBrain::Drain => Command::Drain { link },
    };
    send(open, command)
}

/// Waits while the engine's inbox is full; that is how a link that floods is slowed down.
fn send(open: &OpenLink, command: Command) -> Result<(), LinkEnd> {
    open.commands.send(command).map_err(|_| LinkEnd::EngineGone)
}

fn write(mut stream: Stream, outgoing: &Outgoing, heartbeat: impl Fn() -> FromBrain) -> io::Result<()> {
    let mut encoder = Encoder::new();
    let mut bytes = Vec::with_capacity(READ_BYTES);
    let mut greeted = false;
    loop {
        bytes.clear();
        bytes.shrink_to(KEPT_BYTES);
        match outgoing.next(HEARTBEAT) {
            Ok(message) => {
                greeted = true;
                append(&mut encoder, &message, &mut bytes)?;
            }
            // Nothing comes before the answer to the hello.
            Err(RecvTimeoutError::Timeout) if !greeted => continue,
            Err(RecvTimeoutError::Timeout) => append(&mut encoder, &heartbeat(), &mut bytes)?,
            Err(RecvTimeoutError::Disconnected) => return Ok(()),
        }
        while bytes.len() < COALESCED_BYTES {
            let Ok(message) = outgoing.ready() else { break };
            append(&mut encoder, &message, &mut bytes)?;
        }
        stream.write_all(&bytes)?;
    }
}

fn append(encoder: &mut Encoder, message: &FromBrain, bytes: &mut Vec<u8>) -> io::Result<()> {
    let frame = encoder.from_brain(message);
    if frame.len() - 4 > MAX_FRAME_BYTES as usize {
        return Err(io::Error::other(format!("a message of {} bytes is too large for a frame", frame.len())));
    }
    bytes.extend_from_slice(frame);
    Ok(())
}
