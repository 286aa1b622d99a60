//! Checks the scheduler's state from scratch. The rule: debug builds run it after every plan and commit, and it
//! says in words what is wrong.

use std::collections::HashMap;

use super::Scheduler;
use crate::kv::{BLOCK_TOKENS, BlockCache, ChainHash};

impl Scheduler {
    /// The KV bookkeeping, to look at.
    pub fn cache(&self) -> &BlockCache {
        &self.cache
    }

    /// Recounts blocks, references, slots, queues and announcements.
    pub fn audit(&self) -> Result<(), String> {
        self.cache.audit(self.sequences.values().map(|sequence| &sequence.progress.table))?;
        let slots = self.running.len() + self.free_slots.len();
        if slots != self.config.max_running as usize {
            return Err(format!("{slots} slots are used or free, there are {}", self.config.max_running));
        }
        let running = self.sequences.values().filter(|s| s.progress.slot.is_some()).count();
        if running != self.running.len() || running + self.queue.len() as usize != self.sequences.len() {
            return Err(format!(
                "{running} sequences have slots, {} run, {} wait, {} live",
                self.running.len(),
                self.queue.len(),
                self.sequences.len()
            ));
        }
        let mut computing: HashMap<ChainHash, u32> = HashMap::new();
        let mut waiting_tokens = 0;
        for sequence in self.sequences.values() {
            let progress = &sequence.progress;
            if progress.slot.is_none() {
                waiting_tokens += u64::from(sequence.prompt_tokens());
                if !progress.table.is_empty() || progress.computed > 0 {
                    return Err(format!("{} waits and has blocks", sequence.id));
                }
            }
            if progress.computed > progress.table.room_tokens() {
                return Err(format!("{} has computed more than its blocks hold", sequence.id));
            }
            if progress.computed / BLOCK_TOKENS < u32::try_from(progress.indexed).unwrap_or(u32::MAX) {
                return Err(format!("{} has indexed blocks it has not computed", sequence.id));
            }
            for block in progress.announced.clone() {
                *computing.entry(progress.hashes[block]).or_default() += 1;
            }
        }
        if computing != self.computing {
            return Err("announced blocks differ from those being computed".into());
        }
        if waiting_tokens != self.waiting_tokens {
            return Err(format!("{waiting_tokens} prompt tokens wait, counted are {}", self.waiting_tokens));
        }
        Ok(())
    }
}
