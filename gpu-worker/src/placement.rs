//! Which cores compute. The rule: a share of the cores is left to the gateway and the links from eight cores on, and
//! threads are kept on cores only where this process has the machine to itself by that reckoning.

use clap::ValueEnum;

/// From this many cores on, some are left to others.
const LEAST_SHARED: usize = 8;
/// Of so many cores one is left.
const SHARE: usize = 16;

/// Whether compute threads are kept on cores.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum PinThreads {
    /// If there are as many as the process takes by default, and a share of the cores is left to others.
    Auto,
    /// Never.
    Off,
}

/// Cores of `cores` that are not computed on by default: none below eight, then one of each sixteen begun.
fn left_to_others(cores: usize) -> usize {
    if cores < LEAST_SHARED { 0 } else { cores.div_ceil(SHARE) }
}

/// Threads that compute, unless told otherwise, where so many cores may be used.
pub fn default_threads(cores: usize) -> usize {
    cores - left_to_others(cores)
}

/// The cores that the started threads of a pool of `threads` are kept on; empty if they are not. The last ones are
/// taken: the engine thread, which is never pinned, and the others find their room on the first.
pub fn pinned_cores(pin: PinThreads, threads: usize, allowed: &[usize]) -> Vec<usize> {
    let left = left_to_others(allowed.len());
    if pin == PinThreads::Off || left == 0 || threads != default_threads(allowed.len()) {
        return Vec::new();
    }
    allowed[left + 1..].to_vec()
}

/// The cores this process may run on, lowest first; empty where the system does not say.
pub fn allowed_cores() -> Vec<usize> {
    #[cfg(target_os = "linux")]
    {
        use rustix::thread::{CpuSet, sched_getaffinity};
        let Ok(mask) = sched_getaffinity(None) else { return Vec::new() };
        (0..CpuSet::MAX_CPU).filter(|&core| mask.is_set(core)).collect()
    }
    #[cfg(not(target_os = "linux"))]
    Vec::new()
}

/// The memory nodes that are online, as the system writes them, such as `0` or `0-1`; none where it does not say.
pub fn memory_nodes() -> Option<String> {
    let nodes = std::fs::read_to_string("/sys/devices/system/node/online").ok()?;
    Some(nodes.trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn small_machines_compute_on_all_cores_and_large_ones_leave_a_share() {
        let threads = [1, 2, 7, 8, 16, 17, 64].map(default_threads);
        assert_eq!(threads, [1, 2, 7, 7, 15, 15, 60]);
    }

    #[test]
    fn threads_are_pinned_only_where_they_fill_the_machine_but_for_the_share() {
        let allowed: Vec<usize> = (4..12).collect();
        // Seven threads: the engine's, which floats over 4 and 5, and six others.
        assert_eq!(pinned_cores(PinThreads::Auto, 7, &allowed), [6, 7, 8, 9, 10, 11]);
        for (pin, threads) in [(PinThreads::Off, 7), (PinThreads::Auto, 8), (PinThreads::Auto, 4)] {
            assert!(pinned_cores(pin, threads, &allowed).is_empty(), "{pin:?} {threads}");
        }
        assert!(pinned_cores(PinThreads::Auto, 2, &[0, 1]).is_empty(), "nothing is left to others there");
        assert!(pinned_cores(PinThreads::Auto, 1, &[]).is_empty());
    }

    #[test]
    #[cfg(target_os = "linux")]
    fn there_is_a_core_that_this_process_may_use() {
        assert!(!allowed_cores().is_empty());
    }
}
