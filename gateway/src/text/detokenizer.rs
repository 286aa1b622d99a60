//! Token bytes to whole UTF-8 characters.
//!
//! The rule: at most one incomplete character is held back, and the text equals a lossy decoding of all bytes at
//! once, so a stray byte shows as one U+FFFD and never stalls what follows.

/// Turns a stream of byte pieces into a stream of text.
#[derive(Clone, Debug, Default)]
pub struct Detokenizer {
    /// The beginning of a character whose end has not come yet; at most three bytes.
    tail: Vec<u8>,
}

impl Detokenizer {
    /// Appends to `out` what is complete after these bytes.
    pub fn push(&mut self, bytes: &[u8], out: &mut String) {
        if self.tail.is_empty() {
            let used = decode(bytes, out);
            self.tail.extend_from_slice(&bytes[used..]);
            return;
        }
        self.tail.extend_from_slice(bytes);
        let joined = std::mem::take(&mut self.tail);
        let used = decode(&joined, out);
        self.tail.extend_from_slice(&joined[used..]);
    }

    /// Ends the stream: a character that was never completed becomes one U+FFFD.
    pub fn finish(&mut self, out: &mut String) {
        if !self.tail.is_empty() {
            self.tail.clear();
            out.push(char::REPLACEMENT_CHARACTER);
        }
    }

    /// Bytes held back now.
    pub fn held_bytes(&self) -> usize {
        self.tail.len()
    }
}

/// Decodes all but an incomplete character at the end; says how many bytes it used.
fn decode(bytes: &[u8], out: &mut String) -> usize {
    let mut used = 0;
    loop {
        match std::str::from_utf8(&bytes[used..]) {
            Ok(text) => {
                out.push_str(text);
                return bytes.len();
            }
            Err(error) => {
                let good = used + error.valid_up_to();
                out.push_str(&String::from_utf8_lossy(&bytes[used..good]));
                used = good;
                match error.error_len() {
                    None => return used,
                    Some(bad) => {
                        out.push(char::REPLACEMENT_CHARACTER);
                        used += bad;
                    }
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn run<'a>(pieces: impl IntoIterator<Item = &'a [u8]>) -> (String, Vec<String>) {
        let (mut machine, mut all, mut frames) = (Detokenizer::default(), String::new(), Vec::new());
        for piece in pieces {
            let mut frame = String::new();
            machine.push(piece, &mut frame);
            assert!(machine.held_bytes() < 4);
            all.push_str(&frame);
            frames.push(frame);
        }
        machine.finish(&mut all);
        (all, frames)
    }

    #[test]
    fn c_utf8_split_01_bytes_cut_at_every_offset_give_the_same_text() {
        let text = "早上好 🚀 ñ";
        for cut in 0..=text.len() {
            let (all, _) = run([&text.as_bytes()[..cut], &text.as_bytes()[cut..]]);
            assert_eq!(all, text);
        }
    }

    #[test]
    fn c_utf8_split_02_byte_tokens_of_one_emoji_come_out_whole() {
        let (all, frames) = run([b"hi".as_slice(), b"\xf0", b"\x9f", b"\x9a", b"\x80", b"!"]);
        assert_eq!(all, "hi🚀!");
        assert_eq!(frames, ["hi", "", "", "", "🚀", "!"]);
    }

    #[test]
    fn c_utf8_split_03_a_byte_that_can_never_be_completed_is_one_replacement_character() {
        let (all, frames) = run([b"ok".as_slice(), b"\xff", b"abc"]);
        assert_eq!(all, "ok\u{FFFD}abc");
        assert_eq!(frames[1], "\u{FFFD}");
    }

    proptest! {
        #[test]
        fn any_split_of_any_bytes_equals_a_lossy_decoding(
            pieces in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..6), 0..12)
        ) {
            let whole: Vec<u8> = pieces.concat();
            let (all, _) = run(pieces.iter().map(Vec::as_slice));
            prop_assert_eq!(all, String::from_utf8_lossy(&whole).into_owned());
        }

        #[test]
        fn any_split_of_text_gives_the_text(text in "\\PC{0,40}", width in 1_usize..5) {
            let (all, _) = run(text.as_bytes().chunks(width));
            prop_assert_eq!(all, text);
        }
    }
}
