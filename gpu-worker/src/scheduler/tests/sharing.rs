//! Blocks found again: by siblings, by the next turn, never by another tenant.

use super::*;
use crate::executor::fake::{Script, prompt_logprobs_alone};

#[test]
fn siblings_that_arrive_together_compute_their_prompt_once() {
    let mut bench = Bench::new(limits(64, 8, 512), config());
    for choice in 0..4 {
        let mut submit = request(u64::from(choice), words(1, 100), 5);
        submit.sampling.choice = choice;
        bench.submit(submit);
    }
    bench.run();
    // Six full blocks are shared, the four tokens behind them are computed by each.
    assert_eq!(bench.capacity().prompt_tokens_total, 100 + 3 * 4);
    for choice in 0..4 {
        let mut submit = request(u64::from(choice), words(1, 100), 5);
        submit.sampling.choice = choice;
        assert_eq!(bench.got(u64::from(choice)).tokens, alone(&submit));
        assert_eq!(bench.finish(u64::from(choice)).cached_tokens, if choice == 0 { 0 } else { 96 });
    }
}

#[test]
fn a_waiting_sibling_does_not_hold_up_others() {
    let mut bench = Bench::new(limits(64, 8, 16), config());
    bench.submit(request(1, words(1, 160), 2));
    bench.submit(request(2, words(1, 160), 2));
    bench.submit(request(3, words(3, 8), 2));
    let mut steps = 0;
    while !bench.got.contains_key(&SequenceId(3)) {
        bench.step();
        steps += 1;
        assert!(steps <= 12, "an unrelated sequence waits behind a deferred one");
    }
    bench.run();
    assert_eq!(bench.finish(2).cached_tokens, 144);
}

#[test]
fn a_sibling_goes_on_alone_when_the_one_it_waits_for_is_aborted() {
    let mut bench = Bench::new(limits(64, 8, 70), config());
    bench.submit(request(1, words(1, 100), 5));
    bench.submit(request(2, words(1, 100), 5));
    bench.step();
    assert!(bench.engine.start_step(0).unwrap());
    assert_eq!(bench.capacity().running, 1, "the step has room for the sibling, but it is deferred");
    bench.engine.abort(SequenceId(1));
    bench.engine.finish_step(|| 0).unwrap();
    bench.run();
    assert_eq!(bench.got(2).tokens, alone(&request(2, words(1, 100), 5)));
    assert_eq!(bench.finish(2).cached_tokens, 64, "what the other computed is not lost");
}

#[test]
fn a_prompt_that_is_cached_whole_still_computes_its_last_block() {
    let mut bench = Bench::new(limits(64, 8, 64), config());
    bench.submit(request(1, words(1, 32), 3));
    bench.run();
    let before = bench.capacity().prompt_tokens_total;
    bench.submit(request(2, words(1, 32), 3));
    bench.run();
    assert_eq!(bench.finish(2).cached_tokens, 16);
    assert_eq!(bench.capacity().prompt_tokens_total - before, 16);
    assert_eq!(bench.got(2).tokens, alone(&request(2, words(1, 32), 3)));
    // The block computed twice was swapped for the first copy, so that only one is kept.
    assert_eq!(bench.capacity().blocks_cached, 2);
}

#[test]
fn what_follows_a_block_computed_twice_can_still_be_found() {
    let mut bench = Bench::new(limits(64, 8, 64), config());
    bench.submit(request(1, words(1, 32), 3));
    bench.run();
    // Its second block is a copy; were it not swapped, the blocks behind it would have no parent in the index.
    bench.submit(request(2, words(1, 32), 40));
    bench.run();
    let mut prompt = words(1, 32);
    prompt.extend(&bench.got(2).tokens);
    bench.submit(request(3, prompt, 1));
    bench.run();
    assert_eq!(bench.finish(3).cached_tokens, 64);
}

#[test]
fn the_next_turn_finds_the_tokens_generated_in_the_one_before() {
    let mut bench = Bench::new(limits(64, 8, 64), config());
    bench.submit(request(1, words(1, 20), 60));
    bench.run();
    let mut prompt = words(1, 20);
    prompt.extend(&bench.got(1).tokens);
    prompt.extend(words(2, 10));
    bench.submit(request(2, prompt.clone(), 4));
    bench.run();
    // The last token of the first turn was never computed: 79 tokens are four full blocks.
    assert_eq!(bench.finish(2).cached_tokens, 64);
    assert_eq!(bench.got(2).tokens, alone(&request(2, prompt, 4)));
}

#[test]
fn tenants_with_other_salts_find_nothing_and_those_with_the_same_do() {
    let mut bench = Bench::new(limits(64, 8, 64), config());
    bench.submit(of_tenant(1, request(1, words(1, 50), 3)));
    bench.run();
    bench.submit(of_tenant(2, request(2, words(1, 50), 3)));
    bench.submit(of_tenant(1, request(3, words(1, 50), 3)));
    bench.run();
    assert_eq!(bench.finish(2).cached_tokens, 0);
    assert_eq!(bench.finish(3).cached_tokens, 48);
}

#[test]
fn prompt_log_probabilities_come_once_complete_and_from_computation_not_from_the_cache() {
    for step_tokens in [5, 7, 39, 40, 64] {
        let mut bench = Bench::new(limits(64, 8, step_tokens), config());
        bench.submit(request(1, words(1, 40), 3));
        bench.run();
        let mut submit = request(2, words(1, 40), 3);
        submit.sampling.prompt_logprobs = Some(2);
        submit.sampling.logprobs = Some(1);
        bench.submit(submit);
        bench.run();
        let got = bench.got(2);
        assert_eq!(bench.finish(2).cached_tokens, 0);
        assert!(got.prompt_logprobs[0].logprob.is_nan() && got.prompt_logprobs[0].top.is_empty());
        assert_eq!(got.prompt_logprobs[1..], prompt_logprobs_alone(&words(1, 40), 2));
        assert_eq!(got.logprobs.len(), got.tokens.len());
    }
}

#[test]
fn a_fault_ends_its_own_sequence_and_what_it_computed_is_not_found_again() {
    let scripts = Scripts::from([((1, 0), Script::Fault), ((3, 1), Script::Fault)]);
    let mut bench = Bench::scripted(limits(64, 8, 32), config(), Arc::new(scripts));
    bench.submit(request(1, words(1, 40), 5));
    bench.submit(request(2, words(2, 40), 5));
    bench.step();
    assert_eq!(bench.engine.scheduler().cache().index().len(), 2, "the first chunk can be found");
    bench.run();
    assert_eq!(bench.finish(1).reason, pons_protocol::inference::FinishReason::Failed);
    assert_eq!(bench.got(2).tokens, alone(&request(2, words(2, 40), 5)));
    assert_eq!(bench.capacity().blocks_cached, 2, "only the good sequence left blocks");
    // A fault after a hit leaves the blocks that were found.
    bench.submit(request(3, words(2, 40), 5));
    bench.run();
    assert_eq!((bench.got(3).tokens.len(), bench.capacity().blocks_cached), (1, 2));
}

#[test]
fn a_flood_of_one_tenant_leaves_the_cached_prompt_of_another() {
    let quota = SchedulerConfig { quota_percent: 50, ..config() };
    let mut bench = Bench::new(limits(40, 4, 64), quota);
    bench.submit(of_tenant(1, request(1, words(1, 160), 2)));
    bench.run();
    for id in 0..30 {
        bench.submit(of_tenant(2, request(100 + id, words(100 + id as u32, 80), 2)));
    }
    bench.run();
    bench.submit(of_tenant(1, request(2, words(1, 160), 2)));
    bench.run();
    assert_eq!(bench.finish(2).cached_tokens, 144, "the flood evicted its own blocks");
}
