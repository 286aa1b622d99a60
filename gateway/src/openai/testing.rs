//! A made-up model and a scripted engine, so that the surface can be driven without either.
//!
//! The rule: one script can be cut into engine steps in any way, and the reply must not depend on it.

use std::sync::Arc;

use bytes::BytesMut;
use pons_checkpoint::chat_template::{CHATML, ChatTemplate};
use pons_checkpoint::tokenizer::{GgufVocab, Tokenizer};
use pons_protocol::id::SequenceId;
use pons_protocol::inference::{Finish, FinishReason, SequenceOutput, TokenLogprobs};
use serde_json::Value;

use super::{ChoiceState, Prepared, RequestContext, RequestLimits, ServedModel, Usage};
use super::{prepare_chat, prepare_completion};
use crate::error::ApiError;

/// Shows tools to the model in the Hermes form.
pub(super) const TOOL_TEMPLATE: &str = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}\
    {% for c in m.tool_calls or [] %}<tool_call>{{ c | tojson }}</tool_call>{% endfor %}<|im_end|>\n{% endfor %}\
    {% for t in tools or [] %}{{ t | tojson }}{% endfor %}\
    {% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}";

/// The letter that byte-level vocabularies write for a byte (GPT-2).
fn letter(byte: u8) -> char {
    let plain = |b: u8| matches!(b, b'!'..=b'~' | 0xA1..=0xAC | 0xAE..=0xFF);
    if plain(byte) {
        return char::from(byte);
    }
    let rank = (0..byte).filter(|b| !plain(*b)).count() as u32;
    char::from_u32(256 + rank).unwrap()
}

/// A model whose vocabulary is all bytes, the usual control tokens, and the pieces of a script.
pub(super) struct Rig {
    pub(super) model: Arc<ServedModel>,
    pub(super) im_end: u32,
    pub(super) bos: u32,
}

impl Rig {
    pub(super) fn new(pieces: &[&[u8]], template: &str, add_bos: bool) -> Self {
        let mut tokens: Vec<String> = (0..=255).map(|byte| letter(byte).to_string()).collect();
        let mut token_types = vec![1; 256];
        for (text, kind) in [
            ("<|bos|>", 3),
            ("<|im_start|>", 3),
            ("<|im_end|>", 3),
            ("<tool_call>", 4),
            ("</tool_call>", 4),
            ("<think>", 4),
            ("</think>", 4),
        ] {
            tokens.push(text.to_owned());
            token_types.push(kind);
        }
        for piece in pieces {
            let text: String = piece.iter().map(|byte| letter(*byte)).collect();
            if !tokens.contains(&text) && !matches!(text.as_str(), "<tool_call>" | "<think>") {
                tokens.push(text);
                token_types.push(1);
            }
        }
        let vocab_size = tokens.len() as u32;
        let tokenizer = Tokenizer::from_gguf_vocab(GgufVocab {
            model: "gpt2".to_owned(),
            pre: "gpt-2".to_owned(),
            tokens,
            token_types,
            merges: Vec::new(),
            bos: Some(256),
            eos: Some(258),
            add_bos,
        })
        .unwrap();
        let model = ServedModel {
            name: "M".to_owned(),
            tokenizer: Arc::new(tokenizer),
            template: Arc::new(ChatTemplate::new(template, "", "<|im_end|>").unwrap()),
            context_tokens: 4096,
            vocab_size,
            eos: vec![258],
            fingerprint: "fp_test".to_owned(),
            created: 1_700_000_000,
            limits: RequestLimits::default(),
        };
        Self { model: Arc::new(model), im_end: 258, bos: 256 }
    }

    pub(super) fn plain() -> Self {
        Self::new(&[], CHATML, false)
    }

    /// The id of a piece.
    pub(super) fn id(&self, piece: &[u8]) -> u32 {
        let found =
            (0..self.model.vocab_size).rev().find(|id| self.model.tokenizer.token_bytes(*id) == Some(piece));
        found.unwrap_or_else(|| panic!("no token for {piece:?}"))
    }

    pub(super) fn chat(&self, body: &Value) -> Result<Prepared, ApiError> {
        prepare_chat(body.clone(), &self.model, context())
    }

    pub(super) fn completion(&self, body: &Value) -> Result<Prepared, ApiError> {
        prepare_completion(body.clone(), &self.model, context())
    }
}

pub(super) fn context() -> RequestContext {
    RequestContext { id: "0123456789abcdef".to_owned(), created: 1_700_000_001, entropy: 42 }
}

/// How a script ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ends {
    Eos,
    Length,
}

/// What the engine says for one sequence.
#[derive(Clone, Debug)]
pub(super) struct Script {
    pub(super) tokens: Vec<u32>,
    pub(super) ends: Ends,
    /// Tokens of each engine step; the last width repeats.
    pub(super) widths: Vec<usize>,
}

impl Script {
    pub(super) fn new(rig: &Rig, pieces: &[&[u8]], ends: Ends) -> Self {
        Self { tokens: pieces.iter().map(|piece| rig.id(piece)).collect(), ends, widths: vec![1] }
    }

    pub(super) fn with_widths(mut self, widths: &[usize]) -> Self {
        self.widths = widths.to_vec();
        self
    }

    /// The outputs that an engine would send for a request with these sampling parameters.
    fn outputs(
        &self,
        prompt: &[u32],
        top: Option<u32>,
        prompt_top: Option<u32>,
        eos: u32,
    ) -> Vec<SequenceOutput> {
        let mut tokens = self.tokens.clone();
        if self.ends == Ends::Eos {
            tokens.push(eos);
        }
        let reason = match self.ends {
            Ends::Eos => FinishReason::Eos,
            Ends::Length => FinishReason::Length,
        };
        let finish = Finish {
            reason,
            prompt_tokens: prompt.len() as u32,
            cached_tokens: 1,
            output_tokens: tokens.len() as u32,
            queue_us: 0,
            prefill_us: 0,
            decode_us: 0,
            preemptions: 0,
        };
        let mut outputs = Vec::new();
        let (mut at, mut step) = (0, 0);
        loop {
            let width = self.widths[step.min(self.widths.len() - 1)].max(1);
            let end = (at + width).min(tokens.len());
            let done = end == tokens.len();
            outputs.push(SequenceOutput {
                sequence: SequenceId(0),
                position: at as u32,
                cached_tokens: finish.cached_tokens,
                tokens: tokens[at..end].to_vec(),
                logprobs: top.map_or(Vec::new(), |top| {
                    (at..end).map(|position| logprobs(tokens[position], position, top)).collect()
                }),
                prompt_logprobs: prompt_top.filter(|_| step == 0).map_or(Vec::new(), |top| {
                    prompt
                        .iter()
                        .enumerate()
                        .map(|(position, token)| prompt_entry(*token, position, top))
                        .collect()
                }),
                finish: done.then(|| finish.clone()),
            });
            (at, step) = (end, step + 1);
            if done {
                return outputs;
            }
        }
    }
}

fn logprobs(token: u32, position: usize, top: u32) -> TokenLogprobs {
    let value = -0.1 * (position + 1) as f32;
    let others = [(1, value - 1.5), (2, f32::NEG_INFINITY)];
    let top = std::iter::once((token, value)).chain(others).take(top as usize).collect();
    TokenLogprobs { logprob: value, top }
}

fn prompt_entry(token: u32, position: usize, top: u32) -> TokenLogprobs {
    if position == 0 {
        return TokenLogprobs { logprob: f32::NAN, top: Vec::new() };
    }
    logprobs(token, position, top)
}

/// What came of a run.
pub(super) struct Ran {
    pub(super) bytes: BytesMut,
    pub(super) states: Vec<ChoiceState>,
    pub(super) usage: Usage,
}

impl Ran {
    /// The whole body.
    pub(super) fn body(&self) -> Value {
        serde_json::from_slice(&self.bytes).unwrap_or_else(|error| panic!("{error}: {:?}", self.bytes))
    }

    /// The frames of a stream, which must be well framed and end with the terminator.
    pub(super) fn frames(&self) -> Vec<Value> {
        let text = std::str::from_utf8(&self.bytes).unwrap();
        let text = text.strip_suffix("data: [DONE]\n\n").expect("the terminator comes last");
        text.split_terminator("\n\n")
            .map(|event| {
                let json = event.strip_prefix("data: ").expect("each event has its prefix");
                assert!(!json.contains('\n'));
                serde_json::from_str(json).unwrap()
            })
            .collect()
    }

    pub(super) fn last_state(&self) -> ChoiceState {
        *self.states.last().unwrap()
    }
}

/// Runs a prepared request; sequence `i` follows script `i`, the last one repeating. Steps of all sequences take
/// turns, as in a batch.
pub(super) fn run(rig: &Rig, mut prepared: Prepared, scripts: &[Script]) -> Ran {
    let mut bytes = BytesMut::new();
    prepared.reply.open(&mut bytes);
    let mut queues: Vec<_> = prepared
        .sequences
        .iter()
        .enumerate()
        .map(|(index, spec)| {
            let script = &scripts[index.min(scripts.len() - 1)];
            let (top, prompt_top) = (spec.sampling.logprobs, spec.sampling.prompt_logprobs);
            script.outputs(&spec.prompt, top, prompt_top, rig.im_end).into_iter()
        })
        .collect();
    let mut states = vec![ChoiceState::Open; queues.len()];
    while !prepared.reply.is_complete() {
        for (index, queue) in queues.iter_mut().enumerate() {
            if states[index] == ChoiceState::Open {
                let output = queue.next().expect("a script ends with its finish");
                states[index] = prepared.reply.push(index, &output, &mut bytes);
            }
        }
    }
    prepared.reply.close(&mut bytes);
    Ran { bytes, states, usage: prepared.reply.usage() }
}
