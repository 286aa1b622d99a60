//! The byte-level alphabet of GPT-2: every byte has one printable character, and back.
//!
//! Printable Latin-1 bytes stand for themselves; the other 68 take the code points from U+0100 on, in order.

/// Whether a byte stands for itself in the alphabet.
const fn stands_for_itself(byte: u8) -> bool {
    matches!(byte, b'!'..=b'~' | 0xA1..=0xAC | 0xAE..=0xFF)
}

/// The character of each byte, as a code point.
const fn code_points() -> [u32; 256] {
    let mut table = [0u32; 256];
    let mut byte = 0usize;
    let mut next = 256u32;
    while byte < 256 {
        if stands_for_itself(byte as u8) {
            table[byte] = byte as u32;
        } else {
            table[byte] = next;
            next += 1;
        }
        byte += 1;
    }
    table
}

/// The byte of each code point below U+0144; 256 where there is none.
const fn bytes() -> [u16; 324] {
    let forward = code_points();
    let mut table = [256u16; 324];
    let mut byte = 0usize;
    while byte < 256 {
        table[forward[byte] as usize] = byte as u16;
        byte += 1;
    }
    table
}

const BYTES: [u16; 324] = bytes();

/// Turns a token's text back into its bytes, or `None` if a character is outside of the alphabet.
pub(super) fn decode(text: &str) -> Option<Vec<u8>> {
    text.chars().map(|c| BYTES.get(c as usize).filter(|byte| **byte < 256).map(|byte| *byte as u8)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_byte_comes_back_from_its_character() {
        for byte in 0..=255u8 {
            let c = char::from_u32(code_points()[byte as usize]).expect("below U+0144");
            assert_eq!(decode(&c.to_string()), Some(vec![byte]));
        }
    }

    #[test]
    fn space_newline_and_tab_have_their_well_known_characters() {
        assert_eq!(decode("ĠĊĉ"), Some(b" \n\t".to_vec()));
    }

    #[test]
    fn a_character_outside_of_the_alphabet_is_refused() {
        assert_eq!(decode("a b"), None);
        assert_eq!(decode("▁"), None);
    }
}
