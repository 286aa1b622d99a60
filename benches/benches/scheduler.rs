//! Planning and committing of steps, and admission of prompts that the cache knows. The rule: every token that
//! comes out is compared with the text that the sequence gets alone, and the rival is a plain copy of the same plan
//! and its outputs, which no scheduler can do without.

use std::collections::HashMap;
use std::hint::black_box;
use std::time::{Duration, Instant};

use criterion::BatchSize;
use pons_benches::suite::{Case, Suite};
use pons_gpu_worker::executor::fake::{Alone, FakeExecutor, Scripts};
use pons_gpu_worker::executor::{ExecutorLimits, ModelExecutor, PlanItem, StepPlan};
use pons_gpu_worker::kv::{BLOCK_TOKENS, PrefixKey};
use pons_gpu_worker::scheduler::{Scheduler, SchedulerConfig};
use pons_protocol::id::{SequenceId, TenantId, TokenId};
use pons_protocol::inference::{SequenceOutput, Submit};
use pons_protocol::sampling::{SamplingParams, StopParams};

const VOCAB: u32 = 1000;
/// No sampled token is at or above this one, so nothing ends by chance.
const EOS: TokenId = VOCAB - 1;
/// Prompt of a running sequence.
const PROMPT_TOKENS: u32 = 128;
/// Output of a running sequence, at which it is replaced by a new one.
const OUTPUT_TOKENS: u32 = 256;
/// Steps whose tokens are compared before anything is timed.
const CHECKED_STEPS: usize = 40;

fn main() -> anyhow::Result<()> {
    let mut suite = Suite::start("scheduler")?;
    let sizes = if suite.is_small() { vec![4] } else { vec![32, 256] };
    for running in sizes {
        steps(&mut suite, running);
    }
    let prompt_tokens = if suite.is_small() { 64 } else { 4096 };
    admission(&mut suite, prompt_tokens);
    suite.finish()
}

/// Decoding steps with so many sequences in each.
fn steps(suite: &mut Suite, running: u32) {
    let mut bench = Bench::new(running);
    bench.check();
    let group = format!("step_{running}");
    let handles = running as usize;
    suite.time(Case::new(&group, "plan_commit").handles(handles).beside("copy"), |bencher| {
        bencher.iter_custom(|steps| (0..steps).map(|_| bench.step().0).sum());
    });
    let (plan, outputs) = bench.sample();
    suite.time(Case::new(&group, "copy").handles(handles), |bencher| {
        bencher.iter(|| (copy(black_box(&plan)), black_box(&outputs).clone()));
    });
}

/// A prompt that is in the cache to the last block, taken in and planned.
fn admission(suite: &mut Suite, prompt_tokens: u32) {
    let (prompt, group) = (words(1, prompt_tokens), format!("admit_{prompt_tokens}"));
    let mut bench = Bench::empty(prompt_tokens, 4);
    bench.submit(request(1, prompt.clone(), 1));
    while !bench.scheduler.is_idle() {
        bench.step();
    }
    bench.submit(request(2, prompt.clone(), 1));
    let mut first = bench.scheduler.plan(bench.now_us).expect("there is a sequence to run");
    let known = (prompt_tokens - 1) / BLOCK_TOKENS * BLOCK_TOKENS;
    let item = first.items.pop().expect("the plan has the sequence");
    assert_eq!(
        (item.start, item.tokens.len()),
        (known, (prompt_tokens - known) as usize),
        "found in the cache"
    );
    bench.run(StepPlan { items: vec![item], ..first });

    let mut next = 3;
    suite.time(Case::new(&group, "prefix_hit").handles(prompt_tokens as usize).beside("copy"), |bencher| {
        bencher.iter_custom(|rounds| {
            let mut spent = Duration::ZERO;
            for _ in 0..rounds {
                let submit = request(next, prompt.clone(), 1);
                next += 1;
                let begun = Instant::now();
                bench.scheduler.submit(submit, None, bench.now_us).expect("there is room");
                let plan = bench.scheduler.plan(bench.now_us);
                spent += begun.elapsed();
                bench.run(plan.expect("there is a sequence to run"));
            }
            spent
        });
    });
    // What is to be kept of a prompt at the least: its tokens, and the blocks it lies in.
    let blocks: Vec<u32> = (0..prompt_tokens / BLOCK_TOKENS).collect();
    suite.time(Case::new(&group, "copy").handles(prompt_tokens as usize), |bencher| {
        bencher.iter_batched(
            || (),
            |()| (black_box(&prompt).clone(), black_box(&blocks).clone()),
            BatchSize::SmallInput,
        );
    });
}

/// A scheduler, its executor, and what the sequences got.
struct Bench {
    scheduler: Scheduler,
    executor: FakeExecutor,
    running: u32,
    /// Whether a sequence that has ended makes room for a new one.
    refill: bool,
    now_us: u64,
    next_id: u64,
}

impl Bench {
    fn empty(prompt_tokens: u32, running: u32) -> Self {
        let context_tokens = prompt_tokens + OUTPUT_TOKENS;
        let limits = ExecutorLimits {
            blocks: context_tokens.div_ceil(BLOCK_TOKENS) * (running + 1),
            slots: running,
            step_tokens: prompt_tokens.max(2048),
            context_tokens,
            vocab_size: VOCAB,
        };
        let config = SchedulerConfig {
            eos_token_ids: vec![EOS],
            step_tokens: limits.step_tokens,
            prefix_key: PrefixKey::fixed([9; 16]),
            quota_percent: 100,
            ..SchedulerConfig::default()
        };
        let (scheduler, executor) = (Scheduler::new(limits, config), FakeExecutor::new(limits));
        Self { scheduler, executor, running, refill: false, now_us: 0, next_id: 0 }
    }

    /// With so many sequences that decode.
    fn new(running: u32) -> Self {
        let mut bench = Self::empty(PROMPT_TOKENS, running);
        bench.refill = true;
        (0..running).for_each(|_| bench.replace());
        while bench.step().1.len() < running as usize {}
        bench
    }

    fn submit(&mut self, submit: Submit) {
        self.scheduler.submit(submit, None, self.now_us).expect("there is room");
    }

    /// One more sequence, with a prompt of its own.
    fn replace(&mut self) {
        let id = self.next_id;
        self.next_id += 1;
        self.submit(request(id, words(id as u32, PROMPT_TOKENS), OUTPUT_TOKENS));
    }

    /// One step. The time is that of planning and committing alone; what has ended is replaced.
    fn step(&mut self) -> (Duration, Vec<SequenceOutput>) {
        self.now_us += 1000;
        let begun = Instant::now();
        let plan = self.scheduler.plan(self.now_us);
        let planning = begun.elapsed();
        let (committing, outputs) = self.run(plan.expect("there are sequences to run"));
        let ended = outputs.iter().filter(|output| output.finish.is_some()).count();
        if self.refill {
            (0..ended).for_each(|_| self.replace());
        }
        (planning + committing, outputs)
    }

    /// Runs a plan and commits it, timing the latter.
    fn run(&mut self, plan: StepPlan) -> (Duration, Vec<SequenceOutput>) {
        let ticket = self.executor.submit(plan).expect("the plan is valid");
        let result = self.executor.collect(ticket).expect("the step was submitted");
        let begun = Instant::now();
        let outputs = self.scheduler.commit(result, self.now_us);
        (begun.elapsed(), outputs)
    }

    /// Compares the next tokens of every sequence with what it gets alone.
    fn check(&mut self) {
        let mut texts: HashMap<SequenceId, Vec<TokenId>> = HashMap::new();
        let mut compared = 0;
        for _ in 0..CHECKED_STEPS {
            for output in self.step().1 {
                let id = output.sequence;
                let text = texts.entry(id).or_insert_with(|| alone(id));
                let want = &text[output.position as usize..][..output.tokens.len()];
                assert_eq!(output.tokens, want, "sequence {id} at {}", output.position);
                compared += want.len();
            }
        }
        assert!(compared >= CHECKED_STEPS * self.running as usize, "only {compared} tokens came out");
    }

    /// A plan and the outputs of a step like those that are timed.
    fn sample(&mut self) -> (StepPlan, Vec<SequenceOutput>) {
        self.now_us += 1000;
        let plan = self.scheduler.plan(self.now_us).expect("there are sequences to run");
        let kept = copy(&plan);
        (kept, self.run(plan).1)
    }
}

/// The same work once more; nobody is admitted in it.
fn copy(plan: &StepPlan) -> StepPlan {
    let item = |item: &PlanItem| PlanItem {
        slot: item.slot,
        tokens: item.tokens.clone(),
        start: item.start,
        blocks: item.blocks.clone(),
        sample: item.sample,
        prompt_logprobs: item.prompt_logprobs,
    };
    StepPlan {
        step: plan.step,
        released: plan.released.clone(),
        admitted: Vec::new(),
        items: plan.items.iter().map(item).collect(),
    }
}

/// Tokens that no other `text` shares.
fn words(text: u32, count: u32) -> Vec<TokenId> {
    (0..count).map(|position| (text.wrapping_mul(131) + position * 7) % (VOCAB - 1)).collect()
}

fn request(id: u64, prompt: Vec<TokenId>, max_tokens: u32) -> Submit {
    Submit {
        sequence: SequenceId(id),
        tenant: TenantId(0),
        cache_salt: [0; 16],
        priority: 0,
        prompt,
        generated: Vec::new(),
        sampling: SamplingParams { seed: id, ..SamplingParams::default() },
        stop: StopParams { max_tokens, min_tokens: max_tokens, ..StopParams::default() },
        grammar: None,
        queue_timeout_ms: 0,
    }
}

/// The text of a sequence when nothing else runs.
fn alone(id: SequenceId) -> Vec<TokenId> {
    let submit = request(id.0, words(id.0 as u32, PROMPT_TOKENS), OUTPUT_TOKENS);
    Alone {
        prompt: &submit.prompt,
        sampling: &submit.sampling,
        end_tokens: &[EOS],
        min_tokens: submit.stop.min_tokens,
        scripts: &Scripts::new(),
        vocab_size: VOCAB,
    }
    .text(submit.stop.max_tokens)
}
