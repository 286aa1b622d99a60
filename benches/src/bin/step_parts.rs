//! `step_parts`: where the time of decoding steps goes: the model, sampling, grammars, the scheduler, framing. The
//! rule: the answer is checked first (a row in company gives the tokens it gives alone), and everything but the
//! model is counted as overhead.

use std::hint::black_box;
use std::path::PathBuf;
use std::time::Instant;

use anyhow::{Context, bail, ensure};
use clap::Parser;
use pons_benches::machine::{Machine, write_record};
use pons_checkpoint::tokenizer::TokenTable;
use pons_checkpoint::{Checkpoint, locate};
use pons_gpu_worker::engine::{Engine, Spent};
use pons_gpu_worker::executor::{LocalConfig, LocalExecutor, ModelExecutor};
use pons_gpu_worker::grammar::{GrammarMatcher, Grammars};
use pons_gpu_worker::scheduler::SchedulerConfig;
use pons_gpu_worker::vocabulary::token_texts;
use pons_kernels::KvFormat;
use pons_protocol::id::{SequenceId, TenantId, TokenId};
use pons_protocol::inference::{FromBrain, StepOutput, Submit};
use pons_protocol::sampling::{Grammar, SamplingParams, StopParams};
use pons_protocol::wire::Encoder;
use serde::Serialize;

/// Tokens of each prompt.
const PROMPT: u32 = 64;
/// Tokens each sequence may give; more than any case takes.
const OUTPUT: u32 = 1024;
/// Steps that nobody times, so that caches and branch predictors are warm.
const WARM_UP: u32 = 4;
/// Tokens compared before anything is timed.
const CHECKED: usize = 12;
/// A list of objects, which goes on for as long as the model likes.
const SCHEMA: &str = r#"{"type":"array","minItems":500,"items":{"type":"object","properties":{
    "name":{"type":"string","pattern":"^[A-Z][a-z]{2,12}$"},"age":{"type":"integer","minimum":0,"maximum":130},
    "kind":{"enum":["cat","dog","bird","fish"]},"tags":{"type":"array","items":{"type":"string"},"maxItems":3}},
    "required":["name","age","kind","tags"],"additionalProperties":false}}"#;

/// Time decoding steps of a model part by part.
#[derive(Parser)]
struct Arguments {
    /// Name or path of a model
    #[arg(long, default_value = "smollm2-135m")]
    model: String,
    /// Compute threads
    #[arg(long)]
    threads: Option<usize>,
    /// Sequences that decode side by side
    #[arg(long, value_delimiter = ',', default_value = "8,32")]
    rows: Vec<u32>,
    /// Steps that are timed
    #[arg(long, default_value_t = 60)]
    steps: u32,
    /// Record to write
    #[arg(long, value_name = "FILE")]
    record: Option<PathBuf>,
}

/// How tokens are chosen in a case.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
enum Choice {
    /// The most probable one.
    Greedy,
    /// Drawn, all tokens in the race.
    Drawn,
    /// Drawn from the nucleus.
    TopP,
    /// Drawn, held to a JSON schema.
    Schema,
}

impl Choice {
    const ALL: [Self; 4] = [Self::Greedy, Self::Drawn, Self::TopP, Self::Schema];

    fn sampling(self, seed: u64) -> SamplingParams {
        let plain = SamplingParams { seed, ..SamplingParams::default() };
        match self {
            Self::Greedy => SamplingParams { temperature: 0.0, ..plain },
            Self::Drawn | Self::Schema => SamplingParams { temperature: 0.8, ..plain },
            Self::TopP => SamplingParams { temperature: 0.8, top_p: 0.95, ..plain },
        }
    }
}

/// One case; times are means of a step, in microseconds.
#[derive(Serialize)]
struct Case {
    rows: u32,
    choice: Choice,
    step_us: f64,
    forward_us: f64,
    sample_us: f64,
    /// A part of `sample_us`.
    masks_us: f64,
    schedule_us: f64,
    send_us: f64,
    /// Share of the step that is not the model.
    overhead: f64,
}

#[derive(Serialize)]
struct Record {
    machine: Machine,
    model: String,
    threads: usize,
    cases: Vec<Case>,
}

/// An engine with sequences that decode.
struct Bench {
    engine: Engine<LocalExecutor>,
    grammar: GrammarMatcher,
    encoder: Encoder,
    begun: Instant,
    next: u64,
}

impl Bench {
    fn submit(&mut self, seed: u64, choice: Choice) -> anyhow::Result<SequenceId> {
        self.next += 1;
        let sequence = SequenceId(self.next);
        let submit = Submit {
            sequence,
            tenant: TenantId(1),
            cache_salt: [1; 16],
            priority: 0,
            prompt: (0..PROMPT).map(|position| token(seed as u32, position)).collect(),
            generated: Vec::new(),
            sampling: choice.sampling(seed),
            stop: StopParams { max_tokens: OUTPUT, ignore_eos: true, ..StopParams::default() },
            grammar: None,
            queue_timeout_ms: 0,
        };
        let grammar = (choice == Choice::Schema).then(|| self.grammar.clone());
        match self.engine.submit(submit, grammar, self.begun.elapsed().as_micros() as u64) {
            Ok(()) => Ok(sequence),
            Err(rejection) => bail!("{}", rejection.message),
        }
    }

    fn step(&mut self) -> anyhow::Result<StepOutput> {
        let begun = self.begun;
        let output =
            self.engine.step(|| begun.elapsed().as_micros() as u64)?.context("nothing to compute")?;
        ensure!(output.outputs.iter().all(|o| o.finish.is_none()), "a sequence ended early");
        Ok(output)
    }

    /// The first tokens of sequences that run side by side.
    fn tokens(&mut self, seeds: &[u64], choice: Choice) -> anyhow::Result<Vec<Vec<TokenId>>> {
        let ids = seeds.iter().map(|&seed| self.submit(seed, choice)).collect::<anyhow::Result<Vec<_>>>()?;
        let mut tokens = vec![Vec::new(); ids.len()];
        while tokens.iter().any(|tokens| tokens.len() < CHECKED) {
            for output in self.step()?.outputs {
                let index =
                    ids.iter().position(|id| *id == output.sequence).context("a stranger's output")?;
                tokens[index].extend(output.tokens);
            }
        }
        ids.into_iter().for_each(|id| self.engine.abort(id));
        tokens.iter_mut().for_each(|tokens| tokens.truncate(CHECKED));
        Ok(tokens)
    }

    fn check(&mut self, choice: Choice) -> anyhow::Result<()> {
        let together = self.tokens(&[1, 2, 3, 4], choice)?;
        for (seed, tokens) in (1..).zip(&together) {
            let alone = self.tokens(&[seed], choice)?;
            ensure!(alone[0] == *tokens, "{choice:?}: alone {:?}, in company {tokens:?}", alone[0]);
        }
        Ok(())
    }

    fn measure(&mut self, rows: u32, choice: Choice, steps: u32) -> anyhow::Result<Case> {
        let ids =
            (0..rows).map(|seed| self.submit(u64::from(seed), choice)).collect::<anyhow::Result<Vec<_>>>()?;
        while self.step()?.outputs.len() < rows as usize {}
        for _ in 0..WARM_UP {
            self.step()?;
        }
        let (before, begun) = (self.engine.spent(), Instant::now());
        for _ in 0..steps {
            let output = FromBrain::Step(self.step()?);
            let framing = Instant::now();
            black_box(self.encoder.from_brain(&output));
            self.engine.note_send(framing.elapsed());
        }
        let total_us = begun.elapsed().as_secs_f64() * 1e6 / f64::from(steps);
        let after = self.engine.spent();
        ids.into_iter().for_each(|id| self.engine.abort(id));
        let mean = |part: fn(&Spent) -> std::time::Duration| {
            (part(&after) - part(&before)).as_secs_f64() * 1e6 / f64::from(steps)
        };
        let forward_us = mean(|spent| spent.forward);
        Ok(Case {
            rows,
            choice,
            step_us: total_us,
            forward_us,
            sample_us: mean(|spent| spent.sample),
            masks_us: mean(|spent| spent.masks),
            schedule_us: mean(|spent| spent.schedule),
            send_us: mean(|spent| spent.send),
            overhead: 1.0 - forward_us / total_us,
        })
    }
}

/// A token of a text that is the same every time: ids that every vocabulary has.
fn token(sequence: u32, position: u32) -> TokenId {
    1000 + (sequence * 7919 + position * 104_729) % 20_000
}

fn main() -> anyhow::Result<()> {
    let arguments = Arguments::parse();
    let threads = arguments
        .threads
        .unwrap_or_else(|| std::thread::available_parallelism().map_or(1, std::num::NonZero::get));
    let checkpoint = Checkpoint::open(&locate::locate(&arguments.model)?)?;
    let most_rows = arguments.rows.iter().copied().max().unwrap_or(1).max(4);
    let context_tokens = 2 * OUTPUT;
    let config = LocalConfig {
        threads,
        kv_format: KvFormat::Bf16,
        blocks: most_rows * context_tokens / 16,
        slots: most_rows,
        step_tokens: 2048,
        context_tokens,
    };
    let executor = LocalExecutor::load(&checkpoint, config)?;
    let texts = token_texts(&TokenTable::open(&checkpoint)?, executor.limits().vocab_size);
    let eos_token_ids = checkpoint.config().eos.clone();
    let compile = || Grammars::new(&texts, &eos_token_ids)?.compile(&Grammar::JsonSchema(SCHEMA.to_owned()));
    let grammar = compile().map_err(anyhow::Error::msg)?;
    let scheduler =
        SchedulerConfig { eos_token_ids, step_tokens: 2048, itl_target_us: 0, ..SchedulerConfig::default() };
    let engine = Engine::new(executor, scheduler);
    let mut bench = Bench { engine, grammar, encoder: Encoder::new(), begun: Instant::now(), next: 0 };
    let mut cases = Vec::new();
    eprintln!("rows choice      step us  forward   sample (masks)  schedule    send  overhead");
    for &rows in &arguments.rows {
        for choice in Choice::ALL {
            bench.check(choice).context("the answer must be right before it is timed")?;
            let case = bench.measure(rows, choice, arguments.steps)?;
            eprintln!("{}", line(&case));
            cases.push(case);
        }
    }
    if let Some(path) = arguments.record {
        let record = Record { machine: Machine::now(), model: arguments.model, threads, cases };
        write_record(&path, &record)?;
    }
    Ok(())
}

fn line(case: &Case) -> String {
    let Case { rows, choice, step_us, forward_us, sample_us, masks_us, schedule_us, send_us, overhead } =
        case;
    let choice = format!("{choice:?}");
    format!(
        "{rows:>4} {choice:<8} {step_us:>10.0} {forward_us:>8.0} {sample_us:>8.0} {masks_us:>7.0} \
         {schedule_us:>9.0} {send_us:>7.0} {:>8.2} %",
        overhead * 100.0
    )
}
