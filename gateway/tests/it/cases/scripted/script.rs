//! What a scripted sequence does. The rule: a script is plain data, and the same script gives the same tokens
//! after the link was lost as it would have given before.

use std::sync::Arc;
use std::time::Duration;

use pons_protocol::id::TokenId;
use pons_protocol::inference::RejectReason;
use tokio::sync::Semaphore;

use crate::cases::model;

/// One step of a script.
#[derive(Clone, Debug)]
pub(crate) enum Act {
    /// Nothing for so long.
    Wait(Duration),
    /// Nothing until the test adds a permit.
    Gate(Arc<Semaphore>),
    /// Tokens in one engine step.
    Tokens(Vec<TokenId>),
    /// One token again and again until the limit of the request, with a pause after each.
    Endless { token: TokenId, pause: Duration },
    /// Tokens drawn from the request's seed, choice and position until its limit.
    Seeded,
    /// The sequence alone fails.
    Fail,
    /// The process dies, the first time that this act is reached.
    Die,
    /// Tokens at a wrong position, which breaks the protocol.
    OutOfOrder,
    /// Nothing ever again.
    Silence,
    /// Nothing more: the end token, unless the limit comes first.
    Eos,
}

/// How a sequence is received, and what it then does.
#[derive(Clone, Debug)]
pub(crate) struct Script {
    pub(crate) reception: Reception,
    pub(crate) acts: Vec<Act>,
    pub(crate) cached_tokens: u32,
}

/// The brain's answer to a submission.
#[derive(Clone, Debug)]
pub(crate) enum Reception {
    Accept,
    AcceptAfter(Arc<Semaphore>),
    Never,
    Reject(RejectReason, String),
}

impl Default for Script {
    /// An ordinary short answer.
    fn default() -> Self {
        Self::pieces(&["Hello", ", wor", "ld."])
    }
}

impl Script {
    pub(crate) fn acts(acts: Vec<Act>) -> Self {
        Self { reception: Reception::Accept, acts, cached_tokens: 0 }
    }

    /// These pieces, one a step, then the end token.
    pub(crate) fn pieces(pieces: &[&str]) -> Self {
        Self::acts(pieces.iter().map(|piece| Act::piece(piece)).chain([Act::Eos]).collect())
    }

    /// These pieces, all in one step, then the end token.
    pub(crate) fn burst(pieces: &[&str]) -> Self {
        Self::acts(vec![Act::Tokens(pieces.iter().map(|piece| model::id(piece)).collect()), Act::Eos])
    }

    /// Pieces written as bytes in hexadecimal, one a step, then the end token.
    pub(crate) fn hex(pieces: &[&str]) -> Self {
        let act = |hex: &&str| Act::Tokens(vec![model::id_of_hex(hex)]);
        Self::acts(pieces.iter().map(act).chain([Act::Eos]).collect())
    }

    /// A token every few milliseconds until the limit of the request.
    pub(crate) fn endless(pause: Duration) -> Self {
        Self::acts(vec![Act::Endless { token: model::id("x"), pause }])
    }

    pub(crate) fn received(mut self, reception: Reception) -> Self {
        self.reception = reception;
        self
    }

    pub(crate) fn cached(mut self, tokens: u32) -> Self {
        self.cached_tokens = tokens;
        self
    }

    /// Whether it may be followed twice by the same sequence without any tokens in between.
    pub(super) fn repeats(&self) -> bool {
        self.acts.iter().any(|act| matches!(act, Act::Die))
    }
}

impl Act {
    pub(crate) fn piece(piece: &str) -> Act {
        Act::Tokens(vec![model::id(piece)])
    }
}
