//! A server to test against: `pons serve` on a free port, with a state folder and a key of its own.
//!
//! The rule: whoever starts it owns it; it is ended by its process id, and nothing of it stays behind.

use std::fs::File;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::mpsc;
use std::time::Duration;

use anyhow::{Context, bail};

use crate::run::{command, output, run, target_dir};

/// Longest time until it answers; a first start may fetch the model.
const READY_LIMIT: Duration = Duration::from_secs(900);

/// How to start one.
pub(crate) struct Launch<'a> {
    /// Folder with both programs.
    pub(crate) programs: &'a Path,
    /// What it is for; it names the state folder.
    pub(crate) purpose: &'a str,
    /// Content of the configuration file; without one the defaults hold.
    pub(crate) config: Option<&'a str>,
    /// File for the log instead of the terminal.
    pub(crate) log: Option<&'a Path>,
}

/// A server that answers requests. Dropping it kills it.
pub(crate) struct Server {
    child: Child,
    /// Where it listens.
    pub(crate) url: String,
    /// A key of the default tenant.
    pub(crate) key: String,
    /// Its state folder.
    pub(crate) state: PathBuf,
}

/// The folder of the release build.
pub(crate) fn release_programs() -> PathBuf {
    target_dir().join("release")
}

impl Server {
    /// Starts it and waits for the line that says where it listens.
    pub(crate) fn start(launch: &Launch<'_>) -> anyhow::Result<Server> {
        let state = target_dir().join(format!("{}-state", launch.purpose));
        let _ = std::fs::remove_dir_all(&state);
        let pons = launch.programs.join("pons");
        let create = ["key", "create", "--tenant", "default", "--state-dir"];
        let created = output(command(&pons).args(create).arg(&state))?;
        let key = created.lines().last().context("the key is on the last line")?.to_owned();
        let mut serve = command(&pons);
        serve.args(["serve", "--listen", "127.0.0.1:0", "--state-dir"]).arg(&state).stdout(Stdio::piped());
        if let Some(config) = launch.config {
            let file = state.join("pons.toml");
            std::fs::write(&file, config).with_context(|| format!("cannot write {}", file.display()))?;
            serve.arg("--config").arg(file);
        }
        if let Some(log) = launch.log {
            let file = File::create(log).with_context(|| format!("cannot write {}", log.display()))?;
            serve.stderr(file);
        }
        let mut child = serve.spawn().with_context(|| format!("cannot start {}", pons.display()))?;
        let stdout = child.stdout.take().context("the server has no standard output")?;
        // Owned from here on, so that an early return ends it.
        let mut server = Server { child, url: String::new(), key, state };
        server.url = address(stdout)?;
        Ok(server)
    }

    /// A command that finds the server's address and key in its environment.
    pub(crate) fn client(&self, program: impl AsRef<Path>) -> Command {
        let mut client = command(program.as_ref());
        client.env("PONS_URL", &self.url).env("OPENAI_API_KEY", &self.key);
        client
    }

    /// Process id of the gateway.
    pub(crate) fn id(&self) -> u32 {
        self.child.id()
    }

    /// Asks it to stop and waits until it has.
    pub(crate) fn stop(&mut self) -> anyhow::Result<()> {
        run(Command::new("kill").arg(self.child.id().to_string()))?;
        let status = self.child.wait()?;
        let _ = std::fs::remove_dir_all(&self.state);
        if !status.success() {
            bail!("the server ended with {status} when it was asked to stop");
        }
        Ok(())
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // Does nothing when it was stopped; after a failure nothing must stay behind.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The address in the line that says that requests are answered.
fn address(stdout: ChildStdout) -> anyhow::Result<String> {
    let (found, address) = mpsc::channel();
    // Reading a pipe has no time limit, so it waits apart; it ends with the server at the latest.
    std::thread::spawn(move || {
        let mut lines = BufReader::new(stdout).lines().map_while(Result::ok);
        let url = lines.find_map(|line| line.strip_prefix("ready: ").map(str::to_owned));
        // Nobody listens any more if it came too late.
        let _ = found.send(url);
    });
    match address.recv_timeout(READY_LIMIT) {
        Ok(Some(url)) => Ok(url),
        Ok(None) => bail!("the server ended before it was ready; its log says why"),
        Err(_) => bail!("the server was not ready within {} s; its log says why", READY_LIMIT.as_secs()),
    }
}
