//! Takes blocks and slots from running sequences when others need them.
//!
//! The rule: the victim is the newest sequence of the tenant that holds the most blocks, within the lowest
//! priority that runs. The oldest sequence of the highest priority is never a victim, so every set of
//! sequences comes to an end. A victim loses its blocks, not its tokens: computed blocks go to the cache and it
//! is computed again from there.

use std::collections::BTreeMap;

use super::{Scheduler, place_of};
use crate::sequence::Arrival;

/// Whom a sequence may take from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Reach {
    /// Only from lower priorities than its own.
    LowerPriorities,
    /// From its own priority too, itself included.
    Everyone,
}

impl Scheduler {
    /// Gives a running sequence the blocks for `upto` tokens, preempting others if need be. False if it does
    /// not get them; it may have been preempted itself.
    pub(super) fn make_room(&mut self, arrival: Arrival, upto: u32, reach: Reach) -> bool {
        loop {
            if self.grow(arrival, upto) {
                return true;
            }
            let Some(victim) = self.victim(self.rank(arrival).0, reach) else { return false };
            self.preempt(victim);
            if victim == arrival {
                return false;
            }
        }
    }

    pub(super) fn grow(&mut self, arrival: Arrival, upto: u32) -> bool {
        let Some(sequence) = self.sequences.get_mut(&arrival) else { return false };
        self.cache.grow(&mut sequence.progress.table, upto, sequence.tenant)
    }

    /// Place in the order of precedence: priority, then age.
    pub(super) fn rank(&self, arrival: Arrival) -> (i32, Arrival) {
        let priority = self.sequences.get(&arrival).map_or(i32::MAX, |sequence| sequence.priority);
        (priority, arrival)
    }

    /// Who gives way to a sequence of `priority`.
    pub(super) fn victim(&self, priority: i32, reach: Reach) -> Option<Arrival> {
        let senior = self.running.iter().map(|arrival| self.rank(*arrival)).min()?;
        // The senior is safe from those that don't outrank it.
        let safe = |arrival: Arrival| arrival == senior.1 && senior.0 <= priority;
        let candidates = || self.running.iter().filter(|arrival| !safe(**arrival));
        let lowest = candidates().map(|arrival| self.rank(*arrival).0).max()?;
        let allowed = match reach {
            Reach::LowerPriorities => lowest > priority,
            Reach::Everyone => lowest >= priority,
        };
        if !allowed {
            return None;
        }
        let mut held = BTreeMap::new();
        for sequence in self.running.iter().filter_map(|arrival| self.sequences.get(arrival)) {
            *held.entry(sequence.tenant).or_insert(0) += sequence.progress.table.len();
        }
        candidates()
            .filter_map(|arrival| self.sequences.get(arrival))
            .filter(|sequence| sequence.priority == lowest)
            .max_by_key(|s| (held.get(&s.tenant).copied().unwrap_or(0), s.tenant, s.arrival))
            .map(|sequence| sequence.arrival)
    }

    /// Puts a running sequence back into the queue.
    pub(super) fn preempt(&mut self, arrival: Arrival) {
        self.unload(arrival);
        let Some(sequence) = self.sequences.get_mut(&arrival) else { return };
        sequence.preemptions += 1;
        if sequence.owes_prompt_logprobs() {
            sequence.prompt_logprobs.clear();
        }
        self.totals.preemptions += 1;
        self.waiting_tokens += u64::from(sequence.prompt_tokens());
        let place = place_of(sequence);
        self.queue.put_back(place);
    }

    /// Takes slot and blocks from a sequence, if it has them.
    pub(super) fn unload(&mut self, arrival: Arrival) {
        let Some(sequence) = self.sequences.get_mut(&arrival) else { return };
        let progress = &mut sequence.progress;
        let Some(slot) = progress.slot.take() else { return };
        // A sequence that was planned and withdrawn before the plan was written is unknown to the executor.
        if !std::mem::take(&mut progress.fresh) {
            self.released.push(slot);
        }
        self.free_slots.push(slot);
        self.cache.release_all(progress.table.take());
        let announced = std::mem::take(&mut progress.announced);
        let hashes: Vec<_> = announced.map(|block| progress.hashes[block]).collect();
        progress.computed = 0;
        progress.chunk = 0;
        progress.indexed = 0;
        progress.hits = 0;
        progress.unindexable = false;
        self.running.retain(|other| *other != arrival);
        self.withdraw(&hashes);
    }
}
