use super::*;
use std::sync::atomic::AtomicU32;

#[test]
fn each_part_is_done_exactly_once() {
    for threads in [0, 1, 2, 3, 8] {
        let pool = Pool::new(threads);
        for parts in [0, 1, 2, 7, 64, 1000] {
            let counts: Vec<AtomicU32> = (0..parts).map(|_| AtomicU32::new(0)).collect();
            pool.run(parts, &|part| {
                counts[part].fetch_add(1, Ordering::Relaxed);
            });
            assert!(counts.iter().all(|count| count.load(Ordering::Relaxed) == 1), "{threads} {parts}");
        }
    }
}

#[test]
fn many_short_jobs_in_a_row_neither_hang_nor_lose_a_part() {
    let pool = Pool::new(4);
    let total = AtomicUsize::new(0);
    for _ in 0..20_000 {
        pool.run(5, &|part| {
            total.fetch_add(part, Ordering::Relaxed);
        });
    }
    assert_eq!(total.into_inner(), 20_000 * 10);
}

#[test]
fn a_panic_in_a_part_reaches_the_caller_and_the_pool_lives_on() {
    for threads in [1, 3] {
        let pool = Pool::new(threads);
        let caught = catch_unwind(AssertUnwindSafe(|| {
            pool.run(16, &|part| assert!(part != 5, "part five fails"));
        }));
        let payload = caught.unwrap_err();
        assert!(payload.downcast_ref::<&str>().is_some_and(|text| text.contains("part five fails")));
        let done = AtomicUsize::new(0);
        pool.run(16, &|_| {
            done.fetch_add(1, Ordering::Relaxed);
        });
        assert_eq!(done.into_inner(), 16);
    }
}

#[test]
fn a_nested_run_is_refused() {
    let pool = Pool::new(2);
    for parts in [1, 4] {
        let caught = catch_unwind(AssertUnwindSafe(|| pool.run(parts, &|_| pool.run(1, &|_| ()))));
        let payload = caught.unwrap_err();
        let text = payload.downcast_ref::<&str>().copied().unwrap_or_default();
        assert!(text.contains("inside a part"), "{text}");
    }
    pool.run(3, &|_| ());
}

#[test]
fn callers_on_several_threads_take_turns() {
    let pool = Pool::new(3);
    let total = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for _ in 0..500 {
                    pool.run(8, &|_| {
                        total.fetch_add(1, Ordering::Relaxed);
                    });
                }
            });
        }
    });
    assert_eq!(total.into_inner(), 4 * 500 * 8);
}

#[test]
fn dropping_a_pool_ends_its_threads() {
    let pool = Pool::new(4);
    let shared = Arc::downgrade(&pool.shared);
    drop(pool);
    assert!(shared.upgrade().is_none(), "a worker still holds the shared state");
}

#[test]
#[cfg(target_os = "linux")]
fn pinned_threads_stay_on_their_cores_and_the_caller_stays_free() {
    use rustix::thread::{CpuSet, sched_getaffinity};
    let before = sched_getaffinity(None).unwrap();
    let core = (0..CpuSet::MAX_CPU).rfind(|&core| before.is_set(core)).unwrap();
    // A core that can't exist is ignored.
    let pool = Pool::pinned(3, &[core, usize::MAX]);
    let met: Mutex<Vec<(String, CpuSet)>> = Mutex::new(Vec::new());
    // Each part waits until every thread has one, so that each thread is met.
    let here = std::sync::Barrier::new(3);
    pool.run(3, &|_| {
        here.wait();
        let name = std::thread::current().name().unwrap_or("").to_owned();
        met.lock().unwrap().push((name, sched_getaffinity(None).unwrap()));
    });
    let mut only = CpuSet::new();
    only.set(core);
    for (name, mask) in met.into_inner().unwrap() {
        let expected = if name == "kernel-1" { only } else { before };
        assert!(mask == expected, "{name}");
    }
}
