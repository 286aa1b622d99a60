use super::*;

const SALT: [u8; 16] = [7; 16];

fn index() -> PrefixIndex {
    PrefixIndex::new(PrefixKey::fixed([3; 16]))
}

fn tokens(first: TokenId) -> Vec<TokenId> {
    (first..first + BLOCK_TOKENS).collect()
}

fn content(parent: Option<BlockId>, tokens: &[TokenId]) -> BlockContent<'_> {
    BlockContent { salt: SALT, parent, tokens }
}

#[test]
fn a_chain_is_found_block_by_block_and_only_after_its_parent() {
    let mut index = index();
    let (head, tail) = (tokens(0), tokens(100));
    let first = index.chain(&SALT, None, &head);
    let second = index.chain(&SALT, Some(first), &tail);
    assert!(!index.insert(2, second, content(Some(1), &tail)), "nobody could reach it");
    assert!(index.insert(1, first, content(None, &head)));
    assert!(index.insert(2, second, content(Some(1), &tail)));
    assert_eq!(index.find(first, content(None, &head)), Some(1));
    assert_eq!(index.find(second, content(Some(1), &tail)), Some(2));
    assert_eq!(index.children(1), 1);
    index.remove(2);
    assert_eq!((index.children(1), index.len()), (0, 1));
    assert_eq!(index.find(second, content(Some(1), &tail)), None);
}

#[test]
fn an_equal_hash_with_other_tokens_salt_or_parent_is_not_a_hit() {
    let mut index = index();
    let (one, other) = (tokens(0), tokens(1));
    let hash = index.chain(&SALT, None, &one);
    assert!(index.insert(1, hash, content(None, &one)));
    assert_eq!(index.find(hash, content(None, &other)), None);
    assert_eq!(index.find(hash, content(Some(9), &one)), None);
    assert_eq!(index.find(hash, BlockContent { salt: [8; 16], ..content(None, &one) }), None);
    assert!(!index.insert(2, hash, content(None, &other)), "a collision never replaces a block");
    assert_eq!(index.find(hash, content(None, &one)), Some(1));
}

#[test]
fn the_hash_depends_on_key_salt_parent_and_every_token() {
    let (index, other) = (index(), PrefixIndex::new(PrefixKey::fixed([4; 16])));
    let base = index.chain(&SALT, None, &tokens(0));
    let mut seen = vec![
        base,
        other.chain(&SALT, None, &tokens(0)),
        index.chain(&[8; 16], None, &tokens(0)),
        index.chain(&SALT, Some(base), &tokens(0)),
    ];
    for position in 0..BLOCK_TOKENS as usize {
        let mut changed = tokens(0);
        changed[position] += 1000;
        seen.push(index.chain(&SALT, None, &changed));
    }
    let distinct: std::collections::HashSet<_> = seen.iter().collect();
    assert_eq!(distinct.len(), seen.len());
    assert_eq!(index.chain(&SALT, None, &tokens(0)), base);
}

#[test]
fn random_keys_differ_and_are_not_printed() {
    assert!(PrefixKey::random() != PrefixKey::random());
    assert_eq!(format!("{:?}", PrefixKey::fixed([1; 16])), "PrefixKey(secret)");
}
