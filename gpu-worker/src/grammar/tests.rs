use pons_protocol::sampling::Grammar;

use super::*;

const END: u32 = 256;
const TOOL: u32 = 257;
const FAKE: u32 = 258;

/// Bytes, then an end token, a control token, a word whose text looks like a control token, and padding.
fn grammars() -> Grammars {
    let mut tokens: Vec<TokenText> = (0..=255u8).map(|b| TokenText::Text(vec![b])).collect();
    tokens.push(TokenText::Control(b"<|im_end|>".to_vec()));
    tokens.push(TokenText::Control(b"<|tool|>".to_vec()));
    tokens.push(TokenText::Text(b"\": \"".to_vec()));
    tokens.push(TokenText::Unused);
    Grammars::new(&tokens, &[END]).unwrap()
}

fn allowed(matcher: &GrammarMatcher, token: u32) -> bool {
    matcher.mask().get(token as usize / 32).is_some_and(|word| word >> (token % 32) & 1 == 1)
}

/// Feeds a text byte by byte; every byte must be in the mask.
fn feed(matcher: &mut GrammarMatcher, text: &str) -> Result<(), String> {
    for byte in text.bytes() {
        matcher.compute_mask()?;
        if !allowed(matcher, u32::from(byte)) {
            return Err(format!("{:?} is not allowed", byte as char));
        }
        matcher.advance(u32::from(byte))?;
    }
    Ok(())
}

fn schema(text: &str) -> GrammarMatcher {
    grammars().compile(&Grammar::JsonSchema(text.to_owned())).unwrap()
}

const PERSON: &str = r#"{"type":"object","properties":{"name":{"type":"string"},"age":{"type":"integer"}},
    "required":["name","age"],"additionalProperties":false}"#;

#[test]
fn a_schema_takes_its_json_and_ends_with_it() {
    let mut matcher = schema(PERSON);
    feed(&mut matcher, r#"{"name": "Ada", "age": 36"#).unwrap();
    assert!(!matcher.is_complete());
    matcher.compute_mask().unwrap();
    assert!(!allowed(&matcher, END), "the end is not allowed inside the object");
    feed(&mut matcher, "}").unwrap();
    assert!(matcher.is_complete());
    assert!(matcher.is_ended(), "nothing may follow the object");
    matcher.compute_mask().unwrap();
    assert!(allowed(&matcher, END));
    assert!(!allowed(&matcher, u32::from(b' ')));
}

#[test]
fn a_schema_refuses_other_json() {
    assert!(feed(&mut schema(PERSON), r#"{"name": 3"#).is_err());
    assert!(feed(&mut schema(PERSON), r#"{"size""#).is_err());
    assert!(feed(&mut schema(PERSON), "[").is_err());
}

#[test]
fn white_space_between_json_tokens_is_bounded_well_below_sixty_four() {
    for blank in [' ', '\n', '\t'] {
        let mut matcher = schema(r#"{"type":"object"}"#);
        feed(&mut matcher, "{").unwrap();
        let mut count = 0;
        while feed(&mut matcher, &blank.to_string()).is_ok() {
            count += 1;
            assert!(count <= 64, "{blank:?} goes on and on");
        }
        assert!(count >= 20, "indentation fits: {count}");
    }
    let mut nested =
        schema(r#"{"type":"array","x-guidance":{"whitespace_flexible":true},"items":{"type":"null"}}"#);
    feed(&mut nested, "[").unwrap();
    assert!(feed(&mut nested, &" ".repeat(64)).is_err(), "a client can't widen the rule");
}

#[test]
fn white_space_before_the_first_and_after_the_last_token_is_refused() {
    assert!(feed(&mut schema(PERSON), " ").is_err());
}

#[test]
fn a_regex_that_may_go_on_allows_the_end_without_forcing_it() {
    let mut matcher = grammars().compile(&Grammar::Regex("[0-9]{2,4}".to_owned())).unwrap();
    feed(&mut matcher, "1").unwrap();
    matcher.compute_mask().unwrap();
    assert!(!allowed(&matcher, END));
    feed(&mut matcher, "2").unwrap();
    matcher.compute_mask().unwrap();
    assert!(allowed(&matcher, END) && allowed(&matcher, u32::from(b'3')));
    assert!(matcher.is_complete() && !matcher.is_ended());
    feed(&mut matcher, "34").unwrap();
    assert!(matcher.is_ended());
}

#[test]
fn the_end_token_ends_a_grammar_that_may_stop() {
    let mut matcher = grammars().compile(&Grammar::Regex("a+".to_owned())).unwrap();
    feed(&mut matcher, "aa").unwrap();
    matcher.advance(END).unwrap();
    assert!(matcher.is_ended());
}

#[test]
fn a_token_of_several_grammar_symbols_is_allowed_where_all_of_them_are() {
    let mut matcher = schema(PERSON);
    feed(&mut matcher, r#"{"name"#).unwrap();
    matcher.compute_mask().unwrap();
    assert!(allowed(&matcher, FAKE));
    matcher.advance(FAKE).unwrap();
    feed(&mut matcher, r#"Ada", "age": 3}"#).unwrap();
    assert!(matcher.is_ended());
}

#[test]
fn control_tokens_are_never_text_and_only_lark_can_name_them() {
    let mut any = grammars().compile(&Grammar::Regex(r"(.|\n)*".to_owned())).unwrap();
    any.compute_mask().unwrap();
    assert!(!allowed(&any, TOOL));
    assert!(allowed(&any, u32::from(b'<')), "the letters themselves stay text");
    let lark = "start: <|tool|> \"x\" <|tool|>".to_owned();
    let mut named = grammars().compile(&Grammar::Lark(lark)).unwrap();
    named.compute_mask().unwrap();
    assert!(allowed(&named, TOOL) && !allowed(&named, u32::from(b'<')));
    named.advance(TOOL).unwrap();
    feed(&mut named, "x").unwrap();
    named.advance(TOOL).unwrap();
    assert!(named.is_ended());
}

#[test]
fn padding_of_the_vocabulary_is_never_allowed() {
    let mut any = grammars().compile(&Grammar::Regex(r"(.|\n)*".to_owned())).unwrap();
    any.compute_mask().unwrap();
    assert!(!allowed(&any, 259) && !allowed(&any, 260));
}

#[test]
fn a_clone_goes_its_own_way() {
    let mut one = schema(PERSON);
    feed(&mut one, r#"{"name": "A"#).unwrap();
    let mut two = one.clone();
    feed(&mut one, r#"", "age": 1}"#).unwrap();
    feed(&mut two, r#"da", "age": 2}"#).unwrap();
    assert!(one.is_ended() && two.is_ended());
}

#[test]
fn a_token_that_the_grammar_forbids_is_an_error_not_a_panic() {
    let mut matcher = schema(PERSON);
    let error = matcher.advance(u32::from(b'x')).unwrap_err();
    assert!(error.starts_with("grammar can't go on"), "{error}");
    assert!(!error.contains('\n'), "one line: {error}");
    assert!(matcher.compute_mask().is_err(), "a broken matcher stays broken");
}

#[test]
fn bad_grammars_are_refused_in_words_that_point_at_the_place() {
    let refused = |grammar: Grammar| grammars().compile(&grammar).unwrap_err();
    let json = |text: &str| refused(Grammar::JsonSchema(text.to_owned()));
    assert!(json("{").contains("not JSON"));
    assert!(json("3").contains("a number"));
    assert!(json("false").contains("false"));
    let heavy = json(r#"{"type":"object","properties":{"weight":"heavy"}}"#);
    assert!(heavy.starts_with("grammar is refused"), "{heavy}");
    let pattern =
        json(r#"{"type":"object","properties":{"s":{"type":"string","pattern":"^code-([0-9]+$"}}}"#);
    assert!(pattern.contains("code-([0-9]+"), "{pattern}");
    let names = json(r#"{"type":"object","propertyNames":{"pattern":"^[a-z]+$"}}"#);
    assert!(names.contains("propertyNames"), "{names}");
    assert!(refused(Grammar::Regex("(".to_owned())).starts_with("grammar is refused"));
    assert!(refused(Grammar::Lark("start: nowhere".to_owned())).contains("nowhere"));
    assert!(!refused(Grammar::Lark(String::new())).is_empty());
}

#[test]
fn oversized_and_deep_grammars_are_refused_before_they_are_compiled() {
    let refused = |grammar: Grammar| grammars().compile(&grammar).unwrap_err();
    let long = "a".repeat((1 << 20) + 1);
    assert!(refused(Grammar::Regex(long)).contains("bytes"));
    for deep in ["(", "[", "{"] {
        let text = deep.repeat(100_000);
        assert!(refused(Grammar::Lark(text.clone())).contains("nests"), "{deep}");
        assert!(refused(Grammar::Regex(text.clone())).contains("nests"), "{deep}");
        assert!(refused(Grammar::JsonSchema(text)).contains("nests"), "{deep}");
    }
}

#[test]
fn grammars_that_explode_are_refused_within_their_bounds() {
    let explosive = "(a{1,1000}b{1,1000}c?){1,1000}(x|y){500,1000}";
    let started = std::time::Instant::now();
    // Either answer is right; what matters is that it comes.
    if let Ok(mut matcher) = grammars().compile(&Grammar::Regex(explosive.to_owned())) {
        feed(&mut matcher, "ab").unwrap();
    }
    assert!(started.elapsed() < std::time::Duration::from_secs(30));
}

#[test]
fn a_vocabulary_without_an_end_is_refused() {
    assert!(Grammars::new(&[TokenText::Text(b"a".to_vec())], &[]).unwrap_err().contains("end token"));
    assert!(Grammars::new(&[TokenText::Text(b"a".to_vec())], &[1]).unwrap_err().contains("end token 1"));
}

#[test]
fn tokens_too_long_for_the_index_are_left_out_of_grammars() {
    let mut tokens = vec![TokenText::Text(vec![b'a'; 5000]), TokenText::Text(b"a".to_vec())];
    tokens.push(TokenText::Control(b"<end>".to_vec()));
    let grammars = Grammars::new(&tokens, &[2]).unwrap();
    let mut matcher = grammars.compile(&Grammar::Regex("a+".to_owned())).unwrap();
    matcher.compute_mask().unwrap();
    assert!(allowed(&matcher, 1) && !allowed(&matcher, 0));
    let huge = vec![TokenText::Text(vec![b'a'; 1000]); 5000];
    assert!(Grammars::new(&huge, &[0]).unwrap_err().contains("can be indexed"));
}
