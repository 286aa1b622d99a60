//! The real gateway as a process of its own, with key authentication. The rule: it ends with this handle.

use std::fs::File;
use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use anyhow::{Context, ensure};

use crate::load::Target;
use crate::plan::MODEL;

/// Tenant of the key.
const TENANT: &str = "bench";

/// How it is started.
#[derive(Clone, Debug)]
pub struct GatewaySetup {
    /// The `pons` executable.
    pub program: PathBuf,
    /// Model directory, for the tokenizer and the template.
    pub model: PathBuf,
    /// Socket of the brain.
    pub brain: PathBuf,
    /// Where its state is made; on which disk decides what a ledger record costs.
    pub state: PathBuf,
    /// Log filter; the log goes to a file beside the state.
    pub log: String,
}

/// A gateway that is ready.
#[derive(Debug)]
pub struct GatewayProcess {
    child: Child,
    target: Target,
}

impl GatewayProcess {
    /// Makes a key, starts the gateway and waits until it can serve.
    ///
    /// # Errors
    /// When one of them fails; the message names the log.
    pub fn start(setup: &GatewaySetup) -> anyhow::Result<Self> {
        let key = create_key(&setup.program, &setup.state)?;
        let config = setup.state.join("pons.toml");
        std::fs::write(&config, configuration(setup)?).context("can't write the configuration")?;
        let log = setup.state.join("gateway.log");
        let child = Command::new(&setup.program)
            .args(["serve", "--config"])
            .arg(&config)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(File::create(&log).context("can't make the log")?)
            .spawn()
            .with_context(|| format!("can't start {}", setup.program.display()))?;
        let authorization = Some(format!("Bearer {key}"));
        // From here on the child ends with the handle, also when it never becomes ready.
        let unknown = SocketAddr::from(([127, 0, 0, 1], 0));
        let mut gateway = Self { child, target: Target { address: unknown, authorization } };
        let output = gateway.child.stdout.take().context("the gateway has no output")?;
        let mut line = String::new();
        BufReader::new(output).read_line(&mut line).context("can't read the gateway's output")?;
        let address = line.trim().strip_prefix("ready: http://").and_then(|text| text.parse().ok());
        gateway.target.address = address.with_context(|| {
            let told = std::fs::read_to_string(&log).unwrap_or_default();
            format!("the gateway said {line:?} instead of being ready; its log: {told}")
        })?;
        Ok(gateway)
    }

    /// Where and as whom it is asked.
    pub fn target(&self) -> &Target {
        &self.target
    }

    /// Its process id.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }
}

impl Drop for GatewayProcess {
    fn drop(&mut self) {
        // The state is thrown away with its directory, so nothing is lost by ending it at once.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn create_key(program: &Path, state: &Path) -> anyhow::Result<String> {
    let output = Command::new(program)
        .args(["key", "create", "--tenant", TENANT, "--state-dir"])
        .arg(state)
        .output()
        .with_context(|| format!("can't run {}; build it with cargo build --release", program.display()))?;
    let text = String::from_utf8_lossy(&output.stdout);
    ensure!(output.status.success(), "no key was made: {}", String::from_utf8_lossy(&output.stderr));
    text.lines().last().map(str::to_owned).context("pons key create printed no key")
}

fn configuration(setup: &GatewaySetup) -> anyhow::Result<String> {
    // JSON strings are valid as TOML basic strings.
    let text = |path: &Path| serde_json::to_string(&path.display().to_string());
    let brain = serde_json::to_string(&format!("unix:{}", setup.brain.display()))?;
    Ok(format!(
        "listen = \"127.0.0.1:0\"\nstate_dir = {}\nlog = {}\n\n[[model]]\nname = \"{MODEL}\"\npath = {}\nbrain = {brain}\n",
        text(&setup.state)?,
        serde_json::to_string(&setup.log)?,
        text(&setup.model)?,
    ))
}
