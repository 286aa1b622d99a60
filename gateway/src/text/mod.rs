//! Small pure state machines between token bytes and what a client reads.
//!
//! The rule: any split of the input gives the same output, and only what may still change is held back.

pub mod detokenizer;
pub mod reasoning;
pub mod stop;
pub mod tool_calls;

/// Length of the longest proper prefix of `tag` that `text` ends with, in bytes.
///
/// Tags are ASCII, so the result is always a character boundary of `text`.
pub(crate) fn partial_tag_at_end(text: &str, tag: &str) -> usize {
    let longest = (tag.len() - 1).min(text.len());
    (1..=longest).rev().find(|n| text.as_bytes().ends_with(&tag.as_bytes()[..*n])).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::partial_tag_at_end;

    #[test]
    fn the_longest_proper_prefix_of_a_tag_is_found_at_the_end() {
        assert_eq!(partial_tag_at_end("ab<th", "<think>"), 3);
        assert_eq!(partial_tag_at_end("<<", "<think>"), 1);
        assert_eq!(partial_tag_at_end("<think>", "<think>"), 0);
        assert_eq!(partial_tag_at_end("", "<think>"), 0);
        assert_eq!(partial_tag_at_end("é<", "<think>"), 1);
    }
}
