//! Tests of the scheduler, driven through the engine with the fake executor, which gives a wrong token for
//! every block that is not what the plan says it is.

mod fairness;
mod lifecycle;
mod limits;
mod preemption;
mod random_runs;
mod sharing;

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use pons_protocol::id::{SequenceId, TenantId, TokenId};
use pons_protocol::inference::{Finish, SequenceOutput, StepOutput, Submit, TokenLogprobs};
use pons_protocol::sampling::{SamplingParams, StopParams};

use super::SchedulerConfig;
use crate::engine::Engine;
use crate::executor::ExecutorLimits;
use crate::executor::fake::{Alone, FakeExecutor, Scripts, StepCost};
use crate::kv::PrefixKey;

const VOCAB: u32 = 1000;
/// No sampled token is at or above the vocabulary, so this one never ends a sequence by chance.
const EOS: TokenId = VOCAB - 1;

fn limits(blocks: u32, slots: u32, step_tokens: u32) -> ExecutorLimits {
    ExecutorLimits { blocks, slots, step_tokens, context_tokens: 4096, vocab_size: VOCAB }
}

fn config() -> SchedulerConfig {
    SchedulerConfig {
        eos_token_ids: vec![EOS],
        prefix_key: PrefixKey::fixed([9; 16]),
        quota_percent: 100,
        ..SchedulerConfig::default()
    }
}

/// Tokens that no other `text` shares.
fn words(text: u32, count: u32) -> Vec<TokenId> {
    (0..count).map(|position| (text * 131 + position * 7) % (VOCAB - 1)).collect()
}

fn request(id: u64, prompt: Vec<TokenId>, max_tokens: u32) -> Submit {
    Submit {
        sequence: SequenceId(id),
        tenant: TenantId(0),
        cache_salt: [0; 16],
        priority: 0,
        prompt,
        generated: Vec::new(),
        // Position 0 of each seed draws another token; ends by chance are excluded with a mask.
        sampling: SamplingParams { seed: id, ..SamplingParams::default() },
        stop: StopParams { max_tokens, min_tokens: max_tokens, ..StopParams::default() },
        grammar: None,
        queue_timeout_ms: 0,
    }
}

fn of_tenant(tenant: u64, submit: Submit) -> Submit {
    Submit { tenant: TenantId(tenant), cache_salt: [tenant as u8; 16], ..submit }
}

/// What a sequence got, put together from its outputs.
#[derive(Clone, Debug, Default)]
struct Got {
    tokens: Vec<TokenId>,
    prompt_logprobs: Vec<TokenLogprobs>,
    logprobs: Vec<TokenLogprobs>,
    finish: Option<Finish>,
    first_step: u64,
    last_step: u64,
}

/// An engine with everything it said.
struct Bench {
    engine: Engine<FakeExecutor>,
    got: HashMap<SequenceId, Got>,
    order: Vec<SequenceId>,
}

impl Bench {
    fn new(limits: ExecutorLimits, config: SchedulerConfig) -> Self {
        Self::scripted(limits, config, Arc::default())
    }

    fn scripted(limits: ExecutorLimits, config: SchedulerConfig, scripts: Arc<Scripts>) -> Self {
        let cost = StepCost { step_us: 1000, token_us: 10 };
        let executor = FakeExecutor::new(limits).with_cost(cost).with_scripts(scripts);
        Self { engine: Engine::new(executor, config), got: HashMap::new(), order: Vec::new() }
    }

    fn now_us(&self) -> u64 {
        self.engine.executor().clock_us().load(Ordering::Relaxed)
    }

    fn submit(&mut self, submit: Submit) {
        let now_us = self.now_us();
        self.engine.submit(submit, None, now_us).unwrap();
    }

    fn step(&mut self) -> Option<StepOutput> {
        let clock = self.engine.executor().clock_us();
        let output = self.engine.step(|| clock.load(Ordering::Relaxed)).unwrap();
        if let Some(output) = &output {
            self.note(output.step, &output.outputs);
        }
        output
    }

    fn note(&mut self, step: u64, outputs: &[SequenceOutput]) {
        for output in outputs {
            let got = self.got.entry(output.sequence).or_default();
            if got.tokens.is_empty() {
                got.first_step = step;
                got.tokens = vec![TokenId::MAX; output.position as usize];
                self.order.push(output.sequence);
            }
            assert_eq!(output.position as usize, got.tokens.len(), "{output:?}");
            assert!(got.finish.is_none(), "output after the end: {output:?}");
            got.last_step = step;
            got.tokens.extend(&output.tokens);
            got.logprobs.extend(output.logprobs.clone());
            got.prompt_logprobs.extend(output.prompt_logprobs.clone());
            got.finish.clone_from(&output.finish);
        }
    }

    fn run(&mut self) -> u64 {
        let mut steps = 0;
        while !self.engine.is_idle() {
            self.step();
            steps += 1;
            assert!(steps < 100_000, "the engine does not come to an end");
        }
        steps
    }

    fn got(&self, id: u64) -> &Got {
        &self.got[&SequenceId(id)]
    }

    fn finish(&self, id: u64) -> &Finish {
        self.got(id).finish.as_ref().unwrap()
    }

    fn capacity(&self) -> pons_protocol::capacity::Capacity {
        self.engine.capacity(self.now_us())
    }
}

/// The output of [`request`] computed alone.
fn alone(submit: &Submit) -> Vec<TokenId> {
    let scripts = Scripts::new();
    Alone {
        prompt: &submit.prompt,
        sampling: &submit.sampling,
        end_tokens: &[EOS],
        min_tokens: submit.stop.min_tokens,
        scripts: &scripts,
        vocab_size: VOCAB,
    }
    .text(submit.stop.max_tokens)
}
