//! The machine a record was made on, and the processor time of its processes. The rule: what can't be read is
//! "unknown" in the record, never left out.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::Context;
use serde::Serialize;

/// Ticks of `/proc/PID/stat` in a second; Linux shows programs the same number on every machine.
const TICKS_PER_SECOND: u64 = 100;

/// Where a record was made.
#[derive(Clone, Debug, Serialize)]
pub struct Machine {
    /// Processor's name.
    pub cpu: String,
    /// Processors that this process may use.
    pub cores: usize,
    /// Kernel release.
    pub kernel: String,
    /// Load averages over 1, 5 and 15 minutes when it began.
    pub load_average: String,
    /// Git revision of the working tree; `-dirty` if something is not committed.
    pub revision: String,
    /// Day and time when it began, in UTC.
    pub date: String,
    /// The same moment, to tell what is older.
    #[serde(skip)]
    pub begun: SystemTime,
}

impl Machine {
    /// As of now.
    pub fn now() -> Self {
        let known = |text: Option<String>| text.unwrap_or_else(|| "unknown".to_owned());
        let read = |path: &str| fs::read_to_string(path).ok().map(|text| text.trim().to_owned());
        let cpu = read("/proc/cpuinfo").and_then(|text| {
            let line = text.lines().find(|line| line.starts_with("model name"))?;
            line.split_once(':').map(|(_, name)| name.trim().to_owned())
        });
        let begun = SystemTime::now();
        Self {
            cpu: known(cpu),
            cores: std::thread::available_parallelism().map_or(1, std::num::NonZero::get),
            kernel: known(read("/proc/sys/kernel/osrelease")),
            load_average: load_average(),
            revision: known(revision()),
            date: utc(begun),
            begun,
        }
    }
}

/// Writes a record as JSON, readable and with a line break at its end.
///
/// # Errors
/// When the file can't be written.
pub fn write_record(path: &Path, record: &impl Serialize) -> anyhow::Result<()> {
    fs::write(path, serde_json::to_string_pretty(record)? + "\n")
        .with_context(|| format!("can't write {}", path.display()))
}

/// A moment as RFC 3339 writes it, to the second.
fn utc(moment: SystemTime) -> String {
    let seconds = moment.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
    let (days, second) = (seconds / 86_400, seconds % 86_400);
    // Counted from 1 March of the year 0, so that the day of a leap year is the last one; see Howard Hinnant,
    // "chrono-compatible low-level date algorithms".
    let days = days + 719_468;
    let (era, day) = (days / 146_097, days % 146_097);
    let year = (day - day / 1460 + day / 36_524 - day / 146_096) / 365;
    let day = day - (365 * year + year / 4 - year / 100);
    let month = (5 * day + 2) / 153;
    let (day, month) = (day - (153 * month + 2) / 5 + 1, if month < 10 { month + 3 } else { month - 9 });
    let year = era * 400 + year + u64::from(month <= 2);
    let (hour, minute, second) = (second / 3600, second / 60 % 60, second % 60);
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}Z")
}

/// The three load averages.
pub fn load_average() -> String {
    let text = fs::read_to_string("/proc/loadavg").unwrap_or_default();
    let averages: Vec<&str> = text.split_whitespace().take(3).collect();
    if averages.is_empty() { "unknown".to_owned() } else { averages.join(" ") }
}

fn revision() -> Option<String> {
    let run = Command::new("git").args(["describe", "--always", "--dirty", "--abbrev=12"]).output().ok()?;
    let text = String::from_utf8(run.stdout).ok().filter(|_| run.status.success())?;
    Some(text.trim().to_owned())
}

/// Processor time that a process has used so far, in user and system mode.
///
/// # Errors
/// When there is no such process.
pub fn processor_time(pid: u32) -> anyhow::Result<Duration> {
    let path = format!("/proc/{pid}/stat");
    let text = fs::read_to_string(&path).with_context(|| format!("can't read {path}"))?;
    ticks(&text)
        .map(|ticks| Duration::from_millis(ticks * 1000 / TICKS_PER_SECOND))
        .with_context(|| format!("{path} is {text:?}, without the times"))
}

/// Fields 14 and 15 of `proc_pid_stat(5)`; the second, the name, may hold anything.
fn ticks(stat: &str) -> Option<u64> {
    let (_, rest) = stat.rsplit_once(')')?;
    let mut fields = rest.split_whitespace().skip(11);
    let (user, system) = (fields.next()?, fields.next()?);
    Some(user.parse::<u64>().ok()? + system.parse::<u64>().ok()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn moments_are_written_as_dates() {
        for (seconds, date) in [
            (0, "1970-01-01T00:00:00Z"),
            (951_782_399, "2000-02-28T23:59:59Z"),
            (951_782_400, "2000-02-29T00:00:00Z"),
            (1_709_251_200, "2024-03-01T00:00:00Z"),
            (4_102_444_799, "2099-12-31T23:59:59Z"),
        ] {
            assert_eq!(utc(UNIX_EPOCH + Duration::from_secs(seconds)), date);
        }
    }

    #[test]
    fn times_are_found_behind_any_process_name() {
        let stat = "7 (a) b (c) S 1 7 7 0 -1 4194304 1 2 3 4 120 34 0 0 20 0 1 0 99";
        assert_eq!(ticks(stat), Some(154));
        assert_eq!(ticks("7 (a) S 1"), None);
    }

    #[test]
    fn the_time_of_this_process_can_be_read() {
        assert!(processor_time(std::process::id()).unwrap() < Duration::from_secs(3600));
    }
}
