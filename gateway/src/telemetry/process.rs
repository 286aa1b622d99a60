//! What the process itself uses, read from the system at the moment of a scrape. The rule: a value that can't
//! be read is absent, never zero.

/// Resident memory in bytes.
pub(super) fn resident_bytes() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok().map(|kilobytes| kilobytes * 1024)
}

/// Open file descriptors.
pub(super) fn open_files() -> Option<u64> {
    std::fs::read_dir("/proc/self/fd").ok().map(|entries| entries.count() as u64)
}
