//! Who waits, and who is next.
//!
//! The rule: lower priorities first; inside a priority the tenant that was served least, by a virtual counter
//! of weighted tokens; inside a tenant the order of arrival. A tenant that appears or returns starts at the
//! least counter of those present, so that idling earns nothing.

use std::collections::{BTreeMap, BTreeSet};

use pons_protocol::id::TenantId;

use crate::sequence::Arrival;

/// Most absent tenants whose counter is remembered in a priority.
pub const MAX_ABSENT_TENANTS: usize = 1024;

#[derive(Debug, Default)]
struct Tenant {
    /// Weighted tokens served.
    counter: u64,
    /// Sequences that wait or run.
    live: u32,
    waiting: BTreeSet<Arrival>,
}

#[derive(Debug, Default)]
struct Level {
    tenants: BTreeMap<TenantId, Tenant>,
    /// Live sequences of all tenants.
    live: u32,
}

/// The waiting sequences and the counters of their tenants.
#[derive(Debug, Default)]
pub struct WaitingQueue {
    levels: BTreeMap<i32, Level>,
    waiting: u32,
}

/// What the queue knows of a sequence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// Its priority.
    pub priority: i32,
    /// Its tenant.
    pub tenant: TenantId,
    /// Its place in the order of arrival.
    pub arrival: Arrival,
}

impl WaitingQueue {
    /// Sequences that wait.
    pub fn len(&self) -> u32 {
        self.waiting
    }

    /// Whether nobody waits.
    pub fn is_empty(&self) -> bool {
        self.waiting == 0
    }

    /// Adds a sequence that has just arrived.
    pub fn arrive(&mut self, place: Place) {
        let level = self.levels.entry(place.priority).or_default();
        let present = level.tenants.values().filter(|t| t.live > 0).map(|t| t.counter).min();
        let tenant = level.tenants.entry(place.tenant).or_default();
        if tenant.live == 0 {
            tenant.counter = tenant.counter.max(present.unwrap_or(0));
        }
        tenant.live += 1;
        level.live += 1;
        self.put_back(place);
    }

    /// Lets a sequence that ran wait again, before those of its tenant that arrived later.
    pub fn put_back(&mut self, place: Place) {
        if let Some(tenant) = self.tenant_mut(place)
            && tenant.waiting.insert(place.arrival)
        {
            self.waiting += 1;
        }
    }

    /// Takes a sequence out of the queue; it is still live. Returns whether it waited.
    pub fn take(&mut self, place: Place) -> bool {
        let waited = self.tenant_mut(place).is_some_and(|tenant| tenant.waiting.remove(&place.arrival));
        self.waiting -= u32::from(waited);
        waited
    }

    /// Forgets a sequence that ended, whether it waits or runs.
    pub fn depart(&mut self, place: Place) {
        self.take(place);
        let Some(level) = self.levels.get_mut(&place.priority) else { return };
        let Some(tenant) = level.tenants.get_mut(&place.tenant) else { return };
        tenant.live -= 1;
        level.live -= 1;
        if level.live == 0 {
            // Nobody is left to be compared with.
            self.levels.remove(&place.priority);
            return;
        }
        if level.tenants.len() > MAX_ABSENT_TENANTS {
            // The absent tenant that was served least loses nothing: on return it is lifted anyway.
            let absent = level.tenants.iter().filter(|(_, t)| t.live == 0).min_by_key(|(_, t)| t.counter);
            if let Some(id) = absent.map(|(id, _)| *id) {
                level.tenants.remove(&id);
            }
        }
    }

    /// Adds to a tenant's counter what it was served.
    pub fn charge(&mut self, priority: i32, tenant: TenantId, cost: u64) {
        if let Some(tenant) = self.levels.get_mut(&priority).and_then(|level| level.tenants.get_mut(&tenant))
        {
            tenant.counter = tenant.counter.saturating_add(cost);
        }
    }

    /// The sequence whose turn it is, apart from those to skip.
    pub fn next(&self, skip: &[Arrival]) -> Option<Arrival> {
        self.levels.values().find_map(|level| {
            level
                .tenants
                .values()
                .filter_map(|tenant| {
                    let first = tenant.waiting.iter().find(|arrival| !skip.contains(arrival))?;
                    Some((tenant.counter, *first))
                })
                .min()
                .map(|(_, arrival)| arrival)
        })
    }

    /// A tenant's counter in a priority, if it is known there.
    pub fn counter(&self, priority: i32, tenant: TenantId) -> Option<u64> {
        Some(self.levels.get(&priority)?.tenants.get(&tenant)?.counter)
    }

    fn tenant_mut(&mut self, place: Place) -> Option<&mut Tenant> {
        self.levels.get_mut(&place.priority)?.tenants.get_mut(&place.tenant)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn place(priority: i32, tenant: u64, arrival: u64) -> Place {
        Place { priority, tenant: TenantId(tenant), arrival: Arrival(arrival) }
    }

    #[test]
    fn a_tenant_is_served_in_order_of_arrival_and_the_least_served_tenant_first() {
        let mut queue = WaitingQueue::default();
        for p in [place(0, 1, 1), place(0, 1, 2), place(0, 2, 3)] {
            queue.arrive(p);
        }
        assert_eq!(queue.next(&[]), Some(Arrival(1)));
        assert!(queue.take(place(0, 1, 1)));
        queue.charge(0, TenantId(1), 10);
        assert_eq!(queue.next(&[]), Some(Arrival(3)), "tenant 2 has been served nothing");
        assert_eq!(queue.next(&[Arrival(3)]), Some(Arrival(2)), "a skipped sequence makes room for the next");
        queue.put_back(place(0, 1, 1));
        queue.charge(0, TenantId(2), 20);
        assert_eq!(queue.next(&[]), Some(Arrival(1)), "one put back comes before later ones of its tenant");
    }

    #[test]
    fn a_lower_priority_value_goes_first_whatever_the_counters_say() {
        let mut queue = WaitingQueue::default();
        queue.arrive(place(5, 1, 1));
        queue.arrive(place(-5, 2, 2));
        queue.charge(-5, TenantId(2), 1_000_000);
        assert_eq!(queue.next(&[]), Some(Arrival(2)));
    }

    #[test]
    fn a_returning_tenant_is_lifted_to_the_least_counter_present_and_never_lowered() {
        let mut queue = WaitingQueue::default();
        queue.arrive(place(0, 1, 1));
        queue.arrive(place(0, 2, 2));
        queue.charge(0, TenantId(1), 500);
        queue.charge(0, TenantId(2), 800);
        queue.arrive(place(0, 3, 3));
        assert_eq!(queue.counter(0, TenantId(3)), Some(500));
        queue.depart(place(0, 2, 2));
        queue.arrive(place(0, 2, 4));
        assert_eq!(queue.counter(0, TenantId(2)), Some(800), "leaving for a moment forgives nothing");
    }

    #[test]
    fn absent_tenants_are_remembered_up_to_a_bound() {
        let mut queue = WaitingQueue::default();
        queue.arrive(place(0, 0, 0));
        for tenant in 1..=3 * MAX_ABSENT_TENANTS as u64 {
            queue.arrive(place(0, tenant, tenant));
            queue.depart(place(0, tenant, tenant));
        }
        let known = queue.levels.get(&0).map_or(0, |level| level.tenants.len());
        assert!(known <= MAX_ABSENT_TENANTS + 1, "{known} tenants are remembered");
        queue.depart(place(0, 0, 0));
        assert!(queue.levels.is_empty() && queue.is_empty());
    }
}
