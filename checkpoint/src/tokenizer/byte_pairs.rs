//! Byte-pair merging over token ids: the pair that was learned first is merged first, leftmost before rightmost.
//!
//! A word of n bytes costs O(n log n) at most, so that no text, however long a word it is, can make it slow.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};
use std::hash::{BuildHasherDefault, Hasher};

use super::alphabet;
use super::error::TokenizerError;

/// Up to here a plain scan for the best pair beats the heap.
const SHORT_SYMBOLS: usize = 48;

/// The end of a chain, and the rank of what doesn't merge.
const NONE: u32 = u32::MAX;

/// Stands for a byte that is no token; such a byte is left out, as Hugging Face's tokenizer leaves it out.
const NO_TOKEN: u32 = u32::MAX;

/// Spreads the bits of a packed pair; pairs come from the model file, so nobody gains by colliding them.
#[derive(Default)]
struct PairHasher(u64);

impl Hasher for PairHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|byte| self.write_u64(u64::from(*byte)));
    }

    fn write_u64(&mut self, value: u64) {
        let mixed = (self.0 ^ value).wrapping_mul(0x9E37_79B9_7F4A_7C15);
        self.0 = mixed ^ mixed >> 32;
    }
}

type PairMap = HashMap<u64, (u32, u32), BuildHasherDefault<PairHasher>>;

/// The merges of a byte-level vocabulary.
pub(super) struct BytePairs {
    bytes: [u32; 256],
    merges: PairMap,
    /// The words that are tokens as they are, for models that look there first.
    whole: HashMap<Box<[u8]>, u32>,
}

/// One symbol of a long word, linked to its neighbours, with what merging it with the next one would give.
#[derive(Clone, Copy)]
struct Symbol {
    id: u32,
    previous: u32,
    next: u32,
    rank: u32,
    joined: u32,
}

fn pair(left: u32, right: u32) -> u64 {
    u64::from(left) << 32 | u64::from(right)
}

impl BytePairs {
    /// Takes the tokens that merges may make, and the merges, best first.
    ///
    /// # Errors
    /// A merge that needs a token that isn't there.
    pub(super) fn new(
        vocab: &HashMap<String, u32>,
        merges: &[(String, String)],
        ignore_merges: bool,
    ) -> Result<Self, TokenizerError> {
        let mut bytes = [NO_TOKEN; 256];
        let mut whole = HashMap::new();
        for (text, id) in vocab {
            let Some(spelled) = alphabet::decode(text) else { continue };
            if let [byte] = spelled[..] {
                bytes[byte as usize] = *id;
            }
            if ignore_merges {
                whole.insert(spelled.into_boxed_slice(), *id);
            }
        }
        let mut map = PairMap::with_capacity_and_hasher(merges.len(), BuildHasherDefault::default());
        let find = |text: &str| {
            vocab.get(text).copied().ok_or_else(|| {
                TokenizerError::invalid("merges", format!("a merge needs {text:?}, which is no token"))
            })
        };
        for (rank, (left, right)) in merges.iter().enumerate() {
            let joined = find(&format!("{left}{right}"))?;
            map.insert(pair(find(left)?, find(right)?), (rank as u32, joined));
        }
        Ok(Self { bytes, merges: map, whole })
    }

    fn merge_of(&self, left: u32, right: u32) -> Option<(u32, u32)> {
        self.merges.get(&pair(left, right)).copied()
    }

    /// Appends the ids of one word.
    pub(super) fn encode_into(&self, word: &str, ids: &mut Vec<u32>) {
        if !self.whole.is_empty()
            && let Some(id) = self.whole.get(word.as_bytes())
        {
            ids.push(*id);
            return;
        }
        let start = ids.len();
        ids.extend(word.bytes().map(|byte| self.bytes[byte as usize]).filter(|id| *id != NO_TOKEN));
        if ids.len() - start <= SHORT_SYMBOLS {
            self.merge_short(ids, start);
        } else {
            self.merge_long(ids, start);
        }
    }

    /// Merges the symbols from `start` on in place.
    fn merge_short(&self, ids: &mut Vec<u32>, start: usize) {
        let mut ranks = [(u32::MAX, 0u32); SHORT_SYMBOLS];
        let rank_at = |ids: &[u32], at: usize| {
            let found = if at + 1 < ids.len() { self.merge_of(ids[at], ids[at + 1]) } else { None };
            found.unwrap_or((u32::MAX, 0))
        };
        let mut length = ids.len() - start;
        for (at, rank) in ranks[..length].iter_mut().enumerate() {
            *rank = rank_at(&ids[start..], at);
        }
        while length > 1 {
            let Some((at, (rank, joined))) =
                ranks[..length - 1].iter().copied().enumerate().min_by_key(|(_, (rank, _))| *rank)
            else {
                break;
            };
            if rank == u32::MAX {
                break;
            }
            ids[start + at] = joined;
            ids.remove(start + at + 1);
            ranks.copy_within(at + 1..length, at);
            length -= 1;
            ranks[at] = rank_at(&ids[start..], at);
            if at > 0 {
                ranks[at - 1] = rank_at(&ids[start..], at - 1);
            }
        }
    }

    /// The same for long words, with a heap of pairs: rank in the upper half, place in the lower.
    ///
    /// An entry whose rank is no longer that of its place has been overtaken by another merge, and is skipped.
    fn merge_long(&self, ids: &mut Vec<u32>, start: usize) {
        let mut symbols: Vec<Symbol> = (0u32..)
            .zip(&ids[start..])
            .map(|(at, id)| Symbol {
                id: *id,
                previous: at.wrapping_sub(1),
                next: at + 1,
                rank: NONE,
                joined: 0,
            })
            .collect();
        if let Some(last) = symbols.last_mut() {
            last.next = NONE;
        }
        let entries: Vec<_> = (0..symbols.len()).filter_map(|at| self.rank(&mut symbols, at)).collect();
        let mut heap = BinaryHeap::from(entries);
        while let Some(Reverse(top)) = heap.pop() {
            let at = (top & u64::from(u32::MAX)) as usize;
            let Symbol { rank, joined, next, previous, .. } = symbols[at];
            if u64::from(rank) != top >> 32 {
                continue;
            }
            let gone = next as usize;
            let after = symbols[gone].next;
            symbols[gone].id = NO_TOKEN;
            symbols[gone].rank = NONE;
            symbols[at].id = joined;
            symbols[at].next = after;
            if after != NONE {
                symbols[after as usize].previous = at as u32;
            }
            heap.extend(self.rank(&mut symbols, at));
            if previous != NONE {
                heap.extend(self.rank(&mut symbols, previous as usize));
            }
        }
        ids.truncate(start);
        ids.extend(symbols.iter().map(|symbol| symbol.id).filter(|id| *id != NO_TOKEN));
    }

    /// Notes what merging the symbol with its next one gives, and returns the heap entry for that.
    fn rank(&self, symbols: &mut [Symbol], at: usize) -> Option<Reverse<u64>> {
        let left = symbols[at];
        let found = symbols.get(left.next as usize).and_then(|right| self.merge_of(left.id, right.id));
        let (rank, joined) = found.unwrap_or((NONE, 0));
        symbols[at].rank = rank;
        symbols[at].joined = joined;
        found.map(|_| Reverse(u64::from(rank) << 32 | at as u64))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `a` merges into runs of two, four and eight; `ab` comes last.
    fn pairs() -> BytePairs {
        let texts = ["a", "b", "aa", "aaaa", "aaaaaaaa", "ab"];
        let vocab = (0u32..).zip(texts).map(|(id, text)| (text.to_owned(), id)).collect();
        let merges = [("a", "a"), ("aa", "aa"), ("aaaa", "aaaa"), ("a", "b")];
        let merges = merges.map(|(left, right)| (left.to_owned(), right.to_owned()));
        BytePairs::new(&vocab, &merges, false).unwrap()
    }

    #[test]
    fn pairs_merge_in_the_order_they_were_learned() {
        let mut ids = vec![7];
        pairs().encode_into("aaab", &mut ids);
        assert_eq!(ids, [7, 2, 5]);
    }

    #[test]
    fn the_scan_and_the_heap_agree() {
        let pairs = pairs();
        for length in 0..SHORT_SYMBOLS {
            for pattern in ["a", "ab", "aab", "aaaaab", "baaaaaaa"] {
                let word: String = pattern.chars().cycle().take(length).collect();
                let (mut scanned, mut heaped) = (Vec::new(), Vec::new());
                pairs.encode_into(&word, &mut scanned);
                heaped.extend(word.bytes().map(|byte| u32::from(byte - b'a')));
                pairs.merge_long(&mut heaped, 0);
                assert_eq!(scanned, heaped, "{word}");
            }
        }
    }

    #[test]
    fn a_byte_that_is_no_token_is_left_out() {
        let mut ids = Vec::new();
        pairs().encode_into("a?a", &mut ids);
        assert_eq!(ids, [2]);
    }
}
