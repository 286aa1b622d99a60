//! An executor without a model, for tests of scheduling.
//!
//! The rule: a token depends on every token before it *as read back through the block table*. Each block cell
//! remembers a running hash of the sequence up to it, so a wrong table, a stale block, a shared block written
//! twice or a missed recomputation gives a wrong token or an error, never the right text.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use pons_protocol::id::TokenId;
use pons_protocol::inference::TokenLogprobs;
use pons_protocol::sampling::SamplingParams;

use super::{
    BlockId, ExecutorError, ExecutorLimits, ModelExecutor, NewSequence, PlanItem, RowOutput, SlotId,
    StepPlan, StepResult, Ticket,
};
use crate::kv::BLOCK_TOKENS;

/// What happens when the sequence with a seed samples at an output position.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Script {
    /// This token comes out.
    Token(TokenId),
    /// The token comes out as usual, and the grammar is complete with it.
    GrammarEnd,
    /// The row fails.
    Fault,
}

/// Virtual time of a step.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StepCost {
    /// Of a step.
    pub step_us: u64,
    /// Of each token in addition.
    pub token_us: u64,
}

/// Scripted events by (seed, output position).
pub type Scripts = HashMap<(u64, u32), Script>;

/// The executor.
pub struct FakeExecutor {
    limits: ExecutorLimits,
    cost: StepCost,
    scripts: Arc<Scripts>,
    cells: Vec<Option<u64>>,
    slots: HashMap<SlotId, Slot>,
    clock_us: Arc<AtomicU64>,
    pending: Option<(Ticket, StepResult)>,
    next_ticket: u64,
    last_step: u64,
}

struct Slot {
    sequence: NewSequence,
    sampled: u32,
}

impl FakeExecutor {
    /// An executor with empty blocks.
    pub fn new(limits: ExecutorLimits) -> Self {
        let cells = limits.blocks as usize * BLOCK_TOKENS as usize;
        Self {
            limits,
            cost: StepCost::default(),
            scripts: Arc::default(),
            cells: vec![None; cells],
            slots: HashMap::new(),
            clock_us: Arc::default(),
            pending: None,
            next_ticket: 0,
            last_step: 0,
        }
    }

    /// Steps take this much virtual time.
    pub fn with_cost(mut self, cost: StepCost) -> Self {
        self.cost = cost;
        self
    }

    /// These events happen.
    pub fn with_scripts(mut self, scripts: Arc<Scripts>) -> Self {
        self.scripts = scripts;
        self
    }

    /// The virtual clock, which each step moves on.
    pub fn clock_us(&self) -> Arc<AtomicU64> {
        self.clock_us.clone()
    }

    /// Sequences that have a slot.
    pub fn occupied_slots(&self) -> usize {
        self.slots.len()
    }

    /// Whether a block holds the last tokens of `tokens`, computed after all those before.
    pub fn block_holds(&self, block: BlockId, tokens: &[TokenId]) -> bool {
        let size = BLOCK_TOKENS as usize;
        let first = tokens.len().saturating_sub(size);
        let mut state = tokens[..first].iter().fold(0, |state, token| extend(state, *token));
        let cells = &self.cells[block as usize * size..][..size];
        tokens.len() >= size
            && tokens[first..].iter().zip(cells).all(|(token, cell)| {
                state = extend(state, *token);
                *cell == Some(state)
            })
    }

    fn validate(&self, plan: &StepPlan) -> Result<(), String> {
        if plan.step <= self.last_step {
            return Err(format!("step {} follows step {}", plan.step, self.last_step));
        }
        let tokens: usize = plan.items.iter().map(|item| item.tokens.len()).sum();
        if tokens == 0 || tokens > self.limits.step_tokens as usize {
            return Err(format!("{tokens} tokens in a step of at most {}", self.limits.step_tokens));
        }
        let mut users: HashMap<BlockId, usize> = HashMap::new();
        for block in plan.items.iter().flat_map(|item| &item.blocks) {
            *users.entry(*block).or_default() += 1;
        }
        let mut seen = Vec::new();
        for item in &plan.items {
            let end = item.start as usize + item.tokens.len();
            if seen.contains(&item.slot) || item.tokens.is_empty() {
                return Err(format!("slot {} has two items or an empty one", item.slot));
            }
            seen.push(item.slot);
            if end > item.blocks.len() * BLOCK_TOKENS as usize || end > self.limits.context_tokens as usize {
                return Err(format!(
                    "slot {} computes {end} tokens in {} blocks",
                    item.slot,
                    item.blocks.len()
                ));
            }
            if item.blocks.iter().any(|block| *block >= self.limits.blocks) {
                return Err(format!("slot {} names a block that does not exist", item.slot));
            }
            let written = &item.blocks[item.start as usize / BLOCK_TOKENS as usize..];
            if let Some(block) = written.iter().find(|block| users.get(block) != Some(&1)) {
                return Err(format!("slot {} writes block {block}, which another item uses", item.slot));
            }
        }
        Ok(())
    }

    fn change_slots(&mut self, plan: &mut StepPlan) -> Result<(), String> {
        for slot in &plan.released {
            if self.slots.remove(slot).is_none() {
                return Err(format!("slot {slot} is released but not occupied"));
            }
        }
        for sequence in plan.admitted.drain(..) {
            let (slot, sampled) = (sequence.slot, to_u32(sequence.generated.len()));
            if slot >= self.limits.slots {
                return Err(format!("slot {slot} does not exist"));
            }
            if self.slots.insert(slot, Slot { sequence, sampled }).is_some() {
                return Err(format!("slot {slot} is admitted but occupied"));
            }
        }
        Ok(())
    }

    fn compute(&mut self, item: &PlanItem) -> Result<RowOutput, String> {
        let mut state = 0;
        for position in 0..item.start {
            state = self.cells[cell(item, position)]
                .ok_or_else(|| format!("slot {} reads position {position}, never computed", item.slot))?;
            // Each cell stands for all before it, but every one is read, as attention does.
            if position + 1 < item.start {
                let next = self.cells[cell(item, position + 1)];
                if next.is_some_and(|next| !follows(state, next)) {
                    return Err(format!("slot {} reads a foreign block at {}", item.slot, position + 1));
                }
            }
        }
        let mut row = RowOutput::default();
        for (position, token) in (item.start..).zip(&item.tokens) {
            state = extend(state, *token);
            self.cells[cell(item, position)] = Some(state);
            if let Some(wanted) = item.prompt_logprobs {
                let next = item.tokens.get((position - item.start) as usize + 1).copied().or(wanted.next);
                row.prompt_logprobs.extend(next.map(|next| logprobs(state, next, wanted.top)));
            }
        }
        let slot = self.slots.get_mut(&item.slot).ok_or_else(|| format!("slot {} is unknown", item.slot))?;
        if let Some(position) = item.sample {
            if position != slot.sampled {
                return Err(format!("slot {} samples {position}, expected {}", item.slot, slot.sampled));
            }
            slot.sampled += 1;
            let sequence = &slot.sequence;
            let script = self.scripts.get(&(sequence.sampling.seed, position));
            let masked: &[TokenId] =
                if position < sequence.stop.min_tokens { &sequence.end_tokens } else { &[] };
            let token = sample(state, &sequence.sampling, position, masked, self.limits.vocab_size);
            match script {
                Some(Script::Fault) => row.fault = Some("scripted fault".into()),
                Some(Script::Token(token)) => row.token = Some(*token),
                Some(Script::GrammarEnd) => (row.token, row.grammar_end) = (Some(token), true),
                None => row.token = Some(token),
            }
            let wanted = sequence.sampling.logprobs;
            row.logprobs = row.token.zip(wanted).map(|(token, top)| logprobs(state, token, top));
        }
        Ok(row)
    }
}

impl ModelExecutor for FakeExecutor {
    fn limits(&self) -> ExecutorLimits {
        self.limits
    }

    fn submit(&mut self, mut plan: StepPlan) -> Result<Ticket, ExecutorError> {
        if self.pending.is_some() {
            return Err(ExecutorError::InvalidPlan("a step is in flight already".into()));
        }
        self.validate(&plan).map_err(ExecutorError::InvalidPlan)?;
        self.change_slots(&mut plan).map_err(ExecutorError::InvalidPlan)?;
        self.last_step = plan.step;
        let rows: Result<Vec<_>, _> = plan.items.iter().map(|item| self.compute(item)).collect();
        let rows = rows.map_err(ExecutorError::InvalidPlan)?;
        let tokens: u64 = plan.items.iter().map(|item| item.tokens.len() as u64).sum();
        self.clock_us.fetch_add(self.cost.step_us + tokens * self.cost.token_us, Ordering::Relaxed);
        self.next_ticket += 1;
        let ticket = Ticket(self.next_ticket);
        self.pending = Some((ticket, StepResult { rows, ..StepResult::default() }));
        Ok(ticket)
    }

    fn collect(&mut self, ticket: Ticket) -> Result<StepResult, ExecutorError> {
        match self.pending.take() {
            Some((pending, result)) if pending == ticket => Ok(result),
            _ => Err(ExecutorError::InvalidPlan("the ticket names no step in flight".into())),
        }
    }
}

/// A sequence computed alone, without blocks, steps or neighbours.
#[derive(Clone, Copy)]
pub struct Alone<'a> {
    /// Its prompt.
    pub prompt: &'a [TokenId],
    /// How tokens are chosen.
    pub sampling: &'a SamplingParams,
    /// Tokens masked before `min_tokens`.
    pub end_tokens: &'a [TokenId],
    /// Output positions with that mask.
    pub min_tokens: u32,
    /// Scripted events.
    pub scripts: &'a Scripts,
    /// Size of the vocabulary.
    pub vocab_size: u32,
}

impl Alone<'_> {
    /// The first `tokens` tokens of its output. Ends and faults are the caller's business.
    pub fn text(&self, tokens: u32) -> Vec<TokenId> {
        let mut state = self.prompt.iter().fold(0, |state, token| extend(state, *token));
        let mut output = Vec::new();
        for position in 0..tokens {
            let masked = if position < self.min_tokens { self.end_tokens } else { &[] };
            let token = match self.scripts.get(&(self.sampling.seed, position)) {
                Some(Script::Token(token)) => *token,
                _ => sample(state, self.sampling, position, masked, self.vocab_size),
            };
            output.push(token);
            state = extend(state, token);
        }
        output
    }
}

/// Log probabilities that the executor reports for each token of a prompt after the first.
pub fn prompt_logprobs_alone(prompt: &[TokenId], top: u32) -> Vec<TokenLogprobs> {
    let mut state = 0;
    prompt
        .windows(2)
        .map(|pair| {
            state = extend(state, pair[0]);
            logprobs(state, pair[1], top)
        })
        .collect()
}

fn sample(
    state: u64,
    sampling: &SamplingParams,
    position: u32,
    masked: &[TokenId],
    vocab_size: u32,
) -> TokenId {
    let draw = mix(state ^ mix(sampling.seed ^ u64::from(position) ^ (u64::from(sampling.choice) << 32)));
    let first = (draw % u64::from(vocab_size)) as u32;
    (0..vocab_size)
        .map(|step| (first + step) % vocab_size)
        .find(|token| !masked.contains(token))
        .unwrap_or(first)
}

fn logprobs(state: u64, token: TokenId, top: u32) -> TokenLogprobs {
    let of = |token: TokenId| -((mix(state ^ u64::from(token)) % 1000) as f32) / 100.0;
    TokenLogprobs { logprob: of(token), top: (0..top).map(|id| (id, of(id))).collect() }
}

/// State after a token. The low half is a check of the state before it, so that two cells show whether one
/// follows the other.
fn extend(state: u64, token: TokenId) -> u64 {
    let value = mix(state ^ mix(u64::from(token) + 1));
    (value & !0xffff_ffff) | check(state)
}

fn follows(state: u64, next: u64) -> bool {
    next & 0xffff_ffff == check(state)
}

fn check(state: u64) -> u64 {
    mix(state ^ 0x5bd1_e995) >> 32
}

fn mix(value: u64) -> u64 {
    // The finaliser of SplitMix64.
    let value = value.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let value = (value ^ (value >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let value = (value ^ (value >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    value ^ (value >> 31)
}

fn cell(item: &PlanItem, position: u32) -> usize {
    let block = item.blocks[(position / BLOCK_TOKENS) as usize];
    block as usize * BLOCK_TOKENS as usize + (position % BLOCK_TOKENS) as usize
}

fn to_u32(count: usize) -> u32 {
    u32::try_from(count).expect("an output is bounded by the context, which is a u32")
}
