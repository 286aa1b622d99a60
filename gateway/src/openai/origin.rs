//! Where the parts of a sequence came from, so that a brain's refusal can be told in the client's words. The rule:
//! an error names a field that the client sent, and shows no text that was made here.

use pons_protocol::inference::RejectReason;
use pons_protocol::sampling::Grammar;

use crate::error::ApiError;

/// How a brain begins its refusal of a grammar.
const BRAINS_WORDS: &str = "grammar is refused: ";
/// Most characters of a brain's words that are passed on.
const MAX_REASON_CHARS: usize = 400;

/// The fields that a sequence was made of.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Origin {
    prompt: &'static str,
    grammar: String,
    /// Rules of a grammar that was put together from several fields, each with its field.
    parts: Vec<(String, String)>,
}

impl Origin {
    /// Of a prompt, without a grammar.
    pub(super) fn of_prompt(prompt: &'static str) -> Self {
        Self { prompt, ..Self::default() }
    }

    /// With a grammar that one field asks for.
    #[must_use]
    pub(super) fn with_grammar(mut self, field: &str) -> Self {
        self.grammar = field.to_owned();
        self
    }

    /// With rules of the grammar that have fields of their own.
    #[must_use]
    pub(super) fn with_parts(mut self, parts: Vec<(String, String)>) -> Self {
        self.parts = parts;
        self
    }

    /// A brain's refusal as the client is told.
    pub fn refusal(&self, reason: RejectReason, message: &str, grammar: Option<&Grammar>) -> ApiError {
        match reason {
            RejectReason::TooLong => ApiError::rejected(reason, message).with_param(self.prompt),
            RejectReason::BadGrammar => self.grammar_refusal(message, grammar),
            _ => ApiError::rejected(reason, message),
        }
    }

    fn grammar_refusal(&self, message: &str, grammar: Option<&Grammar>) -> ApiError {
        // Further lines quote the source.
        let first = message.lines().next().unwrap_or_default();
        let words = first.strip_prefix(BRAINS_WORDS).unwrap_or(first);
        let (line, bare) = located(words);
        let (field, shown) = match grammar {
            Some(Grammar::Lark(text)) if !self.parts.is_empty() => {
                let rule = line.and_then(|line| text.lines().nth(line.saturating_sub(1)));
                let part = rule.and_then(|rule| self.parts.iter().find(|(name, _)| rule.starts_with(name)));
                (part.map_or(&self.grammar, |(_, field)| field), bare)
            }
            // The place is one in the client's own text.
            Some(Grammar::Lark(_)) => (&self.grammar, words),
            _ => (&self.grammar, bare),
        };
        let shown: String = shown.chars().take(MAX_REASON_CHARS).collect();
        let message = format!("{field} can't be enforced: {shown}; change or simplify it");
        ApiError::rejected(RejectReason::BadGrammar, message).with_param(field)
    }
}

/// Takes `at LINE(COLUMN): ` from the front.
fn located(words: &str) -> (Option<usize>, &str) {
    let found = words.strip_prefix("at ").and_then(|rest| {
        let (place, reason) = rest.split_once("): ")?;
        let (line, column) = place.split_once('(')?;
        column.parse::<usize>().ok()?;
        Some((line.parse().ok()?, reason))
    });
    found.map_or((None, words), |(line, reason)| (Some(line), reason))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_place_in_the_clients_own_text_is_shown() {
        let message = "grammar is refused: at 2(8): unknown name: \"nowhere\"\n  2 | answer: nowhere";
        let lark = Grammar::Lark("start: answer\nanswer: nowhere".to_owned());
        let own = Origin::of_prompt("prompt").with_grammar("guided_grammar");
        let error = own.refusal(RejectReason::BadGrammar, message, Some(&lark));
        assert_eq!(error.param.as_deref(), Some("guided_grammar"));
        assert!(error.message.contains("at 2(8)") && !error.message.contains("answer"), "{}", error.message);
        let parts = vec![("answer:".to_owned(), "response_format".to_owned())];
        let made = Origin::of_prompt("messages").with_grammar("tools").with_parts(parts);
        let error = made.refusal(RejectReason::BadGrammar, message, Some(&lark));
        assert_eq!(error.param.as_deref(), Some("response_format"));
        assert!(error.message.contains("nowhere") && !error.message.contains("2(8)"), "{}", error.message);
    }

    #[test]
    fn a_prompt_that_is_too_long_is_named_as_it_was_sent() {
        let error = Origin::of_prompt("prompt").refusal(RejectReason::TooLong, "too long", None);
        assert_eq!(error.code.as_deref(), Some("context_length_exceeded"));
        assert_eq!(error.param.as_deref(), Some("prompt"));
    }
}
