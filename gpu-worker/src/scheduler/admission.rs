//! Lets waiting sequences run.
//!
//! The rule: one is admitted only if there are blocks for all its tokens beyond what those that run still need,
//! and it starts behind the blocks found in the cache. If the next in turn doesn't fit, nobody behind it
//! overtakes, so large sequences don't starve. One whose next block somebody else computes right now waits
//! for it, so that a shared prompt is computed once.

use super::preempt::Reach;
use super::{Scheduler, place_of};
use crate::executor::BlockId;
use crate::kv::{BLOCK_TOKENS, BlockTable, ChainHash, blocks_for};
use crate::sequence::{Arrival, Sequence};

/// Most sequences that are passed over in one step because they wait for a block.
const MAX_DEFERRED: usize = 64;

enum Admission {
    Admitted,
    Deferred,
    Blocked,
}

impl Scheduler {
    /// Admits sequences while there are tokens left in the step.
    pub(super) fn admit(&mut self, mut left: u32, now_us: u64) {
        let mut deferred = Vec::new();
        while left > 0 && deferred.len() < MAX_DEFERRED {
            let Some(arrival) = self.queue.next(&deferred) else { return };
            match self.try_admit(arrival, now_us) {
                Admission::Admitted => left -= self.first_chunk(arrival, left),
                Admission::Deferred => deferred.push(arrival),
                Admission::Blocked => return,
            }
        }
    }

    fn try_admit(&mut self, arrival: Arrival, now_us: u64) -> Admission {
        let Some(sequence) = self.sequences.get(&arrival) else { return Admission::Blocked };
        let (priority, tokens) = (sequence.priority, sequence.total_tokens());
        let hits = self.find_prefix(sequence);
        if self.is_being_computed(sequence, hits.len()) {
            return Admission::Deferred;
        }
        // Held before anything is preempted or evicted, so that they can't be lost meanwhile.
        self.cache.retain_all(&hits);
        let missing = blocks_for(tokens).saturating_sub(u32::try_from(hits.len()).unwrap_or(u32::MAX));
        while !self.fits(missing) || self.free_slots.is_empty() {
            let Some(victim) = self.victim(priority, Reach::LowerPriorities) else {
                self.cache.release_all(hits);
                return Admission::Blocked;
            };
            self.preempt(victim);
        }
        self.start(arrival, hits, now_us);
        Admission::Admitted
    }

    /// Whether a new sequence can have `missing` blocks. Those that run keep what their present tokens need and
    /// a block each to grow into; alone it may have everything.
    fn fits(&self, missing: u32) -> bool {
        let running = self.running.iter().filter_map(|arrival| self.sequences.get(arrival));
        let promised: u32 = running.map(|s| s.progress.table.missing_for(s.total_tokens()) + 1).sum();
        self.cache.available() >= missing.saturating_add(promised)
    }

    /// Cached blocks to start behind. The last token is never among them: its logits are wanted.
    fn find_prefix(&self, sequence: &Sequence) -> Vec<BlockId> {
        let usable = usable_blocks(sequence);
        let hashes = &sequence.progress.hashes[..usable];
        self.cache.find_prefix(sequence.salt, hashes, |block| sequence.block_tokens(block))
    }

    /// Whether another sequence is computing the first block that this one doesn't find.
    fn is_being_computed(&self, sequence: &Sequence, found: usize) -> bool {
        found < usable_blocks(sequence) && self.computing.contains_key(&sequence.progress.hashes[found])
    }

    fn start(&mut self, arrival: Arrival, hits: Vec<BlockId>, now_us: u64) {
        self.leave_waiting(arrival);
        let slot = self.free_slots.pop().expect("a slot was free a moment ago");
        let sequence = self.sequences.get_mut(&arrival).expect("the queue names live sequences only");
        let found = hits.len();
        let found_tokens = u32::try_from(found).unwrap_or(u32::MAX).saturating_mul(BLOCK_TOKENS);
        let progress = &mut sequence.progress;
        progress.slot = Some(slot);
        progress.fresh = true;
        progress.table = BlockTable::starting_with(hits);
        progress.computed = found_tokens;
        progress.indexed = found;
        progress.hits = found;
        progress.announced = found..progress.hashes.len();
        for hash in &progress.hashes[found..] {
            *self.computing.entry(*hash).or_insert(0) += 1;
        }
        if sequence.times.first_step_us.is_none() {
            sequence.times.first_step_us = Some(now_us);
            sequence.times.start_by_us = None;
            sequence.cached_tokens = found_tokens.min(sequence.prompt_tokens());
            let computed = sequence.prompt_tokens() - sequence.cached_tokens;
            let weights = self.config.weights;
            let cost = weights.prompt.saturating_mul(u64::from(computed))
                + weights.cached.saturating_mul(u64::from(sequence.cached_tokens));
            self.totals.cached_tokens += u64::from(sequence.cached_tokens);
            let place = place_of(sequence);
            self.queue.charge(place.priority, place.tenant, cost);
        }
        self.running.push(arrival);
    }

    /// Gives a sequence just admitted its first chunk.
    fn first_chunk(&mut self, arrival: Arrival, left: u32) -> u32 {
        let Some(sequence) = self.running_sequence(arrival) else { return 0 };
        let chunk = sequence.remaining().min(left);
        let upto = sequence.progress.computed + chunk;
        let grown = self.grow(arrival, upto);
        debug_assert!(grown, "admission counted blocks that are not there");
        let chunk = if grown { chunk } else { 0 };
        self.mark(arrival, chunk);
        chunk
    }

    /// Takes back announcements of blocks.
    pub(super) fn withdraw(&mut self, hashes: &[ChainHash]) {
        for hash in hashes {
            if let Some(count) = self.computing.get_mut(hash) {
                *count -= 1;
                if *count == 0 {
                    self.computing.remove(hash);
                }
            }
        }
    }
}

/// Leading blocks that a sequence may take from the cache.
fn usable_blocks(sequence: &Sequence) -> usize {
    if sequence.owes_prompt_logprobs() {
        return 0;
    }
    let usable = (sequence.total_tokens().saturating_sub(1) / BLOCK_TOKENS) as usize;
    usable.min(sequence.progress.hashes.len())
}
