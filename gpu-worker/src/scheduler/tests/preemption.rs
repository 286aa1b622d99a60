//! Taking blocks and slots away, and giving them back, without changing a token.

use super::*;

fn preemptions(bench: &Bench, ids: &[u64]) -> Vec<u32> {
    ids.iter().map(|id| bench.finish(*id).preemptions).collect()
}

#[test]
fn the_newest_sequence_of_the_tenant_with_most_blocks_gives_way() {
    let mut bench = Bench::new(limits(12, 8, 256), config());
    bench.submit(of_tenant(1, request(1, words(1, 30), 60)));
    bench.submit(of_tenant(2, request(2, words(2, 30), 40)));
    bench.submit(of_tenant(2, request(3, words(3, 30), 40)));
    bench.submit(of_tenant(1, request(4, words(4, 14), 20)));
    bench.run();
    assert_eq!(preemptions(&bench, &[1, 2, 4]), [0, 0, 0]);
    assert!(bench.finish(3).preemptions >= 1);
    for (tenant, id, prompt, tokens) in [(1, 1, 30, 60), (2, 2, 30, 40), (2, 3, 30, 40), (1, 4, 14, 20)] {
        let submit = of_tenant(tenant, request(id, words(id as u32, prompt), tokens));
        assert_eq!(bench.got(id).tokens, alone(&submit), "sequence {id}");
    }
}

#[test]
fn the_oldest_sequence_is_never_preempted_even_if_its_tenant_has_most() {
    let mut bench = Bench::new(limits(10, 8, 256), config());
    bench.submit(of_tenant(1, request(1, words(1, 60), 90)));
    for id in 2..6 {
        bench.submit(of_tenant(id, request(id, words(id as u32, 14), 60)));
    }
    bench.run();
    assert_eq!(bench.finish(1).preemptions, 0);
    assert!(bench.capacity().preemptions_total > 0);
    for id in 2..6 {
        let submit = of_tenant(id, request(id, words(id as u32, 14), 60));
        assert_eq!(bench.got(id).tokens, alone(&submit));
    }
}

#[test]
fn a_resumed_sequence_finds_its_blocks_in_the_cache_when_nobody_took_them() {
    let mut bench = Bench::new(limits(64, 1, 64), config());
    bench.submit(Submit { priority: 5, ..request(1, words(1, 60), 10) });
    for _ in 0..3 {
        bench.step();
    }
    let before = bench.capacity().prompt_tokens_total;
    bench.submit(Submit { priority: 0, ..request(2, words(2, 20), 2) });
    bench.run();
    assert_eq!(preemptions(&bench, &[1, 2]), [1, 0]);
    let recomputed = bench.capacity().prompt_tokens_total - before - 20;
    assert_eq!(recomputed, 12, "48 of 60 prompt tokens were still cached");
    assert_eq!(bench.finish(1).cached_tokens, 0, "usage tells what was found at the first admission");
    assert_eq!(bench.got(1).tokens, alone(&request(1, words(1, 60), 10)));
}

#[test]
fn a_higher_priority_takes_slots_and_blocks_of_lower_ones_but_not_of_its_own() {
    let mut bench = Bench::new(limits(12, 2, 256), config());
    bench.submit(Submit { priority: 1, ..request(1, words(1, 60), 30) });
    bench.submit(Submit { priority: 1, ..request(2, words(2, 60), 30) });
    bench.step();
    bench.submit(Submit { priority: 1, ..request(3, words(3, 20), 5) });
    bench.step();
    assert_eq!(bench.capacity().preemptions_total, 0, "an equal waits for its turn");
    bench.submit(Submit { priority: 0, ..request(4, words(4, 100), 5) });
    bench.run();
    assert_eq!(preemptions(&bench, &[3, 4]), [0, 0]);
    assert_eq!(bench.order[2], SequenceId(4), "it ran before the one that had waited longer");
    for (id, prompt, tokens) in [(1, 60, 30), (2, 60, 30), (3, 20, 5), (4, 100, 5)] {
        assert_eq!(bench.got(id).tokens, alone(&request(id, words(id as u32, prompt), tokens)));
    }
}

#[test]
fn an_abort_of_a_preempted_sequence_leaves_nothing_behind() {
    let mut bench = Bench::new(limits(64, 1, 64), config());
    bench.submit(Submit { priority: 5, ..request(1, words(1, 60), 10) });
    bench.step();
    bench.submit(Submit { priority: 0, ..request(2, words(2, 20), 20) });
    bench.step();
    assert_eq!((bench.capacity().waiting, bench.capacity().preemptions_total), (1, 1));
    bench.engine.abort(SequenceId(1));
    assert_eq!((bench.capacity().waiting, bench.capacity().waiting_tokens), (0, 0));
    bench.run();
    assert_eq!(bench.capacity().blocks_held, 0);
}

#[test]
fn prompt_log_probabilities_survive_a_preemption_in_the_middle_of_the_prompt() {
    let mut bench = Bench::new(limits(64, 1, 16), config());
    let mut submit = Submit { priority: 5, ..request(1, words(1, 60), 4) };
    submit.sampling.prompt_logprobs = Some(1);
    bench.submit(submit);
    bench.step();
    bench.step();
    bench.submit(Submit { priority: 0, ..request(2, words(2, 20), 2) });
    bench.run();
    assert_eq!(bench.finish(1).preemptions, 1);
    let expected = crate::executor::fake::prompt_logprobs_alone(&words(1, 60), 1);
    assert_eq!(bench.got(1).prompt_logprobs[1..], expected);
}

#[test]
fn the_oldest_sequence_gets_blocks_for_its_prompt_from_those_that_decode() {
    let mut bench = Bench::new(limits(10, 2, 3), config());
    bench.submit(of_tenant(1, request(1, words(1, 20), 1)));
    bench.submit(of_tenant(2, request(2, words(2, 3), 2)));
    bench.step();
    // The second of these starts first, because its tenant was served less; then it grows into blocks that were
    // promised to the prompt of the first.
    bench.submit(of_tenant(1, request(3, words(3, 100), 2)));
    bench.submit(of_tenant(2, request(4, words(4, 3), 120)));
    while !bench.got.contains_key(&SequenceId(3)) {
        bench.step();
    }
    let grown = bench.got(4).tokens.len();
    assert!((45..=56).contains(&grown), "the prompt took until the other had {grown} tokens");
    bench.run();
    assert_eq!(bench.finish(3).preemptions, 0);
    assert!(bench.finish(4).preemptions > 0);
    assert_eq!(bench.got(4).tokens, alone(&of_tenant(2, request(4, words(4, 3), 120))));
}

#[test]
fn nobody_is_admitted_into_the_block_that_a_running_sequence_grows_into_next() {
    let mut bench = Bench::new(limits(4, 4, 64), config());
    bench.submit(request(1, words(1, 15), 10));
    bench.submit(request(2, words(2, 40), 2));
    bench.run();
    assert_eq!(bench.capacity().preemptions_total, 0);
    assert!(bench.got(2).first_step > bench.got(1).last_step);
}
