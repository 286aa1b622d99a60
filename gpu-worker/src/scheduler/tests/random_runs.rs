//! Thousands of random runs against a simple model: each sequence computed alone.
//!
//! A failing run prints its seed; `PONS_SCHEDULER_SEED=n` runs that one alone, `PONS_SCHEDULER_RUNS=n` as many.

use std::collections::BTreeMap;

use pons_protocol::inference::FinishReason;

use super::*;
use crate::executor::BlockId;
use crate::executor::fake::Script;
use crate::executor::fake::prompt_logprobs_alone;
use crate::scheduler::Scheduler;

const RUNS: u64 = 4000;
/// Far above what the work of a run takes; only starvation reaches it.
const MAX_STEPS: u32 = 20_000;

struct Random(u64);

impl Random {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % bound.max(1)
    }

    fn between(&mut self, low: u32, high: u32) -> u32 {
        low + self.below(u64::from(high - low + 1)) as u32
    }

    fn chance(&mut self, percent: u64) -> bool {
        self.below(100) < percent
    }
}

/// Prints the seed if the run fails.
struct Replay(u64);

impl Drop for Replay {
    fn drop(&mut self) {
        if std::thread::panicking() {
            println!("failed; replay with PONS_SCHEDULER_SEED={}", self.0);
        }
    }
}

/// A sequence of the run, as a gateway knows it.
struct Live {
    submit: Submit,
    expected: Vec<TokenId>,
    reason: FinishReason,
    got: Vec<TokenId>,
    saw_prompt_logprobs: bool,
}

struct Run {
    random: Random,
    limits: ExecutorLimits,
    config: SchedulerConfig,
    scripts: Arc<Scripts>,
    engine: Engine<FakeExecutor>,
    arrivals: Vec<Vec<Submit>>,
    live: BTreeMap<SequenceId, Live>,
    preemptions: u32,
    cached: u32,
    finished: u32,
    aborted: u32,
    crashes: u32,
}

fn variable(name: &str) -> Option<u64> {
    std::env::var(name).ok()?.parse().ok()
}

#[test]
fn random_runs_give_every_sequence_the_text_it_has_alone_and_keep_all_counts() {
    let seeds = match variable("PONS_SCHEDULER_SEED") {
        Some(seed) => seed..seed + 1,
        None => 0..variable("PONS_SCHEDULER_RUNS").unwrap_or(RUNS),
    };
    let (mut preemptions, mut cached, mut finished, mut aborted, mut crashes) = (0, 0, 0, 0, 0);
    for seed in seeds.clone() {
        let _replay = Replay(seed);
        let mut run = Run::new(seed);
        run.play();
        preemptions += run.preemptions;
        cached += run.cached;
        finished += run.finished;
        aborted += run.aborted;
        crashes += run.crashes;
    }
    if seeds.count() > 100 {
        // A run that never gets into trouble proves nothing.
        assert!(preemptions > 1000 && cached > 10_000, "{preemptions} preemptions, {cached} cached tokens");
        assert!(finished > 1000 && aborted > 100 && crashes > 100, "{finished}, {aborted}, {crashes}");
    }
}

impl Run {
    fn new(seed: u64) -> Self {
        let mut random = Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ 0x5bd1_e995);
        random.below(1);
        let limits = ExecutorLimits {
            blocks: random.between(3, 20),
            slots: random.between(1, 7),
            step_tokens: random.between(1, 70),
            context_tokens: random.between(40, 200),
            vocab_size: random.between(30, 400),
        };
        let config = SchedulerConfig {
            eos_token_ids: vec![0],
            step_tokens: random.between(1, 70),
            itl_target_us: u64::from(random.between(0, 1)) * 5000,
            ttft_target_us: (seed % 3) * 7000,
            quota_percent: random.between(0, 100),
            prefix_key: PrefixKey::fixed([seed as u8; 16]),
            ..SchedulerConfig::default()
        };
        let (arrivals, scripts) = requests(&mut random, &limits);
        let scripts = Arc::new(scripts);
        let engine = new_engine(&limits, &config, &scripts);
        let live = BTreeMap::new();
        Self {
            random,
            limits,
            config,
            scripts,
            engine,
            arrivals,
            live,
            preemptions: 0,
            cached: 0,
            finished: 0,
            aborted: 0,
            crashes: 0,
        }
    }

    fn play(&mut self) {
        let mut steps = 0;
        while !self.arrivals.is_empty() || !self.live.is_empty() {
            steps += 1;
            assert!(steps < MAX_STEPS, "{} sequences starve", self.live.len());
            self.arrive();
            self.trouble(2);
            let clock = self.engine.executor().clock_us();
            self.engine.start_step(clock.load(Ordering::Relaxed)).unwrap();
            self.check();
            self.trouble(2);
            self.check();
            let output = self.engine.finish_step(|| clock.load(Ordering::Relaxed)).unwrap();
            assert!(output.is_some() || self.live.is_empty() || self.engine.is_idle(), "a step did nothing");
            for output in output.into_iter().flat_map(|output| output.outputs) {
                self.receive(output);
            }
            self.check();
            if self.random.chance(1) {
                self.crash();
            }
        }
        let capacity = self.engine.capacity(0);
        assert_eq!((capacity.running, capacity.waiting, capacity.blocks_held), (0, 0, 0));
        assert!(self.engine.is_idle());
    }

    fn arrive(&mut self) {
        while !self.arrivals.is_empty() && (self.live.is_empty() || self.random.chance(30)) {
            for submit in self.arrivals.remove(0) {
                let accepted = self.engine.submit(submit.clone(), None, 0);
                let fits = submit.prompt.len() as u32 + u32::from(submit.stop.max_tokens > 0)
                    <= self.engine.scheduler().capacity_tokens();
                assert_eq!(accepted.is_ok(), fits, "{accepted:?}");
                if fits {
                    let (expected, reason) = self.expect(&submit);
                    let live = Live { submit, expected, reason, got: Vec::new(), saw_prompt_logprobs: false };
                    self.live.insert(live.submit.sequence, live);
                }
            }
        }
    }

    /// Text and end of a sequence by the model.
    fn expect(&self, submit: &Submit) -> (Vec<TokenId>, FinishReason) {
        let capacity = self.engine.scheduler().capacity_tokens();
        let room = (capacity - submit.prompt.len() as u32).min(submit.stop.max_tokens);
        let mut end_tokens = submit.stop.stop_token_ids.clone();
        if !submit.stop.ignore_eos {
            end_tokens.push(0);
        }
        let alone = Alone {
            prompt: &submit.prompt,
            sampling: &submit.sampling,
            end_tokens: &end_tokens,
            min_tokens: submit.stop.min_tokens,
            scripts: &self.scripts,
            vocab_size: self.limits.vocab_size,
        };
        let text = alone.text(room);
        for (position, token) in text.iter().enumerate() {
            let script = self.scripts.get(&(submit.sampling.seed, position as u32));
            if script == Some(&Script::Fault) {
                return (text[..position].to_vec(), FinishReason::Failed);
            }
            let reason = if *token == 0 && !submit.stop.ignore_eos {
                FinishReason::Eos
            } else if submit.stop.stop_token_ids.contains(token) {
                FinishReason::StopToken(*token)
            } else if script == Some(&Script::GrammarEnd) {
                FinishReason::GrammarEnd
            } else {
                continue;
            };
            return (text[..=position].to_vec(), reason);
        }
        (text, FinishReason::Length)
    }

    /// Aborts with some probability, and looks at the blocks.
    fn trouble(&mut self, percent: u64) {
        if self.live.is_empty() || !self.random.chance(percent) {
            return;
        }
        let nth = self.random.below(self.live.len() as u64) as usize;
        let id = *self.live.keys().nth(nth).unwrap();
        self.live.remove(&id);
        self.engine.abort(id);
        self.aborted += 1;
        let known = self.engine.scheduler().by_id.contains_key(&id);
        assert!(!known, "an aborted sequence is still known");
        // The audit counts every reference against the tables of the sequences left.
        self.check();
    }

    fn receive(&mut self, output: SequenceOutput) {
        let live = self.live.get_mut(&output.sequence).expect("output for a sequence nobody waits for");
        assert_eq!(output.position as usize, live.got.len());
        live.got.extend(&output.tokens);
        assert!(live.expected.starts_with(&live.got), "{}: wrong text", output.sequence);
        let logprobs = if live.submit.sampling.logprobs.is_some() { output.tokens.len() } else { 0 };
        assert_eq!(output.logprobs.len(), logprobs);
        let failed = output.finish.as_ref().is_some_and(|f| f.reason == FinishReason::Failed);
        if let Some(top) = live.submit.sampling.prompt_logprobs
            && !live.saw_prompt_logprobs
            && !failed
        {
            assert!(output.prompt_logprobs[0].logprob.is_nan());
            assert_eq!(output.prompt_logprobs[1..], prompt_logprobs_alone(&live.submit.prompt, top));
            live.saw_prompt_logprobs = true;
        } else {
            assert!(output.prompt_logprobs.is_empty(), "prompt log probabilities came twice");
        }
        let Some(finish) = output.finish else { return };
        assert_eq!((&live.got, finish.reason), (&live.expected, live.reason), "{}", output.sequence);
        assert_eq!(finish.output_tokens as usize, live.expected.len());
        assert_eq!(finish.prompt_tokens as usize, live.submit.prompt.len());
        assert!(finish.cached_tokens <= finish.prompt_tokens);
        self.live.remove(&output.sequence);
        self.finished += 1;
        self.preemptions += finish.preemptions;
        self.cached += finish.cached_tokens;
    }

    /// The brain dies; a new one goes on from what the gateway knows.
    fn crash(&mut self) {
        self.crashes += 1;
        self.engine = new_engine(&self.limits, &self.config, &self.scripts);
        for live in self.live.values() {
            let submit = Submit { generated: live.got.clone(), ..live.submit.clone() };
            self.engine.submit(submit, None, 0).unwrap();
        }
    }

    fn check(&self) {
        let scheduler = self.engine.scheduler();
        assert_eq!(scheduler.audit(), Ok(()));
        let capacity = self.engine.capacity(0);
        let sum = capacity.blocks_free + capacity.blocks_cached + capacity.blocks_held;
        assert_eq!(sum, capacity.blocks_total);
        check_isolation(scheduler);
        check_contents(scheduler, self.engine.executor());
    }
}

fn new_engine(
    limits: &ExecutorLimits,
    config: &SchedulerConfig,
    scripts: &Arc<Scripts>,
) -> Engine<FakeExecutor> {
    let cost = StepCost { step_us: 1000, token_us: 100 };
    let executor = FakeExecutor::new(*limits).with_cost(cost).with_scripts(scripts.clone());
    Engine::new(executor, config.clone())
}

/// No block is in tables of different salts.
fn check_isolation(scheduler: &Scheduler) {
    let mut users: HashMap<BlockId, [u8; 16]> = HashMap::new();
    for sequence in scheduler.sequences.values() {
        for block in sequence.progress.table.as_slice() {
            let salt = *users.entry(*block).or_insert(sequence.salt);
            assert_eq!(salt, sequence.salt, "block {block} is shared across salts");
        }
    }
}

/// Every block that can be found holds what the index says it does.
fn check_contents(scheduler: &Scheduler, executor: &FakeExecutor) {
    let contents: HashMap<_, _> = scheduler.cache().index().contents().collect();
    for block in contents.keys() {
        let mut chain = vec![contents[block]];
        while let Some(parent) = chain[chain.len() - 1].parent {
            chain.push(contents[&parent]);
        }
        let tokens: Vec<_> = chain.iter().rev().flat_map(|content| content.tokens).copied().collect();
        assert!(executor.block_holds(*block, &tokens), "block {block} does not hold what the index says");
    }
}

/// Batches of sequences with shared beginnings, and the events scripted for them.
fn requests(random: &mut Random, limits: &ExecutorLimits) -> (Vec<Vec<Submit>>, Scripts) {
    let vocab = limits.vocab_size;
    let longest = limits.context_tokens.min(limits.blocks * 16);
    let texts: Vec<Vec<TokenId>> =
        (0..3).map(|_| (0..longest).map(|_| random.between(0, vocab - 1)).collect()).collect();
    let mut scripts = Scripts::new();
    let mut batches = Vec::new();
    let mut next_id = 0;
    for _ in 0..random.between(2, 10) {
        let text = &texts[random.below(3) as usize];
        let most = if random.chance(60) { longest.min(36) } else { longest };
        let shared = random.between(0, most - 1);
        let tail = random.between(1, 20).min(longest + 1 - shared);
        let mut prompt = text[..shared as usize].to_vec();
        prompt.extend((0..tail).map(|_| random.between(0, vocab - 1)));
        let tenant = random.below(3);
        let max_tokens = if random.chance(10) { 0 } else { random.between(1, 50) };
        let choices = if random.chance(25) { random.between(2, 5) } else { 1 };
        let mut batch = Vec::new();
        let template = Submit {
            priority: random.between(0, 2) as i32 - 1,
            stop: StopParams {
                max_tokens,
                min_tokens: if random.chance(20) { random.between(0, 20) } else { 0 },
                ignore_eos: random.chance(20),
                stop_token_ids: if random.chance(20) {
                    vec![random.between(0, vocab - 1)]
                } else {
                    Vec::new()
                },
            },
            ..of_tenant(tenant, request(0, prompt, 0))
        };
        for choice in 0..choices {
            let seed = random.below(1 << 30);
            let sampling = SamplingParams {
                seed,
                choice,
                logprobs: random.chance(20).then_some(2),
                prompt_logprobs: random.chance(10).then_some(1),
                ..SamplingParams::default()
            };
            if random.chance(10) {
                let event = if random.chance(50) { Script::Fault } else { Script::GrammarEnd };
                scripts.insert((seed, random.between(0, 20)), event);
            }
            batch.push(Submit { sequence: SequenceId(next_id), sampling, ..template.clone() });
            next_id += 1;
        }
        batches.push(batch);
    }
    (batches, scripts)
}
