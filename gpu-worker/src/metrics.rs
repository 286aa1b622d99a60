//! What the engine thread tells the other threads about itself.
//!
//! The rule: the engine publishes after each step and never waits for a reader; a reader sees one step's state
//! whole.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use crossbeam::atomic::AtomicCell;
use pons_protocol::capacity::Capacity;

use crate::clock::Clock;

/// The last published state of the engine.
#[derive(Debug)]
pub struct Published {
    clock: Clock,
    capacity: AtomicCell<Capacity>,
    last_step_us: AtomicU64,
    busy: AtomicBool,
}

impl Published {
    /// The state before the first step.
    pub fn new(clock: Clock, capacity: Capacity) -> Self {
        Self {
            clock,
            capacity: AtomicCell::new(capacity),
            last_step_us: AtomicU64::new(clock.now_us()),
            busy: AtomicBool::new(false),
        }
    }

    /// Called by the engine thread after each step, and when work arrives or ends without one.
    pub fn publish(&self, capacity: Capacity, busy: bool, step_ended: bool) {
        self.capacity.store(capacity);
        let began = busy && !self.busy.swap(busy, Ordering::Relaxed);
        if !busy {
            self.busy.store(false, Ordering::Relaxed);
        }
        // The age counts from the moment there was something to do.
        if step_ended || began {
            self.last_step_us.store(self.clock.now_us(), Ordering::Relaxed);
        }
    }

    /// The last state, with the age of the last step as of now.
    pub fn capacity(&self) -> Capacity {
        let mut capacity = self.capacity.load();
        capacity.step_age_ms = if self.busy.load(Ordering::Relaxed) {
            self.clock.now_us().saturating_sub(self.last_step_us.load(Ordering::Relaxed)) / 1000
        } else {
            0
        };
        capacity
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_idle_engine_has_no_step_age() {
        let published = Published::new(Clock::start(), Capacity::default());
        published.publish(Capacity { steps: 3, ..Capacity::default() }, false, true);
        assert_eq!(published.capacity(), Capacity { steps: 3, ..Capacity::default() });
    }

    #[test]
    fn the_age_of_a_busy_engine_grows_until_its_next_step() {
        let published = Published::new(Clock::start(), Capacity::default());
        published.publish(Capacity::default(), true, false);
        while published.capacity().step_age_ms < 2 {
            std::hint::spin_loop();
        }
        published.publish(Capacity::default(), true, false);
        assert!(published.capacity().step_age_ms >= 2, "new work does not hide a stuck step");
        published.publish(Capacity::default(), true, true);
        assert!(published.capacity().step_age_ms < 2000);
    }
}
