//! A compiled grammar with its position in it. The rule: every failure is a sentence for the sequence's fault; the
//! matcher itself never panics and never blocks for longer than its limits allow.

use llguidance::Matcher;
use llguidance::api::StopReason;
use pons_protocol::id::TokenId;

/// A compiled grammar with its position.
pub struct GrammarMatcher {
    matcher: Matcher,
    /// Allowed tokens as 32-bit words; the end tokens are among them where the text may stop.
    mask: Vec<u32>,
}

impl Clone for GrammarMatcher {
    /// A matcher of its own: nothing is shared with the original, not even caches behind a lock.
    fn clone(&self) -> Self {
        Self { matcher: self.matcher.deep_clone(), mask: self.mask.clone() }
    }
}

impl std::fmt::Debug for GrammarMatcher {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("GrammarMatcher")
            .field("stop_reason", &self.matcher.stop_reason())
            .finish_non_exhaustive()
    }
}

impl GrammarMatcher {
    pub(super) fn new(matcher: Matcher) -> Self {
        Self { matcher, mask: Vec::new() }
    }

    /// Works out which tokens may come next; [`GrammarMatcher::mask`] then holds them.
    ///
    /// # Errors
    /// The grammar needs more work for this token than its limits allow.
    pub fn compute_mask(&mut self) -> Result<(), String> {
        match self.matcher.compute_mask_or_eos() {
            Ok(set) => {
                self.mask.clear();
                self.mask.extend_from_slice(set.as_slice());
                Ok(())
            }
            Err(error) => Err(self.explain(&error.to_string())),
        }
    }

    /// The last computed mask: bit `t % 32` of word `t / 32` is set where token `t` may come next.
    pub fn mask(&self) -> &[u32] {
        &self.mask
    }

    /// Moves on by one token.
    ///
    /// # Errors
    /// The grammar doesn't allow the token here, or its limits are exceeded.
    pub fn advance(&mut self, token: TokenId) -> Result<(), String> {
        self.matcher.consume_token(token).map_err(|error| self.explain(&error.to_string()))
    }

    /// Whether the text is complete and nothing but the end may follow.
    pub fn is_ended(&self) -> bool {
        matches!(
            self.matcher.stop_reason(),
            StopReason::NoExtension | StopReason::NoExtensionBias | StopReason::EndOfSentence
        )
    }

    /// Whether the text may end here.
    pub fn is_complete(&mut self) -> bool {
        self.is_ended() || self.matcher.is_accepting().unwrap_or(false)
    }

    fn explain(&self, error: &str) -> String {
        let first = error.lines().next().unwrap_or("unknown reason");
        match self.matcher.stop_reason() {
            StopReason::LexerTooComplex | StopReason::ParserTooComplex => {
                format!("grammar needs more work per token than the limit allows: {first}; simplify it")
            }
            _ => format!("grammar can't go on: {first}"),
        }
    }
}
