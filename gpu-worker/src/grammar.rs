//! Output grammars: compiled before a sequence is accepted, advanced token by token.
//!
//! The rule: a grammar is bounded in size, compile time and work per token; past a bound it is refused by name.

/// A compiled grammar with its position.
#[derive(Clone)]
pub struct GrammarMatcher {}
