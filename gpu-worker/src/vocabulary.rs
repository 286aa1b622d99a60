//! What the grammar compiler has to know about the model's tokens.
//!
//! The rule: a control token is never text, and an id that means nothing is never allowed.

use std::panic::catch_unwind;
use std::sync::{Arc, OnceLock};
use std::time::Instant;

use pons_checkpoint::Checkpoint;
use pons_checkpoint::tokenizer::TokenTable;
use pons_protocol::sampling::Grammar;

use crate::grammar::{GrammarMatcher, Grammars, TokenText};

/// What each id below the size of the output layer stands for; a padded output layer has ids beyond the
/// tokenizer's.
pub fn token_texts(tokens: &TokenTable, vocab_size: u32) -> Vec<TokenText> {
    (0..vocab_size)
        .map(|id| match tokens.bytes(id) {
            Some(bytes) if tokens.is_control(id) => TokenText::Control(bytes.to_vec()),
            Some(bytes) if !bytes.is_empty() => TokenText::Text(bytes.to_vec()),
            _ => TokenText::Unused,
        })
        .collect()
}

/// Grammars for a model, ready some time after it serves: an index of a large vocabulary takes longer to make than
/// weights that were packed before take to read, and only requests with a grammar need it.
#[derive(Clone, Debug)]
pub struct LateGrammars {
    made: Arc<OnceLock<Result<Grammars, String>>>,
}

impl LateGrammars {
    /// Begins to index the vocabulary of a model on a thread of its own.
    ///
    /// # Errors
    /// The system gives no thread.
    pub fn start(checkpoint: Arc<Checkpoint>) -> std::io::Result<Self> {
        let late = Self { made: Arc::default() };
        let made = Arc::clone(&late.made);
        let index = move || {
            let began = Instant::now();
            let result =
                catch_unwind(|| index(&checkpoint)).unwrap_or_else(|_| Err("indexing it failed".to_owned()));
            match &result {
                Ok(_) => tracing::debug!(took_ms = began.elapsed().as_millis(), "the vocabulary is indexed"),
                Err(reason) => {
                    tracing::error!(
                        reason,
                        "the vocabulary can't be used; requests with a grammar are refused"
                    );
                }
            }
            // Nobody else sets it.
            let _ = made.set(result);
        };
        std::thread::Builder::new().name("vocabulary".to_owned()).spawn(index)?;
        Ok(late)
    }

    /// Waits until nothing is left to do, for whoever measures the processor.
    pub fn wait(&self) {
        let _ = self.made.wait();
    }

    /// Compiles a grammar, waiting for the vocabulary if need be.
    ///
    /// # Errors
    /// A sentence for the client: what is wrong with the grammar, or that this model can't hold to any.
    pub fn compile(&self, grammar: &Grammar) -> Result<GrammarMatcher, String> {
        match self.made.wait() {
            Ok(grammars) => grammars.compile(grammar),
            Err(reason) => Err(format!("this model can't be held to a grammar: {reason}")),
        }
    }
}

fn index(checkpoint: &Checkpoint) -> Result<Grammars, String> {
    let config = checkpoint.config();
    let tokens = TokenTable::open(checkpoint).map_err(|error| error.to_string())?;
    let vocab_size = u32::try_from(config.vocab_size).map_err(|error| error.to_string())?;
    Grammars::new(&token_texts(&tokens, vocab_size), &config.eos)
}

#[cfg(test)]
mod tests {
    use pons_checkpoint::fixture::write_tiny_llama;

    use super::*;

    fn late(dir: &std::path::Path) -> LateGrammars {
        let checkpoint = Checkpoint::open(dir).expect("the model opens");
        LateGrammars::start(Arc::new(checkpoint)).expect("a thread starts")
    }

    #[test]
    fn a_grammar_waits_for_the_vocabulary() {
        let dir = tempfile::tempdir().expect("temporary directory");
        write_tiny_llama(dir.path(), 1, &[]).expect("the model is written");
        let late = late(dir.path());
        assert!(late.compile(&Grammar::Regex("a+".to_owned())).is_ok());
        assert!(late.compile(&Grammar::Regex("(".to_owned())).is_err());
        late.wait();
    }

    #[test]
    fn a_model_without_a_usable_vocabulary_refuses_every_grammar_and_says_why() {
        let dir = tempfile::tempdir().expect("temporary directory");
        write_tiny_llama(dir.path(), 1, &[]).expect("the model is written");
        std::fs::write(dir.path().join("tokenizer.json"), "{}").expect("written");
        let late = late(dir.path());
        late.wait();
        let refusal = late.compile(&Grammar::Regex("a+".to_owned())).expect_err("refused");
        assert!(refusal.contains("can't be held to a grammar"), "{refusal}");
    }
}
