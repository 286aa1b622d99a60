//! From a grammar's text to a matcher. The rule: what a client sends is bounded before and while it is compiled
//! (bytes, nesting, fuel, wall time), and a refusal says what is wrong in the client's own terms.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, mpsc};
use std::time::Duration;

use llguidance::api::TopLevelGrammar;
use llguidance::earley::SlicedBiasComputer;
use llguidance::toktrie::{
    ApproximateTokEnv, InferenceCapabilities, TokEnv, TokRxInfo, TokTrie, TokenId as TrieToken,
};
use llguidance::{Matcher, ParserFactory};
use pons_protocol::id::TokenId;
use pons_protocol::sampling::Grammar;
use serde_json::{Value, json};

use super::matcher::GrammarMatcher;

/// Most bytes of a grammar's text.
const MAX_TEXT_BYTES: usize = 1 << 20;
/// Deepest nesting of brackets in a grammar's text; compilers recurse over it.
const MAX_NESTING: usize = 128;
/// Most compiles at the same time, abandoned ones included.
const MAX_COMPILES: usize = 8;
/// Longest compile.
const COMPILE_LIMIT: Duration = Duration::from_secs(5);
/// Stack of a compile; nesting times the deepest recursion of the compiler fits many times over.
const COMPILE_STACK_BYTES: usize = 64 << 20;
/// White space between two JSON tokens: enough for a line break and deep indentation, too little for a model that
/// is stuck on blanks to burn its budget.
const JSON_SPACE: &str = r"[\x20\x0A\x0D\x09]{1,32}";
/// Regexes that use this many steps to build are refused; about 50 steps a microsecond.
const LEXER_FUEL: u64 = 2_000_000;

/// Longest token that a grammar can use; the index has no room for longer ones, and no vocabulary needs them.
const MAX_TOKEN_BYTES: usize = 1000;
/// Most bytes of all tokens together; the index numbers its nodes with 22 bits.
const MAX_VOCABULARY_BYTES: usize = 4_000_000;

/// What a token id stands for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TokenText {
    /// These bytes of text.
    Text(Vec<u8>),
    /// A control token, which is never part of a text; a Lark grammar names it by this text, as in `<|im_end|>`.
    Control(Vec<u8>),
    /// Nothing: padding of the vocabulary.
    Unused,
}

/// Compiles grammars for one vocabulary. Cheap to share; compiling needs no exclusive access.
#[derive(Clone)]
pub struct Grammars {
    factory: Arc<ParserFactory>,
    compiling: Arc<AtomicUsize>,
}

impl std::fmt::Debug for Grammars {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let vocab_size = self.factory.tok_env().tok_trie().vocab_size();
        f.debug_struct("Grammars").field("vocab_size", &vocab_size).finish_non_exhaustive()
    }
}

impl Grammars {
    /// Prepares a vocabulary. `tokens` has one entry for each id below the size of the output layer.
    ///
    /// # Errors
    /// No end token, or one outside the vocabulary.
    pub fn new(tokens: &[TokenText], end_tokens: &[TokenId]) -> Result<Self, String> {
        let Some(&first_end) = end_tokens.first() else {
            return Err("the model names no end token, so no grammar could ever end".to_owned());
        };
        if let Some(end) = end_tokens.iter().find(|&&t| t as usize >= tokens.len()) {
            return Err(format!("end token {end} is not below the vocabulary of {}", tokens.len()));
        }
        let words: Vec<Vec<u8>> = (0..)
            .zip(tokens)
            .map(|(id, token)| match token {
                // An end token is never text, whatever the vocabulary says.
                TokenText::Text(bytes) | TokenText::Control(bytes) if bytes.len() > MAX_TOKEN_BYTES => {
                    Vec::new()
                }
                TokenText::Text(bytes) if end_tokens.contains(&id) => control(bytes),
                TokenText::Control(bytes) => control(bytes),
                TokenText::Text(bytes) => bytes.clone(),
                TokenText::Unused => Vec::new(),
            })
            .collect();
        let total: usize = words.iter().map(Vec::len).sum();
        if total > MAX_VOCABULARY_BYTES {
            return Err(format!(
                "vocabulary has {total} bytes; at most {MAX_VOCABULARY_BYTES} can be indexed"
            ));
        }
        let info = TokRxInfo::new(words.len() as u32, first_end as TrieToken);
        let trie = TokTrie::from(&info, &words).with_eos_tokens(end_tokens);
        // Not canonical: the mask never forces a tokenisation, it only excludes.
        let env: TokEnv = Arc::new(ApproximateTokEnv::new(trie));
        let slices = SlicedBiasComputer::general_slices();
        let mut factory = ParserFactory::new(&env, InferenceCapabilities::default(), &slices)
            .map_err(|error| format!("vocabulary can't be indexed: {error}"))?;
        factory.quiet();
        let limits = factory.limits_mut();
        limits.initial_lexer_fuel = LEXER_FUEL;
        limits.max_lexer_states = 50_000;
        limits.max_grammar_size = 300_000;
        limits.precompute_large_lexemes = false;
        limits.verbose_errors = false;
        Ok(Self { factory: Arc::new(factory), compiling: Arc::default() })
    }

    /// Compiles a grammar.
    ///
    /// # Errors
    /// A sentence for the client: what in the grammar is wrong, unsupported or too large.
    pub fn compile(&self, grammar: &Grammar) -> Result<GrammarMatcher, String> {
        let top = parse(grammar)?;
        let running = self.compiling.fetch_add(1, Ordering::AcqRel);
        let slot = CompileSlot(Arc::clone(&self.compiling));
        if running >= MAX_COMPILES {
            return Err(format!("{MAX_COMPILES} grammars are being compiled; try again"));
        }
        let (send, receive) = mpsc::sync_channel(1);
        let factory = Arc::clone(&self.factory);
        // A thread of its own has the stack for deep grammars, and can be left behind when it takes too long; its
        // fuel ends it.
        std::thread::Builder::new()
            .name("grammar-compile".to_owned())
            .stack_size(COMPILE_STACK_BYTES)
            .spawn(move || {
                let _slot = slot;
                // The receiver may have given up.
                let _ = send.send(build(&factory, top));
            })
            .map_err(|error| format!("grammar can't be compiled now: {error}"))?;
        match receive.recv_timeout(COMPILE_LIMIT) {
            Ok(result) => result,
            Err(mpsc::RecvTimeoutError::Timeout) => Err(format!(
                "grammar takes longer than {} s to compile; simplify it",
                COMPILE_LIMIT.as_secs()
            )),
            Err(mpsc::RecvTimeoutError::Disconnected) => {
                Err("grammar breaks the compiler; simplify it".to_owned())
            }
        }
    }
}

/// Counts a running compile for as long as it lives.
struct CompileSlot(Arc<AtomicUsize>);

impl Drop for CompileSlot {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::AcqRel);
    }
}

fn control(text: &[u8]) -> Vec<u8> {
    let mut word = vec![TokTrie::SPECIAL_TOKEN_MARKER];
    word.extend_from_slice(text);
    word
}

fn build(factory: &ParserFactory, top: TopLevelGrammar) -> Result<GrammarMatcher, String> {
    let parser = factory.create_parser(top).map_err(|error| refusal(&format!("{error:#}")))?;
    let mut matcher = GrammarMatcher::new(Matcher::new(Ok(parser)));
    // The first mask shows whether the grammar can start at all and stays within its work limits.
    matcher.compute_mask()?;
    if matcher.mask().iter().all(|&word| word == 0) {
        return Err("grammar allows no text".to_owned());
    }
    Ok(matcher)
}

/// A compiler's message, without what only its authors can use.
fn refusal(message: &str) -> String {
    let text = message.split("\n<").next().unwrap_or(message).trim();
    let mut short: String = text.chars().take(600).collect();
    if short.len() < text.len() {
        short.push('…');
    }
    format!("grammar is refused: {short}")
}

fn parse(grammar: &Grammar) -> Result<TopLevelGrammar, String> {
    let (kind, text) = match grammar {
        Grammar::JsonSchema(text) => ("json schema", text),
        Grammar::Regex(text) => ("regular expression", text),
        Grammar::Lark(text) => ("grammar", text),
    };
    if text.len() > MAX_TEXT_BYTES {
        return Err(format!("{kind} has {} bytes; at most {MAX_TEXT_BYTES} are allowed", text.len()));
    }
    let depth = nesting(text);
    if depth > MAX_NESTING {
        return Err(format!("{kind} nests {depth} brackets; at most {MAX_NESTING} are allowed"));
    }
    match grammar {
        Grammar::JsonSchema(text) => json_schema(text),
        Grammar::Regex(text) => Ok(TopLevelGrammar::from_regex(text)),
        Grammar::Lark(text) => Ok(TopLevelGrammar::from_lark(text.clone())),
    }
}

/// Deepest nesting of brackets, wherever they stand: an upper bound of how deep a parser can recurse.
fn nesting(text: &str) -> usize {
    let (mut depth, mut deepest) = (0usize, 0usize);
    for byte in text.bytes() {
        match byte {
            b'(' | b'[' | b'{' => {
                depth += 1;
                deepest = deepest.max(depth);
            }
            b')' | b']' | b'}' => depth = depth.saturating_sub(1),
            _ => {}
        }
    }
    deepest
}

fn json_schema(text: &str) -> Result<TopLevelGrammar, String> {
    let mut schema: Value =
        serde_json::from_str(text).map_err(|error| format!("json schema is not JSON: {error}"))?;
    match &mut schema {
        Value::Object(fields) => {
            // The space rule is ours; a client can't widen it.
            fields.insert("x-guidance".to_owned(), space_rule());
        }
        Value::Bool(true) => schema = json!({ "x-guidance": space_rule() }),
        Value::Bool(false) => return Err("json schema is false, which no value fits".to_owned()),
        other => {
            let kind = match other {
                Value::Array(_) => "an array",
                Value::String(_) => "a string",
                Value::Number(_) => "a number",
                _ => "null",
            };
            return Err(format!("json schema is {kind}; it must be an object or a boolean"));
        }
    }
    Ok(TopLevelGrammar::from_json_schema(schema))
}

fn space_rule() -> Value {
    json!({ "whitespace_flexible": true, "whitespace_pattern": JSON_SPACE })
}
