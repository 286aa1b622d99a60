//! What this machine can do at most: bytes a second out of each level of memory, operations a second of each
//! arithmetic unit, and the time to wake a pool. The rule: a limit is the best of several tries, since whatever
//! disturbs one only makes it slower, and every try is kept.

use std::fs;
use std::hint::black_box;
use std::path::Path;
use std::sync::Barrier;
use std::time::Instant;

use pons_kernels::Pool;
use pons_kernels::probe::{self, Unit};
use serde::Serialize;

/// Sizes that are assumed where the system does not tell: 32 KiB, 1 MiB and 32 MiB.
const USUAL_CACHES: Caches = Caches { l1_bytes: 32 << 10, l2_bytes: 1 << 20, l3_bytes: 32 << 20 };
/// Most bytes read for the limit of the main memory, all threads together.
const MOST_DRAM_BYTES: usize = 1 << 30;
/// Words of a cache line.
const LINE_WORDS: usize = 8;
/// Runs of an empty job for one try of waking the pool.
const WAKES: u32 = 2000;

/// Data caches: the first two of one core, the third of all that share it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Caches {
    /// First level.
    pub l1_bytes: usize,
    /// Second level.
    pub l2_bytes: usize,
    /// Third level.
    pub l3_bytes: usize,
}

impl Caches {
    /// Those of the first processor, as the system describes them; the usual sizes for what it doesn't tell.
    pub fn of_this_machine() -> Self {
        Self::described_in(Path::new("/sys/devices/system/cpu/cpu0/cache"))
    }

    /// The levels from the nearest on: the limit for reading from it, and the bytes that it and those before it hold
    /// for so many threads.
    fn levels(self, threads: usize) -> [(&'static str, u64); 4] {
        let of_each = |bytes: usize| (bytes as u64).saturating_mul(threads as u64);
        [
            ("l1_read", of_each(self.l1_bytes)),
            ("l2_read", of_each(self.l2_bytes)),
            ("l3_read", self.l3_bytes as u64),
            ("dram_read", u64::MAX),
        ]
    }

    fn described_in(folder: &Path) -> Self {
        let mut caches = USUAL_CACHES;
        for index in 0..8 {
            let read = |name: &str| fs::read_to_string(folder.join(format!("index{index}/{name}")));
            let (Ok(level), Ok(kind), Ok(size)) = (read("level"), read("type"), read("size")) else { break };
            let Some(bytes) = bytes_of(size.trim()) else { continue };
            match (level.trim(), kind.trim()) {
                (_, "Instruction") => {}
                ("1", _) => caches.l1_bytes = bytes,
                ("2", _) => caches.l2_bytes = bytes,
                ("3", _) => caches.l3_bytes = bytes,
                _ => {}
            }
        }
        caches
    }
}

/// `48K` and the like.
fn bytes_of(size: &str) -> Option<usize> {
    let unit = match size.as_bytes().last()? {
        b'K' => 1 << 10,
        b'M' => 1 << 20,
        b'G' => 1 << 30,
        _ => return size.parse().ok(),
    };
    size[..size.len() - 1].parse::<usize>().ok()?.checked_mul(unit)
}

/// How much trouble to take.
#[derive(Clone, Copy, Debug)]
pub struct Effort {
    /// Bytes to read from the main memory in one try, all threads together; `None` is several times the last cache.
    pub dram_bytes: Option<usize>,
    /// Length of one try of everything else, in milliseconds.
    pub try_ms: u64,
    /// Tries of each limit.
    pub tries: usize,
}

impl Effort {
    /// For a record of its own.
    pub const FULL: Self = Self { dram_bytes: None, try_ms: 100, tries: 7 };
    /// As the measure of a benchmark: a second or two in all.
    pub const BRIEF: Self = Self { dram_bytes: Some(128 << 20), try_ms: 20, tries: 3 };
    /// Only to see that it works; the numbers mean little.
    pub const SMALL: Self = Self { dram_bytes: Some(1 << 20), try_ms: 1, tries: 1 };
}

/// One limit.
#[derive(Clone, Debug, Serialize)]
pub struct Limit {
    /// What is limited.
    pub name: &'static str,
    /// What the numbers count: `GB/s`, `Gop/s` or `ns`.
    pub unit: &'static str,
    /// The best try, or none where it was not measured.
    pub best: Option<f64>,
    /// Why it was not measured.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub not_measured: Option<&'static str>,
    /// Every try.
    pub samples: Vec<f64>,
}

/// The limits of so many threads together.
#[derive(Clone, Debug, Serialize)]
pub struct Limits {
    /// Threads that worked at the same time.
    pub threads: usize,
    /// All of them.
    pub limits: Vec<Limit>,
}

impl Limits {
    /// Measures them with so many threads at the same time.
    pub fn measure(threads: usize, effort: Effort) -> Self {
        let (threads, caches) = (threads.max(1), Caches::of_this_machine());
        // Half a level: the other half is left to what else runs, and it is still far more than the level below.
        let levels = [
            ("l1_read", caches.l1_bytes / 2),
            ("l2_read", caches.l2_bytes / 2),
            ("l3_read", caches.l3_bytes / 2 / threads),
        ];
        let mut limits: Vec<Limit> =
            levels.into_iter().map(|(name, bytes)| bandwidth(name, threads, bytes, effort)).collect();
        let dram = effort.dram_bytes.unwrap_or((caches.l3_bytes * 8).clamp(256 << 20, MOST_DRAM_BYTES));
        limits.push(bandwidth("dram_read", threads, dram / threads, effort));
        limits.extend(Unit::ALL.into_iter().map(|unit| peak(unit, threads, effort)));
        limits.push(wake(threads, effort));
        Self { threads, limits }
    }

    /// The best try of the limit with this name.
    pub fn best(&self, name: &str) -> Option<f64> {
        self.limits.iter().find(|limit| limit.name == name)?.best
    }

    /// The limit that asks for most time, and how many nanoseconds, when so many bytes must be read and so many
    /// operations done by the fastest of these units. None if neither is limited. What was read before may still
    /// fill every level, so only what a level can't hold has to come from the next.
    pub fn least_ns(
        &self,
        caches: Caches,
        bytes: u64,
        operations: u64,
        units: &[&'static str],
    ) -> Option<(&'static str, f64)> {
        let (mut reading, mut nearer) = (None, 0);
        for (level, held) in caches.levels(self.threads) {
            let here = bytes.min(held).saturating_sub(nearer);
            nearer = nearer.max(held);
            if let Some(rate) = self.best(level).filter(|_| here > 0) {
                let before = reading.map_or(0.0, |(_, least_ns)| least_ns);
                // A rate of one billion a second is one in a nanosecond.
                reading = Some((level, before + here as f64 / rate));
            }
        }
        let units = units.iter().filter_map(|unit| Some((*unit, self.best(unit)?)));
        let computing = units
            .max_by(|one, other| one.1.total_cmp(&other.1))
            .map(|(unit, rate)| (unit, operations as f64 / rate));
        reading.into_iter().chain(computing).max_by(|one, other| one.1.total_cmp(&other.1))
    }

    /// One line a limit.
    pub fn table(&self) -> String {
        let line = |limit: &Limit| match (limit.best, limit.not_measured) {
            (Some(best), _) => {
                format!("{:<12} {:>3} threads {best:>10.1} {}\n", limit.name, self.threads, limit.unit)
            }
            (None, why) => {
                format!(
                    "{:<12} {:>3} threads not measured: {}\n",
                    limit.name,
                    self.threads,
                    why.unwrap_or("?")
                )
            }
        };
        self.limits.iter().map(line).collect()
    }
}

/// The limits of one thread and of all.
pub fn one_and_all(effort: Effort) -> Vec<Limits> {
    let all = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    let mut counts = vec![1, all];
    counts.dedup();
    counts.into_iter().map(|threads| Limits::measure(threads, effort)).collect()
}

/// Each thread goes through its own `bytes` again and again.
fn bandwidth(name: &'static str, threads: usize, bytes: usize, effort: Effort) -> Limit {
    let words = (bytes / 8).max(64);
    let rate = best_rate(threads, effort, &|| {
        // Written by the thread that reads it, so that the pages are real and near it.
        let mut data = vec![0_u64; words + LINE_WORDS];
        data.iter_mut().enumerate().for_each(|(at, word)| *word = at as u64);
        // From the start of a cache line on, or every wide read would touch two of them.
        let first = data.as_ptr().align_offset(LINE_WORDS * 8).min(LINE_WORDS);
        Box::new(move |rounds| {
            for _ in 0..rounds {
                black_box(probe::read(black_box(&data[first..][..words])));
            }
            rounds * words as u64 * 8
        })
    });
    limit(name, "GB/s", rate)
}

fn peak(unit: Unit, threads: usize, effort: Effort) -> Limit {
    if unit.run(1).is_none() {
        return Limit {
            name: unit.name(),
            unit: "Gop/s",
            best: None,
            not_measured: Some("the processor has no such instructions, or the system does not grant them"),
            samples: Vec::new(),
        };
    }
    let rates =
        best_rate(threads, effort, &|| Box::new(move |rounds| unit.run(rounds * 64).unwrap_or_default()));
    limit(unit.name(), "Gop/s", rates)
}

/// Nanoseconds from a call to the end of an empty job with one part for each thread.
fn wake(threads: usize, effort: Effort) -> Limit {
    let pool = Pool::new(threads);
    let once = || {
        let begun = Instant::now();
        for _ in 0..WAKES {
            pool.run(threads, &|part| {
                black_box(part);
            });
        }
        begun.elapsed().as_secs_f64() * 1e9 / f64::from(WAKES)
    };
    once();
    let samples: Vec<f64> = (0..effort.tries).map(|_| once()).collect();
    let best = samples.iter().copied().reduce(f64::min);
    Limit { name: "pool_wake", unit: "ns", best, not_measured: None, samples }
}

fn limit(name: &'static str, unit: &'static str, samples: Vec<f64>) -> Limit {
    Limit { name, unit, best: samples.iter().copied().reduce(f64::max), not_measured: None, samples }
}

/// What one thread repeats: it does so many rounds and says how much work that was.
type Work = Box<dyn FnMut(u64) -> u64>;

/// Billions of units of work a second, of all threads together, one number a try.
fn best_rate(threads: usize, effort: Effort, make: &(dyn Fn() -> Work + Sync)) -> Vec<f64> {
    let barrier = Barrier::new(threads);
    let try_once = |work: &mut Work, rounds: u64| {
        barrier.wait();
        let begun = Instant::now();
        let done = work(rounds);
        // The slowest thread ends the try, or one that had the memory to itself would count too much.
        barrier.wait();
        (done, begun.elapsed().as_secs_f64())
    };
    let per_thread: Vec<Vec<(u64, f64)>> = std::thread::scope(|scope| {
        let run = || {
            let mut work = make();
            work(1);
            let rounds = rounds_for(&mut work, effort.try_ms);
            (0..effort.tries).map(|_| try_once(&mut work, rounds)).collect()
        };
        let handles: Vec<_> = (0..threads).map(|_| scope.spawn(run)).collect();
        handles.into_iter().filter_map(|handle| handle.join().ok()).collect()
    });
    (0..effort.tries)
        .map(|number| {
            let done: u64 = per_thread.iter().map(|tries| tries[number].0).sum();
            let longest = per_thread.iter().map(|tries| tries[number].1).fold(0.0, f64::max);
            done as f64 / longest.max(1e-9) / 1e9
        })
        .collect()
}

/// Rounds that take about so long, found by doubling.
fn rounds_for(work: &mut Work, try_ms: u64) -> u64 {
    let wanted = try_ms as f64 / 1e3;
    let mut rounds = 1;
    loop {
        let begun = Instant::now();
        work(rounds);
        let took = begun.elapsed().as_secs_f64();
        if took >= wanted / 2.0 || rounds >= 1 << 40 {
            return ((rounds as f64 * wanted / took.max(1e-9)) as u64).clamp(1, 2 * rounds);
        }
        rounds *= 2;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_limit_is_a_positive_number_or_says_why_it_is_none() {
        for limits in one_and_all(Effort::SMALL) {
            assert_eq!(limits.limits.len(), 4 + Unit::ALL.len() + 1);
            for limit in &limits.limits {
                let measured = limit.best.is_some_and(|best| best > 0.0 && best.is_finite());
                assert!(measured != limit.not_measured.is_some(), "{limit:?}");
            }
            assert!(limits.best("dram_read").is_some() && limits.best("no such").is_none());
            assert_eq!(limits.table().lines().count(), limits.limits.len());
        }
    }

    #[test]
    fn only_what_a_level_cannot_hold_comes_from_the_next() {
        let limit =
            |(name, best)| Limit { name, unit: "", best: Some(best), not_measured: None, samples: vec![] };
        let all =
            [("l1_read", 10.0), ("l2_read", 5.0), ("l3_read", 2.0), ("dram_read", 1.0), ("f32_fma", 4.0)];
        let limits = Limits { threads: 2, limits: all.into_iter().map(limit).collect() };
        let caches = Caches { l1_bytes: 10, l2_bytes: 100, l3_bytes: 1000 };
        let least = |bytes, operations| limits.least_ns(caches, bytes, operations, &["f32_fma", "int8_dot"]);
        assert_eq!(least(20, 0), Some(("l1_read", 2.0)));
        assert_eq!(least(200, 0), Some(("l2_read", 2.0 + 36.0)));
        assert_eq!(least(1000, 0), Some(("l3_read", 38.0 + 400.0)));
        assert_eq!(least(1100, 100), Some(("dram_read", 438.0 + 100.0)));
        assert_eq!(least(20, 100), Some(("f32_fma", 25.0)));
        assert_eq!(limits.least_ns(caches, 0, 100, &["int8_dot"]), None);
    }

    #[test]
    fn caches_are_read_as_the_system_writes_them_and_assumed_where_it_does_not() {
        let folder = tempfile::tempdir().unwrap();
        assert_eq!(Caches::described_in(folder.path()), USUAL_CACHES);
        for (index, [level, kind, size]) in
            [["1", "Data", "48K"], ["1", "Instruction", "7K"], ["2", "Unified", "2M"]].iter().enumerate()
        {
            let place = folder.path().join(format!("index{index}"));
            fs::create_dir(&place).unwrap();
            for (name, text) in [("level", level), ("type", kind), ("size", size)] {
                fs::write(place.join(name), format!("{text}\n")).unwrap();
            }
        }
        let expected = Caches { l1_bytes: 48 << 10, l2_bytes: 2 << 20, ..USUAL_CACHES };
        assert_eq!(Caches::described_in(folder.path()), expected);
        assert_eq!((bytes_of("1G"), bytes_of("77"), bytes_of("K")), (Some(1 << 30), Some(77), None));
    }
}
