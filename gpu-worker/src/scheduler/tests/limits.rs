//! Bounds and refusals, each with its reason and a message that names the value.

use pons_protocol::inference::{RejectReason, Rejection};

use super::*;

fn refused(bench: &mut Bench, submit: Submit) -> Rejection {
    let now_us = bench.now_us();
    bench.engine.submit(submit, None, now_us).unwrap_err()
}

#[test]
fn a_full_queue_refuses_by_count_and_counts_only_those_that_cannot_start() {
    let mut bench = Bench::new(limits(64, 2, 64), SchedulerConfig { max_waiting: 3, ..config() });
    for id in 0..5 {
        bench.submit(request(id, words(id as u32, 20), 2));
    }
    let rejection = refused(&mut bench, request(9, words(9, 20), 2));
    assert_eq!(rejection.reason, RejectReason::QueueFull);
    assert!(rejection.message.contains("limit is 3"), "{}", rejection.message);
    bench.run();
    bench.submit(request(9, words(9, 20), 2));
}

#[test]
fn a_full_queue_refuses_by_tokens_but_one_sequence_may_always_wait() {
    let mut bench = Bench::new(limits(4, 2, 64), SchedulerConfig { max_waiting_tokens: 5, ..config() });
    bench.submit(request(1, words(1, 60), 2));
    let rejection = refused(&mut bench, request(2, words(2, 10), 2));
    assert_eq!(rejection.reason, RejectReason::QueueFull);
    assert!(rejection.message.contains("70 prompt tokens"), "{}", rejection.message);
    bench.step();
    bench.submit(request(2, words(2, 5), 2));
    assert_eq!(bench.capacity().waiting_tokens, 5);
    let rejection = refused(&mut bench, request(3, words(3, 10), 2));
    assert!(rejection.message.contains("15 prompt tokens"), "{}", rejection.message);
}

#[test]
fn one_that_waits_too_long_is_refused_and_one_that_has_started_is_not() {
    let mut bench = Bench::new(limits(64, 1, 64), config());
    bench.submit(Submit { queue_timeout_ms: 1, ..request(1, words(1, 20), 20) });
    bench.submit(Submit { queue_timeout_ms: 5, ..request(2, words(2, 20), 20) });
    bench.run();
    let rejections = bench.engine.take_rejections();
    assert_eq!(rejections.len(), 1);
    assert_eq!((rejections[0].sequence, rejections[0].reason), (SequenceId(2), RejectReason::QueueTimeout));
    assert_eq!(bench.got(1).tokens.len(), 20);
    assert!(!bench.got.contains_key(&SequenceId(2)));
}

#[test]
fn a_draining_scheduler_finishes_what_it_has_and_refuses_the_rest() {
    let mut bench = Bench::new(limits(64, 1, 64), config());
    bench.submit(request(1, words(1, 20), 3));
    bench.submit(request(2, words(2, 20), 3));
    bench.engine.drain();
    assert_eq!(refused(&mut bench, request(3, words(3, 20), 3)).reason, RejectReason::Draining);
    bench.run();
    assert_eq!((bench.got(1).tokens.len(), bench.got(2).tokens.len()), (3, 3));
}

#[test]
fn a_prompt_without_room_for_output_is_too_long_and_one_that_just_fits_runs() {
    let mut bench = Bench::new(limits(4, 4, 64), config());
    let rejection = refused(&mut bench, request(1, words(1, 64), 1));
    assert_eq!(rejection.reason, RejectReason::TooLong);
    assert!(rejection.message.contains("64 tokens"), "{}", rejection.message);
    bench.submit(request(1, words(1, 63), 5));
    bench.submit(request(2, words(2, 64), 0));
    bench.run();
    assert_eq!((bench.got(1).tokens.len(), bench.got(2).tokens.len()), (1, 0));
}

#[test]
fn a_live_id_is_refused_and_the_first_of_that_id_goes_on() {
    let mut bench = Bench::new(limits(64, 4, 64), config());
    bench.submit(request(1, words(1, 20), 3));
    let rejection = refused(&mut bench, request(1, words(2, 20), 3));
    assert_eq!(rejection.reason, RejectReason::BadParameter);
    bench.run();
    assert_eq!(bench.got(1).tokens, alone(&request(1, words(1, 20), 3)));
}

#[test]
fn parameters_out_of_range_are_refused_by_name() {
    let mut bench = Bench::new(limits(64, 4, 64), config());
    let mut expect = |field: &str, change: &dyn Fn(&mut Submit)| {
        let mut submit = request(1, words(1, 20), 3);
        change(&mut submit);
        let rejection = refused(&mut bench, submit);
        assert_eq!(rejection.reason, RejectReason::BadParameter);
        assert!(rejection.message.starts_with(field), "{field}: {}", rejection.message);
    };
    expect("prompt", &|s| s.prompt.clear());
    expect("prompt", &|s| s.prompt[3] = VOCAB);
    expect("generated", &|s| s.generated = vec![VOCAB]);
    expect("stop_token_ids", &|s| s.stop.stop_token_ids = vec![VOCAB]);
    expect("stop_token_ids", &|s| s.stop.stop_token_ids = vec![1; 65]);
    expect("allowed_token_ids", &|s| s.sampling.allowed_token_ids = vec![u32::MAX]);
    expect("logit_bias", &|s| s.sampling.logit_bias = vec![(VOCAB, 1.0)]);
    expect("logit_bias", &|s| s.sampling.logit_bias = vec![(1, f32::INFINITY)]);
    expect("logit_bias", &|s| s.sampling.logit_bias = vec![(1, 1.0); 1025]);
    expect("temperature", &|s| s.sampling.temperature = -0.1);
    expect("temperature", &|s| s.sampling.temperature = f32::NAN);
    expect("top_p", &|s| s.sampling.top_p = 0.0);
    expect("min_p", &|s| s.sampling.min_p = 1.1);
    expect("repetition_penalty", &|s| s.sampling.repetition_penalty = 0.0);
    expect("presence_penalty", &|s| s.sampling.presence_penalty = f32::NEG_INFINITY);
    expect("frequency_penalty", &|s| s.sampling.frequency_penalty = f32::NAN);
    expect("logprobs", &|s| s.sampling.logprobs = Some(21));
    expect("prompt_logprobs", &|s| s.sampling.prompt_logprobs = Some(21));
}
