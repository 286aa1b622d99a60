//! Output grammars: compiled before a sequence is accepted, advanced token by token.
//!
//! The rule: a grammar is bounded in size, compile time and work per token; past a bound it is refused by name.

mod compile;
mod matcher;
#[cfg(test)]
mod tests;

pub use compile::{Grammars, TokenText};
pub use matcher::GrammarMatcher;
