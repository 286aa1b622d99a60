//! The executor that computes in this process. The rule: a plan is checked in full before anything is computed,
//! and what goes wrong in one row stays in that row.

mod check;
mod masks;
mod slot;

use std::cell::RefCell;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use pons_checkpoint::{Checkpoint, ModelConfig};
use pons_kernels::{Isa, KvArena, KvFormat, Pool};
use pons_protocol::id::TokenId;
use pons_protocol::inference::TokenLogprobs;

use self::masks::Masks;
use self::slot::{Slot, Slots};
use super::{
    ExecutorError, ExecutorLimits, ModelExecutor, PlanItem, RowOutput, StepPlan, StepResult, StepTimes,
    Ticket,
};
use crate::backend::Backend;
use crate::backend::cpu::{CpuBackend, CpuLoader};
use crate::model::ModelError;
use crate::model::batch::StepBatch;
use crate::model::family::{self, Shape};
use crate::model::sampler::{self, Sampled, Scratch, TokenRow};
use crate::model::transformer::{LOGIT_ROWS, Transformer};
use crate::model::weights::Weights;
use crate::packed::Packed;

/// How to run a model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LocalConfig {
    /// Compute threads, the engine thread included.
    pub threads: usize,
    /// How keys and values are stored.
    pub kv_format: KvFormat,
    /// KV blocks of [`crate::kv::BLOCK_TOKENS`] tokens; see [`bytes_per_block`] for what one takes.
    pub blocks: u32,
    /// Most sequences with state at the same time.
    pub slots: u32,
    /// Most tokens of one step.
    pub step_tokens: u32,
    /// Most tokens of one sequence; at most what the model was made for.
    pub context_tokens: u32,
}

/// Bytes of one KV block over all layers of a model.
pub fn bytes_per_block(config: &ModelConfig, format: KvFormat) -> usize {
    KvArena::bytes_per_block(config.layers, config.kv_heads, config.head_dim, format)
}

/// Runs plans on a backend in this process.
pub struct LocalExecutor<B: Backend = CpuBackend> {
    transformer: Transformer<B>,
    pool: Arc<Pool>,
    limits: ExecutorLimits,
    slots: Slots,
    masks: Masks,
    fingerprint: String,
    last_ticket: u64,
    finished: Option<(Ticket, StepResult)>,
}

impl LocalExecutor<CpuBackend> {
    /// Loads a model onto the CPU.
    ///
    /// # Errors
    /// A checkpoint that can't be loaded, or a setting that is out of range.
    pub fn load(checkpoint: &Checkpoint, config: LocalConfig) -> Result<Self, ModelError> {
        check_config(&config, checkpoint.config())?;
        let packed = Arc::new(Packed::pack(checkpoint, config.threads)?);
        Self::load_packed(checkpoint, packed, config, &[])
    }

    /// Loads a model onto the CPU whose weights are packed, with compute threads kept on these cores; see
    /// [`Pool::pinned`].
    ///
    /// # Errors
    /// As [`LocalExecutor::load`].
    pub fn load_packed(
        checkpoint: &Checkpoint,
        packed: Arc<Packed>,
        config: LocalConfig,
        cores: &[usize],
    ) -> Result<Self, ModelError> {
        let model = checkpoint.config();
        check_config(&config, model)?;
        let shape = Shape::new(model);
        let isa = Isa::detect();
        let rope = family::rope(model, config.context_tokens as usize);
        let loader = CpuLoader::for_width(shape.hidden, packed);
        let weights = Weights::load(checkpoint, &shape, &loader, config.threads)?;
        let pool = Arc::new(Pool::pinned(config.threads, cores));
        let backend =
            CpuBackend::new(Arc::clone(&pool), isa, &shape, rope, config.blocks as usize, config.kv_format)?;
        let limits = ExecutorLimits {
            blocks: config.blocks,
            slots: config.slots,
            step_tokens: config.step_tokens,
            context_tokens: config.context_tokens,
            vocab_size: shape.vocab_size as u32,
        };
        let stored = if config.kv_format == KvFormat::Int8 { "-kv8" } else { "" };
        let fingerprint = format!("{}-{}{stored}", checkpoint.fingerprint(), isa.arithmetic());
        Ok(Self::new(Transformer::new(backend, shape, weights), pool, limits, fingerprint))
    }
}

fn check_config(config: &LocalConfig, model: &ModelConfig) -> Result<(), ModelError> {
    let bounded = |field, value: u64, most: u64| {
        if (1..=most).contains(&value) {
            return Ok(());
        }
        let remedy = format!("use 1 to {most}");
        Err(ModelError::Setting { field, value: value.to_string(), remedy })
    };
    bounded("threads", config.threads as u64, 1024)?;
    bounded("blocks", u64::from(config.blocks), u64::from(u32::MAX))?;
    bounded("slots", u64::from(config.slots), 65_536)?;
    bounded("step_tokens", u64::from(config.step_tokens), 65_536)?;
    bounded("context_tokens", u64::from(config.context_tokens), model.context as u64)
}

impl<B: Backend> LocalExecutor<B> {
    /// An executor around a model that is ready. `fingerprint` names weights and numeric path.
    pub fn new(
        transformer: Transformer<B>,
        pool: Arc<Pool>,
        limits: ExecutorLimits,
        fingerprint: String,
    ) -> Self {
        let slots = Slots::new(limits.slots, limits.vocab_size);
        let masks = Masks::default();
        Self { transformer, pool, limits, slots, masks, fingerprint, last_ticket: 0, finished: None }
    }

    /// Short hash of weights and numeric path; equal fingerprints give equal tokens.
    pub fn fingerprint(&self) -> &str {
        &self.fingerprint
    }

    fn run(&mut self, plan: &StepPlan, begun: Instant) -> StepResult {
        let mut batch = StepBatch::default();
        let mut wanted = Vec::new();
        for (index, item) in plan.items.iter().enumerate() {
            want(&mut wanted, index, item, batch.tokens.len() as u32);
            batch.push(&item.tokens, item.start, item.blocks.clone());
        }
        self.masks.start(&mut self.slots, &plan.items);
        let mut times = StepTimes::default();
        let mut lap = Lap(begun);
        lap.end(&mut times.build);
        self.transformer.forward(batch);
        lap.end(&mut times.forward);
        self.masks.finish(&mut self.slots, &self.pool);
        lap.end(&mut times.masks);
        let mut rows: Vec<RowOutput> = plan.items.iter().map(|_| RowOutput::default()).collect();
        for tile in wanted.chunks(LOGIT_ROWS) {
            for (w, done) in tile.iter().zip(self.compute_tile(tile, &plan.items, &mut times)) {
                settle(&mut rows[w.item], done);
            }
        }
        let mut lap = Lap(Instant::now());
        for (item, row) in plan.items.iter().zip(&mut rows) {
            self.slots.get_mut(item.slot).finish(row);
        }
        lap.end(&mut times.sample);
        StepResult { rows, times }
    }

    /// Logits of a tile of rows, and what is wanted of each.
    fn compute_tile(&mut self, tile: &[Wanted], items: &[PlanItem], times: &mut StepTimes) -> Vec<Done> {
        let mut lap = Lap(Instant::now());
        let rows: Vec<u32> = tile.iter().map(|w| w.row).collect();
        let vocab = self.limits.vocab_size as usize;
        let logits = self.transformer.logits(&rows);
        lap.end(&mut times.forward);
        let slots = &self.slots;
        let done: Vec<OnceLock<Done>> = tile.iter().map(|_| OnceLock::new()).collect();
        self.pool.run(tile.len(), &|part| {
            let w = &tile[part];
            let row = &logits[part * vocab..][..vocab];
            // Each part runs once, so the cell is empty.
            let _ = done[part].set(w.kind.compute(row, slots.get(items[w.item].slot)));
        });
        let done =
            done.into_iter().map(|cell| cell.into_inner().expect("the pool runs every part")).collect();
        lap.end(&mut times.sample);
        done
    }
}

/// A stopwatch that goes on from lap to lap.
struct Lap(Instant);

impl Lap {
    /// Adds what has passed since the last lap.
    fn end(&mut self, to: &mut Duration) {
        let now = Instant::now();
        *to += now - self.0;
        self.0 = now;
    }
}

/// Something to do with one row of logits.
struct Wanted {
    row: u32,
    item: usize,
    kind: Kind,
}

enum Kind {
    /// Choose the token of this output position.
    Sample(u32),
    /// Report the prompt token that follows.
    Prompt(TokenRow),
}

enum Done {
    Sampled(Result<Sampled, String>),
    Prompt(Result<TokenLogprobs, String>),
}

thread_local! {
    static SCRATCH: RefCell<Scratch> = RefCell::default();
}

impl Kind {
    fn compute(&self, logits: &[f32], slot: &Slot) -> Done {
        match self {
            Self::Sample(position) => Done::Sampled(SCRATCH.with_borrow_mut(|scratch| {
                let mask = slot.mask()?;
                sampler::sample(logits, slot.sampler(), mask, *position, scratch)
                    .map_err(|error| error.to_string())
            })),
            Self::Prompt(row) => Done::Prompt(SCRATCH.with_borrow(|scratch| {
                sampler::check_finite(logits).map_err(|error| error.to_string())?;
                Ok(sampler::token_logprobs(scratch.isa(), logits, *row))
            })),
        }
    }
}

fn want(wanted: &mut Vec<Wanted>, index: usize, item: &PlanItem, first_row: u32) {
    if let Some(prompt) = item.prompt_logprobs {
        let following: Vec<TokenId> = item.tokens[1..].iter().copied().chain(prompt.next).collect();
        for (offset, token) in following.into_iter().enumerate() {
            let row = TokenRow { token: Some(token), top: prompt.top as usize };
            wanted.push(Wanted { row: first_row + offset as u32, item: index, kind: Kind::Prompt(row) });
        }
    }
    if let Some(position) = item.sample {
        let row = first_row + item.tokens.len() as u32 - 1;
        wanted.push(Wanted { row, item: index, kind: Kind::Sample(position) });
    }
}

fn settle(row: &mut RowOutput, done: Done) {
    match done {
        Done::Sampled(Ok(sampled)) => {
            row.token = Some(sampled.token);
            row.logprobs = sampled.logprobs;
        }
        Done::Prompt(Ok(logprobs)) => row.prompt_logprobs.push(logprobs),
        Done::Sampled(Err(fault)) | Done::Prompt(Err(fault)) => {
            row.fault.get_or_insert(fault);
        }
    }
}

impl<B: Backend> ModelExecutor for LocalExecutor<B> {
    fn limits(&self) -> ExecutorLimits {
        self.limits
    }

    /// The CPU computes on the calling thread and its pool, so the step is done when this returns.
    fn submit(&mut self, mut plan: StepPlan) -> Result<Ticket, ExecutorError> {
        if self.finished.is_some() {
            return Err(ExecutorError::InvalidPlan(
                "a step is in flight already; collect it first".to_owned(),
            ));
        }
        let begun = Instant::now();
        check::plan(&plan, &self.limits, &self.slots).map_err(ExecutorError::InvalidPlan)?;
        for &slot in &plan.released {
            self.slots.release(slot);
        }
        for sequence in std::mem::take(&mut plan.admitted) {
            self.slots.admit(sequence);
        }
        let result = self.run(&plan, begun);
        self.last_ticket += 1;
        let ticket = Ticket(self.last_ticket);
        self.finished = Some((ticket, result));
        Ok(ticket)
    }

    fn collect(&mut self, ticket: Ticket) -> Result<StepResult, ExecutorError> {
        match self.finished.take() {
            Some((current, result)) if current == ticket => Ok(result),
            other => {
                self.finished = other;
                Err(ExecutorError::InvalidPlan(format!("ticket {} is not in flight", ticket.0)))
            }
        }
    }
}
