//! Finds the added tokens of a vocabulary in a text: leftmost first, longest first, as HF's tokenizers do.
//!
//! Work is bounded by text length times the longest added token, whatever the text.

/// A token that is matched in the text as a whole, before the rest is split and merged.
#[derive(Debug, Clone)]
pub(super) struct AddedToken {
    /// Its id.
    pub(super) id: u32,
    /// Its text.
    pub(super) text: String,
    /// Whether it steers the model and is hidden from readers, or is merely indivisible.
    pub(super) control: bool,
    /// Also swallows the white space before it.
    pub(super) lstrip: bool,
    /// Also swallows the white space after it.
    pub(super) rstrip: bool,
    /// Only matches between word borders.
    pub(super) single_word: bool,
}

/// A stretch of a text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Piece<'t> {
    /// Ordinary text, never empty.
    Text(&'t str),
    /// An added token.
    Token(u32),
}

/// A match of one added token.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Match {
    /// Where it begins, in bytes.
    pub(crate) start: usize,
    /// Where it ends, in bytes.
    pub(crate) end: usize,
    /// Whether the token is a control token.
    pub(crate) control: bool,
    index: usize,
}

/// One node of the trie: the token that ends here, and the nodes that follow.
#[derive(Debug, Default)]
struct Node {
    token: Option<usize>,
    next: Vec<(u8, u32)>,
}

/// All added tokens of a vocabulary in one trie over bytes.
#[derive(Debug)]
pub(crate) struct AddedTokens {
    tokens: Vec<AddedToken>,
    nodes: Vec<Node>,
    begins: [bool; 256],
}

impl AddedTokens {
    /// Builds the trie; tokens with an empty text are left out, and of two with one text the first one wins.
    pub(super) fn new(tokens: Vec<AddedToken>) -> Self {
        let mut trie = Self { tokens: Vec::new(), nodes: vec![Node::default()], begins: [false; 256] };
        for token in tokens.into_iter().filter(|token| !token.text.is_empty()) {
            let node = token.text.bytes().fold(0, |node, byte| trie.child(node, byte));
            if trie.nodes[node].token.is_none() {
                trie.nodes[node].token = Some(trie.tokens.len());
                trie.begins[token.text.as_bytes()[0] as usize] = true;
                trie.tokens.push(token);
            }
        }
        trie
    }

    /// All added tokens, in the order of the model file.
    pub(super) fn tokens(&self) -> &[AddedToken] {
        &self.tokens
    }

    fn child(&mut self, node: usize, byte: u8) -> usize {
        if let Some(found) = self.step(node, byte) {
            return found;
        }
        let new = self.nodes.len();
        self.nodes.push(Node::default());
        self.nodes[node].next.push((byte, new as u32));
        new
    }

    fn step(&self, node: usize, byte: u8) -> Option<usize> {
        self.nodes[node].next.iter().find(|(b, _)| *b == byte).map(|(_, next)| *next as usize)
    }

    /// The longest added token that begins exactly at `start`.
    fn longest_at(&self, text: &[u8], start: usize) -> Option<Match> {
        let mut node = 0;
        let mut found = None;
        for (offset, byte) in text[start..].iter().enumerate() {
            let Some(next) = self.step(node, *byte) else { break };
            node = next;
            if let Some(index) = self.nodes[node].token {
                let control = self.tokens[index].control;
                found = Some(Match { start, end: start + offset + 1, control, index });
            }
        }
        found
    }

    /// The next added token at or after `from`, by its bare text (without the white space it may swallow).
    pub(crate) fn find(&self, text: &str, from: usize) -> Option<Match> {
        let bytes = text.as_bytes();
        (from..bytes.len())
            .filter(|at| self.begins[bytes[*at] as usize])
            .find_map(|at| self.longest_at(bytes, at))
    }

    /// The start of a trailing stretch of `text` that some longer added token begins with, if there is one.
    pub(crate) fn unfinished_at_end(&self, text: &str) -> Option<usize> {
        let bytes = text.as_bytes();
        let longest = self.tokens.iter().map(|token| token.text.len()).max().unwrap_or(0);
        let from = bytes.len().saturating_sub(longest);
        (from..bytes.len()).filter(|at| self.begins[bytes[*at] as usize]).find(|at| {
            let end = bytes[*at..].iter().try_fold(0, |node, byte| self.step(node, *byte));
            end.is_some_and(|node| !self.nodes[node].next.is_empty())
        })
    }

    /// Cuts a text into ordinary stretches and added tokens, in order.
    ///
    /// A guard breaks the tokens it stands in by itself; a token of one character is broken by a guard behind it.
    pub(super) fn split<'t>(&self, text: &'t str, guard: Option<char>) -> Vec<Piece<'t>> {
        let mut pieces = Vec::new();
        let mut done = 0;
        let mut from = 0;
        while let Some(found) = self.find(text, from) {
            from = found.end;
            let token = &self.tokens[found.index];
            let guarded = guard.is_some_and(|guard| text[found.end..].starts_with(guard));
            if guarded && token.text.chars().nth(1).is_none() {
                continue;
            }
            if token.single_word && !stands_alone(text, found) {
                continue;
            }
            let mut start = found.start;
            if token.lstrip {
                start = text[done..start].trim_end().len() + done;
            }
            if token.rstrip {
                from += text[from..].len() - text[from..].trim_start().len();
            }
            if done < start {
                pieces.push(Piece::Text(&text[done..start]));
            }
            pieces.push(Piece::Token(token.id));
            done = from;
        }
        if done < text.len() {
            pieces.push(Piece::Text(&text[done..]));
        }
        pieces
    }
}

/// Whether no word character touches the match.
fn stands_alone(text: &str, found: Match) -> bool {
    let word = |c: char| c.is_alphanumeric() || c == '_';
    !text[..found.start].ends_with(word) && !text[found.end..].starts_with(word)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn token(id: u32, text: &str) -> AddedToken {
        AddedToken { id, text: text.into(), control: true, lstrip: false, rstrip: false, single_word: false }
    }

    #[test]
    fn the_longest_token_wins_at_the_leftmost_place() {
        let added = AddedTokens::new(vec![token(1, "<a>"), token(2, "<a><b>"), token(3, "<b>")]);
        assert_eq!(
            added.split("x<a><b><a>y", None),
            [Piece::Text("x"), Piece::Token(2), Piece::Token(1), Piece::Text("y")]
        );
    }

    #[test]
    fn a_token_may_swallow_white_space_on_either_side() {
        let mut left = token(1, "<l>");
        left.lstrip = true;
        let mut right = token(2, "<r>");
        right.rstrip = true;
        let added = AddedTokens::new(vec![left, right]);
        assert_eq!(
            added.split("a  <l> b <r>  c", None),
            [Piece::Text("a"), Piece::Token(1), Piece::Text(" b "), Piece::Token(2), Piece::Text("c")]
        );
    }

    #[test]
    fn a_single_word_token_is_not_found_inside_a_word() {
        let mut only = token(1, "end");
        only.single_word = true;
        let added = AddedTokens::new(vec![only]);
        assert_eq!(added.split("bend", None), [Piece::Text("bend")]);
        assert_eq!(added.split("an end.", None), [Piece::Text("an "), Piece::Token(1), Piece::Text(".")]);
    }

    #[test]
    fn an_unfinished_token_at_the_end_is_noticed() {
        let added = AddedTokens::new(vec![token(1, "<|im_end|>")]);
        assert_eq!(added.unfinished_at_end("so <|im_"), Some(3));
        assert_eq!(added.unfinished_at_end("so <|im_end|>"), None);
        assert_eq!(added.unfinished_at_end("so"), None);
        assert_eq!(added.unfinished_at_end(""), None);
    }

    #[test]
    fn a_megabyte_of_near_misses_is_searched_quickly() {
        let added = AddedTokens::new(vec![token(1, "<|im_end|>"), token(2, "<<<<<<<<>")]);
        let text = "<".repeat(1 << 20);
        assert_eq!(added.split(&text, None), [Piece::Text(text.as_str())]);
    }
}
