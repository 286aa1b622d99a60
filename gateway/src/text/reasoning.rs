//! Splits reasoning (`<think>…</think>`) from the answer, with tags cut anywhere.
//!
//! The rule: a tag opens reasoning only where the text begins; later mentions of it are ordinary text.

use super::partial_tag_at_end;

/// Opens reasoning.
pub const OPEN_TAG: &str = "<think>";
/// Ends reasoning.
pub const CLOSE_TAG: &str = "</think>";
/// White space that may stand before the opening tag, in bytes.
const MAX_LEADING_BYTES: usize = 16;

/// What is known before the first token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReasoningStart {
    /// Nothing is parsed, as when a grammar holds the output.
    Off,
    /// The text may begin with the tag.
    Detect,
    /// The prompt ended with the tag, so the text begins inside of it.
    Open,
}

/// To which side a stretch of text belongs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// Between the tags.
    Reasoning,
    /// The answer.
    Content,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Start,
    /// Line ends right after a tag are dropped.
    ThinkingStart,
    Thinking,
    ContentStart,
    Content,
}

/// The machine of one choice.
#[derive(Debug)]
pub struct ReasoningSplitter {
    state: State,
    held: String,
}

impl ReasoningSplitter {
    /// A machine for one choice.
    pub fn new(start: ReasoningStart) -> Self {
        let state = match start {
            ReasoningStart::Off => State::Content,
            ReasoningStart::Detect => State::Start,
            ReasoningStart::Open => State::ThinkingStart,
        };
        Self { state, held: String::new() }
    }

    /// Whether the text is inside of reasoning now.
    pub fn is_thinking(&self) -> bool {
        matches!(self.state, State::ThinkingStart | State::Thinking)
    }

    /// Hands each stretch that is settled to `sink`.
    pub fn push(&mut self, text: &str, sink: &mut impl FnMut(Part, &str)) {
        if self.state == State::Content {
            if !text.is_empty() {
                sink(Part::Content, text);
            }
            return;
        }
        self.held.push_str(text);
        while self.step(sink) {}
    }

    /// One move; false when more text is needed.
    fn step(&mut self, sink: &mut impl FnMut(Part, &str)) -> bool {
        match self.state {
            State::Start => {
                let rest = self.held.trim_start();
                let leading = self.held.len() - rest.len();
                if leading <= MAX_LEADING_BYTES && rest.starts_with(OPEN_TAG) {
                    self.held.drain(..leading + OPEN_TAG.len());
                    self.state = State::ThinkingStart;
                    return true;
                }
                if leading <= MAX_LEADING_BYTES && OPEN_TAG.starts_with(rest) {
                    return false;
                }
                self.state = State::Content;
                true
            }
            State::ThinkingStart | State::ContentStart => {
                let leading = self.held.len() - self.held.trim_start_matches(['\n', '\r']).len();
                self.held.drain(..leading);
                if self.held.is_empty() {
                    return false;
                }
                let thinking = self.state == State::ThinkingStart;
                self.state = if thinking { State::Thinking } else { State::Content };
                true
            }
            State::Thinking => {
                if let Some(at) = self.held.find(CLOSE_TAG) {
                    if at > 0 {
                        sink(Part::Reasoning, &self.held[..at]);
                    }
                    self.held.drain(..at + CLOSE_TAG.len());
                    self.state = State::ContentStart;
                    return true;
                }
                let keep = partial_tag_at_end(&self.held, CLOSE_TAG);
                self.release(self.held.len() - keep, Part::Reasoning, sink);
                false
            }
            State::Content => {
                self.release(self.held.len(), Part::Content, sink);
                false
            }
        }
    }

    fn release(&mut self, upto: usize, part: Part, sink: &mut impl FnMut(Part, &str)) {
        if upto > 0 {
            sink(part, &self.held[..upto]);
            self.held.drain(..upto);
        }
    }

    /// Ends the stream: what was held back belongs to the side it was found on.
    pub fn finish(&mut self, sink: &mut impl FnMut(Part, &str)) {
        let part = if self.is_thinking() { Part::Reasoning } else { Part::Content };
        self.release(self.held.len(), part, sink);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn run<'a>(start: ReasoningStart, pieces: impl IntoIterator<Item = &'a str>) -> (String, String) {
        let (mut reasoning, mut content) = (String::new(), String::new());
        let mut machine = ReasoningSplitter::new(start);
        let mut sink = |part, text: &str| match part {
            Part::Reasoning => reasoning.push_str(text),
            Part::Content => content.push_str(text),
        };
        for piece in pieces {
            machine.push(piece, &mut sink);
        }
        machine.finish(&mut sink);
        (reasoning, content)
    }

    #[test]
    fn c_reasoning_split_01_tags_cut_by_token_boundaries_leave_no_trace() {
        let (reasoning, content) =
            run(ReasoningStart::Detect, ["<thi", "nk>let me", " see</thi", "nk>Done."]);
        assert_eq!((reasoning.as_str(), content.as_str()), ("let me see", "Done."));
    }

    #[test]
    fn a_tag_later_in_the_text_is_text() {
        let (reasoning, content) = run(ReasoningStart::Detect, ["say <think>", " aloud</think>"]);
        assert_eq!((reasoning.as_str(), content.as_str()), ("", "say <think> aloud</think>"));
    }

    #[test]
    fn a_prompt_that_opened_the_tag_begins_in_reasoning() {
        let (reasoning, content) = run(ReasoningStart::Open, ["\nhm", "</think>\n\n", "yes\n"]);
        assert_eq!((reasoning.as_str(), content.as_str()), ("hm", "yes\n"));
    }

    #[test]
    fn a_limit_while_reasoning_leaves_the_content_empty() {
        let (reasoning, content) = run(ReasoningStart::Detect, ["<think>", "and so on </th"]);
        assert_eq!((reasoning.as_str(), content.as_str()), ("and so on </th", ""));
    }

    #[test]
    fn leading_space_without_a_tag_is_kept() {
        assert_eq!(run(ReasoningStart::Detect, [" ", "\n", "x"]).1, " \nx");
        assert_eq!(run(ReasoningStart::Detect, ["  "]).1, "  ");
    }

    proptest! {
        #[test]
        fn c_reasoning_split_02_any_split_gives_the_same_two_texts(
            text in "(\n)?(<think>)?[a<\n]{0,6}(</think>)?[b</\n]{0,8}(</think>)?",
            width in 1_usize..6,
            open in any::<bool>(),
        ) {
            let start = if open { ReasoningStart::Open } else { ReasoningStart::Detect };
            let whole = run(start, [text.as_str()]);
            let pieces = text.as_bytes().chunks(width).map(|c| std::str::from_utf8(c).unwrap());
            prop_assert_eq!(run(start, pieces), whole);
        }
    }
}
