//! Servers that the harness starts itself. The rule: what it started it ends, the whole process group, however the
//! run ends; and a server counts as ready only when it answers.

use std::fs::File;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use bytes::Bytes;
use http_body_util::Empty;
use hyper_util::client::legacy::Client;
use hyper_util::rt::TokioExecutor;
use rustix::process::{Pid, Signal, kill_process_group, test_kill_process_group};
use serde::Serialize;

/// Between two looks at whether a server answers, or has ended.
const POLL_MS: u64 = 20;
/// Longest that one look may take.
const LOOK_MS: u64 = 2_000;
/// What an ended server may take to go by itself before it is killed.
const GRACE_MS: u64 = 10_000;
/// Where servers say that they are ready, the plainest word first: Pons, SGLang's routers, LiteLLM, most, all.
const READY_PATHS: [&str; 5] = ["/ready", "/readiness", "/health/readiness", "/health", "/v1/models"];
/// Bytes of a server's log shown when it fails.
const TAIL_BYTES: usize = 2_000;

/// Why a server can't be used.
#[derive(Debug, thiserror::Error)]
pub enum ServerError {
    /// It can't be started at all.
    #[error("--start of {name} can't run: {error}; look at the command `{command}`")]
    Spawn {
        /// The target.
        name: String,
        /// What was to run.
        command: String,
        /// Why it can't.
        error: std::io::Error,
    },
    /// It ended before it answered.
    #[error("--start of {name} ended ({status}) before {url} answered; its log {log} ends with:\n{tail}")]
    Ended {
        /// The target.
        name: String,
        /// How it ended.
        status: String,
        /// Where it was expected.
        url: String,
        /// The file with all of its output.
        log: String,
        /// The end of that.
        tail: String,
    },
    /// It runs but does not answer.
    #[error(
        "--start of {name} didn't say at {url}/ready, /health or /v1/models within {wait_s} s that it is ready; \
         give it longer with --start-wait-s, or read {log}, which ends with:\n{tail}"
    )]
    Silent {
        /// The target.
        name: String,
        /// Where it was expected.
        url: String,
        /// What it was given.
        wait_s: u64,
        /// The file with all of its output.
        log: String,
        /// The end of that.
        tail: String,
    },
    /// Something answers at the address already.
    #[error("{url} answers before --start of {name} has run; end what listens there, or leave --start out")]
    Taken {
        /// The target.
        name: String,
        /// Where it was to be.
        url: String,
    },
}

/// How to start a server.
#[derive(Clone, Debug)]
pub struct Spec {
    /// The target it serves.
    pub name: String,
    /// Run by `sh -c`.
    pub command: String,
    /// Where it will answer.
    pub url: String,
    /// Where its output goes.
    pub log: PathBuf,
    /// How long it may take to answer.
    pub wait_s: u64,
}

/// One start, for the record.
#[derive(Clone, Debug, Serialize)]
pub struct Start {
    /// The target.
    pub target: String,
    /// What was run.
    pub command: String,
    /// From the start to the first answer.
    pub ready_ms: f64,
}

/// A server that runs; dropping it ends it.
#[derive(Debug)]
pub struct Server {
    spec: Spec,
    child: Child,
    group: Pid,
}

impl Server {
    /// Starts a server and waits until it answers.
    ///
    /// # Errors
    /// The address is taken, or the server can't run, ends, or stays silent.
    pub async fn start(spec: Spec) -> Result<(Self, Start), ServerError> {
        if answers(&spec.url).await {
            return Err(ServerError::Taken { name: spec.name, url: spec.url });
        }
        let began = Instant::now();
        let mut server = Self::spawn(spec)?;
        server.ready().await?;
        let ready_ms = began.elapsed().as_secs_f64() * 1e3;
        let start =
            Start { target: server.spec.name.clone(), command: server.spec.command.clone(), ready_ms };
        Ok((server, start))
    }

    /// Waits until it answers.
    async fn ready(&mut self) -> Result<(), ServerError> {
        let began = Instant::now();
        let most = Duration::from_secs(self.spec.wait_s);
        while !answers(&self.spec.url).await {
            if let Ok(Some(status)) = self.child.try_wait() {
                let spec = &self.spec;
                let status =
                    status.signal().map_or_else(|| status.to_string(), |signal| format!("signal {signal}"));
                let (log, tail) = (spec.log.display().to_string(), tail(&spec.log));
                return Err(ServerError::Ended {
                    name: spec.name.clone(),
                    status,
                    url: spec.url.clone(),
                    log,
                    tail,
                });
            }
            if began.elapsed() > most {
                let spec = &self.spec;
                return Err(ServerError::Silent {
                    name: spec.name.clone(),
                    url: spec.url.clone(),
                    wait_s: spec.wait_s,
                    log: spec.log.display().to_string(),
                    tail: tail(&spec.log),
                });
            }
            tokio::time::sleep(Duration::from_millis(POLL_MS)).await;
        }
        Ok(())
    }

    fn spawn(spec: Spec) -> Result<Self, ServerError> {
        let fail =
            |error| ServerError::Spawn { name: spec.name.clone(), command: spec.command.clone(), error };
        let log = File::create(&spec.log).map_err(fail)?;
        let also = log.try_clone().map_err(fail)?;
        let child = Command::new("sh")
            .args(["-c", &spec.command])
            .stdin(Stdio::null())
            .stdout(log)
            .stderr(also)
            // A group of its own: the terminal's Ctrl-C reaches the harness alone, which then ends all of the group.
            .process_group(0)
            .spawn()
            .map_err(fail)?;
        let group = Pid::from_child(&child);
        Ok(Self { spec, child, group })
    }

    /// Stops it where it is: it computes and spins no more, and keeps its memory and connections.
    pub fn pause(&self) {
        let _ = kill_process_group(self.group, Signal::STOP);
    }

    /// Lets it go on.
    pub fn resume(&self) {
        let _ = kill_process_group(self.group, Signal::CONT);
    }

    /// Asks the group to end, and kills what is left of it after a while.
    fn end(&mut self) {
        // A stopped process takes no other signal before it goes on.
        let _ = kill_process_group(self.group, Signal::TERM);
        self.resume();
        let began = Instant::now();
        loop {
            // The leader is reaped first: until then its group exists even when nothing in it runs.
            let ended = !matches!(self.child.try_wait(), Ok(None));
            if ended && test_kill_process_group(self.group).is_err() {
                return;
            }
            if began.elapsed() > Duration::from_millis(GRACE_MS) {
                break;
            }
            std::thread::sleep(Duration::from_millis(POLL_MS));
        }
        let _ = kill_process_group(self.group, Signal::KILL);
        let _ = self.child.wait();
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.end();
    }
}

/// Whether something at this address says that it is ready. Servers differ in where they say so: a path that one
/// doesn't know is passed over, and one that says no with a 503, as while a model loads, is believed.
async fn answers(url: &str) -> bool {
    let client = Client::builder(TokioExecutor::new()).build_http::<Empty<Bytes>>();
    for path in READY_PATHS {
        let Ok(request) = http::Request::get(format!("{url}{path}")).body(Empty::new()) else { return false };
        let look = tokio::time::timeout(Duration::from_millis(LOOK_MS), client.request(request)).await;
        let Ok(Ok(response)) = look else { return false };
        match response.status().as_u16() {
            // A key that is wanted is an answer as well.
            200..300 | 401 | 403 => return true,
            // It serves, though not this to us: some gateways want to be told first where to go.
            400..500 if path == "/v1/models" => return true,
            400..=500 => {}
            _ => return false,
        }
    }
    false
}

/// The end of a log.
fn tail(log: &Path) -> String {
    let bytes = std::fs::read(log).unwrap_or_default();
    String::from_utf8_lossy(&bytes[bytes.len().saturating_sub(TAIL_BYTES)..]).into_owned()
}

/// What happens to the other servers while one is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Alone {
    /// They are stopped where they are, and go on afterwards
    Pause,
    /// They are ended, and each starts afresh before its round
    Restart,
}

/// All servers of a run.
#[derive(Debug, Default)]
pub struct Fleet {
    specs: Vec<Spec>,
    alone: Option<Alone>,
    running: Vec<Server>,
    /// Every start so far.
    pub starts: Vec<Start>,
}

impl Fleet {
    /// Starts all servers, one after another.
    ///
    /// # Errors
    /// One of them can't be used; those before it are ended again.
    pub async fn start(specs: Vec<Spec>, alone: Option<Alone>) -> Result<Self, ServerError> {
        let mut fleet = Self { specs, alone, ..Self::default() };
        if alone == Some(Alone::Restart) {
            return Ok(fleet);
        }
        for spec in fleet.specs.clone() {
            fleet.launch(spec).await?;
            if alone.is_some() {
                fleet.running.iter().for_each(Server::pause);
            }
        }
        Ok(fleet)
    }

    async fn launch(&mut self, spec: Spec) -> Result<(), ServerError> {
        let (server, start) = Server::start(spec).await?;
        self.running.push(server);
        self.starts.push(start);
        Ok(())
    }

    /// Makes way for the target that is measured next.
    ///
    /// # Errors
    /// It had to be started afresh and can't be used.
    pub async fn turn(&mut self, target: &str) -> Result<(), ServerError> {
        match self.alone {
            None => {}
            Some(Alone::Pause) => {
                self.running.iter().filter(|server| server.spec.name != target).for_each(Server::pause);
                // One that was still for long may have to find its own servers again.
                for server in self.running.iter_mut().filter(|server| server.spec.name == target) {
                    server.resume();
                    server.ready().await?;
                }
            }
            Some(Alone::Restart) => {
                self.running.clear();
                let spec = self.specs.iter().find(|spec| spec.name == target).cloned();
                if let Some(spec) = spec {
                    self.launch(spec).await?;
                }
            }
        }
        Ok(())
    }
}
