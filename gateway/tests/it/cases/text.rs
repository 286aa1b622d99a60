//! Text made of tokens: characters over several tokens and reads, stop strings, reasoning.

use serde_json::json;

use super::harness::{CHAT, COMPLETIONS, Stack, chat, completion};
use super::reading::Reading;
use super::scripted::{Act, Script, Writes};

/// The brain's link is cut instead of an upstream's event stream; the tokens cut characters on their own.
#[tokio::test]
async fn c_utf8_split_01_bytes_cut_inside_a_character() {
    let stack = Stack::start().await;
    let text = "早上好 🚀 ñ";
    let bytes: Vec<String> = text.bytes().map(|byte| format!("{byte:02x}")).collect();
    let bytes: Vec<&str> = bytes.iter().map(String::as_str).collect();
    let tokens = bytes.iter().map(|hex| super::model::id_of_hex(hex)).collect();
    for script in [Script::hex(&bytes), Script::acts(vec![Act::Tokens(tokens), Act::Eos])] {
        stack.brain.always(script);
        for reading in stack.everywhere(json!({"max_tokens": 100})).await {
            assert_eq!(reading.only().text, text);
        }
    }
    // Frames of the link are cut at every offset that its longest frame has.
    stack.brain.always(Script::acts(vec![Act::Tokens(text.bytes().map(u32::from).collect()), Act::Eos]));
    for cut in 1..=240 {
        stack.brain.writes(Writes::CutAt(cut));
        let answer = stack.chat(json!({"stream": true})).await;
        assert_eq!(Reading::of(&answer).only().text, text, "cut at {cut}");
        assert!(!answer.text().contains('\u{fffd}'));
    }
}

#[tokio::test]
async fn c_utf8_split_02_byte_tokens_of_one_emoji() {
    let stack = Stack::start().await;
    stack.brain.always(Script::hex(&["6869", "f0", "9f", "9a", "80", "21"]));
    for reading in stack.everywhere(json!({})).await {
        assert_eq!((reading.only().text.as_str(), reading.only().finish.as_str()), ("hi🚀!", "stop"));
        // The end token counts, here and everywhere.
        assert_eq!(reading.completion_tokens(), 7);
        let piece = |frame: &serde_json::Value| {
            let choice = &frame["choices"][0];
            choice["delta"]["content"].as_str().or(choice["text"].as_str()).unwrap_or_default().to_owned()
        };
        let pieces: Vec<String> = reading.frames.iter().map(piece).filter(|text| !text.is_empty()).collect();
        assert!(pieces.iter().any(|piece| piece.contains('🚀')), "{pieces:?}");
    }
}

#[tokio::test]
async fn c_utf8_split_03_bytes_that_can_never_be_completed() {
    let stack = Stack::start().await;
    stack.brain.always(Script::hex(&["6f6b", "ff", "616263"]));
    for reading in stack.everywhere(json!({})).await {
        assert_eq!((reading.only().text.as_str(), reading.only().finish.as_str()), ("ok\u{fffd}abc", "stop"));
    }
    // A character that is begun and never ended, by another character and by the end.
    stack.brain.always(Script::hex(&["f0", "9f", "6f6b", "e4", "bd"]));
    for reading in stack.everywhere(json!({})).await {
        assert_eq!(
            (reading.only().text.as_str(), reading.only().finish.as_str()),
            ("\u{fffd}ok\u{fffd}", "stop")
        );
    }
}

#[tokio::test]
async fn c_stop_sequences_01_stop_string_spread_over_four_tokens() {
    let stack = Stack::start().await;
    let pieces = ["thr", "ee", " fo", "ur", "! five"];
    for script in [Script::pieces(&pieces), Script::burst(&pieces)] {
        stack.brain.always(script);
        for reading in
            stack.everywhere(json!({"temperature": 0, "max_tokens": 32, "stop": ["three four"]})).await
        {
            assert_eq!((reading.only().text.as_str(), reading.only().finish.as_str()), ("", "stop"));
            assert_eq!(reading.completion_tokens(), 4);
        }
    }
}

#[tokio::test]
async fn c_stop_sequences_01_a_stopped_sequence_is_aborted_in_the_brain() {
    let stack = Stack::start().await;
    let acts = ["thr", "ee", " fo", "ur"].map(Act::piece).into_iter().chain([Act::Silence]).collect();
    stack.brain.always(Script::acts(acts));
    for (at, path) in [CHAT, COMPLETIONS].into_iter().enumerate() {
        let fields = json!({"stop": ["three four"]});
        stack.agree(path, &if path == CHAT { chat(fields) } else { completion(fields) }).await;
        stack.brain.until("the abort", |log| log.aborts.len() == 2 * (at + 1)).await;
    }
    assert_eq!(stack.brain.log().live(), 0);
}

#[tokio::test]
async fn c_stop_sequences_02_no_prefix_of_the_stop_string_leaks() {
    let stack = Stack::start().await;
    stack.brain.always(Script::pieces(&["Fine.", "\n### Hum", "an:", " more"]));
    for reading in stack.everywhere(json!({"stop": ["\n### Human:"]})).await {
        assert_eq!((reading.only().text.as_str(), reading.only().finish.as_str()), ("Fine.", "stop"));
    }
}

#[tokio::test]
async fn c_stop_sequences_03_one_stop_string_is_a_prefix_of_the_other() {
    let stack = Stack::start().await;
    stack.brain.always(Script::pieces(&["body\n", "<<EN", "D>>"]));
    for stop in [json!(["<<END>>", "<<END>>\n"]), json!(["<<END>>\n", "<<END>>"])] {
        for reading in stack.everywhere(json!({"stop": stop, "max_tokens": 32})).await {
            assert_eq!((reading.only().text.as_str(), reading.only().finish.as_str()), ("body\n", "stop"));
        }
    }
}

#[tokio::test]
async fn c_stop_sequences_04_a_false_start_is_released() {
    let stack = Stack::start().await;
    stack.brain.always(Script::pieces(&["red gre", "en bl", "ack end"]));
    for reading in stack.everywhere(json!({"stop": ["green blue"]})).await {
        assert_eq!(
            (reading.only().text.as_str(), reading.only().finish.as_str()),
            ("red green black end", "stop")
        );
    }
    // A false start that the end of the answer cuts is released too.
    stack.brain.always(Script::pieces(&["red gre", "en bl"]));
    for reading in stack.everywhere(json!({"stop": ["green blue"]})).await {
        assert_eq!((reading.only().text.as_str(), reading.only().finish.as_str()), ("red green bl", "stop"));
    }
    for reading in stack.everywhere(json!({"stop": "green blue", "max_tokens": 2})).await {
        assert_eq!(
            (reading.only().text.as_str(), reading.only().finish.as_str()),
            ("red green bl", "length")
        );
    }
}

#[tokio::test]
async fn c_reasoning_split_01_tags_cut_by_token_boundaries() {
    let stack = Stack::start().await;
    let pieces = ["<thi", "nk>let me", " see</thi", "nk>Done."];
    for script in [Script::pieces(&pieces), Script::burst(&pieces)] {
        stack.brain.always(script);
        let reading = stack.agree(CHAT, &chat(json!({}))).await;
        assert_eq!(reading.only().reasoning, "let me see");
        assert_eq!(reading.only().text, "Done.");
        assert_eq!(reading.only().finish, "stop");
    }
}

#[tokio::test]
async fn c_reasoning_split_02_stream_and_non_stream_agree_with_tags_of_one_token_or_of_several() {
    let stack = Stack::start().await;
    for pieces in [
        &["<think>", "let me", " see", "</think>", "Done."][..],
        &["<thi", "nk>let me", " see", "</think>", "Done."],
        &[
            "<", "t", "h", "i", "n", "k", ">", "let me", " see", "<", "/", "t", "h", "i", "n", "k", ">",
            "Done.",
        ],
    ] {
        stack.brain.always(Script::pieces(pieces));
        let reading = stack.agree(CHAT, &chat(json!({"seed": 3, "max_tokens": 64}))).await;
        assert_eq!(
            (reading.only().reasoning.as_str(), reading.only().text.as_str()),
            ("let me see", "Done.")
        );
        assert!(
            reading.usage["completion_tokens_details"]["reasoning_tokens"].as_u64().is_some_and(|n| n > 0)
        );
    }
    // The limit inside the thought: no content, and the reason is told.
    stack.brain.always(Script::pieces(&["<think>", "let me", " see", "</think>", "Done."]));
    let reading = stack.agree(CHAT, &chat(json!({"max_tokens": 2}))).await;
    assert_eq!((reading.only().reasoning.as_str(), reading.only().text.as_str()), ("let me", ""));
    assert_eq!(reading.only().finish, "length");
}
