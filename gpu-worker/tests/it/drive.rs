//! Drives an executor with plans written by hand. The rule: a test decides every chunk, batch mate and block.

use std::collections::VecDeque;
use std::sync::Arc;

use pons_checkpoint::{Checkpoint, locate};
use pons_gpu_worker::executor::{
    LocalConfig, LocalExecutor, ModelExecutor, NewSequence, PlanItem, PromptLogprobs, RowOutput, StepPlan,
};
use pons_protocol::inference::TokenLogprobs;
use pons_protocol::sampling::{SamplingParams, StopParams};

/// Alternatives recorded at each position; more than any golden list, so that its ids are found.
pub(crate) const TOP: u32 = 64;

/// Opens a model that `cargo xtask model` fetches.
pub(crate) fn open(name: &str) -> Checkpoint {
    let path = locate::locate(name).unwrap_or_else(|error| {
        panic!("{error}\nthis test needs the weights of {name}: run `cargo xtask model {name}` first")
    });
    Checkpoint::open(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// A sequence under a test's control.
pub(crate) struct Sequence {
    slot: u32,
    blocks: Vec<u32>,
    /// Positions computed so far.
    done: u32,
    /// Output position of the next sampled token.
    sampled: u32,
}

impl Sequence {
    /// Blocks so far; the first of them can be shared with another sequence.
    pub(crate) fn blocks(&self) -> &[u32] {
        &self.blocks
    }
}

/// Tokens of one sequence for one step.
pub(crate) struct Chunk<'a> {
    pub(crate) sequence: &'a mut Sequence,
    pub(crate) tokens: &'a [u32],
    pub(crate) sample: bool,
    /// Report log probabilities of the tokens that follow; the value is what follows the last one.
    pub(crate) score: Option<Option<u32>>,
}

/// An executor and the blocks that are free.
pub(crate) struct Driver {
    pub(crate) executor: LocalExecutor,
    free_blocks: VecDeque<u32>,
    free_slots: Vec<u32>,
    released: Vec<u32>,
    admitted: Vec<NewSequence>,
    step: u64,
}

impl Driver {
    pub(crate) fn new(checkpoint: &Checkpoint, config: LocalConfig) -> Self {
        let executor = LocalExecutor::load(checkpoint, config).expect("the model loads");
        // A stride that is prime to the count hands the blocks out far from each other.
        let blocks = u64::from(config.blocks);
        let free_blocks = (0..blocks).map(|i| (i * 7919 % blocks) as u32).collect();
        Self {
            executor,
            free_blocks,
            free_slots: (0..config.slots).rev().collect(),
            released: Vec::new(),
            admitted: Vec::new(),
            step: 0,
        }
    }

    /// A sequence that starts with `prompt` and `generated`, whose first blocks may hold a prefix already.
    pub(crate) fn start(&mut self, prompt: &[u32], generated: &[u32], prefix: &[u32]) -> Sequence {
        let sampling = SamplingParams { temperature: 0.0, logprobs: Some(TOP), ..SamplingParams::default() };
        self.start_with(sampling, prompt, generated, prefix)
    }

    pub(crate) fn start_with(
        &mut self,
        sampling: SamplingParams,
        prompt: &[u32],
        generated: &[u32],
        prefix: &[u32],
    ) -> Sequence {
        let slot = self.free_slots.pop().expect("the test stays within the slots");
        self.admitted.push(NewSequence {
            slot,
            sampling: Arc::new(sampling),
            stop: Arc::new(StopParams::default()),
            end_tokens: Arc::from([]),
            prompt: Arc::from(prompt),
            generated: generated.to_vec(),
            grammar: None,
        });
        let done = prefix.len() as u32 * 16;
        Sequence { slot, blocks: prefix.to_vec(), done, sampled: generated.len() as u32 }
    }

    /// Ends a sequence. Its blocks past `shared` are free again.
    pub(crate) fn end(&mut self, sequence: Sequence, shared: usize) {
        self.free_blocks.extend(&sequence.blocks[shared..]);
        self.released.push(sequence.slot);
        self.free_slots.push(sequence.slot);
    }

    /// Computes one step.
    pub(crate) fn step(&mut self, chunks: &mut [Chunk<'_>]) -> Vec<RowOutput> {
        let mut items = Vec::new();
        for chunk in chunks {
            let sequence = &mut *chunk.sequence;
            let end = sequence.done + chunk.tokens.len() as u32;
            while (sequence.blocks.len() as u32) < end.div_ceil(16) {
                sequence.blocks.push(self.free_blocks.pop_front().expect("the test stays within the blocks"));
            }
            items.push(PlanItem {
                slot: sequence.slot,
                tokens: chunk.tokens.to_vec(),
                start: sequence.done,
                blocks: sequence.blocks.clone(),
                sample: chunk.sample.then_some(sequence.sampled),
                prompt_logprobs: chunk.score.map(|next| PromptLogprobs { top: TOP, next }),
            });
            sequence.done = end;
            sequence.sampled += u32::from(chunk.sample);
        }
        self.step += 1;
        let plan = StepPlan {
            step: self.step,
            released: std::mem::take(&mut self.released),
            admitted: std::mem::take(&mut self.admitted),
            items,
        };
        let ticket = self.executor.submit(plan).expect("the plan is valid");
        let rows = self.executor.collect(ticket).expect("the step is computed").rows;
        for row in &rows {
            assert_eq!(row.fault, None, "no row fails");
        }
        rows
    }

    /// Feeds `tokens` in chunks of the sizes given, over and over, and returns the last row.
    pub(crate) fn prefill(&mut self, sequence: &mut Sequence, tokens: &[u32], sizes: &[usize]) -> RowOutput {
        let mut rest = tokens;
        let mut sizes = sizes.iter().cycle();
        loop {
            let size = (*sizes.next().expect("a cycle never ends")).min(rest.len());
            let (chunk, after) = rest.split_at(size);
            rest = after;
            let sample = rest.is_empty();
            let mut rows = self.step(&mut [Chunk { sequence, tokens: chunk, sample, score: None }]);
            if sample {
                return rows.remove(0);
            }
        }
    }
}

/// The distribution that a sampled row reports.
pub(crate) fn distribution(row: &RowOutput) -> TokenLogprobs {
    row.logprobs.clone().expect("log probabilities were asked for")
}
