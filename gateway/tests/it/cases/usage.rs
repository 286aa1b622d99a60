//! Token counts, where they appear, and several choices.

use serde_json::json;

use super::harness::{CHAT, COMPLETIONS, Stack, chat, completion};
use super::reading::Reading;
use super::scripted::{Act, Script};

#[tokio::test]
async fn c_usage_accounting_01_usage_only_in_the_last_frame() {
    let stack = Stack::start().await;
    for reading in stack.everywhere(json!({"max_tokens": 8})).await {
        let (last, others) = reading.frames.split_last().unwrap();
        for frame in others {
            assert!(frame.get("usage").is_some_and(serde_json::Value::is_null), "{frame}");
        }
        assert_eq!(last["choices"], json!([]));
        // Ids and sums are compared by `Reading`.
        assert_eq!(last["usage"]["completion_tokens"], 4);
        let prompts: Vec<usize> =
            stack.brain.log().submits.iter().map(|submit| submit.prompt.len()).collect();
        assert!(prompts.iter().any(|length| last["usage"]["prompt_tokens"] == *length), "{last} {prompts:?}");
    }
}

#[tokio::test]
async fn c_usage_accounting_02_empty_stream_options_ask_for_nothing() {
    let stack = Stack::start().await;
    for options in [json!({}), json!(null), json!({"include_usage": false}), json!({"include_usage": null})] {
        let fields = json!({"stream": true, "stream_options": options});
        for answer in [stack.chat(fields.clone()).await, stack.complete(fields).await] {
            for frame in Reading::of(&answer).frames {
                assert!(frame["usage"].is_null(), "{frame}");
                assert_ne!(frame["choices"], json!([]), "{frame}");
            }
        }
    }
}

#[tokio::test]
async fn c_usage_accounting_03_tokens_are_counted_and_not_frames() {
    let stack = Stack::start().await;
    let letters: Vec<u32> = (0..60).map(|at| u32::from(b'a') + at % 26).collect();
    let scripts = [1, 3, 7, 40].map(|step| {
        Script::acts(
            letters.chunks(step).map(|tokens| Act::Tokens(tokens.to_vec())).chain([Act::Eos]).collect(),
        )
    });
    for script in scripts {
        stack.brain.always(script);
        for fields in [
            json!({"max_tokens": 40, "seed": 5}),
            json!({"max_tokens": 40, "seed": 5, "stop": ["nopx", "zabd"]}),
        ] {
            for reading in stack.everywhere(fields).await {
                assert_eq!(reading.completion_tokens(), 40);
                assert_eq!(reading.only().text.len(), 40);
                assert_eq!(reading.only().finish, "length");
            }
        }
        for reading in stack.everywhere(json!({"max_tokens": 60, "stop": "wxy"})).await {
            assert_eq!((reading.completion_tokens(), reading.only().text.len()), (25, 22));
        }
    }
    for record in stack.ledger().await {
        assert!([40, 25].contains(&record["output_tokens"].as_u64().unwrap()), "{record}");
    }
}

/// The brain stands for the provider: its own counts reach the client and the ledger.
#[tokio::test]
async fn c_usage_accounting_04_the_engines_counts_are_passed_on_and_priced() {
    let prices = "price_prompt = 1000000\nprice_cached = 100000\nprice_output = 2000000";
    let stack = Stack::named(super::model::NAME, "", prices).await;
    stack.brain.always(Script::pieces(&["ok"]).cached(32));
    let prompt: Vec<u32> = (0..48).collect();
    let reading = stack.agree(COMPLETIONS, &completion(json!({"prompt": prompt}))).await;
    assert_eq!(reading.usage["prompt_tokens"], 48);
    assert_eq!(reading.usage["completion_tokens"], 2);
    assert_eq!(reading.usage["prompt_tokens_details"]["cached_tokens"], 32);
    let records = stack.ledger().await;
    assert_eq!(records.len(), 2);
    for record in records {
        assert_eq!(record["cached_tokens"], 32, "{record}");
        // 16 computed at 1, 32 cached at 0.1, 2 made at 2; money is rounded up.
        assert_eq!(record["price_micro"], 16 + 4 + 4, "{record}");
    }
}

#[tokio::test]
async fn c_choices_n_01_all_n_choices_come_back() {
    let stack = Stack::start().await;
    stack.brain.always(Script::acts(vec![Act::Seeded]));
    for _ in 0..50 {
        let answer = stack.chat(json!({"n": 4, "max_tokens": 8, "temperature": 1})).await;
        // `Reading` wants index 0 to 3 in order, each with its own end.
        assert_eq!(Reading::of(&answer).choices.len(), 4);
    }
    for reading in stack.everywhere(json!({"n": 4, "max_tokens": 8, "temperature": 1, "seed": 2})).await {
        assert_eq!(reading.choices.len(), 4);
        assert_eq!(reading.completion_tokens(), 32);
        // The prompt counts once, whatever n is.
        assert!(
            reading.usage["prompt_tokens"].as_u64().is_some_and(|tokens| tokens < 30),
            "{}",
            reading.usage
        );
    }
    let prompts = json!({"prompt": ["a", "b", "c"], "n": 2, "max_tokens": 4, "seed": 2});
    let reading = stack.agree(COMPLETIONS, &completion(prompts)).await;
    assert_eq!(reading.choices.len(), 6);
}

#[tokio::test]
async fn c_choices_n_02_role_frames_of_all_choices_first() {
    let stack = Stack::start().await;
    // The last choice is the fastest.
    for pieces in [["one", "one"], ["two", "two"], ["ok", "ok"]] {
        let slow = Act::Wait(std::time::Duration::from_millis(if pieces[0] == "ok" { 0 } else { 30 }));
        let acts = vec![slow.clone(), Act::piece(pieces[0]), slow, Act::piece(pieces[1]), Act::Eos];
        stack.brain.next(Script::acts(acts));
    }
    let answer = stack.chat(json!({"n": 3, "stream": true, "max_tokens": 12, "temperature": 1})).await;
    let reading = Reading::of(&answer);
    for (index, frame) in reading.frames.iter().take(3).enumerate() {
        assert_eq!(frame["choices"][0]["index"], index);
        assert_eq!(frame["choices"][0]["delta"]["role"], "assistant");
    }
    let texts: Vec<&str> = reading.choices.iter().map(|choice| choice.text.as_str()).collect();
    assert_eq!(texts, ["oneone", "twotwo", "okok"]);
    for index in 0..3 {
        let finishes = reading.frames.iter().filter(|frame| {
            frame["choices"][0]["index"] == index && !frame["choices"][0]["finish_reason"].is_null()
        });
        assert_eq!(finishes.count(), 1);
    }
}

#[tokio::test]
async fn c_choices_n_03_choices_of_one_seeded_request_differ_in_what_the_brain_is_asked() {
    let stack = Stack::start().await;
    stack.brain.always(Script::acts(vec![Act::Seeded]));
    let fields = json!({"n": 4, "seed": 42, "temperature": 1.2, "max_tokens": 24});
    let first = stack.agree(CHAT, &chat(fields.clone())).await;
    let second = stack.agree(CHAT, &chat(fields)).await;
    let texts: std::collections::HashSet<&str> =
        first.choices.iter().map(|choice| choice.text.as_str()).collect();
    assert_eq!(texts.len(), 4);
    assert_eq!(first.choices, second.choices);
    let submits = stack.brain.log().submits;
    let asked: Vec<(u32, u64)> = submits[..4].iter().map(|s| (s.sampling.choice, s.sampling.seed)).collect();
    assert_eq!(asked, [(0, 42), (1, 42), (2, 42), (3, 42)]);
}
