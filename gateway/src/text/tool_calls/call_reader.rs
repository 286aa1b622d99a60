//! Reads one `{"name":…,"arguments":…}` object as it arrives.
//!
//! The rule: nesting is counted, never recursed into, and the arguments' own text is handed on unchanged.

/// Longest name or key that is read; more is no call.
const MAX_WORD_BYTES: usize = 256;

/// How far the object has got.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Progress {
    /// All text was read and the object goes on.
    More,
    /// The object is complete.
    Done,
    /// This can't be such an object.
    Malformed,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Open,
    KeyOrEnd,
    Key,
    Colon,
    Value,
    /// A string that is a name, or arguments written as a string.
    Word,
    Skip,
    Arguments,
    CommaOrEnd,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Field {
    Name,
    Arguments,
    Other,
}

/// The reader of one call.
#[derive(Debug)]
pub(super) struct CallReader {
    phase: Phase,
    field: Field,
    /// Key, name or stringified arguments being read, without the opening quote and still escaped.
    word: String,
    name: Option<String>,
    arguments: String,
    has_arguments: bool,
    depth: u32,
    in_string: bool,
    escaped: bool,
}

impl Default for CallReader {
    fn default() -> Self {
        Self {
            phase: Phase::Open,
            field: Field::Other,
            word: String::new(),
            name: None,
            arguments: String::new(),
            has_arguments: false,
            depth: 0,
            in_string: false,
            escaped: false,
        }
    }
}

impl CallReader {
    /// The tool's name once it is known.
    pub(super) fn name(&self) -> Option<&str> {
        self.name.as_deref()
    }

    /// Whether any arguments were found.
    pub(super) fn has_arguments(&self) -> bool {
        self.has_arguments
    }

    /// Takes the arguments' text read since the last time.
    pub(super) fn take_arguments(&mut self) -> String {
        std::mem::take(&mut self.arguments)
    }

    /// Reads until the text, the object, or patience ends; says how many bytes it used. It also stops when the
    /// name becomes known. The byte that makes it malformed isn't used.
    pub(super) fn read(&mut self, text: &str) -> (usize, Progress) {
        for (at, c) in text.char_indices() {
            let had_name = self.name.is_some();
            match self.step(c) {
                Progress::More if had_name == self.name.is_some() => {}
                Progress::Malformed => return (at, Progress::Malformed),
                progress => return (at + c.len_utf8(), progress),
            }
        }
        (text.len(), Progress::More)
    }

    fn step(&mut self, c: char) -> Progress {
        let blank = matches!(c, ' ' | '\n' | '\r' | '\t');
        match (self.phase, c) {
            (Phase::Key, _) => self.key(c),
            (Phase::Word, _) => self.word(c),
            (Phase::Skip | Phase::Arguments, _) => self.value(c),
            (_, _) if blank => Progress::More,
            (Phase::Open, '{') => self.go(Phase::KeyOrEnd),
            (Phase::KeyOrEnd, '"') => {
                self.word.clear();
                self.go(Phase::Key)
            }
            (Phase::KeyOrEnd | Phase::CommaOrEnd, '}') => Progress::Done,
            (Phase::Colon, ':') => self.go(Phase::Value),
            (Phase::CommaOrEnd, ',') => self.go(Phase::KeyOrEnd),
            (Phase::Value, _) => self.begin_value(c),
            _ => Progress::Malformed,
        }
    }

    fn go(&mut self, phase: Phase) -> Progress {
        self.phase = phase;
        Progress::More
    }

    /// One more character of a string; true when its closing quote has come.
    fn string_ends(&mut self, c: char) -> bool {
        if self.escaped {
            self.escaped = false;
        } else if c == '\\' {
            self.escaped = true;
        } else if c == '"' {
            return true;
        }
        self.word.push(c);
        false
    }

    fn key(&mut self, c: char) -> Progress {
        if !self.string_ends(c) {
            return if self.word.len() > MAX_WORD_BYTES { Progress::Malformed } else { Progress::More };
        }
        self.field = match self.word.as_str() {
            "name" if self.name.is_none() => Field::Name,
            "arguments" | "parameters" if !self.has_arguments => Field::Arguments,
            _ => Field::Other,
        };
        self.go(Phase::Colon)
    }

    fn begin_value(&mut self, c: char) -> Progress {
        self.depth = 0;
        self.in_string = false;
        self.word.clear();
        match (self.field, c) {
            (_, ',' | '}' | ']' | ':') => Progress::Malformed,
            (Field::Name | Field::Arguments, '"') => self.go(Phase::Word),
            (Field::Name, _) => Progress::Malformed,
            (Field::Arguments, 'n') => {
                // `null` stands for no arguments; the scalar scanner skips it.
                self.phase = Phase::Skip;
                self.value(c)
            }
            (Field::Arguments, _) => {
                self.phase = Phase::Arguments;
                self.has_arguments = true;
                self.value(c)
            }
            (Field::Other, _) => {
                self.phase = Phase::Skip;
                self.value(c)
            }
        }
    }

    fn word(&mut self, c: char) -> Progress {
        let ended = self.string_ends(c);
        if self.field == Field::Name && self.word.len() > MAX_WORD_BYTES {
            return Progress::Malformed;
        }
        if !ended {
            return Progress::More;
        }
        let Ok(text) = serde_json::from_str::<String>(&format!("\"{}\"", self.word)) else {
            return Progress::Malformed;
        };
        if self.field == Field::Name {
            self.name = Some(text);
        } else if !text.trim().is_empty() {
            self.has_arguments = true;
            self.arguments.push_str(&text);
        }
        self.word.clear();
        self.go(Phase::CommaOrEnd)
    }

    /// One character of a value that is passed on or skipped.
    fn value(&mut self, c: char) -> Progress {
        if !self.in_string && self.depth == 0 && matches!(c, ',' | '}' | ']' | ' ' | '\n' | '\r' | '\t') {
            // A scalar ended with the character before.
            self.phase = Phase::CommaOrEnd;
            return self.step(c);
        }
        if self.phase == Phase::Arguments {
            self.arguments.push(c);
        }
        if self.in_string {
            if self.escaped {
                self.escaped = false;
            } else if c == '\\' {
                self.escaped = true;
            } else if c == '"' {
                self.in_string = false;
            }
        } else {
            match c {
                '"' => self.in_string = true,
                '{' | '[' => self.depth += 1,
                '}' | ']' => self.depth -= 1,
                _ => {}
            }
            if self.depth == 0 && matches!(c, '}' | ']') {
                return self.go(Phase::CommaOrEnd);
            }
        }
        Progress::More
    }
}
