//! Takes in what a step produced.
//!
//! The rule: rows are matched by place and applied only to sequences that are still there; a fault ends its own
//! sequence and nothing else; a block can be found only after it was computed without a fault.

use pons_protocol::inference::{FinishReason, SequenceOutput, TokenLogprobs};

use super::budget::StepSample;
use super::planning::{InFlight, InFlightItem};
use super::{Scheduler, ended};
use crate::executor::{RowOutput, StepResult};
use crate::kv::BLOCK_TOKENS;
use crate::kv::cache::ComputedBlock;
use crate::sequence::{Arrival, Sequence};

impl Scheduler {
    /// Applies the result of the step in flight; returns what the sequences got.
    pub fn commit(&mut self, result: StepResult, now_us: u64) -> Vec<SequenceOutput> {
        let Some(in_flight) = self.in_flight.take() else { return Vec::new() };
        let mut rows = result.rows.into_iter();
        let mut outputs = Vec::with_capacity(in_flight.items.len());
        for item in &in_flight.items {
            let row = rows.next().unwrap_or_else(|| fault("the executor returned no row"));
            // Of a sequence that was aborted meanwhile nothing is left to apply it to.
            outputs.extend(self.apply(*item, row, now_us));
        }
        self.account(&in_flight, now_us);
        debug_assert_eq!(self.audit(), Ok(()));
        outputs
    }

    fn apply(&mut self, item: InFlightItem, mut row: RowOutput, now_us: u64) -> Option<SequenceOutput> {
        if row.fault.is_none() && item.samples && row.token.is_none() {
            row = fault("the executor returned no token");
        }
        if row.fault.is_some() {
            return self.fail(item.arrival, now_us);
        }
        self.advance(item);
        let capacity_tokens = self.capacity_tokens();
        let sequence = self.sequences.get_mut(&item.arrival)?;
        // They go out with the first output, whichever chunk completed them.
        let owed_prompt_logprobs =
            sequence.sampling.prompt_logprobs.is_some() && sequence.generated.is_empty();
        collect_prompt_logprobs(sequence, std::mem::take(&mut row.prompt_logprobs));
        let position = sequence.output_tokens();
        let mut output = SequenceOutput {
            cached_tokens: sequence.cached_tokens,
            sequence: sequence.id,
            position,
            tokens: Vec::new(),
            logprobs: Vec::new(),
            prompt_logprobs: Vec::new(),
            finish: None,
        };
        let reason;
        if let Some(token) = row.token.filter(|_| item.samples) {
            sequence.generated.push(token);
            sequence.times.first_token_us.get_or_insert(now_us);
            sequence.times.last_token_us = Some(now_us);
            output.tokens.push(token);
            output.logprobs.extend(row.logprobs);
            let by_tokens = sequence.end_by_tokens(&self.config.eos_token_ids, capacity_tokens);
            reason = match by_tokens {
                Some(FinishReason::Length) | None if row.grammar_end => Some(FinishReason::GrammarEnd),
                other => other,
            };
            self.totals.output_tokens += 1;
            let cost = self.config.weights.output;
            self.queue.charge(sequence.priority, sequence.tenant, cost);
        } else if sequence.remaining() == 0 {
            // Only the prompt was wanted.
            reason = Some(FinishReason::Length);
        } else {
            return None;
        }
        if owed_prompt_logprobs {
            output.prompt_logprobs = std::mem::take(&mut sequence.prompt_logprobs);
        }
        if let Some(reason) = reason {
            output.finish = Some(sequence.finish(reason, now_us));
            self.remove(item.arrival);
        }
        Some(output)
    }

    /// Notes that an item's tokens are computed and makes its full blocks findable.
    fn advance(&mut self, item: InFlightItem) {
        let Some(mut sequence) = self.sequences.remove(&item.arrival) else { return };
        let before = sequence.progress.computed;
        sequence.progress.computed += item.tokens;
        let prompt_tokens = sequence.prompt_tokens();
        let computed = sequence.progress.computed.min(prompt_tokens) - before.min(prompt_tokens);
        self.totals.prompt_tokens += u64::from(computed);
        self.extend_hashes(&mut sequence);
        self.index_full_blocks(&mut sequence);
        self.sequences.insert(item.arrival, sequence);
    }

    fn index_full_blocks(&mut self, sequence: &mut Sequence) {
        let full_blocks = (sequence.progress.computed / BLOCK_TOKENS) as usize;
        for position in sequence.progress.indexed..full_blocks {
            let tokens = sequence.block_tokens(position).into_owned();
            let hash = sequence.progress.hashes[position];
            if sequence.progress.announced.contains(&position) {
                sequence.progress.announced.start = position + 1;
                self.withdraw(&[hash]);
            }
            let computed = ComputedBlock { position, hash, salt: sequence.salt, tokens: &tokens };
            if !sequence.progress.unindexable {
                let table = &mut sequence.progress.table;
                sequence.progress.unindexable = !self.cache.index_block(table, computed);
            }
            sequence.progress.indexed = position + 1;
        }
    }

    /// Ends a sequence whose row failed. What it computed itself is forgotten: the fault may lie there.
    fn fail(&mut self, arrival: Arrival, now_us: u64) -> Option<SequenceOutput> {
        let sequence = self.sequences.get_mut(&arrival)?;
        let hits = sequence.progress.hits;
        self.cache.discard(&mut sequence.progress.table, hits);
        let sequence = self.remove(arrival)?;
        Some(ended(&sequence, FinishReason::Failed, now_us))
    }

    fn account(&mut self, in_flight: &InFlight, now_us: u64) {
        let step_us = now_us.saturating_sub(in_flight.planned_us);
        self.totals.last_step_us = step_us;
        self.totals.last_step_end_us = now_us;
        self.totals.last_step_tokens = in_flight.tokens;
        self.meter.observe(StepSample {
            decode_rows: in_flight.decode_rows,
            prefill_tokens: in_flight.tokens - in_flight.decode_rows,
            step_us,
        });
    }
}

fn collect_prompt_logprobs(sequence: &mut Sequence, entries: Vec<TokenLogprobs>) {
    if !sequence.owes_prompt_logprobs() {
        return;
    }
    if sequence.prompt_logprobs.is_empty() {
        // Nothing comes before the first token, so it has no probability.
        sequence.prompt_logprobs.push(TokenLogprobs { logprob: f32::NAN, top: Vec::new() });
    }
    let room = sequence.prompt.len() - sequence.prompt_logprobs.len();
    sequence.prompt_logprobs.extend(entries.into_iter().take(room));
}

fn fault(reason: &str) -> RowOutput {
    RowOutput { fault: Some(reason.into()), ..RowOutput::default() }
}
