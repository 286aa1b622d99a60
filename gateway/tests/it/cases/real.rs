//! A gateway with a real brain process on the tiny model. The rule: the weights are random, so what is checked is
//! shape, grammar and sameness, never sense.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use pons_gateway::server::RunningServer;
use pons_protocol::capacity::Capacity;
use serde_json::Value;

use super::harness::{agree, ready, serve};
use super::model;
use super::raw_http::{self, Answer, PATIENCE, Request};
use super::reading::Reading;

/// A gateway that has started its brain.
pub(super) struct RealStack {
    pub(super) server: RunningServer,
    folder: tempfile::TempDir,
}

impl RealStack {
    /// A brain of one thread that runs up to 16 sequences.
    pub(super) async fn start() -> Self {
        Self::with("max_sequences = 16").await
    }

    /// With these lines in the model's entry.
    pub(super) async fn with(model_toml: &str) -> Self {
        let program = program();
        assert!(
            program.is_file(),
            "{} is missing; run `cargo build -p pons-gpu-worker` first",
            program.display()
        );
        let folder = tempfile::tempdir().expect("there is a temporary directory");
        let toml = format!(
            "log = \"error\"\n[[model]]\nname = {:?}\npath = {:?}\nthreads = 1\nkv_memory = \"16MiB\"\n{model_toml}",
            model::NAME,
            model::path()
        );
        let server = serve(folder.path(), &toml).await;
        ready(server.address()).await;
        Self { server, folder }
    }

    pub(super) fn address(&self) -> SocketAddr {
        self.server.address()
    }

    pub(super) async fn post(&self, path: &str, body: &Value) -> Answer {
        raw_http::send(self.address(), &Request::post(path, body)).await
    }

    /// The same request unstreamed and streamed; both must tell the same.
    pub(super) async fn agree(&self, path: &str, body: &Value) -> Reading {
        agree(self.address(), path, body).await
    }

    /// What the brain reported last.
    pub(super) fn capacity(&self) -> Capacity {
        self.server.app().pool().status()[0].capacity
    }

    /// Waits until the brain reports what is wanted.
    pub(super) async fn until(&self, what: &str, condition: impl Fn(&Capacity) -> bool) {
        let wait = async {
            while !condition(&self.capacity()) {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        };
        if tokio::time::timeout(PATIENCE, wait).await.is_err() {
            panic!("{what} did not happen: {:?}", self.capacity());
        }
    }

    /// Kills the brain as the kernel would for want of memory. The process is found by its parent, which is this
    /// one, and by its socket, which only it has.
    pub(super) fn kill_brain(&self) {
        let pid = self.brain_pid().expect("the brain runs");
        let pid = rustix::process::Pid::from_raw(pid).expect("it is no zero");
        rustix::process::kill_process(pid, rustix::process::Signal::KILL).expect("it is our child");
    }

    fn brain_pid(&self) -> Option<i32> {
        let ours = std::process::id().to_string();
        let folder = self.folder.path().to_str().expect("temporary names are ASCII");
        let processes = std::fs::read_dir("/proc").expect("this is Linux");
        processes.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse::<i32>().ok()).find(|pid| {
            let read =
                |name: &str| std::fs::read_to_string(format!("/proc/{pid}/{name}")).unwrap_or_default();
            let parent =
                read("stat").rsplit(')').next().and_then(|rest| rest.split(' ').nth(2).map(str::to_owned));
            parent.as_deref() == Some(&ours) && read("cmdline").contains(folder)
        })
    }
}

/// The brain's executable, built beside this test's.
fn program() -> PathBuf {
    let own = std::env::current_exe().expect("a running test has a path");
    let folder = own.ancestors().nth(2).expect("tests lie in target/PROFILE/deps");
    folder.join("pons-brain")
}
