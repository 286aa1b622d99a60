//! Runs one trial: a gateway with the candidate's settings, and the harness against it.
//!
//! The rule: nothing outlives its trial. Every wait has a limit, and both processes are ended by their own ids.

use std::path::{Path, PathBuf};
use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use tokio::io::{AsyncBufReadExt, AsyncReadExt, BufReader};
use tokio::process::{Child, Command};
use tokio::time::timeout;

use super::{Measured, TuneError, record};
use crate::config::{LogFormat, ModelConfig, ResolvedConfig};

/// Time that a stopped server gets.
const STOP_LIMIT: Duration = Duration::from_secs(15);
/// Most bytes of a process's own words that an error repeats.
const MOST_WORDS: usize = 600;
/// Longest line that is read from a server.
const MOST_LINE: u64 = 4096;

/// Runs trials.
#[derive(Clone, Debug)]
pub struct Runner {
    /// The gateway's executable.
    pub server: PathBuf,
    /// The harness's.
    pub harness: PathBuf,
    /// Further arguments of the harness.
    pub harness_arguments: Vec<String>,
    /// What the harness runs.
    pub scenario: PathBuf,
    /// Settings that all trials share.
    pub base: ResolvedConfig,
}

impl Runner {
    /// Runs one in a folder of its own, which must not exist yet, within the time.
    pub async fn run(&self, dir: &Path, model: ModelConfig, within: Duration) -> Result<Measured, TuneError> {
        let began = tokio::time::Instant::now();
        let left = || within.saturating_sub(began.elapsed());
        let config = self.write_config(dir, model)?;
        let mut server = self.start_server(dir, &config)?;
        let url = match timeout(left(), ready(&mut server)).await {
            Ok(Some(url)) => Ok(url),
            Ok(None) => Err(last_words(&dir.join("server.log"))),
            Err(_) => Err(format!("it was not ready within {} s", within.as_secs())),
        };
        let result = match url {
            Ok(url) => self.run_harness(dir, &url, left()).await,
            Err(reason) => Err(process_error("the server did not start", reason)),
        };
        stop(&mut server).await;
        result
    }

    fn write_config(&self, dir: &Path, model: ModelConfig) -> Result<PathBuf, TuneError> {
        let config = ResolvedConfig {
            listen: ([127, 0, 0, 1], 0).into(),
            state_dir: dir.join("state"),
            log: "warn".to_owned(),
            log_format: LogFormat::Text,
            drain_s: 2.0,
            models: vec![model],
            ..self.base.clone()
        };
        let failed = |reason: String| process_error(&format!("{} can't be prepared", dir.display()), reason);
        let text = toml::to_string(&config).map_err(|error| failed(error.to_string()))?;
        let path = dir.join("pons.toml");
        std::fs::create_dir_all(dir.join("out"))
            .and_then(|()| std::fs::write(&path, text))
            .map_err(|error| failed(error.to_string()))?;
        Ok(path)
    }

    fn start_server(&self, dir: &Path, config: &Path) -> Result<Child, TuneError> {
        let mut command = Command::new(&self.server);
        command.arg("serve").arg("--config").arg(config);
        for variable in ["PONS_CONFIG", "PONS_STATE_DIR", "PONS_LOG"] {
            command.env_remove(variable);
        }
        spawn(command, &dir.join("server.log"))
    }

    async fn run_harness(&self, dir: &Path, url: &str, within: Duration) -> Result<Measured, TuneError> {
        let out = dir.join("out");
        let log = dir.join("harness.log");
        let mut command = Command::new(&self.harness);
        command.arg("run").arg(&self.scenario).arg("--target").arg(url).arg("--out").arg(&out);
        command.args(&self.harness_arguments);
        let mut harness = spawn(command, &log)?;
        // What it prints is for people; it is read so that it never waits for us.
        let mut printed = harness.stdout.take();
        let drain = async {
            if let Some(stdout) = &mut printed {
                // A reader that fails ends with the process anyway.
                let _ = tokio::io::copy(stdout, &mut tokio::io::sink()).await;
            }
            harness.wait().await
        };
        match timeout(within, drain).await {
            Ok(Ok(status)) if status.success() => record::read(&out),
            Ok(Ok(status)) => Err(harness_failed(status, &log)),
            Ok(Err(error)) => Err(process_error("the harness can't be waited for", error.to_string())),
            Err(_) => {
                // It may have ended a moment ago.
                let _ = harness.kill().await;
                let reason =
                    format!("it took more than the {} s left; raise --budget-minutes", within.as_secs());
                Err(process_error("the harness was stopped", reason))
            }
        }
    }
}

fn harness_failed(status: ExitStatus, log: &Path) -> TuneError {
    process_error(&format!("the harness failed ({status})"), last_words(log))
}

fn process_error(what: &str, reason: String) -> TuneError {
    TuneError::Process { what: what.to_owned(), reason }
}

fn spawn(mut command: Command, log: &Path) -> Result<Child, TuneError> {
    let program = command.as_std().get_program().to_string_lossy().into_owned();
    let failed =
        |reason: std::io::Error| process_error(&format!("{program} can't be started"), reason.to_string());
    let errors = std::fs::File::create(log).map_err(failed)?;
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(errors).kill_on_drop(true);
    command.spawn().map_err(failed)
}

/// The address that a server announces, once it can serve; none if it ends before.
async fn ready(server: &mut Child) -> Option<String> {
    let stdout = server.stdout.take()?;
    let mut lines = BufReader::new(stdout.take(MOST_LINE)).lines();
    while let Ok(Some(line)) = lines.next_line().await {
        if let Some(url) = line.strip_prefix("ready: ") {
            return Some(url.trim().to_owned());
        }
    }
    None
}

async fn stop(server: &mut Child) {
    if let Some(pid) = server.id().and_then(|id| rustix::process::Pid::from_raw(id.cast_signed())) {
        // One that has ended already needs no signal.
        let _ = rustix::process::kill_process(pid, rustix::process::Signal::TERM);
    }
    if timeout(STOP_LIMIT, server.wait()).await.is_err() {
        // Its brains notice that their parent is gone.
        let _ = server.kill().await;
    }
}

/// The end of a log, on one line.
fn last_words(log: &Path) -> String {
    let text = std::fs::read_to_string(log).unwrap_or_default();
    let lines: Vec<&str> = text.lines().rev().take(5).filter(|line| !line.is_empty()).collect();
    let words = lines.into_iter().rev().collect::<Vec<_>>().join(" | ");
    let cut = words.char_indices().rev().nth(MOST_WORDS).map_or(0, |(at, _)| at);
    if words.is_empty() { "it said nothing".to_owned() } else { words[cut..].to_owned() }
}
