//! A fixed set of threads that share the parts of one job. The rule: when [`Pool::run`] returns, no thread touches
//! the job any more, so that a job may borrow from its caller's stack.
//!
//! Parts are claimed from a counter. A worker must *enter* a job before it claims, and the caller *closes* the job
//! before it waits for those inside; a worker that wakes too late finds the job closed and goes back to waiting,
//! so that a slow wake-up never delays the caller.
#![allow(unsafe_code)]

use std::any::Any;
use std::cell::{Cell, UnsafeCell};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{JoinHandle, Thread};
use std::time::{Duration, Instant};

/// How long an idle worker looks for a job before it parks: longer than the gap between two operations of one
/// forward pass, and short enough that an idle machine stays idle.
const LOOK_FOR: Duration = Duration::from_micros(60);

/// Looks between two readings of the clock.
const LOOKS_A_READING: u32 = 32;

/// How many times the caller looks whether the others are done before it gives its time slice away.
const WAIT_SPINS: u32 = 2_000;

/// Set in the gate while workers may enter; the rest of the gate counts those inside.
const OPEN: usize = 1 << (usize::BITS - 1);

/// A most-threads bound, so that a mistyped setting is a clear error and no fork storm.
pub const MAX_THREADS: usize = 1024;

thread_local! {
    static INSIDE_PART: Cell<bool> = const { Cell::new(false) };
}

/// A job with its borrow hidden; only ever used between a worker's entering and leaving.
type RawJob = *const (dyn Fn(usize) + Sync);

struct Shared {
    /// Counts jobs, so that a waiting worker sees that there is a new one.
    epoch: AtomicUsize,
    /// `OPEN` and the number of workers inside.
    gate: AtomicUsize,
    next: AtomicUsize,
    parts: AtomicUsize,
    job: UnsafeCell<Option<RawJob>>,
    panic: Mutex<Option<Box<dyn Any + Send>>>,
    parked: Vec<AtomicBool>,
    stop: AtomicBool,
}

// SAFETY: `job` is written only by the caller that holds the pool's lock while the gate is closed and nobody is
// inside, and read only by workers inside; the gate's acquire and release order those. All else is Sync by itself.
unsafe impl Sync for Shared {}
// SAFETY: the raw pointer in `job` points to a `Sync` closure and is used only as described above.
unsafe impl Send for Shared {}

/// A fixed set of worker threads; the calling thread is one of them.
pub struct Pool {
    shared: Arc<Shared>,
    workers: Vec<Thread>,
    handles: Vec<JoinHandle<()>>,
    turn: Mutex<()>,
}

impl std::fmt::Debug for Pool {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Pool").field("threads", &self.threads()).finish()
    }
}

impl Pool {
    /// A pool of `threads` threads, the caller of [`Pool::run`] included; so `threads - 1` are started. Zero counts
    /// as one. Where the system refuses a thread, the pool is smaller and [`Pool::threads`] says so.
    ///
    /// # Panics
    /// When `threads` is above [`MAX_THREADS`].
    pub fn new(threads: usize) -> Pool {
        Pool::pinned(threads, &[])
    }

    /// As [`Pool::new`], with the first started thread kept on the first of `cores`, the second on the second, and so
    /// on; further ones, and the caller of [`Pool::run`], are left to the system. A core that the process may not use
    /// is ignored.
    ///
    /// # Panics
    /// When `threads` is above [`MAX_THREADS`].
    pub fn pinned(threads: usize, cores: &[usize]) -> Pool {
        assert!(threads <= MAX_THREADS, "threads is {threads}; a pool holds at most {MAX_THREADS}");
        let others = threads.max(1) - 1;
        let shared = Arc::new(Shared {
            epoch: AtomicUsize::new(0),
            gate: AtomicUsize::new(0),
            next: AtomicUsize::new(0),
            parts: AtomicUsize::new(0),
            job: UnsafeCell::new(None),
            panic: Mutex::new(None),
            parked: (0..others).map(|_| AtomicBool::new(false)).collect(),
            stop: AtomicBool::new(false),
        });
        let mut handles = Vec::with_capacity(others);
        for index in 0..others {
            let theirs = Arc::clone(&shared);
            let named = std::thread::Builder::new().name(format!("kernel-{}", index + 1));
            let core = cores.get(index).copied();
            let life = move || {
                if let Some(core) = core {
                    pin(core);
                }
                serve(&theirs, index);
            };
            match named.spawn(life) {
                Ok(handle) => handles.push(handle),
                Err(_) => break,
            }
        }
        let workers = handles.iter().map(|handle| handle.thread().clone()).collect();
        Pool { shared, workers, handles, turn: Mutex::new(()) }
    }

    /// How many threads share a job, the caller included.
    pub fn threads(&self) -> usize {
        self.workers.len() + 1
    }

    /// Calls `job(part)` once for each part in `0..parts`, on any of the threads, and returns when all are done.
    /// Callers on different threads take turns.
    ///
    /// # Panics
    /// With the first panic of a part, once no thread is inside the job; parts not yet claimed are then skipped.
    /// Also when called from inside a part: the pool has no thread to spare for a nested job.
    pub fn run(&self, parts: usize, job: &(dyn Fn(usize) + Sync)) {
        assert!(
            !INSIDE_PART.get(),
            "Pool::run was called from inside a part of a running job; split the work before the outer run instead"
        );
        if parts == 0 {
            return;
        }
        if parts == 1 || self.workers.is_empty() {
            let _inside = InsidePart::enter();
            (0..parts).for_each(job);
            return;
        }
        let turn = self.turn.lock().unwrap_or_else(PoisonError::into_inner);
        self.open(parts, job);
        work(&self.shared, job);
        self.close();
        let panicked = self.shared.panic.lock().unwrap_or_else(PoisonError::into_inner).take();
        drop(turn);
        if let Some(payload) = panicked {
            resume_unwind(payload);
        }
    }

    fn open(&self, parts: usize, job: &(dyn Fn(usize) + Sync)) {
        let shared = &*self.shared;
        shared.next.store(0, Ordering::Relaxed);
        shared.parts.store(parts, Ordering::Relaxed);
        // SAFETY: the two types differ only in the lifetime. The pointer is used only by workers inside the gate,
        // and `close`, which `run` always reaches (parts' panics are caught), waits until none is.
        let raw: RawJob = unsafe { std::mem::transmute::<&(dyn Fn(usize) + Sync), RawJob>(job) };
        // SAFETY: the gate is closed and empty, and we hold the pool's turn; nobody else looks at `job`.
        unsafe { *shared.job.get() = Some(raw) };
        shared.gate.store(OPEN, Ordering::Release);
        shared.epoch.fetch_add(1, Ordering::SeqCst);
        // No more threads than there are parts for them.
        for (parked, worker) in shared.parked.iter().zip(&self.workers).take(parts - 1) {
            if parked.swap(false, Ordering::SeqCst) {
                worker.unpark();
            }
        }
    }

    fn close(&self) {
        let shared = &*self.shared;
        shared.gate.fetch_and(!OPEN, Ordering::AcqRel);
        let mut looks = 0;
        while shared.gate.load(Ordering::Acquire) != 0 {
            looks += 1;
            if looks < WAIT_SPINS {
                std::hint::spin_loop();
            } else {
                std::thread::yield_now();
            }
        }
        // SAFETY: the gate is closed and empty, and the caller holds the pool's turn.
        unsafe { *shared.job.get() = None };
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::SeqCst);
        self.shared.epoch.fetch_add(1, Ordering::SeqCst);
        for worker in &self.workers {
            worker.unpark();
        }
        for handle in self.handles.drain(..) {
            // A worker catches every part's panic, so that joining cannot fail.
            let _ = handle.join();
        }
    }
}

/// Keeps the calling thread on a core, where the system lets us.
fn pin(core: usize) {
    #[cfg(target_os = "linux")]
    {
        use rustix::thread::{CpuSet, sched_setaffinity};
        if core < CpuSet::MAX_CPU {
            let mut only = CpuSet::new();
            only.set(core);
            // Refused, the thread runs where it ran before.
            let _ = sched_setaffinity(None, &only);
        }
    }
    #[cfg(not(target_os = "linux"))]
    let _ = core;
}

/// Marks the thread as inside a part until dropped.
struct InsidePart;

impl InsidePart {
    fn enter() -> InsidePart {
        INSIDE_PART.set(true);
        InsidePart
    }
}

impl Drop for InsidePart {
    fn drop(&mut self) {
        INSIDE_PART.set(false);
    }
}

/// Claims and does parts until none is left.
fn work(shared: &Shared, job: &(dyn Fn(usize) + Sync)) {
    let _inside = InsidePart::enter();
    let parts = shared.parts.load(Ordering::Relaxed);
    loop {
        let part = shared.next.fetch_add(1, Ordering::Relaxed);
        if part >= parts {
            return;
        }
        if let Err(payload) = catch_unwind(AssertUnwindSafe(|| job(part))) {
            shared.next.store(parts, Ordering::Relaxed);
            shared.panic.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(payload);
            return;
        }
    }
}

/// The life of worker `index`.
fn serve(shared: &Shared, index: usize) {
    let mut seen = 0;
    loop {
        seen = wait_for_job(shared, index, seen);
        if shared.stop.load(Ordering::SeqCst) {
            return;
        }
        if !enter(shared) {
            continue;
        }
        // SAFETY: we are inside an open gate, so `open` has written `job`, and nobody writes it until we leave.
        let raw = unsafe { *shared.job.get() };
        if let Some(raw) = raw {
            // SAFETY: `close` waits for us before `run` returns, so that what the job borrows is alive.
            work(shared, unsafe { &*raw });
        }
        shared.gate.fetch_sub(1, Ordering::Release);
    }
}

/// Whether the gate was open and this worker is now counted inside.
fn enter(shared: &Shared) -> bool {
    let entered = shared
        .gate
        .fetch_update(Ordering::AcqRel, Ordering::Acquire, |gate| (gate & OPEN != 0).then(|| gate + 1));
    entered.is_ok()
}

/// Returns the number of a job newer than `seen`: looks for a while, then parks.
fn wait_for_job(shared: &Shared, index: usize, seen: usize) -> usize {
    let start = Instant::now();
    loop {
        for _ in 0..LOOKS_A_READING {
            let epoch = shared.epoch.load(Ordering::Acquire);
            if epoch != seen {
                return epoch;
            }
            std::hint::spin_loop();
        }
        if start.elapsed() > LOOK_FOR {
            break;
        }
    }
    loop {
        shared.parked[index].store(true, Ordering::SeqCst);
        let epoch = shared.epoch.load(Ordering::SeqCst);
        if epoch != seen {
            shared.parked[index].store(false, Ordering::SeqCst);
            return epoch;
        }
        std::thread::park();
    }
}

#[cfg(test)]
mod tests;
