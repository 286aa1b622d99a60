use super::*;
use proptest::prelude::*;

/// Text outside of calls, and each call as name, arguments, complete.
type Parsed = (String, Vec<(String, String, bool)>);

fn run<'a>(format: CallFormat, names: &[&str], pieces: impl IntoIterator<Item = &'a str>) -> Parsed {
    let names: Arc<[String]> = names.iter().map(|n| (*n).to_owned()).collect();
    let mut machine = ToolCallParser::new(names, format);
    let mut events = Vec::new();
    for piece in pieces {
        machine.push(piece, &mut events);
    }
    machine.finish(&mut events);
    let (mut text, mut calls): Parsed = Parsed::default();
    for event in events {
        match event {
            ToolEvent::Text(more) => text.push_str(&more),
            ToolEvent::Start(name) => calls.push((name, String::new(), false)),
            ToolEvent::Arguments(more) => calls.last_mut().unwrap().1.push_str(&more),
            ToolEvent::End => calls.last_mut().unwrap().2 = true,
        }
    }
    assert_eq!(calls.len(), machine.calls());
    assert_eq!(calls.iter().filter(|c| c.2).count(), machine.complete());
    (text, calls)
}

fn tagged(pieces: &[&str]) -> Parsed {
    run(CallFormat::Tagged, &["get_weather", "reserve", "list_tables"], pieces.iter().copied())
}

fn call(name: &str, arguments: &str, complete: bool) -> (String, String, bool) {
    (name.to_owned(), arguments.to_owned(), complete)
}

#[test]
fn c_tool_call_streaming_01_two_calls_follow_each_other() {
    let (text, calls) = tagged(&[
        "<tool_call>\n{\"name\": \"get_weather\", \"arguments\": {\"city\": \"Oslo\"}}\n</tool_call>\n",
        "<tool_call>\n{\"name\": \"get_weather\", \"arguments\": {\"city\": \"Lima\"}}\n</tool_call>",
    ]);
    assert_eq!(text, "");
    let expected = [
        call("get_weather", "{\"city\": \"Oslo\"}", true),
        call("get_weather", "{\"city\": \"Lima\"}", true),
    ];
    assert_eq!(calls, expected);
}

#[test]
fn c_tool_call_streaming_03_the_last_brace_is_neither_lost_nor_doubled() {
    let pieces = ["<tool_call>", "{\"name\": \"reserve\", \"arguments\": {\"qty\": 7", "}}\n</tool_call>"];
    assert_eq!(tagged(&pieces).1, [call("reserve", "{\"qty\": 7}", true)]);
}

#[test]
fn c_tool_call_streaming_04_a_call_without_arguments_gets_an_empty_object() {
    for body in ["{\"name\": \"list_tables\"}", "{\"name\": \"list_tables\", \"arguments\": null}"] {
        assert_eq!(tagged(&["<tool_call>", body, "</tool_call>"]).1, [call("list_tables", "{}", true)]);
    }
    let (_, calls) = tagged(&["<tool_call>{\"name\":\"list_tables\",\"arguments\":{}}</tool_call>"]);
    assert_eq!(calls, [call("list_tables", "{}", true)]);
}

#[test]
fn c_tool_call_streaming_05_a_limit_inside_a_call_delivers_what_exists() {
    let pieces =
        ["<tool_call>", "{\"name\": \"get_weather\",", " \"arguments\": ", "{\"city\": ", "\"San ", "Fran"];
    let (text, calls) = tagged(&pieces);
    assert_eq!((text.as_str(), calls), ("", vec![call("get_weather", "{\"city\": \"San Fran", false)]));
}

#[test]
fn arguments_before_the_name_wait_for_it() {
    let (_, calls) =
        tagged(&["<tool_call>{\"arguments\": {\"a\":[1,{}]} , \"name\": \"reserve\"}</tool_call>"]);
    assert_eq!(calls, [call("reserve", "{\"a\":[1,{}]}", true)]);
}

#[test]
fn arguments_written_as_a_string_are_their_content() {
    let (_, calls) =
        tagged(&["<tool_call>{\"name\":\"reserve\",\"arguments\":\"{\\\"qty\\\": 7}\"}</tool_call>"]);
    assert_eq!(calls, [call("reserve", "{\"qty\": 7}", true)]);
}

#[test]
fn text_around_calls_stays_and_white_space_between_them_goes() {
    let body = "{\"name\": \"reserve\", \"arguments\": {}}";
    let whole = format!("Let me see.\n<tool_call>\n{body}\n</tool_call>\nDone <tool> ok");
    let (text, calls) = tagged(&[&whole]);
    assert_eq!(text, "Let me see.\n\nDone <tool> ok");
    assert_eq!(calls.len(), 1);
}

#[test]
fn what_is_no_call_is_given_back_whole() {
    for text in [
        "<tool_call>not json</tool_call>",
        "<tool_call>{\"name\": \"unknown_tool\", \"arguments\": {}}</tool_call>",
        "<tool_call>{\"arguments\": {}}</tool_call>",
        "<tool_call>{\"name\": 7}</tool_call>",
        "\n<tool_call>{\"na",
        "  <tool_",
        " \n",
    ] {
        assert_eq!(tagged(&[text]), (text.to_owned(), vec![]), "{text:?}");
    }
}

#[test]
fn a_tag_after_a_false_one_still_opens_a_call() {
    let (text, calls) = tagged(&["<tool_call><tool_call>{\"name\":\"reserve\"}</tool_call>"]);
    assert_eq!((text.as_str(), calls), ("<tool_call>", vec![call("reserve", "{}", true)]));
}

#[test]
fn a_missing_closing_tag_does_not_undo_the_call() {
    let (text, calls) = tagged(&["<tool_call>{\"name\":\"reserve\",\"arguments\":{}}"]);
    assert_eq!((text.as_str(), calls.len()), ("", 1));
    let (text, calls) = tagged(&["<tool_call>{\"name\":\"reserve\"}", " and ", "so on"]);
    assert_eq!((text.as_str(), calls.len()), (" and so on", 1));
}

#[test]
fn a_bare_object_is_a_call_only_where_one_is_forced() {
    let text = " {\"name\": \"reserve\", \"arguments\": {\"qty\": 1}}";
    assert_eq!(tagged(&[text]).0, text);
    let (rest, calls) = run(CallFormat::Forced, &["reserve"], [text]);
    assert_eq!((rest.as_str(), calls), ("", vec![call("reserve", "{\"qty\": 1}", true)]));
}

#[test]
fn deep_nesting_in_arguments_needs_no_stack() {
    let deep = format!("{}{}", "[".repeat(200_000), "]".repeat(200_000));
    let whole = format!("<tool_call>{{\"name\":\"reserve\",\"arguments\":{deep}}}</tool_call>");
    assert_eq!(tagged(&[&whole]).1[0].1.len(), deep.len());
}

proptest! {
    #[test]
    fn any_split_gives_the_same_calls_and_text(
        parts in prop::collection::vec(prop::sample::select(vec![
            "<tool_call>", "</tool_call>", "\n", " ", "hi", "<tool", "{\"name\": \"reserve\", ",
            "\"arguments\": {\"a\": \"}\\\"\"}", "}", "{", "\"arguments\": 5", ", \"id\": [1]", "é",
            "<tool_call>{\"name\": \"reserve\", \"arguments\": {\"q\": [1, 2]}}</tool_call>",
        ]), 0..9),
        cuts in prop::collection::vec(0_usize..200, 0..8),
        forced in any::<bool>(),
    ) {
        let text: String = parts.concat();
        let mut bounds: Vec<usize> = cuts.into_iter().map(|c| text.floor_char_boundary(c)).collect();
        bounds.extend([0, text.len()]);
        bounds.sort_unstable();
        let pieces = bounds.windows(2).map(|w| &text[w[0]..w[1]]);
        let format = if forced { CallFormat::Forced } else { CallFormat::Tagged };
        let whole = run(format, &["reserve"], [text.as_str()]);
        prop_assert_eq!(run(format, &["reserve"], pieces), whole);
    }
}

#[test]
fn c_tool_call_streaming_05_a_forced_call_cut_at_any_byte_shows_no_markup() {
    let whole = "<tool_call>\n{\"name\": \"get_weather\", \"arguments\": {\"city\": \"Oslo\"}}\n</tool_call>";
    for cut in 0..whole.len() {
        let (text, calls) = run(CallFormat::Forced, &["get_weather"], [&whole[..cut]]);
        assert_eq!(text, "", "cut at {cut}");
        let (opened, closed) =
            ("<tool_call>\n{\"name\": \"get_weather\"".len(), whole.find("}}").unwrap() + 2);
        assert_eq!(calls.len(), usize::from(cut >= opened), "cut at {cut}");
        assert_eq!(calls.iter().any(|(_, _, complete)| *complete), cut >= closed, "cut at {cut}");
    }
}
