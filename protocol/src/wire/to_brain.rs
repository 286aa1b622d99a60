//! Messages of the gateway. The rule: what one end writes, the other reads back equal, field by field.

use flatbuffers::{Vector, WIPOffset};

use super::encoder::{Builder, MessageOffset, Offsets};
use super::frame;
use super::generated as fb;
use crate::error::ProtocolError;
use crate::id::{SequenceId, TenantId, TokenId};
use crate::inference::{ClientHello, Submit, ToBrain};
use crate::sampling::{Grammar, SamplingParams, StopParams};

const KIND: &str = "gateway-to-brain";

/// Reads a whole frame, length field included, that came from a gateway.
pub fn decode_to_brain(frame: &[u8]) -> Result<ToBrain, ProtocolError> {
    let envelope = frame::open(frame, KIND)?;
    if let Some(hello) = envelope.message_as_client_hello() {
        return Ok(ToBrain::Hello(ClientHello {
            protocol_version: hello.protocol_version(),
            software: hello.software().to_owned(),
        }));
    }
    if let Some(batch) = envelope.message_as_submit_batch() {
        return Ok(ToBrain::Submit(batch.sequences().iter().map(read_submit).collect::<Result<_, _>>()?));
    }
    if let Some(batch) = envelope.message_as_abort_batch() {
        return Ok(ToBrain::Abort(sequence_ids(batch.sequences())));
    }
    if envelope.message_as_drain().is_some() {
        return Ok(ToBrain::Drain);
    }
    Err(unexpected_message(KIND, envelope.message_type()))
}

/// The error for a message of the other direction, or of a newer build.
pub(super) fn unexpected_message(kind: &'static str, found: fb::Message) -> ProtocolError {
    let value = found.variant_name().map_or_else(|| found.0.to_string(), str::to_owned);
    ProtocolError::UnknownValue { kind, field: "message", value }
}

/// Writes a message and returns its tag and place.
pub(super) fn write(
    builder: &mut Builder,
    offsets: &mut Offsets,
    message: &ToBrain,
) -> (fb::Message, MessageOffset) {
    match message {
        ToBrain::Hello(hello) => {
            let software = Some(builder.create_string(&hello.software));
            let args = fb::ClientHelloArgs { protocol_version: hello.protocol_version, software };
            (fb::Message::ClientHello, fb::ClientHello::create(builder, &args).as_union_value())
        }
        ToBrain::Submit(submits) => {
            offsets.submits.clear();
            for submit in submits {
                let offset = write_submit(builder, submit);
                offsets.submits.push(offset);
            }
            let sequences = Some(builder.create_vector(&offsets.submits));
            let batch = fb::SubmitBatch::create(builder, &fb::SubmitBatchArgs { sequences });
            (fb::Message::SubmitBatch, batch.as_union_value())
        }
        ToBrain::Abort(ids) => {
            let sequences = Some(builder.create_vector_from_iter(ids.iter().map(|id| id.0)));
            let batch = fb::AbortBatch::create(builder, &fb::AbortBatchArgs { sequences });
            (fb::Message::AbortBatch, batch.as_union_value())
        }
        ToBrain::Drain => {
            (fb::Message::Drain, fb::Drain::create(builder, &fb::DrainArgs {}).as_union_value())
        }
    }
}

fn write_submit(builder: &mut Builder, submit: &Submit) -> WIPOffset<fb::Submit<'static>> {
    let prompt = Some(builder.create_vector(&submit.prompt));
    let generated = optional_tokens(builder, &submit.generated);
    let sampling = Some(write_sampling(builder, &submit.sampling));
    let stop = Some(write_stop(builder, &submit.stop));
    let (grammar_kind, text) = match &submit.grammar {
        None => (fb::GrammarKind::None, None),
        Some(Grammar::JsonSchema(text)) => (fb::GrammarKind::JsonSchema, Some(text)),
        Some(Grammar::Regex(text)) => (fb::GrammarKind::Regex, Some(text)),
        Some(Grammar::Lark(text)) => (fb::GrammarKind::Lark, Some(text)),
    };
    let grammar = text.map(|text| builder.create_string(text));
    let (low, high) = submit.cache_salt.split_at(8);
    let half = |bytes: &[u8]| u64::from_le_bytes(bytes.try_into().expect("half of sixteen bytes is eight"));
    let cache_salt = fb::CacheSalt::new(half(low), half(high));
    fb::Submit::create(
        builder,
        &fb::SubmitArgs {
            sequence: submit.sequence.0,
            tenant: submit.tenant.0,
            cache_salt: Some(&cache_salt),
            priority: submit.priority,
            prompt,
            generated,
            sampling,
            stop,
            grammar_kind,
            grammar,
            queue_timeout_ms: submit.queue_timeout_ms,
        },
    )
}

fn write_sampling(builder: &mut Builder, sampling: &SamplingParams) -> WIPOffset<fb::Sampling<'static>> {
    let bias = sampling.logit_bias.iter().map(|&(token, bias)| fb::TokenBias::new(token, bias));
    let logit_bias = (bias.len() > 0).then(|| builder.create_vector_from_iter(bias));
    let allowed_token_ids = optional_tokens(builder, &sampling.allowed_token_ids);
    fb::Sampling::create(
        builder,
        &fb::SamplingArgs {
            temperature: sampling.temperature,
            top_p: sampling.top_p,
            top_k: sampling.top_k,
            min_p: sampling.min_p,
            repetition_penalty: sampling.repetition_penalty,
            presence_penalty: sampling.presence_penalty,
            frequency_penalty: sampling.frequency_penalty,
            seed: sampling.seed,
            choice: sampling.choice,
            logit_bias,
            allowed_token_ids,
            logprobs: sampling.logprobs,
            prompt_logprobs: sampling.prompt_logprobs,
        },
    )
}

fn write_stop(builder: &mut Builder, stop: &StopParams) -> WIPOffset<fb::Stop<'static>> {
    let stop_token_ids = optional_tokens(builder, &stop.stop_token_ids);
    fb::Stop::create(
        builder,
        &fb::StopArgs {
            max_tokens: stop.max_tokens,
            min_tokens: stop.min_tokens,
            ignore_eos: stop.ignore_eos,
            stop_token_ids,
        },
    )
}

fn optional_tokens(builder: &mut Builder, tokens: &[TokenId]) -> Option<WIPOffset<Vector<'static, TokenId>>> {
    (!tokens.is_empty()).then(|| builder.create_vector(tokens))
}

fn read_submit(submit: fb::Submit<'_>) -> Result<Submit, ProtocolError> {
    let mut cache_salt = [0; 16];
    cache_salt[..8].copy_from_slice(&submit.cache_salt().low().to_le_bytes());
    cache_salt[8..].copy_from_slice(&submit.cache_salt().high().to_le_bytes());
    Ok(Submit {
        sequence: SequenceId(submit.sequence()),
        tenant: TenantId(submit.tenant()),
        cache_salt,
        priority: submit.priority(),
        prompt: token_ids(submit.prompt()),
        generated: submit.generated().map(token_ids).unwrap_or_default(),
        sampling: read_sampling(submit.sampling()),
        stop: read_stop(submit.stop()),
        grammar: read_grammar(&submit)?,
        queue_timeout_ms: submit.queue_timeout_ms(),
    })
}

fn read_grammar(submit: &fb::Submit<'_>) -> Result<Option<Grammar>, ProtocolError> {
    let kind = submit.grammar_kind();
    if kind == fb::GrammarKind::None {
        return Ok(None);
    }
    let text = submit.grammar().ok_or_else(|| ProtocolError::Malformed {
        kind: KIND,
        reason: "field grammar is missing although grammar_kind is set".to_owned(),
    })?;
    match kind {
        fb::GrammarKind::JsonSchema => Ok(Some(Grammar::JsonSchema(text.to_owned()))),
        fb::GrammarKind::Regex => Ok(Some(Grammar::Regex(text.to_owned()))),
        fb::GrammarKind::Lark => Ok(Some(Grammar::Lark(text.to_owned()))),
        other => {
            Err(ProtocolError::UnknownValue { kind: KIND, field: "grammar_kind", value: other.0.to_string() })
        }
    }
}

fn read_sampling(sampling: fb::Sampling<'_>) -> SamplingParams {
    SamplingParams {
        temperature: sampling.temperature(),
        top_p: sampling.top_p(),
        top_k: sampling.top_k(),
        min_p: sampling.min_p(),
        repetition_penalty: sampling.repetition_penalty(),
        presence_penalty: sampling.presence_penalty(),
        frequency_penalty: sampling.frequency_penalty(),
        seed: sampling.seed(),
        choice: sampling.choice(),
        logit_bias: sampling
            .logit_bias()
            .map(|entries| entries.iter().map(|entry| (entry.token(), entry.bias())).collect())
            .unwrap_or_default(),
        allowed_token_ids: sampling.allowed_token_ids().map(token_ids).unwrap_or_default(),
        logprobs: sampling.logprobs(),
        prompt_logprobs: sampling.prompt_logprobs(),
    }
}

fn read_stop(stop: fb::Stop<'_>) -> StopParams {
    StopParams {
        max_tokens: stop.max_tokens(),
        min_tokens: stop.min_tokens(),
        ignore_eos: stop.ignore_eos(),
        stop_token_ids: stop.stop_token_ids().map(token_ids).unwrap_or_default(),
    }
}

/// Copies token ids out of the frame in one pass over its bytes.
pub(super) fn token_ids(ids: Vector<'_, u32>) -> Vec<TokenId> {
    let (words, _) = ids.bytes().as_chunks::<4>();
    words.iter().map(|word| u32::from_le_bytes(*word)).collect()
}

/// Copies sequence ids out of the frame.
pub(super) fn sequence_ids(ids: Vector<'_, u64>) -> Vec<SequenceId> {
    let (words, _) = ids.bytes().as_chunks::<8>();
    words.iter().map(|word| SequenceId(u64::from_le_bytes(*word))).collect()
}
