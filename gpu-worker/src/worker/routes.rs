//! Which sequence belongs to which link.
//!
//! The rule: each link numbers its sequences as it likes; inside the process every sequence has a number of its
//! own that is never used again, so a late event for a finished one can't hit another.

use std::collections::{HashMap, HashSet};

use pons_protocol::id::SequenceId;

use crate::link::{LinkId, Outbox, Overflow};
use pons_protocol::inference::FromBrain;

/// Links and their live sequences.
#[derive(Debug, Default)]
pub(super) struct Routes {
    links: HashMap<LinkId, Link>,
    routes: HashMap<SequenceId, Route>,
    next: u64,
}

#[derive(Debug)]
struct Link {
    outbox: Outbox,
    /// From the link's number to ours.
    sequences: HashMap<SequenceId, SequenceId>,
    draining: bool,
}

/// Where a sequence's output goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Route {
    pub(super) link: LinkId,
    /// The link's own number for it.
    pub(super) theirs: SequenceId,
}

impl Routes {
    pub(super) fn open(&mut self, link: LinkId, outbox: Outbox) {
        self.links.insert(link, Link { outbox, sequences: HashMap::new(), draining: false });
    }

    /// Forgets a link and returns its sequences, which nobody wants any more.
    pub(super) fn close(&mut self, link: LinkId) -> Vec<SequenceId> {
        let Some(closed) = self.links.remove(&link) else { return Vec::new() };
        let ours: Vec<SequenceId> = closed.sequences.into_values().collect();
        for sequence in &ours {
            self.routes.remove(sequence);
        }
        ours
    }

    /// Sends to a link. A link that does not take it is cut; the caller closes it then.
    pub(super) fn send(&self, link: LinkId, message: FromBrain) -> Result<(), Overflow> {
        // A link that is gone already has nobody to be told.
        let Some(open) = self.links.get(&link) else { return Ok(()) };
        open.outbox.send(message).inspect_err(|_| open.outbox.cut())
    }

    /// Gives a sequence its number; none when the link already uses this one, or is gone.
    pub(super) fn add(&mut self, link: LinkId, theirs: SequenceId) -> Option<SequenceId> {
        let open = self.links.get_mut(&link)?;
        if open.sequences.contains_key(&theirs) {
            return None;
        }
        let ours = SequenceId(self.next);
        self.next += 1;
        open.sequences.insert(theirs, ours);
        self.routes.insert(ours, Route { link, theirs });
        Some(ours)
    }

    pub(super) fn find(&self, ours: SequenceId) -> Option<Route> {
        self.routes.get(&ours).copied()
    }

    /// Our number of a link's sequence.
    pub(super) fn ours(&self, link: LinkId, theirs: SequenceId) -> Option<SequenceId> {
        self.links.get(&link)?.sequences.get(&theirs).copied()
    }

    /// Forgets a sequence that ended.
    pub(super) fn remove(&mut self, ours: SequenceId) -> Option<Route> {
        let route = self.routes.remove(&ours)?;
        if let Some(open) = self.links.get_mut(&route.link) {
            open.sequences.remove(&route.theirs);
        }
        Some(route)
    }

    pub(super) fn is_open(&self, link: LinkId) -> bool {
        self.links.contains_key(&link)
    }

    pub(super) fn drain(&mut self, link: LinkId) {
        if let Some(open) = self.links.get_mut(&link) {
            open.draining = true;
        }
    }

    pub(super) fn is_draining(&self, link: LinkId) -> bool {
        self.links.get(&link).is_some_and(|open| open.draining)
    }

    /// Closes the links that were asked to drain and have nothing left.
    pub(super) fn close_drained(&mut self) {
        self.links.retain(|_, open| !(open.draining && open.sequences.is_empty()));
    }

    /// Whether no sequence is live.
    pub(super) fn is_empty(&self) -> bool {
        self.routes.is_empty()
    }

    /// Whether the two maps agree; a test and debug check.
    pub(super) fn is_consistent(&self) -> bool {
        let mut seen = HashSet::new();
        self.links.iter().all(|(link, open)| {
            open.sequences.iter().all(|(theirs, ours)| {
                seen.insert(*ours) && self.routes.get(ours) == Some(&Route { link: *link, theirs: *theirs })
            })
        }) && seen.len() == self.routes.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn routes(links: u64) -> Routes {
        let mut routes = Routes::default();
        for link in 1..=links {
            routes.open(LinkId(link), Outbox::new(None).0);
        }
        routes
    }

    #[test]
    fn two_links_may_use_the_same_numbers() {
        let mut routes = routes(2);
        let first = routes.add(LinkId(1), SequenceId(7)).expect("free");
        let second = routes.add(LinkId(2), SequenceId(7)).expect("free on this link");
        assert_ne!(first, second);
        assert_eq!(routes.ours(LinkId(2), SequenceId(7)), Some(second));
        assert_eq!(routes.add(LinkId(1), SequenceId(7)), None, "it is live");
        assert_eq!(routes.remove(first), Some(Route { link: LinkId(1), theirs: SequenceId(7) }));
        assert!(
            routes.add(LinkId(1), SequenceId(7)).is_some_and(|ours| ours != first),
            "numbers are not reused"
        );
        assert!(routes.is_consistent());
    }

    #[test]
    fn a_closed_link_gives_up_all_its_sequences_and_no_others() {
        let mut routes = routes(2);
        let kept = routes.add(LinkId(2), SequenceId(1)).expect("free");
        let mut lost: Vec<_> = (0..3).filter_map(|id| routes.add(LinkId(1), SequenceId(id))).collect();
        let mut closed = routes.close(LinkId(1));
        lost.sort_unstable();
        closed.sort_unstable();
        assert_eq!(closed, lost);
        assert_eq!(routes.find(lost[0]), None);
        assert!(routes.find(kept).is_some() && routes.is_consistent());
        assert_eq!(routes.add(LinkId(1), SequenceId(9)), None, "the link is gone");
    }

    #[test]
    fn a_draining_link_closes_with_its_last_sequence() {
        let mut routes = routes(1);
        let ours = routes.add(LinkId(1), SequenceId(1)).expect("free");
        routes.drain(LinkId(1));
        routes.close_drained();
        assert!(routes.is_open(LinkId(1)) && routes.is_draining(LinkId(1)));
        routes.remove(ours);
        routes.close_drained();
        assert!(!routes.is_open(LinkId(1)) && routes.is_empty());
    }
}
