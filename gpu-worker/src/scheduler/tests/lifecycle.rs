//! From submission to the end: chunks, ends, aborts in every state, continuations, times.

use pons_protocol::inference::FinishReason;

use super::*;
use crate::executor::fake::Script;

fn scripted(position: u32, script: Script) -> Bench {
    let scripts = Scripts::from([((1, position), script)]);
    Bench::scripted(limits(64, 8, 64), config(), Arc::new(scripts))
}

#[test]
fn a_prompt_is_computed_in_chunks_under_the_budget_while_others_decode_in_every_step() {
    let mut bench = Bench::new(limits(64, 4, 16), config());
    bench.submit(request(1, words(1, 10), 40));
    bench.step();
    // Even a prompt of a higher priority comes after the decodes.
    bench.submit(Submit { priority: -1, ..request(2, words(2, 100), 3) });
    let mut steps = 0;
    while !bench.got.contains_key(&SequenceId(2)) {
        let before = bench.got(1).tokens.len();
        let output = bench.step().unwrap();
        assert!(output.capacity.step_tokens <= 16);
        assert_eq!(bench.got(1).tokens.len(), before + 1, "a decode waits for a prefill chunk");
        steps += 1;
    }
    assert_eq!(steps, 7, "100 tokens in chunks of 15");
    bench.run();
    assert_eq!(bench.got(1).tokens, alone(&request(1, words(1, 10), 40)));
    assert_eq!(bench.got(2).tokens, alone(&request(2, words(2, 100), 3)));
}

#[test]
fn the_step_budget_can_be_changed_while_running_and_never_below_the_decodes() {
    let mut bench = Bench::new(limits(64, 4, 64), config());
    bench.engine.scheduler_mut().set_step_budget(20);
    bench.submit(request(1, words(1, 60), 1));
    assert_eq!(bench.step().unwrap().capacity.step_tokens, 20);
    bench.engine.scheduler_mut().set_step_budget(0);
    assert_eq!(bench.step().unwrap().capacity.step_tokens, 4);
    bench.engine.scheduler_mut().set_step_budget(1_000_000);
    assert_eq!(bench.step().unwrap().capacity.step_tokens, 36);
    assert_eq!(bench.finish(1).reason, FinishReason::Length);
}

#[test]
fn sequences_end_for_the_reason_that_comes_first_and_keep_the_end_token() {
    let cases = [
        (Script::Token(EOS), FinishReason::Eos),
        (Script::Token(7), FinishReason::StopToken(7)),
        (Script::GrammarEnd, FinishReason::GrammarEnd),
    ];
    for (script, reason) in cases {
        let mut bench = scripted(3, script);
        let mut submit = request(1, words(1, 20), 10);
        submit.stop.min_tokens = 0;
        submit.stop.stop_token_ids = vec![7];
        bench.submit(submit);
        bench.run();
        let finish = bench.finish(1);
        assert_eq!((finish.reason, finish.output_tokens, bench.got(1).tokens.len()), (reason, 4, 4));
    }
}

#[test]
fn an_ignored_end_token_is_an_ordinary_token_unless_it_is_a_stop_token() {
    for (stop_token_ids, tokens) in [(vec![], 10), (vec![EOS], 4)] {
        let mut bench = scripted(3, Script::Token(EOS));
        let mut submit = request(1, words(1, 20), 10);
        submit.stop =
            StopParams { max_tokens: 10, ignore_eos: true, stop_token_ids, ..StopParams::default() };
        bench.submit(submit);
        bench.run();
        assert_eq!(bench.got(1).tokens.len(), tokens);
    }
}

#[test]
fn a_sequence_that_fills_the_context_or_the_whole_cache_ends_there() {
    let small = ExecutorLimits { context_tokens: 50, ..limits(64, 4, 64) };
    for (limits, total) in [(small, 50), (limits(2, 4, 64), 32)] {
        let mut bench = Bench::new(limits, config());
        bench.submit(request(1, words(1, 20), 1000));
        bench.run();
        assert_eq!((bench.finish(1).reason, bench.got(1).tokens.len()), (FinishReason::Length, total - 20));
    }
}

#[test]
fn without_tokens_to_generate_only_the_prompt_is_computed() {
    let mut bench = Bench::new(limits(64, 4, 16), config());
    let mut submit = request(1, words(1, 40), 0);
    submit.sampling.prompt_logprobs = Some(0);
    bench.submit(submit);
    assert_eq!(bench.run(), 3);
    let got = bench.got(1);
    assert_eq!((got.tokens.len(), got.prompt_logprobs.len()), (0, 40));
    let finish = bench.finish(1);
    assert_eq!((finish.reason, finish.output_tokens), (FinishReason::Length, 0));
}

#[test]
fn an_abort_frees_all_blocks_at_once_in_every_state() {
    for (steps, state) in [(0, "waiting"), (1, "prefill"), (5, "decoding")] {
        let mut bench = Bench::new(limits(64, 4, 16), config());
        bench.submit(request(1, words(1, 40), 20));
        for _ in 0..steps {
            bench.step();
        }
        bench.engine.abort(SequenceId(1));
        let capacity = bench.capacity();
        assert_eq!((capacity.blocks_held, capacity.waiting, capacity.running), (0, 0, 0), "{state}");
        assert!(bench.engine.is_idle());
        assert_eq!(bench.step(), None);
    }
}

#[test]
fn an_abort_during_a_step_drops_its_result_and_the_id_can_be_used_again() {
    let mut bench = Bench::new(limits(8, 1, 64), config());
    bench.submit(request(1, words(1, 40), 20));
    bench.step();
    assert!(bench.engine.start_step(0).unwrap());
    bench.engine.abort(SequenceId(1));
    assert_eq!(bench.capacity().blocks_held, 0);
    bench.submit(request(1, words(2, 70), 3));
    let output = bench.engine.finish_step(|| 0).unwrap().unwrap();
    assert_eq!(output.outputs, vec![], "the result belongs to the aborted sequence");
    bench.got.clear();
    bench.run();
    assert_eq!(bench.got(1).tokens, alone(&request(1, words(2, 70), 3)));
    bench.engine.abort(SequenceId(77));
}

#[test]
fn the_executor_forgets_released_sequences_with_the_next_plan() {
    let mut bench = Bench::new(limits(64, 4, 64), config());
    for id in 0..4 {
        bench.submit(request(id, words(id as u32, 20), 3));
    }
    bench.run();
    bench.submit(request(9, words(9, 20), 1));
    bench.step();
    assert_eq!(bench.engine.executor().occupied_slots(), 1);
}

#[test]
fn a_continuation_goes_on_at_its_position_with_the_same_text() {
    let whole = alone(&request(1, words(1, 30), 25));
    for done in [1, 2, 10, 24] {
        let mut bench = Bench::new(limits(64, 4, 16), config());
        let mut submit = request(1, words(1, 30), 25);
        submit.generated = whole[..done].to_vec();
        submit.sampling.prompt_logprobs = Some(1);
        bench.submit(submit);
        bench.run();
        assert_eq!(bench.got(1).tokens[done..], whole[done..]);
        assert_eq!(bench.finish(1).output_tokens, 25);
        assert_eq!(bench.got(1).prompt_logprobs, vec![], "the earlier run has delivered them");
    }
}

#[test]
fn a_continuation_that_had_ended_is_answered_without_a_step() {
    let mut bench = Bench::new(limits(64, 4, 64), config());
    let mut submit = request(1, words(1, 30), 25);
    submit.generated = vec![5, EOS];
    bench.submit(submit);
    let mut submit = request(2, words(1, 30), 2);
    submit.generated = vec![5, 6];
    bench.submit(submit);
    assert!(!bench.engine.is_idle());
    let output = bench.step().unwrap();
    assert_eq!((output.step, output.outputs.len()), (0, 2));
    assert_eq!(bench.finish(1).reason, FinishReason::Eos);
    assert_eq!((bench.finish(2).reason, bench.finish(2).output_tokens), (FinishReason::Length, 2));
    assert!(bench.engine.is_idle());
}

#[test]
fn times_are_taken_from_the_moments_given() {
    let mut bench = Bench::new(limits(64, 1, 16), config());
    bench.submit(request(1, words(1, 16), 1));
    bench.submit(request(2, words(2, 32), 3));
    bench.run();
    let finish = bench.finish(2);
    // A step takes 1000 us and 10 us a token. The first sequence takes one step of 16 tokens.
    assert_eq!(finish.queue_us, 1160);
    assert_eq!(finish.prefill_us, 2 * 1160);
    assert_eq!(finish.decode_us, 2 * 1010);
    let capacity = bench.capacity();
    assert_eq!((capacity.steps, capacity.step_us, capacity.step_tokens), (5, 1010, 1));
    assert_eq!((capacity.prompt_tokens_total, capacity.output_tokens_total), (48, 4));
    assert_eq!(capacity.step_age_ms, 0, "there is nothing to do");
    let later_us = bench.now_us() + 3_600_000_000;
    bench.engine.submit(request(3, words(3, 32), 3), None, later_us).unwrap();
    let age_ms = bench.engine.capacity(later_us + 5000).step_age_ms;
    assert_eq!(age_ms, 5, "an hour without work is not the age of a step");
}
