//! `engine`: steps of a real model through the executor, without scheduler, link or gateway. The rule: the answer is
//! checked first (a row in company gives the token it gives alone), and every time stands beside the least that the
//! machine's measured limits allow for the same step.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Instant;

use anyhow::{Context, ensure};
use clap::Parser;
use pons_benches::limits::{Caches, Effort, Limits};
use pons_benches::machine::{Machine, write_record};
use pons_benches::roofline::{self, STEPS, Step};
use pons_checkpoint::{Checkpoint, locate};
use pons_gpu_worker::executor::{LocalConfig, LocalExecutor, ModelExecutor, NewSequence, PlanItem, StepPlan};
use pons_gpu_worker::kv::BLOCK_TOKENS;
use pons_kernels::{KvFormat, amx};
use pons_protocol::sampling::{SamplingParams, StopParams};
use serde::Serialize;

/// The longest sequence of any case.
const CONTEXT: u32 = 4608;
/// The most sequences of any case.
const MOST_ROWS: u32 = 32;
/// Most tokens of one step.
const STEP_TOKENS: u32 = 2048;
/// KV blocks: the longest sequence, or the most sequences after half a thousand tokens.
const BLOCKS: u32 = MOST_ROWS * 1024 / BLOCK_TOKENS;

/// Time steps of a model and compare them with what the machine allows.
#[derive(Parser)]
struct Arguments {
    /// Names or paths of models
    #[arg(long, value_delimiter = ',', default_value = "smollm2-135m,qwen2.5-coder-1.5b")]
    models: Vec<String>,
    /// Compute threads
    #[arg(long)]
    threads: Option<usize>,
    /// Times each case is measured; the median counts
    #[arg(long, default_value_t = 7)]
    tries: usize,
    /// Only steps whose name holds this, such as 'decode' or 'prefill 512'
    #[arg(long, default_value = "")]
    steps: String,
    /// Record to write
    #[arg(long, value_name = "FILE")]
    record: Option<PathBuf>,
}

/// One case of one model.
#[derive(Serialize)]
struct Case {
    model: String,
    step: &'static str,
    /// Tokens that a step computes.
    tokens: u32,
    /// Every try, in microseconds.
    tries_us: Vec<f64>,
    median_us: f64,
    tokens_per_s: f64,
    /// The least time by the machine's limits, and the limit that says so.
    least_us: Option<f64>,
    limit: Option<&'static str>,
    /// Share of the limit that is reached.
    share: Option<f64>,
}

#[derive(Serialize)]
struct Record {
    machine: Machine,
    limits: Limits,
    cases: Vec<Case>,
}

/// An executor, one step after the other.
struct Engine {
    executor: LocalExecutor,
    step: u64,
    /// Tokens sampled so far in each slot; the executor counts along.
    sampled: Vec<u32>,
}

/// A token of a text that is the same every time: ids that every vocabulary has.
fn token(sequence: u32, position: u32) -> u32 {
    1000 + (sequence * 7919 + position * 104_729) % 20_000
}

impl Engine {
    /// Computes tokens `start..start + count` of each sequence, and samples where asked. Sequences have blocks that
    /// lie side by side.
    fn run(&mut self, sequences: &[u32], start: u32, count: u32, sample: bool) -> anyhow::Result<Vec<u32>> {
        let items = sequences.iter().enumerate().map(|(slot, &sequence)| {
            let blocks = (start + count).div_ceil(BLOCK_TOKENS);
            let first = slot as u32 * (BLOCKS / sequences.len() as u32);
            PlanItem {
                slot: slot as u32,
                tokens: (start..start + count).map(|position| token(sequence, position)).collect(),
                start,
                blocks: (first..first + blocks).collect(),
                sample: sample.then_some(self.sampled[slot]),
                prompt_logprobs: None,
            }
        });
        let items = items.collect();
        if sample {
            self.sampled[..sequences.len()].iter_mut().for_each(|count| *count += 1);
        }
        self.submit(Vec::new(), items)
    }

    fn submit(&mut self, admitted: Vec<NewSequence>, items: Vec<PlanItem>) -> anyhow::Result<Vec<u32>> {
        self.step += 1;
        let plan = StepPlan { step: self.step, released: Vec::new(), admitted, items };
        let ticket = self.executor.submit(plan)?;
        let result = self.executor.collect(ticket)?;
        Ok(result.rows.iter().filter_map(|row| row.token).collect())
    }

    /// Fills the caches of `sequences` up to `tokens`.
    fn fill(&mut self, sequences: &[u32], tokens: u32) -> anyhow::Result<()> {
        let chunk = STEP_TOKENS / sequences.len() as u32;
        for start in (0..tokens).step_by(chunk as usize) {
            self.run(sequences, start, chunk.min(tokens - start), false)?;
        }
        Ok(())
    }

    /// Makes a slot for each row of the largest case.
    fn admit(&mut self) -> anyhow::Result<()> {
        let sampling = Arc::new(SamplingParams { temperature: 0.0, ..SamplingParams::default() });
        let slot = |slot| NewSequence {
            slot,
            sampling: Arc::clone(&sampling),
            stop: Arc::new(StopParams::default()),
            end_tokens: Arc::from([]),
            prompt: Arc::from([1]),
            generated: Vec::new(),
            grammar: None,
        };
        self.submit((0..MOST_ROWS).map(slot).collect(), Vec::new()).map(drop)
    }

    /// One step as [`Step`] says, in chunks where it is longer than a step may be.
    fn once(&mut self, step: Step) -> anyhow::Result<Vec<u32>> {
        let sequences: Vec<u32> = (0..step.sequences).collect();
        let most = STEP_TOKENS.min(step.tokens);
        let mut out = Vec::new();
        for start in (0..step.tokens).step_by(most as usize) {
            let last = start + most >= step.tokens;
            out = self.run(&sequences, step.after + start, most.min(step.tokens - start), last)?;
        }
        Ok(out)
    }

    /// A row among others gives what it gives alone.
    fn check(&mut self) -> anyhow::Result<()> {
        let mut alone = Vec::new();
        for sequence in 0..4 {
            self.fill(&[sequence], 40)?;
            alone.extend(self.run(&[sequence], 40, 1, true)?);
        }
        self.fill(&[0, 1, 2, 3], 40)?;
        let together = self.run(&[0, 1, 2, 3], 40, 1, true)?;
        ensure!(alone == together && alone.len() == 4, "alone {alone:?}, together {together:?}");
        Ok(())
    }
}

fn main() -> anyhow::Result<()> {
    let arguments = Arguments::parse();
    let threads = arguments
        .threads
        .unwrap_or_else(|| std::thread::available_parallelism().map_or(1, std::num::NonZero::get));
    let limits = Limits::measure(threads, Effort::FULL);
    eprint!("{}", limits.table());
    if let Err(reason) = amx::check_and_trust() {
        eprintln!("tiles are not used: {reason}");
    }
    let mut cases = Vec::new();
    for model in &arguments.models {
        let path = locate::locate(model)?;
        let checkpoint = Checkpoint::open(&path)?;
        let config = LocalConfig {
            threads,
            kv_format: KvFormat::Bf16,
            blocks: BLOCKS,
            slots: MOST_ROWS,
            step_tokens: STEP_TOKENS,
            context_tokens: CONTEXT,
        };
        let executor = LocalExecutor::load(&checkpoint, config)?;
        let weights_bytes = std::fs::metadata(&path)?.len();
        let mut engine = Engine { executor, step: 0, sampled: vec![0; MOST_ROWS as usize] };
        engine.admit()?;
        engine.check().context("the answer must be right before it is timed")?;
        for step in STEPS.into_iter().filter(|step| step.name.contains(&arguments.steps)) {
            let case = measure(&mut engine, step, model, weights_bytes, &limits, arguments.tries)?;
            eprintln!("{}", line(&case));
            cases.push(case);
        }
    }
    if let Some(path) = arguments.record {
        let record = Record { machine: Machine::now(), limits, cases };
        write_record(&path, &record)?;
    }
    Ok(())
}

fn measure(
    engine: &mut Engine,
    step: Step,
    model: &str,
    weights_bytes: u64,
    limits: &Limits,
    tries: usize,
) -> anyhow::Result<Case> {
    let sequences: Vec<u32> = (0..step.sequences).collect();
    if step.after > 0 {
        engine.fill(&sequences, step.after)?;
    }
    engine.once(step)?;
    // A short step is repeated until the clock's reading is no part of it.
    let repeats = if step.tokens == 1 { 8 } else { 1 };
    let mut tries_us = Vec::new();
    for _ in 0..tries {
        let start = Instant::now();
        for _ in 0..repeats {
            engine.once(step)?;
        }
        tries_us.push(start.elapsed().as_secs_f64() * 1e6 / f64::from(repeats));
    }
    let mut sorted = tries_us.clone();
    sorted.sort_by(f64::total_cmp);
    let median_us = sorted[sorted.len() / 2];
    let tokens = step.sequences * step.tokens;
    let bound = roofline::of_step(limits, Caches::of_this_machine(), model, weights_bytes, step);
    Ok(Case {
        model: model.to_owned(),
        step: step.name,
        tokens,
        tries_us,
        median_us,
        tokens_per_s: f64::from(tokens) * 1e6 / median_us,
        least_us: bound.map(|(_, least_us)| least_us),
        limit: bound.map(|(limit, _)| limit),
        share: bound.map(|(_, least_us)| least_us / median_us),
    })
}

fn line(case: &Case) -> String {
    let Case { model, step, median_us, tokens_per_s, .. } = case;
    let share = match (case.share, case.limit) {
        (Some(share), Some(limit)) => format!("{:4.0} % of {limit}", share * 100.0),
        _ => String::from("no limit is known for this model"),
    };
    format!("{model:<20} {step:<20} {median_us:>10.0} us {tokens_per_s:>8.0} tokens/s  {share}")
}
