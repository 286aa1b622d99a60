//! Finds stop strings in a stream of text, wherever the pieces are cut.
//!
//! The rule: only a proper prefix of a stop string is ever held back; the match that is complete first wins, and
//! of those complete at the same character the longest; the text then ends where that match begins.

use std::sync::Arc;

/// Stop strings of one request, compiled once and shared by its choices.
#[derive(Debug, Default)]
pub struct StopStrings {
    patterns: Vec<Pattern>,
}

/// One stop string with its Knuth-Morris-Pratt failure table.
#[derive(Debug)]
struct Pattern {
    text: String,
    /// Length of the longest proper border of each prefix.
    borders: Vec<usize>,
}

impl Pattern {
    fn new(text: String) -> Self {
        let bytes = text.as_bytes();
        let mut borders = vec![0; bytes.len()];
        let mut matched = 0;
        for at in 1..bytes.len() {
            while matched > 0 && bytes[at] != bytes[matched] {
                matched = borders[matched - 1];
            }
            if bytes[at] == bytes[matched] {
                matched += 1;
            }
            borders[at] = matched;
        }
        Self { text, borders }
    }

    /// Length of the prefix matched after one more byte.
    fn advance(&self, mut matched: usize, byte: u8) -> usize {
        let bytes = self.text.as_bytes();
        while matched > 0 && bytes[matched] != byte {
            matched = self.borders[matched - 1];
        }
        if bytes[matched] == byte { matched + 1 } else { matched }
    }
}

impl StopStrings {
    /// Compiles stop strings; empty ones are left out.
    pub fn new(texts: impl IntoIterator<Item = String>) -> Self {
        Self { patterns: texts.into_iter().filter(|text| !text.is_empty()).map(Pattern::new).collect() }
    }

    /// Whether there is nothing to look for.
    pub fn is_empty(&self) -> bool {
        self.patterns.is_empty()
    }

    /// The stop string with this number.
    pub fn text(&self, index: usize) -> Option<&str> {
        self.patterns.get(index).map(|pattern| pattern.text.as_str())
    }
}

/// Looks for the stop strings in one choice's text.
#[derive(Debug)]
pub struct StopMatcher {
    strings: Arc<StopStrings>,
    include: bool,
    /// Matched prefix of each stop string.
    matched: Vec<usize>,
    /// The text's end that may still become a stop string.
    held: String,
}

impl StopMatcher {
    /// `include` leaves the stop string at the end of the text.
    pub fn new(strings: Arc<StopStrings>, include: bool) -> Self {
        let matched = vec![0; strings.patterns.len()];
        Self { strings, include, matched, held: String::new() }
    }

    /// Appends to `out` what can be shown; says which stop string is complete, if one is. After that the stream
    /// is over and the rest of `text` is dropped.
    pub fn push(&mut self, text: &str, out: &mut String) -> Option<usize> {
        if self.strings.is_empty() {
            out.push_str(text);
            return None;
        }
        let before = self.held.len();
        self.held.push_str(text);
        for (offset, byte) in text.bytes().enumerate() {
            if let Some(hit) = self.step(byte) {
                let end = before + offset + 1;
                let start = end - self.strings.patterns[hit].text.len();
                out.push_str(&self.held[..if self.include { end } else { start }]);
                self.held.clear();
                return Some(hit);
            }
        }
        let keep = self.matched.iter().copied().max().unwrap_or(0);
        out.extend(self.held.drain(..self.held.len() - keep));
        None
    }

    fn step(&mut self, byte: u8) -> Option<usize> {
        let mut hit: Option<usize> = None;
        for (index, pattern) in self.strings.patterns.iter().enumerate() {
            self.matched[index] = pattern.advance(self.matched[index], byte);
            if self.matched[index] == pattern.text.len() {
                // A complete match may not be advanced further; the stream is over anyway.
                let longer =
                    hit.is_none_or(|best| self.strings.patterns[best].text.len() < pattern.text.len());
                if longer {
                    hit = Some(index);
                }
            }
        }
        hit
    }

    /// Ends the stream: what was held back is text after all.
    pub fn finish(&mut self, out: &mut String) {
        out.push_str(&self.held);
        self.held.clear();
        self.matched.fill(0);
    }

    /// Forgets a prefix and releases it, where a text may not become part of a stop string.
    pub fn skip(&mut self, text: &str, out: &mut String) {
        self.finish(out);
        out.push_str(text);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn run(stops: &[&str], pieces: &[&str], include: bool) -> (String, Option<usize>, Vec<String>) {
        let strings = Arc::new(StopStrings::new(stops.iter().map(|s| (*s).to_owned())));
        let mut machine = StopMatcher::new(strings, include);
        let (mut all, mut frames) = (String::new(), Vec::new());
        for piece in pieces {
            let mut frame = String::new();
            let hit = machine.push(piece, &mut frame);
            all.push_str(&frame);
            frames.push(frame);
            if hit.is_some() {
                return (all, hit, frames);
            }
        }
        machine.finish(&mut all);
        (all, None, frames)
    }

    #[test]
    fn c_stop_sequences_01_a_stop_over_four_tokens_leaks_nothing() {
        let (text, hit, frames) = run(&["three four"], &["thr", "ee", " fo", "ur", "! five"], false);
        assert_eq!((text.as_str(), hit, frames.len()), ("", Some(0), 4));
    }

    #[test]
    fn c_stop_sequences_02_a_prefix_of_the_stop_does_not_leak() {
        let (text, hit, frames) = run(&["\n### Human:"], &["Fine.", "\n### Hum", "an:", " more"], false);
        assert_eq!((text.as_str(), hit), ("Fine.", Some(0)));
        assert_eq!(frames, ["Fine.", "", ""]);
    }

    #[test]
    fn c_stop_sequences_03_the_cut_is_at_the_start_of_the_first_full_match() {
        let (text, hit, _) = run(&["<<END>>", "<<END>>\n"], &["body\n", "<<EN", "D>>"], false);
        assert_eq!((text.as_str(), hit), ("body\n", Some(0)));
    }

    #[test]
    fn c_stop_sequences_04_a_false_start_is_released() {
        let (text, hit, frames) = run(&["green blue"], &["red gre", "en bl", "ack end"], false);
        assert_eq!((text.as_str(), hit), ("red green black end", None));
        assert_eq!(frames, ["red ", "", "green black end"]);
    }

    #[test]
    fn of_two_stops_complete_at_one_character_the_longest_counts() {
        assert_eq!(run(&["c", "bc"], &["abcd"], false).0, "a");
        assert_eq!(run(&["abcd", "bc"], &["abcd"], false).0, "a");
    }

    #[test]
    fn the_stop_stays_when_it_is_included() {
        assert_eq!(run(&["END"], &["a E", "ND b"], true).0, "a END");
    }

    /// What the machine must do, said without a machine.
    fn expected(stops: &[String], text: &str) -> (String, bool) {
        for (end, _) in text.char_indices().map(|(i, c)| (i + c.len_utf8(), c)) {
            let hit = stops.iter().filter(|s| text[..end].ends_with(s.as_str())).map(String::len).max();
            if let Some(len) = hit {
                return (text[..end - len].to_owned(), true);
            }
        }
        (text.to_owned(), false)
    }

    proptest! {
        #[test]
        fn any_split_finds_the_same_stop(
            stops in prop::collection::vec("[abé]{1,4}", 1..4),
            text in "[abcé]{0,24}",
            cuts in prop::collection::vec(0_usize..24, 0..6),
        ) {
            let mut bounds: Vec<usize> = cuts.into_iter().map(|c| text.floor_char_boundary(c)).collect();
            bounds.extend([0, text.len()]);
            bounds.sort_unstable();
            let pieces: Vec<&str> = bounds.windows(2).map(|w| &text[w[0]..w[1]]).collect();
            let names: Vec<&str> = stops.iter().map(String::as_str).collect();
            let (found, hit, _) = run(&names, &pieces, false);
            prop_assert_eq!((found, hit.is_some()), expected(&stops, &text));
        }
    }
}
