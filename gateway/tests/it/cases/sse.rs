//! Server-sent events, read strictly. The rule: a block that is neither one `data: ` line nor one comment fails
//! the test, whatever the test is about.

use serde_json::Value;

/// One block of a stream.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Event {
    Data(Value),
    Done,
    Comment(String),
}

/// All events of a whole stream.
#[track_caller]
pub(crate) fn events(body: &str) -> Vec<Event> {
    assert!(body.is_empty() || body.ends_with("\n\n"), "the stream ends inside an event: {body:?}");
    body.split_terminator("\n\n").map(event).collect()
}

#[track_caller]
fn event(block: &str) -> Event {
    assert!(!block.contains(['\n', '\r']), "an event of several lines: {block:?}");
    if block.starts_with(':') {
        return Event::Comment(block.to_owned());
    }
    let data = block.strip_prefix("data: ").unwrap_or_else(|| panic!("no 'data: ' before {block:?}"));
    if data == "[DONE]" {
        return Event::Done;
    }
    let value = serde_json::from_str(data).unwrap_or_else(|error| panic!("{error} in {data:?}"));
    Event::Data(value)
}
