//! What the grammar compiler has to know about the model's tokens.
//!
//! The rule: a control token is never text, and an id that means nothing is never allowed.

use pons_checkpoint::tokenizer::Tokenizer;

use crate::grammar::TokenText;

/// What each id below the size of the output layer stands for; a padded output layer has ids beyond the
/// tokenizer's.
pub fn token_texts(tokenizer: &Tokenizer, vocab_size: u32) -> Vec<TokenText> {
    (0..vocab_size)
        .map(|id| match tokenizer.token_bytes(id) {
            Some(bytes) if tokenizer.is_control(id) => TokenText::Control(bytes.to_vec()),
            Some(bytes) if !bytes.is_empty() => TokenText::Text(bytes.to_vec()),
            _ => TokenText::Unused,
        })
        .collect()
}
