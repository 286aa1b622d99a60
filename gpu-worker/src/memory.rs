//! How much memory a KV cache may take when nobody says.
//!
//! The rule: the default is computed from what this machine, or the container it runs in, has left, and it is
//! never more than the declared load can use.

use std::path::Path;

/// Share of the available memory that the KV cache may take by default, as a fraction of [`SHARE_OF`]. The rest
/// is for activations, other brains and the gateway beside them.
const SHARE: u64 = 2;
/// See [`SHARE`].
const SHARE_OF: u64 = 5;

/// What is assumed where the system doesn't tell.
const FALLBACK_BYTES: u64 = 2 << 30;

/// Bytes that can still be taken: the least of the system's `MemAvailable` and what the control group leaves.
pub fn available_bytes() -> u64 {
    let system = std::fs::read_to_string("/proc/meminfo").ok().and_then(|text| mem_available(&text));
    let own = std::fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    [system, control_group_left(Path::new("/sys/fs/cgroup"), &own)]
        .into_iter()
        .flatten()
        .min()
        .unwrap_or(FALLBACK_BYTES)
}

/// Number of KV blocks: the smallest of the memory share and what `max_sequences` full contexts need, and at
/// least one full context, without which nothing long could run.
pub fn default_blocks(
    available_bytes: u64,
    block_bytes: u64,
    blocks_per_sequence: u64,
    max_sequences: u64,
) -> u64 {
    let affordable = available_bytes / SHARE_OF * SHARE / block_bytes.max(1);
    let useful = blocks_per_sequence.saturating_mul(max_sequences);
    affordable.min(useful).max(blocks_per_sequence)
}

/// `MemAvailable` of `/proc/meminfo` in bytes.
fn mem_available(meminfo: &str) -> Option<u64> {
    let line = meminfo.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    kib.checked_mul(1024)
}

/// What the control group's limit leaves, version 2 and 1; none where there is no limit.
fn control_group_left(root: &Path, own: &str) -> Option<u64> {
    let number = |path: &Path| std::fs::read_to_string(path).ok()?.trim().parse::<u64>().ok();
    let left = |dir: &Path, limit: &str, usage: &str| {
        Some(number(&dir.join(limit))?.saturating_sub(number(&dir.join(usage)).unwrap_or(0)))
    };
    let mut least: Option<u64> = None;
    let mut note = |bytes: Option<u64>| least = [least, bytes].into_iter().flatten().min();
    for line in own.lines() {
        let mut fields = line.splitn(3, ':').skip(1);
        let (controllers, path) = (fields.next().unwrap_or(""), fields.next().unwrap_or("/"));
        let relative = Path::new(path.trim_start_matches('/'));
        // The limit may be set on the group itself or on any above it.
        for above in relative.ancestors() {
            if controllers.is_empty() {
                note(left(&root.join(above), "memory.max", "memory.current"));
            } else if controllers.split(',').any(|controller| controller == "memory") {
                let dir = root.join("memory").join(above);
                note(left(&dir, "memory.limit_in_bytes", "memory.usage_in_bytes"));
            }
        }
    }
    note(left(root, "memory.max", "memory.current"));
    least
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn available_memory_is_read_from_meminfo() {
        let text = "MemTotal:       100 kB\nMemFree: 3 kB\nMemAvailable:   2048 kB\n";
        assert_eq!(mem_available(text), Some(2048 * 1024));
        assert_eq!(mem_available("MemTotal: 100 kB\n"), None);
    }

    #[test]
    fn the_tightest_control_group_decides() {
        let root = tempfile::tempdir().expect("temporary directory");
        let group = root.path().join("outer/inner");
        std::fs::create_dir_all(&group).expect("directories");
        std::fs::write(group.join("memory.max"), "max\n").expect("write");
        std::fs::write(root.path().join("outer/memory.max"), "1000\n").expect("write");
        std::fs::write(root.path().join("outer/memory.current"), "400\n").expect("write");
        assert_eq!(control_group_left(root.path(), "0::/outer/inner\n"), Some(600));
        assert_eq!(control_group_left(root.path(), "0::/\n"), None);
    }

    #[test]
    fn blocks_follow_the_load_until_memory_is_short() {
        // Plenty of memory: what the load can use.
        assert_eq!(default_blocks(1 << 40, 1024, 100, 8), 800);
        // Short: two fifths of it.
        assert_eq!(default_blocks(500 * 1024, 1024, 100, 8), 200);
        // Very short: one full context, whatever it takes.
        assert_eq!(default_blocks(1024, 1024, 100, 8), 100);
    }
}
