//! The brain's side of its links: listen, greet, pass messages on.
//!
//! The rule: a link can fail, lag or lie; it costs that link and nothing else. Two blocking threads a link, a
//! bounded queue each way, no lock on the engine's side.

mod connection;
mod outbox;
mod stream;

use std::fs;
use std::io;
use std::net::{TcpListener, ToSocketAddrs};
use std::os::unix::fs::{DirBuilderExt, FileTypeExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Weak};
use std::thread;

use crossbeam::channel::{Receiver, Sender, bounded};
use pons_protocol::inference::BrainHello;
use rustix::fs::Mode;

use crate::config::ListenAddress;
use crate::metrics::Published;
use crate::worker::Command;

pub use outbox::{Outbox, Overflow};
pub(crate) use stream::Stream;

/// Most links at the same time; a brain has one gateway, or a few.
const MAX_LINKS: usize = 64;

/// Names a link inside this process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct LinkId(pub u64);

/// Why no link can be offered.
#[derive(Debug, thiserror::Error)]
pub enum LinkError {
    /// Another process listens there.
    #[error("--listen is {0}: another process serves there; stop it or give another address")]
    InUse(String),
    /// The path holds something that is not a socket.
    #[error("--listen is {0}: a file that is not a socket is in the way; give another path")]
    NotASocket(String),
    /// The system refused.
    #[error("--listen is {address}: {reason}; give an address this user may listen on")]
    Refused {
        /// The address.
        address: String,
        /// The system's reason.
        reason: io::Error,
    },
}

/// What every link needs.
#[derive(Clone)]
pub struct LinkContext {
    /// The engine's inbox.
    pub commands: Sender<Command>,
    /// The answer to a hello.
    pub hello: Arc<BrainHello>,
    /// For heartbeats.
    pub published: Arc<Published>,
}

/// An address that accepts links.
pub struct Listener {
    acceptor: Acceptor,
    /// Removed when the listener goes.
    socket_file: Option<PathBuf>,
    address: String,
}

enum Acceptor {
    Unix(UnixListener),
    Tcp(TcpListener),
}

/// Tells when every link has written what it had.
pub struct Links {
    written: Receiver<()>,
    /// While it lives, links are accepted; each holds the sender in it.
    accepting: Arc<Sender<()>>,
    socket_file: Option<PathBuf>,
}

impl Listener {
    /// Starts to listen. A socket file that nobody serves is replaced.
    pub fn bind(address: &ListenAddress) -> Result<Self, LinkError> {
        match address {
            ListenAddress::Unix(path) => Self::bind_unix(path),
            ListenAddress::Tcp(address) => {
                let refused = |reason| LinkError::Refused { address: format!("tcp:{address}"), reason };
                let candidates: Vec<_> = address.to_socket_addrs().map_err(refused)?.collect();
                let listener =
                    TcpListener::bind(candidates.as_slice()).map_err(|reason| match reason.kind() {
                        io::ErrorKind::AddrInUse => LinkError::InUse(format!("tcp:{address}")),
                        _ => refused(reason),
                    })?;
                let actual = listener.local_addr().map_err(refused)?;
                let acceptor = Acceptor::Tcp(listener);
                Ok(Self { acceptor, socket_file: None, address: format!("tcp:{actual}") })
            }
        }
    }

    fn bind_unix(path: &Path) -> Result<Self, LinkError> {
        let address = format!("unix:{}", path.display());
        let refused = |reason| LinkError::Refused { address: address.clone(), reason };
        if let Some(dir) = path.parent().filter(|dir| !dir.as_os_str().is_empty()) {
            fs::DirBuilder::new().recursive(true).mode(0o700).create(dir).map_err(refused)?;
        }
        match fs::symlink_metadata(path) {
            Ok(found) if !found.file_type().is_socket() => return Err(LinkError::NotASocket(address)),
            Ok(_) if UnixStream::connect(path).is_ok() => return Err(LinkError::InUse(address)),
            Ok(_) => fs::remove_file(path).map_err(refused)?,
            Err(absent) if absent.kind() == io::ErrorKind::NotFound => {}
            Err(reason) => return Err(refused(reason)),
        }
        // The mask makes the socket private from its first instant; nothing else creates files meanwhile.
        let before = rustix::process::umask(Mode::from_raw_mode(0o177));
        let bound = UnixListener::bind(path);
        rustix::process::umask(before);
        let acceptor = Acceptor::Unix(bound.map_err(refused)?);
        Ok(Self { acceptor, socket_file: Some(path.to_owned()), address })
    }

    /// The address in the form of `--listen`, with the port that was chosen.
    pub fn address(&self) -> &str {
        &self.address
    }

    /// Accepts links on a thread of its own for as long as the process lives.
    pub fn serve(self, context: LinkContext) -> io::Result<Links> {
        let (alive, written) = bounded(0);
        let accepting = Arc::new(alive);
        let alive = Arc::downgrade(&accepting);
        let socket_file = self.socket_file.clone();
        thread::Builder::new().name("accept".to_owned()).spawn(move || self.accept(&context, &alive))?;
        Ok(Links { written, accepting, socket_file })
    }

    fn accept(self, context: &LinkContext, alive: &Weak<Sender<()>>) {
        // Each link holds a clone; their number is the number of links.
        let places = Arc::new(());
        let mut next = 0;
        loop {
            let accepted = match &self.acceptor {
                Acceptor::Unix(listener) => listener.accept().map(|(stream, _)| Stream::Unix(stream)),
                Acceptor::Tcp(listener) => listener.accept().map(|(stream, _)| Stream::Tcp(stream)),
            };
            let stream = match accepted {
                Ok(stream) => stream,
                Err(reason) => {
                    tracing::warn!(%reason, "a link could not be accepted");
                    // Out of descriptors is the one lasting cause; give others time to close theirs.
                    thread::park_timeout(std::time::Duration::from_millis(50));
                    continue;
                }
            };
            if Arc::strong_count(&places) > MAX_LINKS {
                tracing::warn!(limit = MAX_LINKS, "a link was refused: too many are open");
                continue;
            }
            let Some(alive) = alive.upgrade() else { return };
            next += 1;
            let parts = (context.clone(), Sender::clone(&alive), Arc::clone(&places));
            if let Err(reason) = connection::open(LinkId(next), stream, parts) {
                tracing::warn!(%reason, "a link could not be started");
            }
        }
    }
}

impl Links {
    /// Stops offering the address and waits until no link has anything left to write, or the time is over.
    pub fn finish(self, limit: std::time::Duration) {
        if let Some(path) = &self.socket_file {
            let _ = fs::remove_file(path);
        }
        drop(self.accepting);
        // Writers hold the other end and drop it when they are done; nothing is ever sent.
        let _ = self.written.recv_timeout(limit);
    }
}
