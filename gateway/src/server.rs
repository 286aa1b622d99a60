//! The HTTP server: listens, accepts, and stops in order. The rule: whoever starts it owns it, and after
//! [`RunningServer::shutdown`] nothing of it runs.

use crate::app::{App, random_id};
use crate::brains::{self, BrainsError};
use crate::config::ResolvedConfig;
use crate::store::{Store, StoreError};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::TcpListener;
use tokio::sync::Semaphore;
use tokio::task::JoinHandle;
use tokio_util::task::TaskTracker;

mod admin_file;
mod connection;
mod socket;

pub use admin_file::{AdminFile, FILE_NAME as ADMIN_FILE_NAME};

/// How long answers may take to be written after what they wait for was aborted.
const LAST_WORDS: Duration = Duration::from_secs(2);

/// How long brains may take to end; nothing runs on them any more.
const BRAINS_GRACE: Duration = Duration::from_secs(5);

/// Pause between two looks at whether the brains are there.
const READY_PAUSE: Duration = Duration::from_millis(10);

/// Pause after the system refused a connection, so that a lack of descriptors doesn't become a busy loop.
const ACCEPT_PAUSE: Duration = Duration::from_millis(20);

/// Why the server did not start.
#[derive(Debug, thiserror::Error)]
pub enum ServerError {
    /// The address can't be listened on.
    #[error("can't listen on {address}: {reason}; choose another --listen")]
    Listen {
        /// The address.
        address: SocketAddr,
        /// The system's reason.
        reason: String,
    },
    /// The state can't be opened.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The brains can't be started.
    #[error(transparent)]
    Brains(#[from] BrainsError),
    /// The admin file can't be written.
    #[error("can't write {path}: {reason}; check that the state directory is writable")]
    AdminFile {
        /// The file.
        path: PathBuf,
        /// The system's reason.
        reason: String,
    },
}

/// A server that runs. Dropping it stops it at once; [`shutdown`](Self::shutdown) lets requests finish.
#[derive(Debug)]
pub struct RunningServer {
    app: Arc<App>,
    address: SocketAddr,
    admin_token: String,
    admin_file: AdminFile,
    connections: TaskTracker,
    accepting: JoinHandle<()>,
}

/// Starts everything: state, brains, listener. Must be called inside a tokio runtime.
pub async fn start(mut config: ResolvedConfig) -> Result<RunningServer, ServerError> {
    let store = Store::open(&config.state_dir, config.limits.ledger_slots)?;
    let listener = TcpListener::bind(config.listen)
        .await
        .map_err(|error| ServerError::Listen { address: config.listen, reason: error.to_string() })?;
    let address = listener.local_addr().unwrap_or(config.listen);
    config.listen = address;
    let brains = brains::start(&config).await?;
    let admin_token = format!("pons-admin-{}", random_id(43));
    let admin_file = AdminFile::write(&config.state_dir, address, &admin_token)
        .map_err(|(path, error)| ServerError::AdminFile { path, reason: error.to_string() })?;
    let app = Arc::new(App::new(config, store, brains, &admin_token));
    let connections = TaskTracker::new();
    let accepting = tokio::spawn(accept(Arc::clone(&app), listener, connections.clone()));
    tracing::info!(%address, "listening");
    Ok(RunningServer { app, address, admin_token, admin_file, connections, accepting })
}

impl RunningServer {
    /// Address of the listener, with its real port.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Waits until every configured model can be asked.
    pub async fn ready(&self) {
        while !crate::handler::is_ready(&self.app) {
            tokio::time::sleep(READY_PAUSE).await;
        }
    }

    /// The token that opens the admin routes from this machine.
    pub fn admin_token(&self) -> &str {
        &self.admin_token
    }

    /// The shared state.
    pub fn app(&self) -> &Arc<App> {
        &self.app
    }

    /// Stops in order: no new connections, running requests finish or are ended after the drain time, then the
    /// brains stop, then the store closes.
    pub async fn shutdown(self) {
        self.app.draining.cancel();
        self.accepting.abort();
        self.connections.close();
        let drain = Duration::from_secs_f64(self.app.config.drain_s);
        if tokio::time::timeout(drain, self.connections.wait()).await.is_err() {
            tracing::warn!(connections = self.connections.len(), "the drain time is over; ending what runs");
            self.app.abort.cancel();
            // An idle connection has nothing to say, and a stuck one had its time.
            let _ = tokio::time::timeout(LAST_WORDS, self.connections.wait()).await;
        }
        self.app.brains.stop(BRAINS_GRACE).await;
        self.admin_file.remove();
        let store = self.app.store.clone();
        // Joining the writer thread blocks, which a network thread must not.
        let _ = tokio::task::spawn_blocking(move || store.close()).await;
    }
}

impl Drop for RunningServer {
    fn drop(&mut self) {
        self.app.draining.cancel();
        self.app.abort.cancel();
        self.accepting.abort();
        self.admin_file.remove();
    }
}

async fn accept(app: Arc<App>, listener: TcpListener, connections: TaskTracker) {
    let places = Arc::new(Semaphore::new(app.config.limits.connections));
    loop {
        let Ok(place) = Arc::clone(&places).acquire_owned().await else { return };
        match listener.accept().await {
            Ok((stream, peer)) => {
                let app = Arc::clone(&app);
                connections.spawn(async move {
                    connection::serve(app, stream, peer).await;
                    drop(place);
                });
            }
            Err(error) => {
                tracing::warn!(%error, "a connection could not be accepted");
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}
