//! Cuts text into words as the regular expressions of GPT-2, Llama 3 and Qwen 2 do, in one pass and without them.
//!
//! Each step looks at a character and its run only, so no text can make it slow, which backtracking can't promise.

use std::sync::LazyLock;

use tokenizers::utils::SysRegex;

/// A way to cut text into words.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Words {
    /// GPT-2's pattern: contractions, then runs of letters, digits or marks with the space before them.
    Gpt2 {
        /// Whether each digit is cut out first.
        single_digits: bool,
    },
    /// Llama 3's and Qwen 2's pattern.
    Llama3 {
        /// The most digits of one word.
        digits: usize,
    },
}

/// The class of each code point, from the regular expression engine that the models' makers used: another
/// version of Unicode would cut some texts elsewhere.
static CLASSES: LazyLock<Vec<Class>> = LazyLock::new(|| {
    let mut classes = vec![Class::Other; char::MAX as usize + 1];
    let all: String = ('\0'..=char::MAX).collect();
    for (pattern, class) in [(r"\p{L}+", Class::Letter), (r"\p{N}+", Class::Number), (r"\s+", Class::Space)] {
        let engine = SysRegex::new(pattern).expect("a well-formed pattern");
        for (start, end) in engine.find_iter(&all) {
            for c in all[start..end].chars() {
                classes[c as usize] = class;
            }
        }
    }
    classes
});

/// What the patterns tell apart.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Class {
    Letter,
    Number,
    Space,
    Other,
}

fn class(c: char) -> Class {
    match c {
        'a'..='z' | 'A'..='Z' => Class::Letter,
        '0'..='9' => Class::Number,
        ' ' | '\t'..='\r' => Class::Space,
        '\0'..='\x7f' => Class::Other,
        _ => CLASSES[c as usize],
    }
}

fn first(text: &str) -> Option<(char, Class)> {
    text.chars().next().map(|c| (c, class(c)))
}

/// How many bytes of `text` belong to its first run of characters for which `belongs` holds.
fn run(text: &str, belongs: impl Fn(char) -> bool) -> usize {
    text.find(|c| !belongs(c)).unwrap_or(text.len())
}

fn run_of(text: &str, wanted: Class) -> usize {
    run(text, |c| class(c) == wanted)
}

impl Words {
    /// Calls `each` with every word of the text, in order; together they are the text.
    pub(super) fn cut(self, text: &str, mut each: impl FnMut(&str)) {
        match self {
            Self::Gpt2 { single_digits: false } => cut_by(text, gpt2, &mut each),
            Self::Gpt2 { single_digits: true } => {
                let mut rest = text;
                while !rest.is_empty() {
                    // Here the models' pre-tokenizer asks the standard library, not the expression engine.
                    let plain = run(rest, |c| !c.is_numeric());
                    cut_by(&rest[..plain], gpt2, &mut each);
                    rest = &rest[plain..];
                    if let Some(digit) = rest.chars().next() {
                        each(&rest[..digit.len_utf8()]);
                        rest = &rest[digit.len_utf8()..];
                    }
                }
            }
            Self::Llama3 { digits } => cut_by(text, |text| llama3(text, digits), &mut each),
        }
    }
}

fn cut_by(text: &str, length: impl Fn(&str) -> usize, each: &mut impl FnMut(&str)) {
    let mut rest = text;
    while !rest.is_empty() {
        let (word, tail) = rest.split_at(length(rest));
        each(word);
        rest = tail;
    }
}

/// The length of the contraction that the text begins with, such as `'s` or `'ll`.
fn contraction(text: &str, any_case: bool) -> Option<usize> {
    let rest = text.strip_prefix('\'')?;
    let mut chars = rest.chars().map(|c| match c {
        // The long s folds to s, as in the expression engine's tables.
        'ſ' if any_case => 's',
        c if any_case => c.to_ascii_lowercase(),
        c => c,
    });
    match (chars.next()?, chars.next()) {
        ('s' | 't' | 'm' | 'd', _) => Some(1 + rest.chars().next().map_or(0, char::len_utf8)),
        ('r' | 'v', Some('e')) | ('l', Some('l')) => Some(3),
        _ => None,
    }
}

/// `'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+`
fn gpt2(text: &str) -> usize {
    if let Some(length) = contraction(text, false) {
        return length;
    }
    let lead = usize::from(text.starts_with(' '));
    match first(&text[lead..]) {
        Some((_, wanted)) if wanted != Class::Space => lead + run_of(&text[lead..], wanted),
        _ => spaces(text),
    }
}

/// `\s+(?!\S)|\s+`: all white space at the end of the text, else all but the last, which leads the next word.
fn spaces(text: &str) -> usize {
    let length = run_of(text, Class::Space);
    let last = text[..length].chars().next_back().map_or(0, char::len_utf8);
    if length == text.len() || length == last { length } else { length - last }
}

/// `(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,digits}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|`
/// `\s+(?!\S)|\s+`
fn llama3(text: &str, digits: usize) -> usize {
    if let Some(length) = contraction(text, true) {
        return length;
    }
    let Some((c, kind)) = first(text) else { return 0 };
    let rest = &text[c.len_utf8()..];
    match kind {
        Class::Letter => return c.len_utf8() + run_of(rest, Class::Letter),
        Class::Number => {
            return text
                .chars()
                .take(digits)
                .take_while(|c| class(*c) == Class::Number)
                .map(char::len_utf8)
                .sum();
        }
        Class::Space | Class::Other => {}
    }
    let newline = |c: char| matches!(c, '\r' | '\n');
    if !newline(c) && matches!(first(rest), Some((_, Class::Letter))) {
        return c.len_utf8() + run_of(rest, Class::Letter);
    }
    let lead = usize::from(c == ' ');
    let marks = run_of(&text[lead..], Class::Other);
    if marks > 0 {
        return lead + marks + run(&text[lead + marks..], newline);
    }
    let white = &text[..run_of(text, Class::Space)];
    white.rfind(newline).map_or_else(|| spaces(text), |last| last + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cut(words: Words, text: &str) -> Vec<String> {
        let mut out = Vec::new();
        words.cut(text, |word| out.push(word.to_owned()));
        assert_eq!(out.concat(), text, "nothing is lost");
        out
    }

    #[test]
    fn gpt2_words_carry_the_space_before_them() {
        let words = Words::Gpt2 { single_digits: false };
        assert_eq!(
            cut(words, "It's  12 o'Clock!!\n\n x"),
            ["It", "'s", " ", " 12", " o", "'", "Clock", "!!", "\n\n", " x"]
        );
    }

    #[test]
    fn single_digits_end_the_text_before_them() {
        let words = Words::Gpt2 { single_digits: true };
        assert_eq!(cut(words, "a  12b"), ["a", "  ", "1", "2", "b"]);
    }

    #[test]
    fn llama3_words_carry_one_mark_and_keep_line_ends_together() {
        let words = Words::Llama3 { digits: 3 };
        assert_eq!(
            cut(words, "I'LL say\t(hi)\r\n\r\n  1234 \n x"),
            ["I", "'LL", " say", "\t", "(hi", ")\r\n\r\n", " ", " ", "123", "4", " \n", " x"]
        );
    }

    #[test]
    fn ascii_has_the_classes_that_the_expression_engine_gives_it() {
        for c in '\0'..='\x7f' {
            assert_eq!(class(c), CLASSES[c as usize], "{c:?}");
        }
        assert_eq!(
            [class('é'), class('½'), class('\u{3000}'), class('😀')],
            [Class::Letter, Class::Number, Class::Space, Class::Other]
        );
    }
}
