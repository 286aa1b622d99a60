//! Keeps calibrations between starts, so that only the first start of a model on a machine measures.
//!
//! The rule: it never fails a start. What is missing, too old, damaged or of another model, machine or build is
//! measured again, and what can't be written is only measured again next time.

use std::hash::Hasher;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};
use siphasher::sip128::{Hasher128, SipHasher24};

use super::Calibration;

/// Most bytes of a file that is read.
const MOST_BYTES: u64 = 64 * 1024;
/// A machine changes under a process (other guests, other firmware); older measurements are taken again.
const MOST_AGE: Duration = Duration::from_secs(7 * 24 * 3600);
/// Raised when what is measured changes its meaning.
const FORMAT: u32 = 1;

/// What a calibration holds for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Key {
    /// The model's fingerprint, numeric path included.
    fingerprint: String,
    /// Bytes of the model's files.
    model_bytes: u64,
    /// When the model was last written, in seconds.
    model_written_s: u64,
    /// The processor's name.
    processor: String,
    /// Compute threads.
    threads: usize,
    /// The program: its release, and the size and age of its file, which a rebuild changes.
    software: String,
    /// See [`FORMAT`].
    format: u32,
}

impl Key {
    /// The key of a model on this machine.
    pub fn new(model: &Path, fingerprint: &str, model_bytes: u64, threads: usize) -> Self {
        let written = std::fs::metadata(model).and_then(|metadata| metadata.modified()).ok();
        let written = written.and_then(|time| time.duration_since(UNIX_EPOCH).ok()).unwrap_or_default();
        Self {
            fingerprint: fingerprint.to_owned(),
            model_bytes,
            model_written_s: written.as_secs(),
            processor: processor(&std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default()),
            threads,
            software: software(),
            format: FORMAT,
        }
    }

    fn file_in(&self, dir: &Path) -> PathBuf {
        let mut hasher = SipHasher24::new();
        hasher.write(format!("{self:?}").as_bytes());
        dir.join(format!("{:032x}.json", hasher.finish128().as_u128()))
    }
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Stored {
    key: Key,
    calibration: Calibration,
}

/// The kept calibration, if there is one that still holds.
pub fn load(dir: &Path, key: &Key) -> Option<Calibration> {
    let file = std::fs::File::open(key.file_in(dir)).ok()?;
    let written = file.metadata().ok()?.modified().ok()?;
    if SystemTime::now().duration_since(written).unwrap_or_default() > MOST_AGE {
        return None;
    }
    let mut text = String::new();
    file.take(MOST_BYTES).read_to_string(&mut text).ok()?;
    let stored: Stored = serde_json::from_str(&text).ok()?;
    // Read again through its checks: a file may say anything.
    let Calibration { prefill_tokens_per_s, decode } = stored.calibration;
    Calibration::new(prefill_tokens_per_s, decode).filter(|_| stored.key == *key)
}

/// Keeps a calibration. The file appears whole or not at all.
///
/// # Errors
/// The directory can't be made or written.
pub fn save(dir: &Path, key: &Key, calibration: &Calibration) -> std::io::Result<()> {
    std::fs::create_dir_all(dir)?;
    let path = key.file_in(dir);
    let stored = Stored { key: key.clone(), calibration: calibration.clone() };
    let text = serde_json::to_vec(&stored)?;
    let fresh = path.with_extension(format!("{}.tmp", std::process::id()));
    std::fs::write(&fresh, text)?;
    std::fs::rename(&fresh, &path)
}

fn software() -> String {
    let file = std::env::current_exe().and_then(std::fs::metadata).ok();
    let bytes = file.as_ref().map_or(0, std::fs::Metadata::len);
    let written = file.and_then(|file| file.modified().ok()?.duration_since(UNIX_EPOCH).ok());
    format!("{} {bytes} {}", env!("CARGO_PKG_VERSION"), written.unwrap_or_default().as_secs())
}

fn processor(cpuinfo: &str) -> String {
    let line = cpuinfo.lines().find_map(|line| line.strip_prefix("model name"));
    line.and_then(|rest| rest.split_once(':')).map_or("unknown", |(_, name)| name.trim()).to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::calibrate::DecodeTime;

    fn calibration() -> Calibration {
        Calibration::new(1234.5, vec![DecodeTime { rows: 1, step_us: 4000 }]).expect("a sensible device")
    }

    #[test]
    fn a_kept_calibration_comes_back_for_its_own_key_only() {
        let dir = tempfile::tempdir().expect("temporary directory");
        let below = dir.path().join("not/yet");
        let key = Key::new(Path::new("/nowhere"), "fp", 10, 2);
        assert_eq!(load(&below, &key), None);
        save(&below, &key, &calibration()).expect("written");
        assert_eq!(load(&below, &key), Some(calibration()));
        assert_eq!(load(&below, &Key { threads: 3, ..key.clone() }), None);
        // The right name with another key inside is stale too.
        std::fs::rename(key.file_in(&below), Key { threads: 3, ..key.clone() }.file_in(&below))
            .expect("moved");
        assert_eq!(load(&below, &Key { threads: 3, ..key }), None);
    }

    #[test]
    fn damaged_and_nonsensical_files_are_not_believed() {
        let dir = tempfile::tempdir().expect("temporary directory");
        let key = Key::new(Path::new("/nowhere"), "fp", 10, 2);
        save(dir.path(), &key, &calibration()).expect("written");
        let path = key.file_in(dir.path());
        let good = std::fs::read_to_string(&path).expect("read");
        for bad in [good[..good.len() / 2].to_owned(), String::new(), good.replace("4000", "0")] {
            std::fs::write(&path, bad).expect("write");
            assert_eq!(load(dir.path(), &key), None);
        }
        std::fs::write(&path, good).expect("write");
        assert!(load(dir.path(), &key).is_some());
        let old = SystemTime::now() - MOST_AGE - Duration::from_secs(1);
        std::fs::File::options()
            .write(true)
            .open(&path)
            .and_then(|file| file.set_modified(old))
            .expect("set");
        assert_eq!(load(dir.path(), &key), None, "too old");
    }

    #[test]
    fn the_processor_is_read_by_name() {
        assert_eq!(processor("processor : 0\nmodel name\t: Fast CPU @ 3\n"), "Fast CPU @ 3");
        assert_eq!(processor(""), "unknown");
    }
}
