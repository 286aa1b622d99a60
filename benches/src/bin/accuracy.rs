//! `accuracy`: how far a model's log probabilities are from those of its weights in f32 arithmetic, as the
//! Kullback–Leibler divergence over a fixed text. The rule: the reference comes from another engine.
//!
//! The reference is a file that llama.cpp's `llama-perplexity --kl-divergence-base` writes for the model converted to
//! f32; the same tool then measures llama.cpp's own quantised path against it. `docs/cpu-performance.md` has the
//! commands. Per chunk of text the second half of the positions counts, as there.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context, bail, ensure};
use clap::Parser;
use pons_benches::machine::{Machine, write_record};
use pons_checkpoint::{Checkpoint, locate};
use pons_gpu_worker::config::parse_kv_format;
use pons_gpu_worker::executor::{
    LocalConfig, LocalExecutor, ModelExecutor, NewSequence, PlanItem, PromptLogprobs, StepPlan,
};
use pons_gpu_worker::kv::BLOCK_TOKENS;
use pons_kernels::KvFormat;
use serde::Serialize;

/// What the reference's numbers leave out: tokens less likely than this (natural logarithm).
const LEAST_LOG_PROBABILITY: f32 = -16.0;

/// Positions whose whole distributions are in memory together.
const SCORED: usize = 32;

/// Compare a model with its own weights in f32 arithmetic.
#[derive(Parser)]
struct Arguments {
    /// Name or path of the model
    #[arg(long)]
    model: String,
    /// Reference, as `llama-perplexity --kl-divergence-base` writes it
    #[arg(long, value_name = "FILE")]
    base: PathBuf,
    /// How keys and values are stored
    #[arg(long, value_name = "FORMAT", default_value = "bf16", value_parser = parse_kv_format)]
    kv_format: KvFormat,
    /// Record to write
    #[arg(long, value_name = "FILE")]
    record: Option<PathBuf>,
}

/// Log probabilities of another engine over a text in chunks of equal length.
struct Base {
    bytes: Vec<u8>,
    context: usize,
    vocabulary: usize,
    tokens: Vec<u32>,
    /// Where the first row starts.
    rows_at: usize,
}

impl Base {
    fn open(path: &Path) -> anyhow::Result<Base> {
        let bytes = std::fs::read(path).with_context(|| format!("cannot read {}", path.display()))?;
        Base::parse(bytes).with_context(|| format!("{} is no reference", path.display()))
    }

    fn parse(bytes: Vec<u8>) -> anyhow::Result<Base> {
        ensure!(bytes.starts_with(b"_logits_"), "it does not start with `_logits_`");
        let number = |at: usize| -> anyhow::Result<usize> {
            let four = bytes.get(at..at + 4).context("it ends in its header")?;
            Ok(u32::from_le_bytes(four.try_into()?) as usize)
        };
        let (context, vocabulary, chunks) = (number(8)?, number(12)?, number(16)?);
        ensure!((4..=1 << 20).contains(&context), "its chunks of {context} tokens are none we can compute");
        ensure!((1..=1 << 24).contains(&vocabulary), "a vocabulary of {vocabulary} tokens can't be");
        let rows_at =
            context.checked_mul(chunks).and_then(|tokens| tokens.checked_mul(4)).map(|bytes| bytes + 20);
        let rows_at = rows_at.filter(|&at| at <= bytes.len()).context("it ends among its tokens")?;
        let words = bytes[20..rows_at].chunks_exact(4);
        let tokens: Vec<u32> =
            words.map(|word| u32::from_le_bytes([word[0], word[1], word[2], word[3]])).collect();
        let base = Base { bytes, context, vocabulary, tokens, rows_at };
        let wanted = rows_at + chunks * base.rows() * base.row_bytes();
        ensure!(
            base.bytes.len() == wanted,
            "it has {} bytes; its header asks for {wanted}",
            base.bytes.len()
        );
        Ok(base)
    }

    /// Positions of a chunk that have a row: the second half but the last.
    fn rows(&self) -> usize {
        self.context - 1 - self.context / 2
    }

    /// A scale, a least value, and a number of 16 bits a token.
    fn row_bytes(&self) -> usize {
        8 + self.vocabulary.next_multiple_of(2) * 2
    }

    /// Log probabilities after position `context / 2 + row` of a chunk.
    fn row(&self, chunk: usize, row: usize) -> Vec<f32> {
        let at = self.rows_at + (chunk * self.rows() + row) * self.row_bytes();
        let row = &self.bytes[at..at + self.row_bytes()];
        let float = |at: usize| f32::from_le_bytes([row[at], row[at + 1], row[at + 2], row[at + 3]]);
        let (scale, least) = (float(0), float(4));
        let numbers = row[8..].chunks_exact(2).take(self.vocabulary);
        numbers.map(|two| scale * f32::from(u16::from_le_bytes([two[0], two[1]])) + least).collect()
    }
}

/// The divergence of one position, and whether the best tokens are the same. `ours` may be in any order.
fn diverge(base: &[f32], ours: &[(u32, f32)]) -> (f64, bool) {
    let likely = ours.iter().map(|&(token, ours)| (base[token as usize], ours));
    let likely = likely.filter(|(base, _)| *base > LEAST_LOG_PROBABILITY);
    let divergence = likely.map(|(base, ours)| f64::from(base).exp() * (f64::from(base) - f64::from(ours)));
    let best = ours.iter().max_by(|a, b| a.1.total_cmp(&b.1).then(b.0.cmp(&a.0)));
    let likelier = |best: u32| base.iter().any(|&other| other > base[best as usize]);
    (divergence.sum(), best.is_some_and(|&(best, _)| !likelier(best)))
}

/// A model whose log probabilities are asked for, chunk after chunk of a text.
struct Subject {
    executor: LocalExecutor,
    step: u64,
    vocabulary: u32,
    blocks: u32,
}

impl Subject {
    /// Computes tokens `range` of a chunk; with `scored`, gives the log probabilities of all tokens after each.
    fn run(
        &mut self,
        tokens: &[u32],
        range: std::ops::Range<usize>,
        scored: bool,
    ) -> anyhow::Result<Vec<Vec<(u32, f32)>>> {
        let fresh = range.start == 0;
        let item = PlanItem {
            slot: 0,
            tokens: tokens[range.clone()].to_vec(),
            start: range.start as u32,
            blocks: (0..self.blocks).take(range.end.div_ceil(BLOCK_TOKENS as usize)).collect(),
            sample: None,
            prompt_logprobs: scored
                .then(|| PromptLogprobs { top: self.vocabulary, next: tokens.get(range.end).copied() }),
        };
        let sequence = || NewSequence {
            slot: 0,
            sampling: Arc::default(),
            stop: Arc::default(),
            end_tokens: Arc::from([]),
            prompt: Arc::from(tokens),
            generated: Vec::new(),
            grammar: None,
        };
        let released = if fresh && self.step > 0 { vec![0] } else { Vec::new() };
        self.step += 1;
        let admitted = fresh.then(sequence).into_iter().collect();
        let plan = StepPlan { step: self.step, released, admitted, items: vec![item] };
        let ticket = self.executor.submit(plan)?;
        let mut rows = self.executor.collect(ticket)?.rows;
        let row = rows.pop().context("a step of one sequence has one row")?;
        if let Some(fault) = row.fault {
            bail!("the model failed: {fault}");
        }
        Ok(row.prompt_logprobs.into_iter().map(|row| row.top).collect())
    }

    /// Divergences of a chunk, and how many best tokens are the same.
    fn compare(&mut self, base: &Base, chunk: usize) -> anyhow::Result<(Vec<f64>, usize)> {
        let tokens = &base.tokens[chunk * base.context..][..base.context];
        let first = base.context / 2;
        self.run(tokens, 0..first, false)?;
        let (mut divergences, mut same) = (Vec::new(), 0);
        let last = base.context - 1;
        for start in (first..last).step_by(SCORED) {
            for row in self.run(tokens, start..last.min(start + SCORED), true)? {
                let (divergence, best) = diverge(&base.row(chunk, divergences.len()), &row);
                divergences.push(divergence);
                same += usize::from(best);
            }
        }
        ensure!(divergences.len() == base.rows(), "{} positions of {} came", divergences.len(), base.rows());
        Ok((divergences, same))
    }
}

#[derive(Serialize)]
struct Record {
    machine: Machine,
    model: String,
    fingerprint: String,
    kv_format: String,
    positions: usize,
    mean: f64,
    median: f64,
    p99: f64,
    most: f64,
    /// Share of positions whose most likely token is that of the reference.
    same_best: f64,
}

fn main() -> anyhow::Result<()> {
    let arguments = Arguments::parse();
    let base = Base::open(&arguments.base)?;
    let checkpoint = Checkpoint::open(&locate::locate(&arguments.model)?)?;
    let vocabulary = checkpoint.config().vocab_size;
    ensure!(
        vocabulary == base.vocabulary,
        "the model has {vocabulary} tokens, the reference {}; make it from the same model",
        base.vocabulary
    );
    let blocks = (base.context as u32).div_ceil(BLOCK_TOKENS);
    let config = LocalConfig {
        threads: std::thread::available_parallelism().map_or(1, std::num::NonZero::get),
        kv_format: arguments.kv_format,
        blocks,
        slots: 1,
        step_tokens: base.context as u32,
        context_tokens: base.context as u32,
    };
    let executor = LocalExecutor::load(&checkpoint, config)?;
    let fingerprint = executor.fingerprint().to_owned();
    let mut subject = Subject { executor, step: 0, vocabulary: vocabulary as u32, blocks };
    let (mut divergences, mut same) = (Vec::new(), 0);
    for chunk in 0..base.tokens.len() / base.context {
        let (more, best) = subject.compare(&base, chunk)?;
        divergences.extend(more);
        same += best;
    }
    if divergences.iter().any(|divergence| !divergence.is_finite()) {
        bail!("the model gave log probabilities that are no numbers");
    }
    divergences.sort_by(f64::total_cmp);
    let positions = divergences.len();
    ensure!(positions > 0, "the reference has no positions");
    let record = Record {
        machine: Machine::now(),
        model: arguments.model,
        fingerprint,
        kv_format: format!("{:?}", arguments.kv_format).to_lowercase(),
        positions,
        mean: divergences.iter().sum::<f64>() / positions as f64,
        median: divergences[positions / 2],
        p99: divergences[positions * 99 / 100],
        most: divergences[positions - 1],
        same_best: same as f64 / positions as f64,
    };
    eprintln!(
        "{}: {positions} positions, mean {:.6}, median {:.6}, p99 {:.6}, most {:.6}, same best token {:.2} %",
        record.model,
        record.mean,
        record.median,
        record.p99,
        record.most,
        record.same_best * 100.0
    );
    if let Some(path) = arguments.record {
        write_record(&path, &record)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Two chunks of four tokens; the position that counts has the numbers 0, 10, 20 with a scale of 0.5 above -9.
    fn reference() -> Vec<u8> {
        let mut bytes = b"_logits_".to_vec();
        let words = [4_u32, 3, 2].into_iter().chain(0..8);
        words.for_each(|word| bytes.extend(word.to_le_bytes()));
        for _ in 0..2 {
            [0.5_f32, -9.0].into_iter().for_each(|float| bytes.extend(float.to_le_bytes()));
            [0_u16, 10, 20, 0].into_iter().for_each(|number| bytes.extend(number.to_le_bytes()));
        }
        bytes
    }

    #[test]
    fn a_reference_is_read_as_it_was_written() {
        let base = Base::parse(reference()).unwrap();
        assert_eq!((base.context, base.vocabulary, base.rows()), (4, 3, 1));
        assert_eq!(base.tokens, (0..8).collect::<Vec<u32>>());
        assert_eq!(base.row(1, 0), [-9.0, -4.0, 1.0]);
    }

    #[test]
    fn a_reference_that_is_cut_or_foreign_is_refused() {
        for length in 0..reference().len() {
            assert!(Base::parse(reference()[..length].to_vec()).is_err(), "{length} bytes");
        }
        let longer = [reference(), vec![0]].concat();
        assert!(Base::parse(longer).is_err());
    }

    #[test]
    fn equal_distributions_do_not_diverge_and_others_by_their_definition() {
        let base = [0.5_f32.ln(), 0.3_f32.ln(), 0.2_f32.ln()];
        let same: Vec<(u32, f32)> = (0..).zip(base).collect();
        let (divergence, best) = diverge(&base, &same);
        assert!(divergence.abs() < 1e-9 && best);
        let other = [(2, 0.2_f32.ln()), (1, 0.5_f32.ln()), (0, 0.3_f32.ln())];
        let (divergence, best) = diverge(&base, &other);
        let expected = 0.5 * (0.5_f64 / 0.3).ln() + 0.3 * (0.3_f64 / 0.5).ln();
        assert!((divergence - expected).abs() < 1e-6 && !best, "{divergence} for {expected}");
    }
}
