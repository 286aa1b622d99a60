//! The correctness gate: log probabilities of real models against independent engines, and equal to the bit
//! however the work is batched, chunked, cached, preempted or resumed.

use std::path::Path;

use pons_gpu_worker::engine::Engine;
use pons_gpu_worker::executor::{LocalConfig, LocalExecutor, RowOutput};
use pons_gpu_worker::scheduler::SchedulerConfig;
use pons_kernels::KvFormat;
use pons_protocol::id::{SequenceId, TenantId};
use pons_protocol::inference::{FinishReason, Submit, TokenLogprobs};
use pons_protocol::sampling::{SamplingParams, StopParams};
use serde::Deserialize;

use crate::drive::{Chunk, Driver, Sequence, distribution, open};

#[derive(Deserialize)]
struct Golden {
    cases: Vec<Case>,
}

#[derive(Deserialize)]
struct Case {
    name: String,
    prompt_ids: Vec<u32>,
    output_ids: Vec<u32>,
    /// Best tokens of each output position with their log probabilities.
    steps: Vec<Vec<(u32, f32)>>,
    prompt_logprobs: Option<Vec<Option<f32>>>,
}

impl Case {
    /// Everything that is fed when the golden output is forced: its last token is only ever predicted.
    fn forced(&self) -> Vec<u32> {
        let output = &self.output_ids[..self.output_ids.len() - 1];
        [&self.prompt_ids, output].concat()
    }
}

fn golden(model: &str) -> Golden {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden").join(format!("{model}.json"));
    let text = std::fs::read_to_string(&path).expect("golden data is part of the repository");
    serde_json::from_str(&text).expect("golden data is well formed")
}

fn config(blocks: u32, threads: usize) -> LocalConfig {
    LocalConfig {
        threads,
        kv_format: KvFormat::Bf16,
        blocks,
        slots: 32,
        step_tokens: 2048,
        context_tokens: 2048,
    }
}

/// Differences from the golden log probabilities.
#[derive(Default)]
struct Deltas(Vec<f32>);

impl Deltas {
    fn add_step(&mut self, ours: &TokenLogprobs, theirs: &[(u32, f32)]) {
        let floor = ours.top.last().expect("alternatives were asked for").1;
        for &(id, logprob) in theirs {
            // A token outside our long list is at most as likely as its last entry.
            let found = ours.top.iter().find(|(token, _)| *token == id).map_or(floor, |(_, value)| *value);
            self.0.push((found - logprob).abs());
        }
    }

    fn hold(mut self, what: &str) {
        assert!(self.0.len() > 100, "{what}: only {} values were compared", self.0.len());
        self.0.sort_by(f32::total_cmp);
        let mean = self.0.iter().sum::<f32>() / self.0.len() as f32;
        let p99 = self.0[self.0.len() * 99 / 100];
        let max = self.0.last().copied().unwrap_or_default();
        eprintln!("{what}: {} values, mean {mean:.4}, p99 {p99:.4}, max {max:.4}", self.0.len());
        assert!(mean <= 0.06 && p99 <= 0.20, "{what}: mean {mean}, p99 {p99} (at most 0.06 and 0.20)");
    }
}

/// Equal to the bit: alternatives, their order and their values.
fn assert_same(what: &str, case: &Case, expected: &[TokenLogprobs], got: &[TokenLogprobs]) {
    assert_eq!(expected.len(), got.len(), "{what}, {}: positions", case.name);
    for (position, (a, b)) in expected.iter().zip(got).enumerate() {
        let bits = |l: &TokenLogprobs| -> Vec<(u32, u32)> {
            l.top.iter().map(|(id, value)| (*id, value.to_bits())).collect()
        };
        assert_eq!(bits(a), bits(b), "{what}, {}: output position {position}", case.name);
    }
}

/// Prompt in one chunk, then one forced token a step.
fn decode_alone(driver: &mut Driver, case: &Case) -> Vec<TokenLogprobs> {
    let mut sequence = driver.start(&case.prompt_ids, &[], &[]);
    let mut out = vec![distribution(&driver.prefill(&mut sequence, &case.prompt_ids, &[usize::MAX]))];
    for token in &case.output_ids[..case.output_ids.len() - 1] {
        out.push(distribution(&driver.prefill(&mut sequence, &[*token], &[1])));
    }
    driver.end(sequence, 0);
    out
}

/// Prompt and forced output as one prompt whose log probabilities are asked for, in chunks.
fn score(driver: &mut Driver, case: &Case, sizes: &[usize]) -> Vec<TokenLogprobs> {
    let tokens = case.forced();
    let mut sequence = driver.start(&tokens, &[], &[]);
    let mut out = Vec::new();
    let mut at = 0;
    let mut sizes = sizes.iter().cycle();
    while at < tokens.len() {
        let end = tokens.len().min(at.saturating_add(*sizes.next().expect("a cycle never ends")));
        let next = tokens.get(end).or(case.output_ids.last()).copied();
        let chunk =
            Chunk { sequence: &mut sequence, tokens: &tokens[at..end], sample: false, score: Some(next) };
        out.extend(driver.step(&mut [chunk]).remove(0).prompt_logprobs);
        at = end;
    }
    driver.end(sequence, 0);
    assert_eq!(
        out.len(),
        tokens.len(),
        "one entry for each token but the first, and one for the last output"
    );
    out
}

/// All cases in the same steps; case `i` arrives at step `i`, so that prefills and decodes mix.
fn decode_together(driver: &mut Driver, cases: &[&Case]) -> Vec<Vec<TokenLogprobs>> {
    let mut sequences: Vec<Sequence> = cases.iter().map(|c| driver.start(&c.prompt_ids, &[], &[])).collect();
    let mut out: Vec<Vec<TokenLogprobs>> = cases.iter().map(|_| Vec::new()).collect();
    let mut step = 0;
    while out.iter().zip(cases).any(|(done, case)| done.len() < case.output_ids.len()) {
        let mut members = Vec::new();
        let mut chunks = Vec::new();
        for (index, (sequence, case)) in sequences.iter_mut().zip(cases).enumerate() {
            let done = out[index].len();
            if index > step || done == case.output_ids.len() {
                continue;
            }
            let tokens = if done == 0 { &case.prompt_ids[..] } else { &case.output_ids[done - 1..done] };
            members.push(index);
            chunks.push(Chunk { sequence, tokens, sample: true, score: None });
        }
        let rows: Vec<RowOutput> = driver.step(&mut chunks);
        for (index, row) in members.into_iter().zip(&rows) {
            out[index].push(distribution(row));
        }
        step += 1;
    }
    for sequence in sequences {
        driver.end(sequence, 0);
    }
    out
}

/// Decodes half of the output, loses the sequence, and goes on in other blocks after computing everything again.
fn decode_after_preemption(driver: &mut Driver, case: &Case, lost_at: usize) -> Vec<TokenLogprobs> {
    let output = &case.output_ids;
    let mut first = driver.start(&case.prompt_ids, &[], &[]);
    let mut out = vec![distribution(&driver.prefill(&mut first, &case.prompt_ids, &[usize::MAX]))];
    for token in &output[..lost_at - 1] {
        out.push(distribution(&driver.prefill(&mut first, &[*token], &[1])));
    }
    driver.end(first, 0);
    let known = [&case.prompt_ids, &output[..lost_at]].concat();
    let mut again = driver.start(&case.prompt_ids, &output[..lost_at], &[]);
    out.push(distribution(&driver.prefill(&mut again, &known, &[5, 48, 1])));
    for token in &output[lost_at..output.len() - 1] {
        out.push(distribution(&driver.prefill(&mut again, &[*token], &[1])));
    }
    driver.end(again, 0);
    out
}

/// A second sequence that finds the whole blocks of its prompt computed by a first one, which still runs.
fn first_token_after_prefix_hit(driver: &mut Driver, case: &Case) -> TokenLogprobs {
    let prompt = &case.prompt_ids;
    let mut owner = driver.start(prompt, &[], &[]);
    driver.prefill(&mut owner, prompt, &[13]);
    let shared = (prompt.len() - 1) / 16;
    let prefix = owner.blocks()[..shared].to_vec();
    let mut guest = driver.start(prompt, &[], &prefix);
    let row = driver.prefill(&mut guest, &prompt[shared * 16..], &[usize::MAX]);
    driver.end(guest, shared);
    driver.end(owner, 0);
    distribution(&row)
}

/// Runs the whole matrix over one model. `slow` cases are decoded token by token alone as well.
fn hold_model(model: &str, slow: usize) {
    let golden = golden(model);
    let cases: Vec<&Case> = golden.cases.iter().collect();
    let checkpoint = open(model);
    let mut driver = Driver::new(&checkpoint, config(1024, 1));
    let mut deltas = Deltas::default();
    let mut prompt_deltas = Deltas::default();
    let mut base = Vec::new();
    for case in &cases {
        let scored = score(&mut driver, case, &[usize::MAX]);
        let outputs = scored[case.prompt_ids.len() - 1..].to_vec();
        for (position, (ours, theirs)) in outputs.iter().zip(&case.steps).enumerate() {
            deltas.add_step(ours, theirs);
            let margin = theirs[0].1 - theirs[1].1;
            if margin > 0.5 {
                assert_eq!(ours.top[0].0, theirs[0].0, "{}: best token at {position}", case.name);
            }
        }
        for (ours, theirs) in scored.iter().zip(case.prompt_logprobs.iter().flatten().skip(1)) {
            prompt_deltas.0.push((ours.logprob - theirs.expect("only the first is empty")).abs());
        }
        assert_same("odd chunks", case, &scored, &score(&mut driver, case, &[1, 7, 16, 33, 2, 101]));
        if case.prompt_ids.len() > 16 {
            let hit = first_token_after_prefix_hit(&mut driver, case);
            assert_same("prefix hit", case, &outputs[..1], &[hit]);
        }
        base.push(outputs);
    }
    deltas.hold(&format!("{model}, output"));
    if !prompt_deltas.0.is_empty() {
        prompt_deltas.hold(&format!("{model}, prompt"));
    }
    for (case, outputs) in cases.iter().zip(&base).take(slow) {
        assert_same("alone", case, outputs, &decode_alone(&mut driver, case));
        let lost_at = case.output_ids.len() / 2;
        assert_same("preemption", case, outputs, &decode_after_preemption(&mut driver, case, lost_at));
    }
    // The number of threads must not show either.
    let mut driver = Driver::new(&checkpoint, config(1024, 2));
    for ((case, outputs), got) in cases.iter().zip(&base).zip(decode_together(&mut driver, &cases)) {
        assert_same("batched", case, outputs, &got);
    }
}

#[test]
fn smollm2_agrees_with_transformers_and_with_itself_in_every_batching() {
    hold_model("smollm2-135m", 6);
}

#[test]
fn qwen2_5_coder_agrees_with_llama_cpp_and_with_itself_in_every_batching() {
    hold_model("qwen2.5-coder-0.5b", 3);
}

#[test]
fn the_larger_qwen2_5_coder_agrees_with_llama_cpp_and_with_itself_in_every_batching() {
    hold_model("qwen2.5-coder-1.5b", 1);
}

/// What a sequence produced: tokens with the bits of their log probabilities.
type Produced = Vec<(u32, u32)>;

fn submit(id: u64, case: &Case, generated: &[u32], sampling: &SamplingParams) -> Submit {
    Submit {
        sequence: SequenceId(id),
        tenant: TenantId(id % 3),
        cache_salt: [(id % 3) as u8; 16],
        priority: 0,
        prompt: case.prompt_ids.clone(),
        generated: generated.to_vec(),
        sampling: SamplingParams { seed: id, ..sampling.clone() },
        stop: StopParams { max_tokens: 24, ignore_eos: true, ..StopParams::default() },
        grammar: None,
        queue_timeout_ms: 0,
    }
}

fn run_engine(
    checkpoint: &pons_checkpoint::Checkpoint,
    blocks: u32,
    submits: Vec<Submit>,
) -> (Vec<Produced>, u64) {
    let executor = LocalExecutor::load(checkpoint, config(blocks, 1)).expect("the model loads");
    let scheduler = SchedulerConfig { step_tokens: 70, ..SchedulerConfig::default() };
    let mut engine = Engine::new(executor, scheduler);
    let ids: Vec<SequenceId> = submits.iter().map(|s| s.sequence).collect();
    for submit in submits {
        engine.submit(submit, None, 0).expect("the sequence fits");
    }
    let mut produced: Vec<Produced> = ids.iter().map(|_| Vec::new()).collect();
    let mut preemptions = 0;
    for step in 0..10_000u64 {
        let Some(output) = engine.step(|| step * 1000).expect("the step is computed") else { break };
        for o in output.outputs {
            let index = ids.iter().position(|id| *id == o.sequence).expect("a sequence of this test");
            let bits = o.logprobs.iter().map(|l| l.logprob.to_bits());
            produced[index].extend(o.tokens.iter().copied().zip(bits));
            if let Some(finish) = o.finish {
                assert_eq!(finish.reason, FinishReason::Length);
            }
        }
        preemptions = output.capacity.preemptions_total;
    }
    assert!(engine.is_idle(), "every sequence ends");
    (produced, preemptions)
}

#[test]
fn the_engine_samples_the_same_alone_together_preempted_and_continued() {
    let golden = golden("smollm2-135m");
    let checkpoint = open("smollm2-135m");
    let cases: Vec<&Case> = golden.cases.iter().filter(|c| c.prompt_ids.len() < 100).take(8).collect();
    let sampling = SamplingParams {
        temperature: 0.9,
        top_p: 0.95,
        frequency_penalty: 0.2,
        logprobs: Some(0),
        ..SamplingParams::default()
    };
    let submits = |generated: &dyn Fn(usize) -> Vec<u32>| -> Vec<Submit> {
        let numbered = (0..).zip(&cases);
        numbered.map(|(i, case)| submit(i, case, &generated(i as usize), &sampling)).collect()
    };
    let alone: Vec<Produced> = submits(&|_| Vec::new())
        .into_iter()
        .map(|one| run_engine(&checkpoint, 256, vec![one]).0.remove(0))
        .collect();
    for one in &alone {
        assert_eq!(one.len(), 24, "every sequence runs to its length");
    }
    let (together, _) = run_engine(&checkpoint, 256, submits(&|_| Vec::new()));
    assert_eq!(alone, together, "together");
    let (tight, preemptions) = run_engine(&checkpoint, 20, submits(&|_| Vec::new()));
    assert!(preemptions > 0, "20 blocks make sequences give way");
    assert_eq!(alone, tight, "with {preemptions} preemptions");
    let known = |i: usize| -> Vec<u32> { alone[i][..1 + i].iter().map(|(token, _)| *token).collect() };
    let (continued, _) = run_engine(&checkpoint, 256, submits(&known));
    for (index, (whole, rest)) in alone.iter().zip(&continued).enumerate() {
        assert_eq!(whole[1 + index..], rest[..], "continued after {} tokens", 1 + index);
    }
}
