//! The brains of this gateway: those it starts and those it only connects to. The rule: the configuration says
//! which is which, and everything else sees one pool.

use crate::brain::{BrainAddress, BrainPool, BrainSource, BrainStatus};
use crate::config::{ModelConfig, ResolvedConfig};
use crate::openai::ServedModel;
use crate::supervisor::{BrainSpec, Supervisor};
use pons_checkpoint::{ChatTemplate, Checkpoint, Tokenizer, locate};
use pons_protocol::inference::BrainHello;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, UNIX_EPOCH};

/// How long a generation waits for its brain to come back before it gives up.
const RECOVERY: Duration = Duration::from_secs(30);

/// A step that takes longer than this counts as hung.
const HUNG_AFTER_MS: u64 = 60_000;

/// A brain that has not said a word for so long after its start is not loading any more.
const LOADING_MOST_MS: u64 = 15 * 60_000;

/// Longest path of a Unix socket, with room for a name.
const MAX_SOCKET_DIR_BYTES: usize = 80;

/// Name of the worker's executable.
const BRAIN_PROGRAM: &str = "pons-brain";

/// Why the brains could not be started.
#[derive(Debug, thiserror::Error)]
pub enum BrainsError {
    /// The files of one model.
    #[error("model {model}: {reason}")]
    Model {
        /// The model.
        model: String,
        /// What went wrong and the remedy.
        reason: String,
    },
    /// The executable.
    #[error(
        "{BRAIN_PROGRAM} was found neither beside {own} nor in PATH; install both together or set PONS_BRAIN"
    )]
    NoProgram {
        /// Our own executable.
        own: PathBuf,
    },
    /// The sockets' directory.
    #[error("can't make the directory {path} for the brains' sockets: {reason}")]
    SocketDir {
        /// The directory.
        path: PathBuf,
        /// The system's reason.
        reason: String,
    },
}

/// The pool and, where there are any, the processes behind it.
pub struct Brains {
    pool: BrainPool,
    supervisor: Mutex<Option<Supervisor>>,
    socket_dir: Option<PathBuf>,
}

impl std::fmt::Debug for Brains {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Brains").field("socket_dir", &self.socket_dir).finish_non_exhaustive()
    }
}

impl Brains {
    /// The pool.
    pub fn pool(&self) -> &BrainPool {
        &self.pool
    }

    /// Model and number of restarts of each brain that this gateway started.
    pub fn restarts(&self) -> Vec<(String, u64)> {
        let supervisor = self.supervisor.lock().unwrap_or_else(PoisonError::into_inner);
        supervisor.as_ref().map(Supervisor::restarts).unwrap_or_default()
    }

    /// Ends the processes that this gateway started. They get `grace` to finish what they hold.
    pub async fn stop(&self, grace: Duration) {
        let supervisor = self.supervisor.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(supervisor) = supervisor {
            supervisor.stop(grace).await;
        }
        if let Some(dir) = &self.socket_dir {
            // Only a directory made for this run; what is left in it is dead sockets.
            let _ = std::fs::remove_dir_all(dir);
        }
    }
}

/// What is read from a model's files on the gateway's side.
struct ModelFiles {
    path: PathBuf,
    tokenizer: Arc<Tokenizer>,
    template: Arc<ChatTemplate>,
    created: u64,
}

/// Connects to every configured model's brain, starting those that have no address.
pub async fn start(config: &ResolvedConfig) -> Result<Brains, BrainsError> {
    let models = config.models.clone();
    let loaded = tokio::task::spawn_blocking(move || {
        models.iter().map(|model| read_files(model).map(|files| (model.clone(), files))).collect::<Vec<_>>()
    });
    let loaded = loaded.await.map_err(|error| BrainsError::Model {
        model: "all".to_owned(),
        reason: format!("reading the model files panicked: {error}"),
    })?;
    let loaded = loaded.into_iter().collect::<Result<Vec<_>, _>>()?;

    let started: Vec<usize> = (0..loaded.len()).filter(|index| loaded[*index].0.brain.is_none()).collect();
    let sockets = if started.is_empty() { None } else { Some(socket_dir(&config.state_dir)?) };
    let mut sources = Vec::new();
    let mut commands = Vec::new();
    for (index, (model, files)) in loaded.into_iter().enumerate() {
        let address = match (&model.brain, &sockets) {
            (Some(address), _) => address.clone(),
            (None, Some((dir, _))) => BrainAddress::Unix(dir.join(format!("brain-{index}.sock"))),
            // Not reached: a model without an address made the directory exist.
            (None, None) => continue,
        };
        if model.brain.is_none() {
            commands.push((model.name.clone(), arguments(config, &model, &files.path, &address)));
        }
        let name = model.name.clone();
        let serve = move |hello: &BrainHello| served_model(&name, &files, hello);
        sources.push(BrainSource { model: model.name, address, serve: Box::new(serve) });
    }
    let pool = BrainPool::start(sources, RECOVERY);
    let supervisor = if commands.is_empty() { None } else { Some(supervise(&pool, commands)?) };
    let socket_dir = sockets.and_then(|(dir, temporary)| temporary.then_some(dir));
    Ok(Brains { pool, supervisor: Mutex::new(supervisor), socket_dir })
}

fn read_files(model: &ModelConfig) -> Result<ModelFiles, BrainsError> {
    let failed = |reason: String| BrainsError::Model { model: model.name.clone(), reason };
    let path = locate::locate(&model.path).map_err(|error| failed(error.to_string()))?;
    // The brain may run in another working directory.
    let path =
        std::fs::canonicalize(&path).map_err(|error| failed(format!("{}: {error}", path.display())))?;
    let checkpoint = Checkpoint::open(&path).map_err(|error| failed(error.to_string()))?;
    let tokenizer = Tokenizer::open(&checkpoint).map_err(|error| failed(error.to_string()))?;
    let template = ChatTemplate::open(&checkpoint, &tokenizer).map_err(|error| failed(error.to_string()))?;
    let modified = std::fs::metadata(&path).and_then(|metadata| metadata.modified()).ok();
    let age = modified.and_then(|time| time.duration_since(UNIX_EPOCH).ok()).unwrap_or_default();
    Ok(ModelFiles {
        path,
        tokenizer: Arc::new(tokenizer),
        template: Arc::new(template),
        created: age.as_secs(),
    })
}

fn served_model(name: &str, files: &ModelFiles, hello: &BrainHello) -> ServedModel {
    ServedModel {
        name: name.to_owned(),
        tokenizer: Arc::clone(&files.tokenizer),
        template: Arc::clone(&files.template),
        context_tokens: hello.context_tokens,
        vocab_size: hello.vocab_size,
        eos: hello.eos_token_ids.clone(),
        fingerprint: hello.fingerprint.clone(),
        created: files.created,
        limits: Default::default(),
    }
}

/// Where the brains' sockets go: the state directory, or a short-named one if that path is too long for a
/// socket. The flag says that it was made for this run.
fn socket_dir(state_dir: &Path) -> Result<(PathBuf, bool), BrainsError> {
    let state_dir = std::path::absolute(state_dir).unwrap_or_else(|_| state_dir.to_path_buf());
    if state_dir.as_os_str().len() <= MAX_SOCKET_DIR_BYTES {
        return Ok((state_dir, false));
    }
    let dir = std::env::temp_dir().join(format!("pons-{}", crate::app::random_id(16)));
    std::fs::DirBuilder::new()
        .mode(0o700)
        .create(&dir)
        .map_err(|error| BrainsError::SocketDir { path: dir.clone(), reason: error.to_string() })?;
    Ok((dir, true))
}

/// The worker's command line.
fn arguments(
    config: &ResolvedConfig,
    model: &ModelConfig,
    path: &Path,
    address: &BrainAddress,
) -> Vec<String> {
    let mut arguments = vec![
        "--model".to_owned(),
        path.display().to_string(),
        "--listen".to_owned(),
        address.to_string(),
        "--name".to_owned(),
        model.name.clone(),
        "--log".to_owned(),
        config.log.clone(),
        "--drain-seconds".to_owned(),
        format!("{}", config.drain_s.ceil() as u64),
        "--exit-with-parent".to_owned(),
    ];
    let mut option = |name: &str, value: Option<String>| {
        if let Some(value) = value {
            arguments.extend([format!("--{name}"), value]);
        }
    };
    option("threads", model.threads.map(|value| value.to_string()));
    option("context", model.context.map(|value| value.to_string()));
    option("kv-memory", model.kv_memory.clone());
    option("max-sequences", model.max_sequences.map(|value| value.to_string()));
    option("step-tokens", model.step_tokens.map(|value| value.to_string()));
    option("max-waiting", model.max_waiting.map(|value| value.to_string()));
    option("p99-ttft-ms", Some(model.p99_ttft_ms.to_string()));
    option("p99-itl-ms", Some(model.p99_itl_ms.to_string()));
    option("calibration-dir", Some(config.state_dir.join("calibration").display().to_string()));
    option("packed-dir", model.packed_dir.as_ref().map(|dir| dir.display().to_string()));
    if !model.packed_cache {
        arguments.push("--no-packed-cache".to_owned());
    }
    arguments
}

/// Whether a brain process of this age does nothing any more. One that was stopped keeps its socket but says
/// nothing, so its link ends; one that was never heard may still be loading its model.
fn is_hung(brain: &BrainStatus, age: Duration) -> bool {
    let age_ms = u64::try_from(age.as_millis()).unwrap_or(u64::MAX);
    if brain.connected {
        return brain.capacity.step_age_ms > HUNG_AFTER_MS;
    }
    let heard = brain.last_heard_age_ms < age_ms;
    if heard { brain.last_heard_age_ms > HUNG_AFTER_MS } else { age_ms > LOADING_MOST_MS }
}

fn supervise(pool: &BrainPool, commands: Vec<(String, Vec<String>)>) -> Result<Supervisor, BrainsError> {
    let program = brain_program()?;
    let specs = commands.into_iter().map(|(model, args)| {
        let (pool, name) = (pool.clone(), model.clone());
        let hangs =
            move |age: Duration| pool.status().iter().any(|brain| brain.model == name && is_hung(brain, age));
        BrainSpec { model, program: program.clone(), args, hangs: Box::new(hangs) }
    });
    Ok(Supervisor::start(specs.collect()))
}

/// `PONS_BRAIN`, else the executable beside ours (a test's is one folder deeper), else the one in `PATH`.
fn brain_program() -> Result<PathBuf, BrainsError> {
    if let Some(program) = std::env::var_os("PONS_BRAIN").filter(|value| !value.is_empty()) {
        return Ok(PathBuf::from(program));
    }
    let own = std::env::current_exe().unwrap_or_default();
    let beside = own.ancestors().skip(1).take(2).map(|dir| dir.join(BRAIN_PROGRAM));
    let path = std::env::var_os("PATH").unwrap_or_default();
    let mut candidates = beside.chain(std::env::split_paths(&path).map(|dir| dir.join(BRAIN_PROGRAM)));
    candidates.find(|program| program.is_file()).ok_or(BrainsError::NoProgram { own })
}

#[cfg(test)]
mod tests {
    use super::*;
    use pons_protocol::capacity::Capacity;

    fn hung(connected: bool, heard_ms: u64, step_age_ms: u64, age_s: u64) -> bool {
        let capacity = Capacity { step_age_ms, ..Capacity::default() };
        let model = String::new();
        let brain = BrainStatus { model, connected, capacity, last_heard_age_ms: heard_ms, hello: None };
        is_hung(&brain, Duration::from_secs(age_s))
    }

    #[test]
    fn a_brain_that_loads_is_not_hung_and_one_that_fell_silent_is() {
        assert!(!hung(false, u64::MAX, 0, 1), "just started");
        assert!(!hung(false, u64::MAX, 0, 300), "loads a large model");
        assert!(!hung(false, 400_000, 0, 200), "only its predecessor was heard");
        assert!(hung(false, u64::MAX, 0, 1000), "never came up");
        assert!(!hung(false, 5_000, 0, 200), "lost its link a moment ago");
        assert!(hung(false, 61_000, 0, 200), "stopped");
        assert!(!hung(true, 100, 59_000, 200), "a long step");
        assert!(hung(true, 100, 61_000, 200), "a step without end");
    }
}
