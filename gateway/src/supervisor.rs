//! Starts brain processes and keeps them alive.
//!
//! The rule: a brain that ends is started again, with a growing pause if it keeps ending; a brain that hangs is
//! ended first; and none of them outlives the gateway.

use std::path::PathBuf;
use std::process::ExitStatus;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use tokio::process::{Child, Command};
use tokio::sync::watch;
use tokio::task::JoinHandle;

/// Settings of the C library's allocator, read as a process starts.
const TUNABLES: &str = "GLIBC_TUNABLES";

/// First and longest pause before a restart.
const BACKOFF_FIRST: Duration = Duration::from_millis(100);
const BACKOFF_LAST: Duration = Duration::from_secs(10);
/// A brain that ran this long had a good start: the next pause is the first one again.
const HEALTHY_AFTER: Duration = Duration::from_secs(20);
/// How often hanging is looked for.
const WATCH_PERIOD: Duration = Duration::from_secs(2);

/// How one brain process is started.
pub struct BrainSpec {
    /// Model name, for the log.
    pub model: String,
    /// The executable.
    pub program: PathBuf,
    /// Its arguments, the listen address among them.
    pub args: Vec<String>,
    /// Whether a process of this age hangs, judged from what its link reports.
    pub hangs: Box<dyn Fn(Duration) -> bool + Send + Sync>,
}

/// Running brains. Stop it with [`Supervisor::stop`]; dropping it kills them.
pub struct Supervisor {
    stop: watch::Sender<Option<Duration>>,
    keepers: Vec<(String, Arc<AtomicU64>, JoinHandle<()>)>,
}

impl Supervisor {
    /// Starts every brain and a keeper for each.
    pub fn start(brains: Vec<BrainSpec>) -> Supervisor {
        let (stop, stopped) = watch::channel(None);
        let keepers = brains
            .into_iter()
            .map(|spec| {
                let restarts = Arc::new(AtomicU64::new(0));
                let keeper = keep(spec.model.clone(), spec, Arc::clone(&restarts), stopped.clone());
                (keeper.0, restarts, tokio::spawn(keeper.1))
            })
            .collect();
        Supervisor { stop, keepers }
    }

    /// Model and number of restarts of each brain.
    pub fn restarts(&self) -> Vec<(String, u64)> {
        self.keepers.iter().map(|(model, n, _)| (model.clone(), n.load(Ordering::Relaxed))).collect()
    }

    /// Asks every brain to drain, waits up to `grace`, then kills what is left.
    pub async fn stop(self, grace: Duration) {
        self.stop.send_replace(Some(grace));
        for (_, _, keeper) in self.keepers {
            // A keeper that panicked has dropped its child, which kills it.
            let _ = keeper.await;
        }
    }
}

fn keep(
    model: String,
    spec: BrainSpec,
    restarts: Arc<AtomicU64>,
    mut stopped: watch::Receiver<Option<Duration>>,
) -> (String, impl Future<Output = ()>) {
    let future = async move {
        let mut pause = BACKOFF_FIRST;
        loop {
            let begun = Instant::now();
            match start(&spec) {
                Ok(mut child) => {
                    tracing::info!(model = %spec.model, pid = child.id(), "brain started");
                    tokio::select! {
                        status = wait(&mut child, &spec, begun) => {
                            tracing::error!(model = %spec.model, ?status, "brain ended; it is started again");
                        }
                        grace = stop_asked(&mut stopped) => return end(child, &spec.model, grace).await,
                    }
                }
                Err(error) => {
                    tracing::error!(model = %spec.model, program = %spec.program.display(), %error, "brain can't be started");
                }
            }
            if begun.elapsed() >= HEALTHY_AFTER {
                pause = BACKOFF_FIRST;
            }
            tokio::select! {
                () = tokio::time::sleep(pause) => {}
                _ = stop_asked(&mut stopped) => return,
            }
            restarts.fetch_add(1, Ordering::Relaxed);
            pause = (pause * 2).min(BACKOFF_LAST);
        }
    };
    (model, future)
}

fn start(spec: &BrainSpec) -> std::io::Result<Child> {
    let mut command = Command::new(&spec.program);
    // Weights and KV blocks are read from end to end again and again: on huge pages, where the system allows them,
    // that costs far fewer look-ups. Who starts us may choose otherwise.
    if std::env::var_os(TUNABLES).is_none() {
        command.env(TUNABLES, "glibc.malloc.hugetlb=1");
    }
    command.args(&spec.args).stdin(std::process::Stdio::null()).kill_on_drop(true).spawn()
}

/// Waits for the child's end; ends it when it hangs.
async fn wait(child: &mut Child, spec: &BrainSpec, begun: Instant) -> std::io::Result<ExitStatus> {
    loop {
        match tokio::time::timeout(WATCH_PERIOD, child.wait()).await {
            Ok(status) => return status,
            Err(_) if (spec.hangs)(begun.elapsed()) => {
                tracing::error!(model = %spec.model, "brain hangs in one step; it is killed");
                child.start_kill()?;
            }
            Err(_) => {}
        }
    }
}

async fn stop_asked(stopped: &mut watch::Receiver<Option<Duration>>) -> Duration {
    match stopped.wait_for(Option::is_some).await {
        Ok(grace) => grace.unwrap_or_default(),
        // The supervisor was dropped without a stop.
        Err(_) => Duration::ZERO,
    }
}

async fn end(mut child: Child, model: &str, grace: Duration) {
    if let Some(pid) = child.id().and_then(|id| rustix::process::Pid::from_raw(id.cast_signed()))
        && let Err(error) = rustix::process::kill_process(pid, rustix::process::Signal::TERM)
    {
        tracing::warn!(%model, %error, "brain can't be asked to end");
    }
    if tokio::time::timeout(grace, child.wait()).await.is_err() {
        tracing::warn!(%model, grace_ms = grace.as_millis() as u64, "brain did not drain in time; it is killed");
    }
    // Also reaps it; a child that has ended already is fine.
    let _ = child.kill().await;
}
