//! From tokens to server-sent events: detokenizer, stop strings, frames. The rule: the text that a client puts
//! together equals a lossy decoding of all bytes up to the stop string; the limit is a copy of the bytes that leave,
//! and serde_json building the same frames is timed beside it.

use std::hint::black_box;
use std::path::Path;
use std::sync::Arc;

use anyhow::Context;
use bytes::BytesMut;
use criterion::BatchSize;
use pons_benches::numbers::Numbers;
use pons_benches::suite::{Case, Suite};
use pons_checkpoint::fixture::write_tiny_llama;
use pons_checkpoint::{ChatTemplate, Checkpoint, Tokenizer};
use pons_gateway::openai::{ChoiceState, Prepared, RequestContext, ServedModel, prepare_chat};
use pons_gateway::text::detokenizer::Detokenizer;
use pons_gateway::text::stop::{StopMatcher, StopStrings};
use pons_protocol::id::{SequenceId, TokenId};
use pons_protocol::inference::SequenceOutput;
use serde_json::{Value, json};

/// What the model says, over and over: words, a character cut in two, and beginnings of the stop string.
const PIECES: [&str; 8] = [" the", " orders", " table", "\n", " batch", ".", "##", " im\u{fc}"];
/// Comes at the very end only.
const STOP: &str = "###END";

fn main() -> anyhow::Result<()> {
    let mut suite = Suite::start("stream")?;
    let folder = tempfile::tempdir()?;
    let count = if suite.is_small() { 24 } else { 512 };
    let script = Script::new(folder.path(), count)?;
    text(&mut suite, &script);
    frames(&mut suite, &script)?;
    suite.finish()
}

/// A model and what it says.
struct Script {
    model: Arc<ServedModel>,
    tokens: Vec<TokenId>,
    /// What a client is to read.
    expected: String,
}

impl Script {
    fn new(folder: &Path, count: usize) -> anyhow::Result<Self> {
        let tiny = write_tiny_llama(folder, 1, &PIECES)?;
        let checkpoint = Checkpoint::open(folder)?;
        let tokenizer = Tokenizer::open(&checkpoint)?;
        let template = ChatTemplate::open(&checkpoint, &tokenizer)?;
        let mut numbers = Numbers::new(17);
        let mut tokens = Vec::new();
        while tokens.len() < count {
            match numbers.below(PIECES.len() + 1) {
                // The bytes of a rocket, a token each.
                at if at == PIECES.len() => tokens.extend("\u{1f680}".bytes().map(TokenId::from)),
                at => tokens.push(tiny.piece_ids[at]),
            }
        }
        tokens.extend(STOP.bytes().map(TokenId::from));
        let bytes: Vec<u8> =
            tokens.iter().flat_map(|id| tokenizer.token_bytes(*id).unwrap_or_default()).copied().collect();
        let whole = String::from_utf8_lossy(&bytes);
        let expected = whole.split(STOP).next().context("no text")?.to_owned();
        anyhow::ensure!(
            whole.len() == expected.len() + STOP.len(),
            "the stop string is not at the end alone"
        );
        let model = ServedModel {
            name: "bench".to_owned(),
            tokenizer: Arc::new(tokenizer),
            template: Arc::new(template),
            context_tokens: 4096,
            vocab_size: u32::try_from(tiny.config.vocab_size)?,
            eos: tiny.config.eos.clone(),
            fingerprint: "fp_bench".to_owned(),
            created: 1_700_000_000,
            limits: Default::default(),
        };
        Ok(Self { model: Arc::new(model), tokens, expected })
    }

    /// A request for a stream with the stop string, ready to take tokens.
    fn prepared(&self) -> anyhow::Result<Prepared> {
        let body = json!({
            "model": "bench",
            "messages": [{"role": "user", "content": "Which batches are safe to repeat?"}],
            "stop": [STOP, "<never>"],
            "stream": true,
        });
        let context =
            RequestContext { id: "0123456789abcdef".to_owned(), created: 1_700_000_001, entropy: 42 };
        prepare_chat(body, &self.model, context).map_err(|error| anyhow::anyhow!("{error}"))
    }

    /// Each token as the brain sends it.
    fn outputs(&self) -> Vec<SequenceOutput> {
        let output = |(position, token): (usize, &TokenId)| SequenceOutput {
            sequence: SequenceId(1),
            position: position as u32,
            tokens: vec![*token],
            cached_tokens: 0,
            logprobs: Vec::new(),
            prompt_logprobs: Vec::new(),
            finish: None,
        };
        self.tokens.iter().enumerate().map(output).collect()
    }
}

/// Detokenizer and stop strings alone.
fn text(suite: &mut Suite, script: &Script) {
    let strings = Arc::new(StopStrings::new([STOP.to_owned(), "<never>".to_owned()]));
    let pieces: Vec<&[u8]> =
        script.tokens.iter().map(|id| script.model.tokenizer.token_bytes(*id).unwrap_or_default()).collect();
    let run = |pieces: &[&[u8]], out: &mut String| {
        let (mut detokenizer, mut stop) =
            (Detokenizer::default(), StopMatcher::new(Arc::clone(&strings), false));
        let mut piece_text = String::new();
        for piece in pieces {
            piece_text.clear();
            detokenizer.push(piece, &mut piece_text);
            if stop.push(&piece_text, out).is_some() {
                return true;
            }
        }
        false
    };
    let mut out = String::new();
    assert!(run(&pieces, &mut out), "the stop string was not seen");
    assert_eq!(out, script.expected);
    let case = |name: &str| Case::new("text", name).handles(pieces.len());
    suite.time(case("detokenize_stop").beside("copy"), |bencher| {
        bencher.iter(|| {
            out.clear();
            run(black_box(&pieces), &mut out)
        });
    });
    let mut copied = Vec::with_capacity(out.len() + STOP.len());
    suite.time(case("copy"), |bencher| {
        bencher.iter(|| {
            copied.clear();
            black_box(&pieces).iter().for_each(|piece| copied.extend_from_slice(piece));
        });
    });
}

/// The whole way to the bytes that a client gets.
fn frames(suite: &mut Suite, script: &Script) -> anyhow::Result<()> {
    let outputs = script.outputs();
    let mut sent = Vec::new();
    let mut out = BytesMut::new();
    stream(
        script.prepared()?,
        &outputs,
        |bytes| {
            sent.push(bytes.to_vec());
            bytes.clear();
        },
        &mut out,
    );
    let body = sent.concat();
    assert_eq!(content(&body)?, script.expected);

    let case = |name: &str| Case::new("frames", name).handles(outputs.len());
    suite.time(case("pipeline").beside("copy"), |bencher| {
        let setup = || script.prepared().expect("it was prepared before");
        // The buffer is emptied after each token, as it is when the frame is sent.
        bencher.iter_batched(
            setup,
            |prepared| stream(prepared, black_box(&outputs), BytesMut::clear, &mut out),
            BatchSize::SmallInput,
        );
    });
    suite.time(case("copy"), |bencher| {
        bencher.iter(|| {
            for frame in black_box(&sent) {
                out.clear();
                out.extend_from_slice(frame);
            }
        });
    });
    let deltas = deltas(&sent)?;
    suite.time(case("serde_json_frames").beside("pipeline"), |bencher| {
        bencher.iter(|| {
            for delta in black_box(&deltas) {
                out.clear();
                let frame = json!({
                    "id": "chatcmpl-0123456789abcdef", "object": "chat.completion.chunk",
                    "created": 1_700_000_001, "model": "bench", "system_fingerprint": "fp_bench",
                    "service_tier": "default",
                    "choices": [{"index": 0, "delta": {"content": delta}, "logprobs": null, "finish_reason": null}],
                });
                out.extend_from_slice(b"data: ");
                out.extend_from_slice(frame.to_string().as_bytes());
                out.extend_from_slice(b"\n\n");
            }
        });
    });
    Ok(())
}

/// Opens the reply, pushes each output and closes it; `sent` gets what is in the buffer after each of these.
fn stream(
    prepared: Prepared,
    outputs: &[SequenceOutput],
    mut sent: impl FnMut(&mut BytesMut),
    out: &mut BytesMut,
) {
    let mut reply = prepared.reply;
    out.clear();
    reply.open(out);
    sent(out);
    let mut state = ChoiceState::Open;
    for output in outputs {
        state = reply.push(0, output, out);
        sent(out);
    }
    assert_eq!(state, ChoiceState::Stopped, "the last token completes the stop string");
    reply.close(out);
    sent(out);
}

/// What a client reads out of a stream.
fn content(body: &[u8]) -> anyhow::Result<String> {
    let body = std::str::from_utf8(body)?.strip_suffix("data: [DONE]\n\n").context("no [DONE] at the end")?;
    let mut content = String::new();
    for event in body.split_terminator("\n\n") {
        let event: Value = serde_json::from_str(event.strip_prefix("data: ").context("no data")?)?;
        content.push_str(event["choices"][0]["delta"]["content"].as_str().unwrap_or_default());
    }
    Ok(content)
}

/// The text of each frame that has one.
fn deltas(sent: &[Vec<u8>]) -> anyhow::Result<Vec<String>> {
    let mut deltas = Vec::new();
    for bytes in sent {
        let done = b"data: [DONE]\n\n".to_vec();
        let text = if bytes.ends_with(&done) { bytes.clone() } else { [bytes.clone(), done].concat() };
        deltas.push(content(&text)?);
    }
    deltas.retain(|delta| !delta.is_empty());
    Ok(deltas)
}
