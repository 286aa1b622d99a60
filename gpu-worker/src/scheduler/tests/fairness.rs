//! Who gets how much, and in which order.

use super::*;

/// Virtual cost of what a tenant was given by its counter.
fn counter(bench: &Bench, tenant: u64) -> u64 {
    bench.engine.scheduler().queue.counter(0, TenantId(tenant)).unwrap()
}

#[test]
fn tenants_with_different_loads_get_equal_shares_while_both_have_work() {
    let mut bench = Bench::new(limits(400, 8, 256), config());
    // One floods with long prompts and short answers, the other sends few short prompts and long answers.
    for id in 0..300 {
        bench.submit(of_tenant(1, request(id, words(id as u32, 120), 5)));
    }
    for id in 1000..1060 {
        bench.submit(of_tenant(2, request(id, words(id as u32, 20), 60)));
    }
    let mut compared = 0;
    while bench.engine.scheduler().queue.counter(0, TenantId(2)).is_some() {
        bench.step();
        let waits = |tenant| {
            let sequences = bench.engine.scheduler().sequences.values();
            sequences.filter(|s| s.tenant == TenantId(tenant) && s.progress.slot.is_none()).count() > 0
        };
        if !waits(1) || !waits(2) {
            break;
        }
        let weights = bench.engine.scheduler().config.weights;
        // What one admission may add at once, for each sequence that runs.
        let slack = 8 * (120 * weights.prompt + 60 * weights.output);
        assert!(counter(&bench, 1).abs_diff(counter(&bench, 2)) <= slack);
        compared += 1;
    }
    let (one, two) = (counter(&bench, 1) as f64, counter(&bench, 2) as f64);
    assert!(compared > 200, "{compared} steps with both backlogged");
    assert!((0.8..1.25).contains(&(one / two)), "{one} to {two}");
}

#[test]
fn a_tenant_that_arrives_in_a_flood_is_served_next() {
    let mut bench = Bench::new(limits(64, 2, 64), config());
    for id in 0..50 {
        bench.submit(of_tenant(1, request(id, words(id as u32, 20), 5)));
    }
    for _ in 0..10 {
        bench.step();
    }
    let before = bench.order.len();
    bench.submit(of_tenant(2, request(1000, words(1000, 20), 5)));
    bench.run();
    let place = bench.order.iter().position(|id| *id == SequenceId(1000)).unwrap();
    assert!(place <= before + 2, "it was number {place}, {before} had started before it came");
}

#[test]
fn cached_prompt_tokens_cost_less_than_computed_ones() {
    let mut bench = Bench::new(limits(64, 1, 64), config());
    bench.submit(of_tenant(9, request(0, words(0, 10), 40)));
    bench.submit(of_tenant(1, request(1, words(1, 33), 1)));
    bench.submit(of_tenant(1, request(2, words(1, 33), 1)));
    bench.submit(of_tenant(1, request(3, words(3, 10), 1)));
    while bench.got.get(&SequenceId(1)).is_none_or(|got| got.finish.is_none()) {
        bench.step();
    }
    let weights = bench.engine.scheduler().config.weights;
    let first = counter(&bench, 1);
    assert_eq!(first, 33 * weights.prompt + weights.output);
    bench.step();
    assert_eq!(bench.finish(2).cached_tokens, 32);
    assert_eq!(counter(&bench, 1) - first, 32 * weights.cached + weights.prompt + weights.output);
}

#[test]
fn lower_priorities_run_first_and_order_of_arrival_decides_inside_a_tenant() {
    let mut bench = Bench::new(limits(64, 1, 64), config());
    for (id, priority) in [(1, 5), (2, 0), (3, 5), (4, -3), (5, 0)] {
        bench.submit(Submit { priority, ..request(id, words(id as u32, 20), 2) });
    }
    bench.run();
    let order: Vec<_> = bench.order.iter().map(|id| id.0).collect();
    assert_eq!(order, [4, 2, 5, 1, 3]);
}

#[test]
fn a_large_sequence_is_not_starved_by_a_stream_of_small_ones() {
    let mut bench = Bench::new(limits(16, 8, 64), config());
    for id in 0..4 {
        bench.submit(of_tenant(1, request(id, words(id as u32, 30), 10)));
    }
    bench.step();
    bench.submit(of_tenant(2, request(1000, words(1000, 230), 5)));
    let mut next = 4;
    let mut steps = 0;
    while !bench.got.contains_key(&SequenceId(1000)) {
        bench.submit(of_tenant(1, request(next, words(next as u32, 30), 10)));
        next += 1;
        bench.step();
        steps += 1;
        assert!(steps < 60, "the large sequence starves");
    }
}
