//! The one thread that writes. The rule: whatever arrived while the last commit was on its way to the disk
//! goes into the next one, and no record can be lost between a request and this thread.
//!
//! A request takes its place in the queue when it is admitted ([`LedgerSlot`]) and fills it when it ends, also
//! from `Drop`. So the queue is bounded by the number of slots, a filled slot never has to wait, and a full
//! queue shows itself at admission, where it is a clean 503.

use super::{LedgerRecord, StoreError, begin, ledger};
use redb::{Database, WriteTransaction};
use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Instant;
use tokio::sync::{mpsc, oneshot};
use tokio_util::sync::CancellationToken;

/// Most records of one commit.
const MAX_BATCH: usize = 4096;

/// Most slots, whatever the configuration asks for.
const MAX_SLOTS: usize = 1 << 20;

/// Most commit durations kept for the metrics between two scrapes.
const MAX_TIMINGS: usize = 1024;

type Apply = Box<dyn FnOnce(Result<&Database, StoreError>) + Send>;

enum Command {
    Record(Box<LedgerRecord>, Option<oneshot::Sender<Result<(), StoreError>>>),
    Apply(Apply),
    Stop,
}

/// Room for one record in the writer's queue.
#[derive(Debug)]
pub struct LedgerSlot {
    permit: mpsc::OwnedPermit<Command>,
    closed: CancellationToken,
}

impl LedgerSlot {
    /// Hands the record over; the future is ready when it is on the disk.
    pub async fn commit(self, record: LedgerRecord) -> Result<(), StoreError> {
        let (done, committed) = oneshot::channel();
        self.permit.send(Command::Record(Box::new(record), Some(done)));
        tokio::select! {
            // In this order: what was written before the close was written.
            biased;
            result = committed => result.unwrap_or(Err(StoreError::Closed)),
            () = self.closed.cancelled() => Err(StoreError::Closed),
        }
    }

    /// Hands the record over and doesn't wait. Never blocks, so it may be called from `Drop`.
    pub fn record(self, record: LedgerRecord) {
        if self.closed.is_cancelled() {
            tracing::error!(record = %serde_json::json!(record), "ledger record came after the store was closed");
            return;
        }
        self.permit.send(Command::Record(Box::new(record), None));
    }
}

pub(super) struct Writer {
    queue: mpsc::Sender<Command>,
    end: Mutex<Option<mpsc::OwnedPermit<Command>>>,
    thread: Mutex<Option<JoinHandle<()>>>,
    timings: Arc<Mutex<VecDeque<f64>>>,
    closed: CancellationToken,
}

impl std::fmt::Debug for Writer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Writer").field("free_slots", &self.queue.capacity()).finish()
    }
}

impl Writer {
    pub(super) fn start(database: Arc<Database>, slots: usize) -> Result<Self, StoreError> {
        let (queue, commands) = mpsc::channel(slots.clamp(1, MAX_SLOTS) + 1);
        let end = Mutex::new(queue.clone().try_reserve_owned().ok());
        let timings = Arc::new(Mutex::new(VecDeque::new()));
        let kept = Arc::clone(&timings);
        let closed = CancellationToken::new();
        let ended = closed.clone().drop_guard();
        let thread = std::thread::Builder::new()
            .name("pons-store".to_owned())
            .spawn(move || {
                // Also when the thread panics, so that nobody waits for an answer that can't come.
                let _ended = ended;
                run(&database, commands, &kept);
            })
            .map_err(|error| StoreError::Database(format!("can't start the writer thread: {error}")))?;
        Ok(Self { queue, end, thread: Mutex::new(Some(thread)), timings, closed })
    }

    pub(super) fn try_slot(&self) -> Option<LedgerSlot> {
        let permit = self.queue.clone().try_reserve_owned().ok()?;
        Some(LedgerSlot { permit, closed: self.closed.clone() })
    }

    /// Runs a change in a transaction of its own, on the writer thread, and there, once it is on the disk, what
    /// makes it known. Both happen also when whoever asked has gone.
    pub(super) async fn apply<T, F, K>(&self, change: F, make_known: K) -> Result<T, StoreError>
    where
        T: Send + 'static,
        F: FnOnce(&WriteTransaction) -> Result<T, StoreError> + Send + 'static,
        K: FnOnce(&Database) -> Result<(), StoreError> + Send + 'static,
    {
        let (done, answer) = oneshot::channel();
        let apply: Apply = Box::new(move |database| {
            let result = database.and_then(|database| {
                let txn = begin(database)?;
                let value = change(&txn)?;
                txn.commit().map_err(StoreError::database)?;
                make_known(database)?;
                Ok(value)
            });
            // Whoever asked may have gone; the change stands all the same.
            let _ = done.send(result);
        });
        self.queue.send(Command::Apply(apply)).await.map_err(|_| StoreError::Closed)?;
        answer.await.unwrap_or(Err(StoreError::Closed))
    }

    pub(super) fn take_commit_seconds(&self) -> Vec<f64> {
        self.timings.lock().unwrap_or_else(PoisonError::into_inner).drain(..).collect()
    }

    /// Sends the end marker and waits for the thread. Called again it does nothing.
    pub(super) fn stop(&self) {
        // The marker has a place of its own in the queue, so it never waits for requests to give theirs back.
        if let Some(permit) = self.end.lock().unwrap_or_else(PoisonError::into_inner).take() {
            permit.send(Command::Stop);
        }
        let thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner).take();
        if thread.is_some_and(|thread| thread.join().is_err()) {
            tracing::error!("the store's writer thread panicked");
        }
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        self.stop();
    }
}

fn run(database: &Database, mut commands: mpsc::Receiver<Command>, timings: &Mutex<VecDeque<f64>>) {
    let mut stopping = false;
    while !stopping {
        let Some(first) = commands.blocking_recv() else { return };
        let mut records = Vec::new();
        let mut waiters = Vec::new();
        let mut next = Some(first);
        while let Some(command) = next {
            match command {
                Command::Record(record, done) => {
                    records.push(*record);
                    waiters.push(done);
                }
                Command::Apply(apply) => apply(Ok(database)),
                Command::Stop => stopping = true,
            }
            next = if records.len() < MAX_BATCH { commands.try_recv().ok() } else { None };
        }
        commit(database, &records, waiters, timings);
    }
}

type Waiter = Option<oneshot::Sender<Result<(), StoreError>>>;

fn commit(
    database: &Database,
    records: &[LedgerRecord],
    waiters: Vec<Waiter>,
    timings: &Mutex<VecDeque<f64>>,
) {
    if records.is_empty() {
        return;
    }
    let started = Instant::now();
    let result = write(database, records);
    if let Err(error) = &result {
        // The log keeps what the file could not, so that the records can still be entered by hand.
        for record in records {
            tracing::error!(%error, record = %serde_json::json!(record), "ledger record was not written");
        }
    }
    let mut kept = timings.lock().unwrap_or_else(PoisonError::into_inner);
    if kept.len() == MAX_TIMINGS {
        kept.pop_front();
    }
    kept.push_back(started.elapsed().as_secs_f64());
    drop(kept);
    for done in waiters.into_iter().flatten() {
        let _ = done.send(result.clone());
    }
}

fn write(database: &Database, records: &[LedgerRecord]) -> Result<(), StoreError> {
    let txn = begin(database)?;
    ledger::append(&txn, records)?;
    txn.commit().map_err(StoreError::database)
}
