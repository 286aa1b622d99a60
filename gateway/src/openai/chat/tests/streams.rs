//! Frames and bodies of chat replies.

use proptest::prelude::*;
use serde_json::{Value, json};

use crate::openai::ChoiceState;
use crate::openai::testing::{Ends, Ran, Rig, Script, TOOL_TEMPLATE, run};
use pons_checkpoint::chat_template::CHATML;

fn body(more: Value) -> Value {
    let mut body = json!({"model": "M", "messages": [{"role": "user", "content": "Say hello."}]});
    body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    body
}

fn drive(pieces: &[&[u8]], ends: Ends, more: Value) -> Ran {
    let rig = Rig::new(pieces, CHATML, false);
    run(&rig, rig.chat(&body(more)).unwrap(), &[Script::new(&rig, pieces, ends)])
}

/// All texts of one delta field, joined.
fn joined(frames: &[Value], index: u64, field: &str) -> String {
    let choices = frames.iter().flat_map(|frame| frame["choices"].as_array().unwrap());
    choices
        .filter(|choice| choice["index"] == index)
        .filter_map(|choice| choice["delta"][field].as_str())
        .collect()
}

#[test]
fn c_streaming_framing_01_the_skeleton_of_an_ordinary_stream() {
    let ran = drive(&[b"Hel", b"lo", b"!"], Ends::Eos, json!({"stream": true, "max_tokens": 16}));
    let frames = ran.frames();
    assert_eq!(frames[0]["choices"][0]["delta"], json!({"role": "assistant", "content": ""}));
    assert!(frames[1..].iter().all(|frame| frame["choices"][0]["delta"].get("role").is_none()));
    let last = frames.last().unwrap();
    assert_eq!(last["choices"][0]["delta"], json!({}));
    assert_eq!(last["choices"][0]["finish_reason"], "stop");
    for frame in &frames {
        assert_eq!(frame["id"], "chatcmpl-0123456789abcdef");
        assert_eq!((&frame["created"], &frame["model"]), (&json!(1_700_000_001), &json!("M")));
        assert_eq!(frame["object"], "chat.completion.chunk");
        assert!(frame["choices"].is_array() && frame.get("usage").is_none() && frame.get("error").is_none());
    }
    assert_eq!(joined(&frames, 0, "content"), "Hello!");
    assert!(ran.bytes.ends_with(b"}\n\ndata: [DONE]\n\n"));
}

#[test]
fn c_streaming_framing_05_a_failure_is_one_error_frame_and_nothing_after_it() {
    let rig = Rig::new(&[b"a"], CHATML, false);
    let mut prepared = rig.chat(&body(json!({"stream": true}))).unwrap();
    let mut out = bytes::BytesMut::new();
    prepared.reply.open(&mut out);
    let output = pons_protocol::inference::SequenceOutput {
        sequence: pons_protocol::id::SequenceId(0),
        position: 0,
        cached_tokens: 0,
        tokens: Vec::new(),
        logprobs: Vec::new(),
        prompt_logprobs: Vec::new(),
        finish: Some(pons_protocol::inference::Finish {
            reason: pons_protocol::inference::FinishReason::Failed,
            prompt_tokens: 1,
            cached_tokens: 0,
            output_tokens: 0,
            queue_us: 0,
            prefill_us: 0,
            decode_us: 0,
            preemptions: 0,
        }),
    };
    let opened = out.len();
    assert_eq!(prepared.reply.push(0, &output, &mut out), ChoiceState::Done);
    assert!(prepared.reply.failure().is_some());
    assert_eq!(out.len(), opened, "no finish frame may make a failure look complete");
    prepared.reply.close(&mut out);
    let text = std::str::from_utf8(&out[opened..]).unwrap();
    let error: Value = serde_json::from_str(text.strip_prefix("data: ").unwrap().trim_end()).unwrap();
    let keys: Vec<_> = error["error"].as_object().unwrap().keys().cloned().collect();
    assert_eq!(keys, ["message", "type", "param", "code"]);
    assert!(!text.contains("[DONE]") && !text.contains("finish_reason"));
}

#[test]
fn c_utf8_split_02_an_emoji_of_four_tokens_arrives_whole() {
    let pieces: [&[u8]; 6] = [b"hi", b"\xf0", b"\x9f", b"\x9a", b"\x80", b"!"];
    let more = json!({"stream": true, "stream_options": {"include_usage": true}});
    let ran = drive(&pieces, Ends::Eos, more);
    let frames = ran.frames();
    assert!(frames.iter().any(|frame| frame["choices"][0]["delta"]["content"] == "🚀"));
    assert_eq!(joined(&frames, 0, "content"), "hi🚀!");
    assert_eq!(ran.usage.completion_tokens, 7);
}

#[test]
fn c_utf8_split_03_a_stray_byte_stalls_nothing() {
    let ran = drive(&[b"ok", b"\xff", b"abc"], Ends::Eos, json!({"stream": true}));
    assert_eq!(joined(&ran.frames(), 0, "content"), "ok\u{FFFD}abc");
    assert_eq!(ran.usage.finish_reasons, [Some("stop")]);
}

#[test]
fn c_stop_sequences_02_a_prefix_of_the_stop_does_not_leak_into_a_chat() {
    let pieces: [&[u8]; 4] = [b"Fine.", b"\n### Hum", b"an:", b" more"];
    for stream in [false, true] {
        let ran = drive(&pieces, Ends::Eos, json!({"stream": stream, "stop": ["\n### Human:"]}));
        assert_eq!(ran.last_state(), ChoiceState::Stopped);
        assert_eq!(ran.usage.completion_tokens, 3);
        let text = if stream {
            joined(&ran.frames(), 0, "content")
        } else {
            assert_eq!(ran.body()["choices"][0]["stop_reason"], "\n### Human:");
            ran.body()["choices"][0]["message"]["content"].as_str().unwrap().to_owned()
        };
        assert_eq!((text.as_str(), ran.usage.finish_reasons[0]), ("Fine.", Some("stop")));
    }
}

#[test]
fn c_stop_sequences_04_a_false_start_is_released_in_a_chat() {
    let pieces: [&[u8]; 3] = [b"red gre", b"en bl", b"ack end"];
    let ran = drive(&pieces, Ends::Eos, json!({"stream": true, "stop": ["green blue"]}));
    assert_eq!(joined(&ran.frames(), 0, "content"), "red green black end");
    assert_eq!((ran.last_state(), ran.usage.finish_reasons[0]), (ChoiceState::Done, Some("stop")));
}

#[test]
fn min_tokens_masks_stop_strings_until_they_are_reached() {
    let pieces: [&[u8]; 4] = [b"a", b"END", b"b", b"END"];
    let ran = drive(&pieces, Ends::Eos, json!({"stop": "END", "min_tokens": 2}));
    assert_eq!(ran.body()["choices"][0]["message"]["content"], "aENDb");
}

#[test]
fn the_stop_string_stays_when_asked_for() {
    let more = json!({"stop": "END", "include_stop_str_in_output": true});
    let ran = drive(&[b"a", b"EN", b"D"], Ends::Eos, more);
    assert_eq!(ran.body()["choices"][0]["message"]["content"], "aEND");
}

#[test]
fn special_tokens_are_hidden_unless_wanted() {
    let pieces: [&[u8]; 3] = [b"a", b"<|im_start|>", b"b"];
    let ran = drive(&pieces, Ends::Eos, json!({}));
    assert_eq!(ran.body()["choices"][0]["message"]["content"], "ab");
    let ran = drive(&pieces, Ends::Eos, json!({"skip_special_tokens": false}));
    assert_eq!(ran.body()["choices"][0]["message"]["content"], "a<|im_start|>b");
}

#[test]
fn c_logprobs_02_no_alternatives_still_give_the_sampled_value() {
    for more in [json!({"logprobs": true, "top_logprobs": 0}), json!({"logprobs": true})] {
        let ran = drive(&[b"a", b"b"], Ends::Eos, more);
        let content = ran.body()["choices"][0]["logprobs"]["content"].clone();
        assert_eq!(content.as_array().unwrap().len(), 2);
        assert!(content[0]["logprob"].as_f64().unwrap() < 0.0);
        assert_eq!(content[0]["top_logprobs"], json!([]));
    }
}

#[test]
fn c_logprobs_03_streamed_log_probabilities_equal_the_unstreamed_ones() {
    let pieces: [&[u8]; 6] = [b"h\xc3", b"\xa9", b" ST", b"O", b"x", b"!"];
    let more = |stream: bool| json!({"stream": stream, "logprobs": true, "top_logprobs": 2, "stop": "STOP"});
    let whole = drive(&pieces, Ends::Eos, more(false)).body()["choices"][0].clone();
    let frames = drive(&pieces, Ends::Eos, more(true)).frames();
    let streamed: Vec<Value> = frames
        .iter()
        .flat_map(|frame| frame["choices"][0]["logprobs"]["content"].as_array().cloned().unwrap_or_default())
        .collect();
    assert_eq!(whole["logprobs"]["content"], Value::from(streamed.clone()));
    assert_eq!(whole["logprobs"]["refusal"], Value::Null);
    let bytes: Vec<u8> = streamed
        .iter()
        .flat_map(|entry| entry["bytes"].as_array().unwrap().iter().map(|byte| byte.as_u64().unwrap() as u8))
        .collect();
    assert_eq!(bytes, "hé STOx!".as_bytes());
    assert_eq!(whole["message"]["content"], "hé STOx!");
}

#[test]
fn entries_of_text_that_was_cut_off_go_with_it() {
    let ran = drive(&[b"ab", b"cEN", b"D", b"x"], Ends::Eos, json!({"stop": "END", "logprobs": true}));
    let content = ran.body()["choices"][0]["logprobs"]["content"].clone();
    let bytes: Vec<&Value> = content.as_array().unwrap().iter().map(|entry| &entry["bytes"]).collect();
    assert_eq!(bytes, [&json!([97, 98]), &json!([99])]);
}

#[test]
fn c_choices_n_01_all_choices_come_back_with_their_own_finish() {
    let rig = Rig::new(&[b"a", b"b", b"c"], CHATML, false);
    let scripts = [
        Script::new(&rig, &[b"a"], Ends::Eos),
        Script::new(&rig, &[b"b", b"b"], Ends::Length),
        Script::new(&rig, &[b"c", b"a", b"b"], Ends::Eos),
    ];
    let ran = run(&rig, rig.chat(&body(json!({"n": 4}))).unwrap(), &scripts);
    let choices = ran.body()["choices"].as_array().unwrap().clone();
    let texts: Vec<_> = choices.iter().map(|c| c["message"]["content"].as_str().unwrap()).collect();
    assert_eq!(texts, ["a", "bb", "cab", "cab"]);
    let reasons: Vec<_> = choices.iter().map(|c| c["finish_reason"].as_str().unwrap()).collect();
    assert_eq!(reasons, ["stop", "length", "stop", "stop"]);
    let indexes: Vec<_> = choices.iter().map(|c| c["index"].as_u64().unwrap()).collect();
    assert_eq!(indexes, [0, 1, 2, 3]);
    let usage = &ran.body()["usage"];
    assert_eq!(usage["completion_tokens"], 2 + 2 + 4 + 4);
    assert_eq!(usage["total_tokens"], usage["prompt_tokens"].as_u64().unwrap() + 12);
}

#[test]
fn c_choices_n_02_role_frames_of_all_choices_come_first() {
    let rig = Rig::new(&[b"a", b"b", b"c"], CHATML, false);
    let script = |piece: &[u8]| Script::new(&rig, &[piece, piece], Ends::Length);
    let more = json!({"n": 3, "stream": true});
    let ran = run(&rig, rig.chat(&body(more)).unwrap(), &[script(b"a"), script(b"b"), script(b"c")]);
    let frames = ran.frames();
    for (index, frame) in frames[..3].iter().enumerate() {
        assert_eq!(frame["choices"][0]["index"], index);
        assert_eq!(frame["choices"][0]["delta"]["role"], "assistant");
    }
    for (index, text) in ["aa", "bb", "cc"].iter().enumerate() {
        assert_eq!(joined(&frames, index as u64, "content"), *text);
        let finishes = frames.iter().filter(|frame| {
            frame["choices"][0]["index"] == index && !frame["choices"][0]["finish_reason"].is_null()
        });
        assert_eq!(finishes.count(), 1);
    }
}

#[test]
fn c_choices_n_03_each_choice_draws_its_own_random_stream() {
    let rig = Rig::plain();
    let prepared = rig.chat(&body(json!({"n": 4, "seed": 42, "temperature": 1.2}))).unwrap();
    let drawn: Vec<_> = prepared.sequences.iter().map(|s| (s.sampling.seed, s.sampling.choice)).collect();
    assert_eq!(drawn, [(42, 0), (42, 1), (42, 2), (42, 3)]);
}

#[test]
fn c_usage_accounting_01_usage_is_in_the_last_frame_only() {
    let more = json!({"stream": true, "stream_options": {"include_usage": true}});
    let frames = drive(&[b"a", b"b"], Ends::Eos, more).frames();
    let (last, others) = frames.split_last().unwrap();
    assert!(others.iter().all(|frame| frame.as_object().unwrap().get("usage") == Some(&Value::Null)));
    assert_eq!(last["choices"], json!([]));
    assert_eq!(last["id"], frames[0]["id"]);
    let usage = &last["usage"];
    let sum = usage["prompt_tokens"].as_u64().unwrap() + usage["completion_tokens"].as_u64().unwrap();
    assert_eq!(usage["total_tokens"], sum);
    assert_eq!(usage["completion_tokens"], 3);
    assert_eq!(usage["prompt_tokens_details"]["cached_tokens"], 1);
}

#[test]
fn c_usage_accounting_02_empty_options_turn_no_usage_on() {
    for options in [json!({}), json!(null), json!({"include_usage": false})] {
        let frames = drive(&[b"a"], Ends::Eos, json!({"stream": true, "stream_options": options})).frames();
        assert!(frames.iter().all(|frame| frame.get("usage").is_none()));
        assert!(frames.iter().all(|frame| !frame["choices"].as_array().unwrap().is_empty()));
    }
}

#[test]
fn usage_in_each_frame_counts_up_when_asked_for() {
    let options = json!({"include_usage": true, "continuous_usage_stats": true});
    let frames = drive(&[b"a", b"b"], Ends::Eos, json!({"stream": true, "stream_options": options})).frames();
    let counts: Vec<u64> =
        frames.iter().map(|frame| frame["usage"]["completion_tokens"].as_u64().unwrap()).collect();
    assert_eq!(counts, [0, 1, 2, 3, 3]);
}

#[test]
fn c_usage_accounting_03_tokens_are_counted_and_not_frames() {
    let pieces: [&[u8]; 5] = [b"a", b"ST", b"b", b"c", b"d"];
    let rig = Rig::new(&pieces, CHATML, false);
    for widths in [&[1][..], &[3, 1], &[9]] {
        for stream in [false, true] {
            let script = Script::new(&rig, &pieces, Ends::Length).with_widths(widths);
            let prepared = rig.chat(&body(json!({"stream": stream, "stop": "STOP"}))).unwrap();
            assert_eq!(run(&rig, prepared, &[script]).usage.completion_tokens, 5);
        }
    }
}

#[test]
fn c_reasoning_split_01_reasoning_is_kept_apart_from_the_answer() {
    let pieces: [&[u8]; 4] = [b"<thi", b"nk>let me", b" see</thi", b"nk>Done."];
    let frames = drive(&pieces, Ends::Eos, json!({"stream": true})).frames();
    assert_eq!(joined(&frames, 0, "reasoning_content"), "let me see");
    assert_eq!(joined(&frames, 0, "reasoning"), "let me see");
    assert_eq!(joined(&frames, 0, "content"), "Done.");
    let ran = drive(&pieces, Ends::Eos, json!({}));
    let message = ran.body()["choices"][0]["message"].clone();
    assert_eq!(message["reasoning_content"], "let me see");
    assert_eq!(message["content"], "Done.");
    assert_eq!(ran.body()["usage"]["completion_tokens_details"]["reasoning_tokens"], 3);
}

#[test]
fn a_limit_while_reasoning_finishes_with_length_and_null_content() {
    let ran = drive(&[b"<think>", b"and", b" so"], Ends::Length, json!({}));
    let choice = ran.body()["choices"][0].clone();
    assert_eq!(choice["finish_reason"], "length");
    assert_eq!(choice["message"]["content"], Value::Null);
    assert_eq!(choice["message"]["reasoning_content"], "and so");
}

#[test]
fn a_template_that_opens_the_tag_begins_in_reasoning() {
    let template = "{% for m in messages %}{{ m.content }}{% endfor %}<think>\n";
    let rig = Rig::new(&[b"hm", b"</think>", b"yes"], template, false);
    let script = Script::new(&rig, &[b"hm", b"</think>", b"yes"], Ends::Eos);
    let ran = run(&rig, rig.chat(&body(json!({}))).unwrap(), std::slice::from_ref(&script));
    let message = ran.body()["choices"][0]["message"].clone();
    assert_eq!((&message["reasoning_content"], &message["content"]), (&json!("hm"), &json!("yes")));
    let hidden = run(&rig, rig.chat(&body(json!({"include_reasoning": false}))).unwrap(), &[script]);
    assert!(hidden.body()["choices"][0]["message"].get("reasoning_content").is_none());
}

#[test]
fn token_ids_come_back_when_asked_for() {
    let pieces: [&[u8]; 2] = [b"a", b"b"];
    let rig = Rig::new(&pieces, CHATML, false);
    let more = |stream: bool| json!({"stream": stream, "return_token_ids": true});
    let script = Script::new(&rig, &pieces, Ends::Eos);
    let prepared = rig.chat(&body(more(false))).unwrap();
    let prompt = json!(prepared.sequences[0].prompt.to_vec());
    let whole = run(&rig, prepared, std::slice::from_ref(&script)).body();
    assert_eq!(whole["prompt_token_ids"], prompt);
    assert_eq!(whole["choices"][0]["token_ids"], json!([97, 98, rig.im_end]));
    let frames = run(&rig, rig.chat(&body(more(true))).unwrap(), &[script]).frames();
    assert_eq!(frames[0]["prompt_token_ids"], prompt);
    let ids: Vec<u64> = frames[1..]
        .iter()
        .flat_map(|frame| frame["choices"][0]["token_ids"].as_array().unwrap().clone())
        .map(|id| id.as_u64().unwrap())
        .collect();
    assert_eq!(ids, [97, 98, u64::from(rig.im_end)]);
}

/// Concatenates a stream into the message that the body of the same request must have.
fn assembled(frames: &[Value], index: u64) -> Value {
    let (mut content, mut reasoning) = (String::new(), String::new());
    let mut calls: Vec<Value> = Vec::new();
    let mut logprobs: Vec<Value> = Vec::new();
    let mut finish = Value::Null;
    for choice in frames.iter().flat_map(|frame| frame["choices"].as_array().unwrap()) {
        if choice["index"] != index {
            continue;
        }
        let delta = &choice["delta"];
        content.push_str(delta["content"].as_str().unwrap_or_default());
        reasoning.push_str(delta["reasoning_content"].as_str().unwrap_or_default());
        for part in delta["tool_calls"].as_array().unwrap_or(&Vec::new()) {
            let at = part["index"].as_u64().unwrap() as usize;
            if at == calls.len() {
                let (id, name) = (&part["id"], &part["function"]["name"]);
                assert!(id.is_string() && name.is_string() && part["type"] == "function");
                calls
                    .push(json!({"id": id, "type": "function", "function": {"name": name, "arguments": ""}}));
            } else {
                assert_eq!(at + 1, calls.len(), "calls must not be interleaved");
                assert!(part.get("id").is_none() && part["function"].get("name").is_none());
            }
            let sofar = calls[at]["function"]["arguments"].as_str().unwrap().to_owned();
            let more = part["function"]["arguments"].as_str().unwrap();
            calls[at]["function"]["arguments"] = json!(sofar + more);
        }
        logprobs.extend(choice["logprobs"]["content"].as_array().cloned().unwrap_or_default());
        if !choice["finish_reason"].is_null() {
            assert!(finish.is_null(), "one finish a choice");
            finish = choice["finish_reason"].clone();
        }
    }
    json!({"content": content, "reasoning": reasoning, "calls": calls, "logprobs": logprobs, "finish": finish})
}

fn of_body(choice: &Value) -> Value {
    let message = &choice["message"];
    json!({
        "content": message["content"].as_str().unwrap_or_default(),
        "reasoning": message["reasoning_content"].as_str().unwrap_or_default(),
        "calls": message["tool_calls"].as_array().cloned().unwrap_or_default(),
        "logprobs": choice["logprobs"]["content"].as_array().cloned().unwrap_or_default(),
        "finish": choice["finish_reason"],
    })
}

const PIECES: [&[u8]; 16] = [
    b"<think>",
    b"</think>",
    b"<tool_call>",
    b"</tool_call>",
    b"{\"name\": \"f\", \"arguments\": ",
    b"{\"a\": 1}",
    b"}",
    b"\n",
    b"EN",
    b"D",
    b" ",
    b"\xf0\x9f",
    b"\x9a\x80",
    b"\xff",
    b"text",
    b"<|im_start|>",
];

proptest! {
    #[test]
    fn c_reasoning_split_02_streams_and_bodies_agree_however_tokens_are_grouped(
        picks in prop::collection::vec(prop::collection::vec(0..PIECES.len(), 0..12), 2),
        widths in prop::collection::vec(1_usize..4, 1..4),
        stop in any::<bool>(),
        parallel in any::<bool>(),
        length in any::<bool>(),
        min_tokens in 0_u32..4,
    ) {
        let rig = Rig::new(&PIECES, TOOL_TEMPLATE, false);
        let ends = if length { Ends::Length } else { Ends::Eos };
        let scripts = |widths: &[usize]| -> Vec<Script> {
            picks.iter().map(|picks| {
                let pieces: Vec<&[u8]> = picks.iter().map(|pick| PIECES[*pick]).collect();
                Script::new(&rig, &pieces, ends).with_widths(widths)
            }).collect()
        };
        let request = |stream: bool| {
            let mut more = json!({
                "n": 2, "stream": stream, "logprobs": true, "top_logprobs": 1, "parallel_tool_calls": parallel,
                "min_tokens": min_tokens, "tools": [{"type": "function", "function": {"name": "f"}}],
            });
            if stop {
                more["stop"] = json!(["END", "\n\n"]);
            }
            rig.chat(&body(more)).unwrap()
        };
        let whole = run(&rig, request(false), &scripts(&[1]));
        let grouped = run(&rig, request(false), &scripts(&widths));
        // Cached tokens come with the engine's finish, which an abort may be too early for.
        let without_cached = |mut body: Value| {
            body["usage"]["prompt_tokens_details"]["cached_tokens"] = json!(0);
            body
        };
        prop_assert_eq!(without_cached(whole.body()), without_cached(grouped.body()));
        let streamed = run(&rig, request(true), &scripts(&widths));
        prop_assert_eq!(&streamed.usage, &grouped.usage);
        prop_assert_eq!(&streamed.states, &grouped.states);
        let frames = streamed.frames();
        for index in 0..2 {
            let choice = whole.body()["choices"][index].clone();
            prop_assert_eq!(assembled(&frames, index as u64), of_body(&choice));
        }
    }
}
