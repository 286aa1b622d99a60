//! Identifiers that cross a link. The rule: an id is opaque, copied, and never an address.

use std::fmt;

/// One sequence as the gateway and the brain both name it. Unique for the life of a link; a request with
/// `n` choices has `n` of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SequenceId(pub u64);

/// A tenant as the brain sees it: a number for fairness and quotas, never a name or a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct TenantId(pub u64);

/// A token of the served model's vocabulary.
pub type TokenId = u32;

impl fmt::Display for SequenceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "seq-{}", self.0)
    }
}

impl fmt::Display for TenantId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "tenant-{}", self.0)
    }
}
