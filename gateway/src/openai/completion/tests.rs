//! Completion requests and replies.

use pons_checkpoint::chat_template::CHATML;
use proptest::prelude::*;
use serde_json::{Value, json};

use crate::openai::ChoiceState;
use crate::openai::testing::{Ends, Ran, Rig, Script, run};

fn drive(pieces: &[&[u8]], ends: Ends, body: Value) -> Ran {
    let rig = Rig::new(pieces, CHATML, false);
    run(&rig, rig.completion(&body).unwrap(), &[Script::new(&rig, pieces, ends)])
}

fn text(frames: &[Value], index: u64) -> String {
    let choices = frames.iter().flat_map(|frame| frame["choices"].as_array().unwrap());
    choices.filter(|c| c["index"] == index).map(|c| c["text"].as_str().unwrap()).collect()
}

#[test]
fn c_stop_sequences_01_a_stop_over_four_tokens_leaves_no_text() {
    let body =
        json!({"prompt": "Count on: one, two,", "stream": true, "stop": ["three four"], "max_tokens": 32});
    let ran = drive(&[b"thr", b"ee", b" fo", b"ur", b"! five"], Ends::Eos, body);
    assert_eq!(text(&ran.frames(), 0), "");
    assert_eq!((ran.last_state(), ran.usage.completion_tokens), (ChoiceState::Stopped, 4));
    assert_eq!(ran.usage.finish_reasons, [Some("stop")]);
}

#[test]
fn c_stop_sequences_03_the_cut_is_at_the_first_full_match() {
    let body = json!({"prompt": "Hello", "stop": ["<<END>>", "<<END>>\n"], "max_tokens": 32});
    let ran = drive(&[b"body\n", b"<<EN", b"D>>"], Ends::Eos, body);
    let choice = ran.body()["choices"][0].clone();
    assert_eq!((&choice["text"], &choice["finish_reason"]), (&json!("body\n"), &json!("stop")));
}

#[test]
fn the_body_has_the_legacy_shape() {
    let body = drive(&[b"a"], Ends::Eos, json!({"prompt": "Hi"})).body();
    assert_eq!(body["object"], "text_completion");
    assert_eq!(body["id"], "cmpl-0123456789abcdef");
    assert_eq!(body["choices"][0]["logprobs"], Value::Null);
    assert_eq!(
        body["usage"],
        json!({
            "prompt_tokens": 2, "completion_tokens": 2, "total_tokens": 4,
            "prompt_tokens_details": {"cached_tokens": 1, "audio_tokens": 0},
            "completion_tokens_details": {"reasoning_tokens": 0, "audio_tokens": 0, "accepted_prediction_tokens": 0,
                "rejected_prediction_tokens": 0},
        })
    );
}

#[test]
fn c_logprobs_01_completions_keep_the_legacy_shape_in_streams_too() {
    let pieces: [&[u8]; 3] = [b"a", b"b", b"c"];
    let body = |stream: bool| json!({"prompt": "Hello", "logprobs": 3, "max_tokens": 4, "stream": stream});
    let frames = drive(&pieces, Ends::Length, body(true)).frames();
    for frame in &frames {
        let logprobs = frame["choices"][0]["logprobs"].as_object().unwrap();
        let keys: Vec<_> = logprobs.keys().map(String::as_str).collect();
        assert_eq!(keys, ["tokens", "token_logprobs", "top_logprobs", "text_offset"]);
        let lengths: Vec<_> = logprobs.values().map(|list| list.as_array().unwrap().len()).collect();
        assert!(lengths.iter().all(|length| *length == lengths[0]));
    }
    let whole = drive(&pieces, Ends::Length, body(false)).body()["choices"][0]["logprobs"].clone();
    assert_eq!(whole["tokens"], json!(["a", "b", "c"]));
    assert_eq!(whole["text_offset"], json!([0, 1, 2]));
    for key in ["tokens", "token_logprobs", "top_logprobs", "text_offset"] {
        let streamed: Vec<Value> = frames
            .iter()
            .flat_map(|frame| frame["choices"][0]["logprobs"][key].as_array().unwrap().clone())
            .collect();
        assert_eq!(whole[key], Value::from(streamed), "{key}");
    }
}

#[test]
fn c_logprobs_02_zero_alternatives_give_the_sampled_token() {
    let whole = drive(&[b"a"], Ends::Length, json!({"prompt": "x", "logprobs": 0})).body();
    let logprobs = &whole["choices"][0]["logprobs"];
    assert!(logprobs["token_logprobs"][0].as_f64().unwrap() < 0.0);
    assert_eq!(logprobs["top_logprobs"][0].as_object().unwrap().len(), 1);
}

#[test]
fn c_logprobs_04_an_echoed_prompt_brings_its_log_probabilities() {
    let prompt = "The capital é";
    let body = json!({"prompt": prompt, "echo": true, "max_tokens": 1, "logprobs": 1, "temperature": 0});
    let ran = drive(&[b" Paris"], Ends::Length, body);
    let choice = ran.body()["choices"][0].clone();
    assert_eq!(choice["text"], "The capital é Paris");
    let logprobs = &choice["logprobs"];
    let tokens = logprobs["tokens"].as_array().unwrap();
    assert_eq!(tokens.len() as u64, ran.usage.prompt_tokens + 1);
    assert!(logprobs["token_logprobs"][0].is_null() && logprobs["top_logprobs"][0].is_null());
    for (at, token) in tokens.iter().enumerate().skip(1) {
        let name = token.as_str().unwrap();
        assert_eq!(logprobs["top_logprobs"][at][name], logprobs["token_logprobs"][at]);
    }
    let offsets: Vec<u64> =
        logprobs["text_offset"].as_array().unwrap().iter().map(|offset| offset.as_u64().unwrap()).collect();
    assert!(offsets.is_sorted());
    assert_eq!(*offsets.last().unwrap(), prompt.chars().count() as u64);
}

#[test]
fn an_echo_without_generation_scores_the_prompt_alone() {
    let rig = Rig::plain();
    for ids in [json!([[104, 105], [106]]), json!(["hi", "j"])] {
        let body = json!({"prompt": ids, "echo": true, "max_tokens": 0, "logprobs": 1});
        let prepared = rig.completion(&body).unwrap();
        assert!(prepared.sequences.iter().all(|sequence| sequence.stop.max_tokens == 0));
        let ran = run(&rig, prepared, &[Script { tokens: vec![], ends: Ends::Length, widths: vec![1] }]);
        let choices = ran.body()["choices"].as_array().unwrap().clone();
        let texts: Vec<_> = choices.iter().map(|c| c["text"].as_str().unwrap()).collect();
        assert_eq!(texts, ["hi", "j"]);
        assert_eq!(choices[0]["logprobs"]["tokens"], json!(["h", "i"]));
        assert_eq!(ran.usage.completion_tokens, 0);
    }
}

#[test]
fn an_end_token_has_an_entry_so_that_scores_line_up() {
    let rig = Rig::plain();
    let body = json!({"prompt": [[104, 105]], "echo": true, "max_tokens": 1, "logprobs": 1});
    let prepared = rig.completion(&body).unwrap();
    let ran = run(&rig, prepared, &[Script { tokens: vec![], ends: Ends::Eos, widths: vec![1] }]);
    let choice = ran.body()["choices"][0].clone();
    assert_eq!(choice["logprobs"]["tokens"], json!(["h", "i", "<|im_end|>"]));
    assert_eq!(choice["text"], "hi");
}

#[test]
fn c_logprobs_05_minus_infinity_is_floored() {
    let body = json!({"prompt": "seven green bottles", "echo": true, "logprobs": 3, "top_k": 1});
    let ran = drive(&[b"a", b"b"], Ends::Length, body);
    let body = ran.body();
    let tops = body["choices"][0]["logprobs"]["top_logprobs"].as_array().unwrap();
    let values: Vec<f64> = tops
        .iter()
        .filter_map(Value::as_object)
        .flat_map(|map| map.values().map(|v| v.as_f64().unwrap()))
        .collect();
    assert!(values.iter().all(|value| value.is_finite() && *value >= -9999.0));
    assert!(values.contains(&-9999.0));
}

#[test]
fn tokens_that_are_no_characters_have_distinct_names() {
    let body = json!({"prompt": "x", "logprobs": 0});
    let whole = drive(&[b"\xf0\x9f", b"\x9a\x80"], Ends::Length, body.clone()).body();
    let logprobs = &whole["choices"][0]["logprobs"];
    assert_eq!(logprobs["tokens"], json!(["bytes:\\xf0\\x9f", "bytes:\\x9a\\x80"]));
    assert_eq!(whole["choices"][0]["text"], "🚀");
    let mut named = body;
    named["return_tokens_as_token_ids"] = json!(true);
    let rig = Rig::new(&[], CHATML, false);
    let ran = run(&rig, rig.completion(&named).unwrap(), &[Script::new(&rig, &[b"a"], Ends::Length)]);
    assert_eq!(ran.body()["choices"][0]["logprobs"]["tokens"], json!(["token_id:97"]));
}

#[test]
fn choices_are_numbered_by_prompt_and_then_by_choice() {
    let rig = Rig::plain();
    let body = json!({"prompt": ["x", "yy"], "n": 2, "seed": 3});
    let prepared = rig.completion(&body).unwrap();
    let drawn: Vec<_> =
        prepared.sequences.iter().map(|s| (s.prompt.len(), s.sampling.choice, s.sampling.seed)).collect();
    assert_eq!(drawn, [(1, 0, 3), (1, 1, 3), (2, 0, 3), (2, 1, 3)]);
    let script = |piece: &[u8]| Script::new(&rig, &[piece], Ends::Length);
    let ran = run(&rig, prepared, &[script(b"a"), script(b"b"), script(b"c"), script(b"d")]);
    let body = ran.body();
    let shown: Vec<_> = body["choices"]
        .as_array()
        .unwrap()
        .iter()
        .map(|c| (c["index"].as_u64(), c["text"].as_str()))
        .collect();
    assert_eq!(
        shown,
        [(Some(0), Some("a")), (Some(1), Some("b")), (Some(2), Some("c")), (Some(3), Some("d"))]
    );
    assert_eq!((ran.usage.prompt_tokens, ran.usage.completion_tokens), (3, 4));
}

#[test]
fn best_of_shows_the_candidates_with_the_highest_mean() {
    let rig = Rig::plain();
    let prepared = rig.completion(&json!({"prompt": "x", "n": 2, "best_of": 3})).unwrap();
    assert_eq!(prepared.sequences.len(), 3);
    assert!(prepared.sequences.iter().all(|sequence| sequence.sampling.logprobs == Some(0)));
    // The scripted engine gives later positions lower values, so longer texts have lower means.
    let script = |pieces: &[&[u8]]| Script::new(&rig, pieces, Ends::Length);
    let ran = run(&rig, prepared, &[script(&[b"a", b"a", b"a"]), script(&[b"b"]), script(&[b"c", b"c"])]);
    let body = ran.body();
    let texts: Vec<_> =
        body["choices"].as_array().unwrap().iter().map(|c| c["text"].as_str().unwrap()).collect();
    assert_eq!(texts, ["b", "cc"]);
    assert_eq!(body["choices"][0]["index"], 0);
    assert_eq!(body["choices"][0]["logprobs"], Value::Null);
    assert_eq!(ran.usage.completion_tokens, 6, "all candidates are billed");
}

#[test]
fn c_prompt_and_context_01_an_empty_prompt_is_bos_or_an_error() {
    let with = Rig::new(&[], CHATML, true);
    let without = Rig::plain();
    for (rig, empty) in
        [(&with, json!("")), (&with, json!([""])), (&without, json!("")), (&with, json!(["a", ""]))]
    {
        let prepared = rig.completion(&json!({"prompt": empty, "max_tokens": 4})).unwrap();
        assert_eq!(prepared.sequences.last().unwrap().prompt.to_vec(), [rig.bos]);
    }
    for bad in
        [json!([]), json!([[]]), json!(["a", []]), json!(null), json!(5), json!([["a"]]), json!([null])]
    {
        let error = without.completion(&json!({"prompt": bad, "max_tokens": 4})).unwrap_err();
        assert_eq!(error.status.as_u16(), 400);
        assert!(error.param.unwrap().starts_with("prompt"), "{bad}");
    }
}

#[test]
fn c_roles_and_templates_01_a_text_prompt_begins_with_one_bos_where_the_model_adds_it() {
    let rig = Rig::new(&[], CHATML, true);
    let ids = |body: Value| rig.completion(&body).unwrap().sequences[0].prompt.to_vec();
    assert_eq!(ids(json!({"prompt": "hi"})), [rig.bos, 104, 105]);
    assert_eq!(ids(json!({"prompt": "hi", "add_special_tokens": false})), [104, 105]);
    assert_eq!(ids(json!({"prompt": [rig.bos, 104]})), [rig.bos, 104]);
}

#[test]
fn c_parameter_edges_02_null_means_sixteen_tokens() {
    let rig = Rig::plain();
    for body in [json!({"prompt": "x"}), json!({"prompt": "x", "max_tokens": null})] {
        assert_eq!(rig.completion(&body).unwrap().sequences[0].stop.max_tokens, 16);
    }
}

#[test]
fn what_can_not_be_done_is_refused_by_name() {
    let rig = Rig::plain();
    for (name, value) in [
        ("suffix", json!("x")),
        ("max_tokens", json!(0)),
        ("max_tokens", json!(-1)),
        ("logprobs", json!(6)),
        ("logprobs", json!(true)),
        ("best_of", json!(0)),
        ("best_of", json!(129)),
        ("prompt_logprobs", json!(1)),
        ("store", json!(true)),
        ("n", json!(0)),
    ] {
        let error = rig.completion(&json!({"prompt": "x", name: value})).unwrap_err();
        assert_eq!((error.status.as_u16(), error.param.as_deref()), (400, Some(name)));
    }
    let error = rig.completion(&json!({"prompt": "x", "best_of": 2, "stream": true})).unwrap_err();
    assert_eq!(error.param.as_deref(), Some("best_of"));
    let error = rig.completion(&json!({"prompt": "x", "best_of": 1, "n": 2})).unwrap_err();
    assert_eq!(error.param.as_deref(), Some("best_of"));
    let error = rig.completion(&json!({"prompt": [[100_000]]})).unwrap_err();
    assert_eq!(error.param.as_deref(), Some("prompt[0][0]"));
    let error = rig.completion(&json!({"prompt": vec!["x"; 1025]})).unwrap_err();
    assert_eq!(error.param.as_deref(), Some("prompt"));
    let error = rig.completion(&json!({"prompt": vec!["x"; 100], "n": 20})).unwrap_err();
    assert_eq!(error.param.as_deref(), Some("prompt"));
}

#[test]
fn a_prompt_beyond_the_context_is_refused_with_the_numbers() {
    let error = Rig::plain().completion(&json!({"prompt": "a".repeat(4090), "max_tokens": 16})).unwrap_err();
    assert_eq!(error.code.as_deref(), Some("context_length_exceeded"));
    assert!(error.message.contains("4090") && error.message.contains("16") && error.message.contains("4096"));
}

const PIECES: [&[u8]; 9] =
    [b"a", b"EN", b"D", b"\xf0\x9f", b"\x9a\x80", b"\xff", b"text ", b"<|im_start|>", b"\xc3\xa9"];

proptest! {
    #[test]
    fn streams_and_bodies_agree_however_tokens_are_grouped(
        picks in prop::collection::vec(0..PIECES.len(), 0..12),
        widths in prop::collection::vec(1_usize..4, 1..4),
        echo in any::<bool>(),
        length in any::<bool>(),
    ) {
        let rig = Rig::new(&PIECES, CHATML, false);
        let pieces: Vec<&[u8]> = picks.iter().map(|pick| PIECES[*pick]).collect();
        let script = Script::new(&rig, &pieces, if length { Ends::Length } else { Ends::Eos });
        let request = |stream: bool| {
            let body = json!({"prompt": ["hé", "x"], "stream": stream, "logprobs": 2, "echo": echo, "stop": "END"});
            rig.completion(&body).unwrap()
        };
        let whole = run(&rig, request(false), &[script.clone().with_widths(&[1])]);
        let streamed = run(&rig, request(true), &[script.with_widths(&widths)]);
        prop_assert_eq!(streamed.usage.completion_tokens, whole.usage.completion_tokens);
        prop_assert_eq!(&streamed.usage.finish_reasons, &whole.usage.finish_reasons);
        let (body, frames) = (whole.body(), streamed.frames());
        for index in 0..2 {
            let choice = &body["choices"][index];
            prop_assert_eq!(text(&frames, index as u64), choice["text"].as_str().unwrap());
            for key in ["tokens", "token_logprobs", "top_logprobs", "text_offset"] {
                let list: Vec<Value> = frames
                    .iter()
                    .filter(|frame| frame["choices"][0]["index"] == index)
                    .flat_map(|frame| frame["choices"][0]["logprobs"][key].as_array().unwrap().clone())
                    .collect();
                prop_assert_eq!(&choice["logprobs"][key], &Value::from(list));
            }
        }
    }
}

#[test]
fn equal_prompts_draw_different_texts_unless_the_client_chose_the_seed() {
    let seeds = |seed: Value| -> Vec<(u64, u32)> {
        let body = json!({"prompt": ["x", "x", "x"], "n": 2, "seed": seed});
        let sequences = Rig::plain().completion(&body).unwrap().sequences;
        sequences.iter().map(|spec| (spec.sampling.seed, spec.sampling.choice)).collect()
    };
    let drawn = seeds(Value::Null);
    assert!((1..drawn.len()).all(|at| !drawn[..at].contains(&drawn[at])), "{drawn:?}");
    assert_eq!(seeds(json!(7)), [(7, 0), (7, 1)].repeat(3));
}
