//! A gateway as a process of its own, for what can only be measured from outside: memory and life time. The rule:
//! it is ended when the test ends, however that ends.

use std::net::SocketAddr;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use pons_gateway::server::AdminFile;

use super::harness::ready;
use super::model;
use super::raw_http::PATIENCE;
use super::scripted::{ScriptedBrain, hello};

/// A running `pons serve` and the scripted brain behind it.
pub(super) struct ServerProcess {
    child: Child,
    pub(super) address: SocketAddr,
    pub(super) brain: ScriptedBrain,
    _folder: tempfile::TempDir,
}

impl Drop for ServerProcess {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl ServerProcess {
    pub(super) async fn start(context_tokens: u32) -> Self {
        let folder = tempfile::tempdir().expect("there is a temporary directory");
        let socket = folder.path().join("brain.sock");
        let brain = ScriptedBrain::start(
            &socket,
            hello(model::NAME, model::vocab_size(), context_tokens, model::eos()),
        );
        let config = folder.path().join("pons.toml");
        let toml = format!(
            "[[model]]\nname = {:?}\npath = {:?}\nbrain = \"unix:{}\"\n",
            model::NAME,
            model::path(),
            socket.display()
        );
        std::fs::write(&config, toml).expect("the folder is ours");
        let state = folder.path().join("state");
        let child = Command::new(env!("CARGO_BIN_EXE_pons"))
            .arg("serve")
            .args(["--listen", "127.0.0.1:0", "--log", "error", "--config"])
            .arg(&config)
            .arg("--state-dir")
            .arg(&state)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .spawn()
            .expect("the executable was built with this test");
        let address = address(&state).await;
        ready(address).await;
        Self { child, address, brain, _folder: folder }
    }

    /// Anonymous memory with what was swapped out, in KiB.
    pub(super) fn memory_kib(&self) -> u64 {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.child.id())).expect("it runs");
        let field = |name: &str| -> u64 {
            let line = status.lines().find_map(|line| line.strip_prefix(name)).expect("the kernel tells it");
            line.trim_start_matches(':').trim().trim_end_matches(" kB").parse().expect("a number")
        };
        field("RssAnon") + field("VmSwap")
    }
}

/// Waits for the file that tells where a server listens.
async fn address(state: &Path) -> SocketAddr {
    let wait = async {
        loop {
            if let Some((address, _)) = AdminFile::read(state) {
                return address;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    tokio::time::timeout(PATIENCE, wait).await.expect("the server starts")
}
