//! The local executor on a tiny model: what it refuses, what stays in its row, and sampling state across steps.

use std::sync::Arc;

use pons_checkpoint::{Checkpoint, Role};
use pons_gpu_worker::executor::{
    ExecutorError, LocalConfig, LocalExecutor, ModelExecutor, NewSequence, PlanItem, RowOutput, StepPlan,
};
use pons_gpu_worker::grammar::{GrammarMatcher, Grammars, TokenText};
use pons_kernels::KvFormat;
use pons_protocol::sampling::{Grammar, SamplingParams, StopParams};

use crate::tiny::{f32_bytes, write_changed, write_model};

const CONFIG: LocalConfig = LocalConfig {
    threads: 2,
    kv_format: KvFormat::Bf16,
    blocks: 8,
    slots: 4,
    step_tokens: 32,
    context_tokens: 64,
};
const PROMPT: [u32; 5] = [9, 8, 7, 6, 5];

fn executor_with(change: Option<&dyn Fn(Role, usize, f32) -> f32>) -> LocalExecutor {
    let dir = tempfile::tempdir().expect("a directory for the model");
    match change {
        Some(change) => write_changed(dir.path(), "llama", "F32", f32_bytes, change),
        None => write_model(dir.path(), "llama", "F32", f32_bytes),
    }
    let checkpoint = Checkpoint::open(dir.path()).expect("the fixture opens");
    LocalExecutor::load(&checkpoint, CONFIG).expect("the fixture loads")
}

fn executor() -> LocalExecutor {
    executor_with(None)
}

fn new_sequence(slot: u32, sampling: SamplingParams) -> NewSequence {
    NewSequence {
        slot,
        sampling: Arc::new(sampling),
        stop: Arc::new(StopParams::default()),
        end_tokens: Arc::from([0u32]),
        prompt: Arc::from(PROMPT),
        generated: Vec::new(),
        grammar: None,
    }
}

fn item(slot: u32, tokens: &[u32], start: u32, blocks: &[u32], sample: Option<u32>) -> PlanItem {
    PlanItem { slot, tokens: tokens.to_vec(), start, blocks: blocks.to_vec(), sample, prompt_logprobs: None }
}

fn plan(admitted: Vec<NewSequence>, items: Vec<PlanItem>) -> StepPlan {
    StepPlan { step: 1, released: Vec::new(), admitted, items }
}

fn run(executor: &mut LocalExecutor, plan: StepPlan) -> Vec<RowOutput> {
    let ticket = executor.submit(plan).expect("the plan is valid");
    executor.collect(ticket).expect("the step is computed").rows
}

fn greedy() -> SamplingParams {
    SamplingParams { temperature: 0.0, ..SamplingParams::default() }
}

/// Submits a sequence in slot 0 and then a plan that must be refused.
fn refusal(bad: StepPlan) -> String {
    let mut executor = executor();
    let first = item(0, &PROMPT, 0, &[0], Some(0));
    run(&mut executor, plan(vec![new_sequence(0, greedy())], vec![first]));
    let error = executor.submit(bad).expect_err("the plan is refused");
    assert!(matches!(error, ExecutorError::InvalidPlan(_)), "{error}");
    // A refused plan changes nothing: the sequence goes on.
    let rows = run(&mut executor, plan(Vec::new(), vec![item(0, &[3], 5, &[0], Some(1))]));
    assert!(rows[0].token.is_some());
    error.to_string()
}

#[test]
fn plans_that_break_a_limit_are_refused_by_name_and_change_nothing() {
    let only = |i: PlanItem| plan(Vec::new(), vec![i]);
    let cases = [
        (only(item(1, &[1], 0, &[0], None)), "slot 1 has work but holds no sequence"),
        (only(item(9, &[1], 0, &[0], None)), "slot 9 has work but holds no sequence"),
        (only(item(0, &[], 5, &[0], None)), "without tokens"),
        (only(item(0, &[256], 5, &[0], None)), "token 256 is not below the vocabulary"),
        (only(item(0, &[1], 16, &[0], None)), "has 1 blocks; 2 are needed"),
        (only(item(0, &[1], 5, &[8], None)), "names block 8"),
        (only(item(0, &[1], 64, &[0; 5], None)), "reaches position 65; the context is 64"),
        (only(item(0, &[1], 5, &[0], Some(4))), "samples output position 4 but has 1"),
        (only(item(0, &[1; 33], 5, &[0; 3], None)), "step has 33 tokens"),
        (
            plan(Vec::new(), vec![item(0, &[1], 5, &[0], None), item(0, &[1], 6, &[0], None)]),
            "slot 0 appears twice",
        ),
        (plan(vec![new_sequence(0, greedy())], Vec::new()), "holds a sequence already"),
        (plan(vec![new_sequence(4, greedy())], Vec::new()), "not below the limit of 4"),
        (StepPlan { released: vec![2], ..plan(Vec::new(), Vec::new()) }, "released slot 2 holds no sequence"),
    ];
    for (bad, expected) in cases {
        let message = refusal(bad);
        assert!(message.contains(expected), "{message:?} does not say {expected:?}");
    }
}

#[test]
fn a_step_must_be_collected_once_before_the_next() {
    let mut executor = executor();
    let ticket = executor
        .submit(plan(vec![new_sequence(0, greedy())], vec![item(0, &PROMPT, 0, &[0], Some(0))]))
        .expect("the plan is valid");
    assert!(executor.submit(plan(Vec::new(), Vec::new())).is_err());
    assert!(executor.collect(ticket).is_ok());
    assert!(executor.collect(ticket).is_err());
}

#[test]
fn settings_out_of_range_are_refused_by_name() {
    let dir = tempfile::tempdir().expect("a directory for the model");
    write_model(dir.path(), "qwen3", "F32", f32_bytes);
    let checkpoint = Checkpoint::open(dir.path()).expect("the fixture opens");
    for (config, field) in [
        (LocalConfig { threads: 0, ..CONFIG }, "threads is 0"),
        (LocalConfig { blocks: 0, ..CONFIG }, "blocks is 0"),
        (LocalConfig { slots: 0, ..CONFIG }, "slots is 0"),
        (LocalConfig { step_tokens: 0, ..CONFIG }, "step_tokens is 0"),
        (LocalConfig { context_tokens: 257, ..CONFIG }, "context_tokens is 257; use 1 to 256"),
    ] {
        let error =
            LocalExecutor::load(&checkpoint, config).err().expect("the setting is refused").to_string();
        assert!(error.contains(field), "{error}");
    }
}

#[test]
fn a_row_that_is_not_finite_fails_alone() {
    // The embedding of token 77 is not a number; the head is another matrix.
    let poison = |role, index: usize, value| {
        if role == Role::Embedding && index / 64 == 77 { f32::NAN } else { value }
    };
    let mut executor = executor_with(Some(&poison));
    let admitted = vec![new_sequence(0, greedy()), new_sequence(1, greedy())];
    let items = vec![item(0, &[1, 77, 2], 0, &[0], Some(0)), item(1, &PROMPT, 0, &[1], Some(0))];
    let rows = run(&mut executor, plan(admitted, items));
    assert!(rows[0].fault.as_ref().is_some_and(|f| f.contains("NaN")), "{:?}", rows[0].fault);
    assert_eq!(rows[0].token, None);
    assert!(rows[1].token.is_some() && rows[1].fault.is_none());
}

#[test]
fn state_rebuilt_from_the_output_samples_as_state_carried_along() {
    let sampling = SamplingParams {
        repetition_penalty: 1.3,
        presence_penalty: 0.4,
        frequency_penalty: 0.3,
        seed: 12,
        logprobs: Some(5),
        ..SamplingParams::default()
    };
    let mut one = executor();
    let mut tokens = PROMPT.to_vec();
    let mut produced = Vec::new();
    let mut first = true;
    for position in 0..12 {
        let admitted = if first { vec![new_sequence(0, sampling.clone())] } else { Vec::new() };
        let (fed, start) =
            if first { (&tokens[..], 0) } else { (&tokens[tokens.len() - 1..], tokens.len() - 1) };
        let work = item(0, fed, start as u32, &[3, 1], Some(position));
        first = false;
        let row = run(&mut one, plan(admitted, vec![work])).remove(0);
        tokens.push(row.token.expect("a token"));
        produced.push(row.logprobs.expect("log probabilities"));
    }
    for known in 1..12usize {
        let mut other = executor();
        let mut sequence = new_sequence(2, sampling.clone());
        sequence.generated = tokens[5..5 + known].to_vec();
        let work = item(2, &tokens[..5 + known], 0, &[6, 2], Some(known as u32));
        let row = run(&mut other, plan(vec![sequence], vec![work])).remove(0);
        assert_eq!(row.token, Some(tokens[5 + known]), "after {known} tokens");
        assert_eq!(row.logprobs.as_ref(), Some(&produced[known]));
    }
}

fn digits() -> GrammarMatcher {
    let tokens: Vec<TokenText> = (0..=255u8)
        .map(|b| if b == 0 { TokenText::Control(b"<end>".to_vec()) } else { TokenText::Text(vec![b]) })
        .collect();
    let grammars = Grammars::new(&tokens, &[0]).expect("the vocabulary is valid");
    grammars.compile(&Grammar::Regex("[0-9]{3}".to_owned())).expect("the grammar compiles")
}

#[test]
fn a_grammar_holds_its_own_row_and_reports_its_end() {
    let mut executor = executor();
    let sampling = SamplingParams { seed: 4, temperature: 2.0, ..SamplingParams::default() };
    let mut held = new_sequence(0, sampling.clone());
    held.grammar = Some(digits());
    let admitted = vec![held, new_sequence(1, sampling)];
    let items = vec![item(0, &PROMPT, 0, &[0], Some(0)), item(1, &PROMPT, 0, &[1], Some(0))];
    let mut rows = run(&mut executor, plan(admitted, items));
    for position in 1..=3 {
        let token = rows[0].token.expect("a digit");
        assert!((48..58).contains(&token), "{token} is no digit");
        assert_eq!(rows[0].grammar_end, position == 3);
        assert!(!rows[1].grammar_end);
        if position == 3 {
            break;
        }
        let other = rows[1].token.expect("a token");
        let start = 4 + position;
        let items = vec![
            item(0, &[token], start, &[0], Some(position)),
            item(1, &[other], start, &[1], Some(position)),
        ];
        rows = run(&mut executor, plan(Vec::new(), items));
    }
}

#[test]
fn output_that_the_grammar_does_not_allow_faults_the_continued_row() {
    let mut executor = executor();
    let mut held = new_sequence(0, greedy());
    held.grammar = Some(digits());
    held.generated = vec![65];
    let work = item(0, &[9, 8, 7, 6, 5, 65], 0, &[0], Some(1));
    let rows = run(&mut executor, plan(vec![held], vec![work]));
    assert!(rows[0].fault.as_ref().is_some_and(|f| f.contains("grammar")), "{:?}", rows[0].fault);
    assert_eq!(rows[0].token, None);
}

#[test]
fn a_slot_can_be_released_and_taken_in_the_same_step() {
    let mut executor = executor();
    let work = |token| vec![item(0, &[token], 0, &[0], Some(0))];
    run(&mut executor, plan(vec![new_sequence(0, greedy())], work(1)));
    let again = StepPlan { released: vec![0], ..plan(vec![new_sequence(0, greedy())], work(1)) };
    assert!(run(&mut executor, again)[0].token.is_some());
}

/// Three digits of a sequence in a slot, from each seed; all seeds side by side.
fn digits_of(seeds: &[u64]) -> Vec<Vec<u32>> {
    let mut executor = executor();
    let sampling = |seed| SamplingParams { seed, temperature: 2.0, ..SamplingParams::default() };
    let held = |(slot, &seed): (u32, &u64)| {
        let mut held = new_sequence(slot, sampling(seed));
        held.grammar = Some(digits());
        held
    };
    let admitted = (0..).zip(seeds).map(held).collect();
    let first = |slot: u32| item(slot, &PROMPT, 0, &[slot], Some(0));
    let slots = 0..seeds.len() as u32;
    let mut rows = run(&mut executor, plan(admitted, slots.clone().map(first).collect()));
    let mut tokens: Vec<Vec<u32>> = vec![Vec::new(); seeds.len()];
    for position in 1..=3 {
        for (tokens, row) in tokens.iter_mut().zip(&rows) {
            tokens.push(row.token.expect("a digit"));
        }
        if position < 3 {
            let next = |slot: u32| {
                let last = tokens[slot as usize][position as usize - 1];
                item(slot, &[last], 4 + position, &[slot], Some(position))
            };
            rows = run(&mut executor, plan(Vec::new(), slots.clone().map(next).collect()));
        }
    }
    tokens
}

#[test]
fn sequences_with_grammars_side_by_side_get_what_each_gets_alone() {
    let together = digits_of(&[1, 2, 3, 4]);
    assert!(together.iter().flatten().all(|token| (48..58).contains(token)), "{together:?}");
    for (seed, tokens) in (1..).zip(&together) {
        assert_eq!(digits_of(&[seed])[0], *tokens, "seed {seed}");
    }
}

#[test]
fn a_step_says_where_its_time_went() {
    let mut executor = executor();
    let work = plan(vec![new_sequence(0, greedy())], vec![item(0, &PROMPT, 0, &[0], Some(0))]);
    let ticket = executor.submit(work).expect("the plan is valid");
    let times = executor.collect(ticket).expect("the step is computed").times;
    assert!(!times.forward.is_zero() && !times.sample.is_zero(), "{times:?}");
}
