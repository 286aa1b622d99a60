//! Messages of the brain. The rule: what one end writes, the other reads back equal, field by field.

use flatbuffers::{Vector, WIPOffset};

use super::encoder::{Builder, MessageOffset, Offsets};
use super::frame;
use super::generated as fb;
use super::to_brain::{sequence_ids, token_ids, unexpected_message};
use crate::capacity::Capacity;
use crate::error::ProtocolError;
use crate::id::{SequenceId, TokenId};
use crate::inference::{
    BrainHello, Calibration, Finish, FinishReason, FromBrain, RejectReason, Rejection, SequenceOutput,
    StepOutput, TokenLogprobs,
};

const KIND: &str = "brain-to-gateway";

/// Reads a whole frame, length field included, that came from a brain.
pub fn decode_from_brain(frame: &[u8]) -> Result<FromBrain, ProtocolError> {
    let envelope = frame::open(frame, KIND)?;
    if let Some(step) = envelope.message_as_step_output() {
        return Ok(FromBrain::Step(StepOutput {
            step: step.step(),
            outputs: step.outputs().iter().map(read_output).collect::<Result<_, _>>()?,
            capacity: read_capacity(step.capacity()),
        }));
    }
    if let Some(heartbeat) = envelope.message_as_heartbeat() {
        return Ok(FromBrain::Heartbeat(read_capacity(heartbeat.capacity())));
    }
    if let Some(accepted) = envelope.message_as_accepted() {
        return Ok(FromBrain::Accepted(sequence_ids(accepted.sequences())));
    }
    if let Some(rejection) = envelope.message_as_rejection() {
        return Ok(FromBrain::Rejected(Rejection {
            sequence: SequenceId(rejection.sequence()),
            reason: read_reject_reason(rejection.reason())?,
            message: rejection.message().to_owned(),
        }));
    }
    if let Some(hello) = envelope.message_as_brain_hello() {
        return Ok(FromBrain::Hello(read_hello(&hello)));
    }
    Err(unexpected_message(KIND, envelope.message_type()))
}

/// Writes a message and returns its tag and place.
pub(super) fn write(
    builder: &mut Builder,
    offsets: &mut Offsets,
    message: &FromBrain,
) -> (fb::Message, MessageOffset) {
    match message {
        FromBrain::Hello(hello) => (fb::Message::BrainHello, write_hello(builder, hello).as_union_value()),
        FromBrain::Accepted(ids) => {
            let sequences = Some(builder.create_vector_from_iter(ids.iter().map(|id| id.0)));
            let accepted = fb::Accepted::create(builder, &fb::AcceptedArgs { sequences });
            (fb::Message::Accepted, accepted.as_union_value())
        }
        FromBrain::Rejected(rejection) => {
            let message = Some(builder.create_string(&rejection.message));
            let reason = write_reject_reason(rejection.reason);
            let args = fb::RejectionArgs { sequence: rejection.sequence.0, reason, message };
            (fb::Message::Rejection, fb::Rejection::create(builder, &args).as_union_value())
        }
        FromBrain::Step(step) => {
            offsets.outputs.clear();
            for output in &step.outputs {
                let offset = write_output(builder, output);
                offsets.outputs.push(offset);
            }
            let outputs = Some(builder.create_vector(&offsets.outputs));
            let capacity = write_capacity(&step.capacity);
            let args = fb::StepOutputArgs { step: step.step, outputs, capacity: Some(&capacity) };
            (fb::Message::StepOutput, fb::StepOutput::create(builder, &args).as_union_value())
        }
        FromBrain::Heartbeat(capacity) => {
            let capacity = write_capacity(capacity);
            let args = fb::HeartbeatArgs { capacity: Some(&capacity) };
            (fb::Message::Heartbeat, fb::Heartbeat::create(builder, &args).as_union_value())
        }
    }
}

fn write_hello(builder: &mut Builder, hello: &BrainHello) -> WIPOffset<fb::BrainHello<'static>> {
    let software = Some(builder.create_string(&hello.software));
    let model = Some(builder.create_string(&hello.model));
    let fingerprint = Some(builder.create_string(&hello.fingerprint));
    let eos_token_ids = Some(builder.create_vector(&hello.eos_token_ids));
    let calibration = hello.calibration.map(|measured| {
        let Calibration { prefill_tokens_per_s, decode_us_1, decode_us_8, decode_us_32 } = measured;
        let args = fb::CalibrationArgs { prefill_tokens_per_s, decode_us_1, decode_us_8, decode_us_32 };
        fb::Calibration::create(builder, &args)
    });
    fb::BrainHello::create(
        builder,
        &fb::BrainHelloArgs {
            protocol_version: hello.protocol_version,
            software,
            model,
            fingerprint,
            vocab_size: hello.vocab_size,
            context_tokens: hello.context_tokens,
            eos_token_ids,
            max_sequences: hello.max_sequences,
            max_waiting: hello.max_waiting,
            max_waiting_tokens: hello.max_waiting_tokens,
            block_tokens: hello.block_tokens,
            blocks_total: hello.blocks_total,
            step_tokens: hello.step_tokens,
            calibration,
        },
    )
}

fn read_hello(hello: &fb::BrainHello<'_>) -> BrainHello {
    BrainHello {
        protocol_version: hello.protocol_version(),
        software: hello.software().to_owned(),
        model: hello.model().to_owned(),
        fingerprint: hello.fingerprint().to_owned(),
        vocab_size: hello.vocab_size(),
        context_tokens: hello.context_tokens(),
        eos_token_ids: token_ids(hello.eos_token_ids()),
        max_sequences: hello.max_sequences(),
        max_waiting: hello.max_waiting(),
        max_waiting_tokens: hello.max_waiting_tokens(),
        block_tokens: hello.block_tokens(),
        blocks_total: hello.blocks_total(),
        step_tokens: hello.step_tokens(),
        calibration: hello.calibration().map(|measured| Calibration {
            prefill_tokens_per_s: measured.prefill_tokens_per_s(),
            decode_us_1: measured.decode_us_1(),
            decode_us_8: measured.decode_us_8(),
            decode_us_32: measured.decode_us_32(),
        }),
    }
}

fn write_output(builder: &mut Builder, output: &SequenceOutput) -> WIPOffset<fb::SequenceOutput<'static>> {
    let tokens = (!output.tokens.is_empty()).then(|| builder.create_vector::<TokenId>(&output.tokens));
    let logprobs = write_logprobs(builder, &output.logprobs);
    let prompt_logprobs = write_logprobs(builder, &output.prompt_logprobs);
    let finish = output.finish.as_ref().map(|finish| write_finish(builder, finish));
    fb::SequenceOutput::create(
        builder,
        &fb::SequenceOutputArgs {
            sequence: output.sequence.0,
            position: output.position,
            tokens,
            logprobs,
            prompt_logprobs,
            finish,
            cached_tokens: output.cached_tokens,
        },
    )
}

fn read_output(output: fb::SequenceOutput<'_>) -> Result<SequenceOutput, ProtocolError> {
    Ok(SequenceOutput {
        sequence: SequenceId(output.sequence()),
        position: output.position(),
        cached_tokens: output.cached_tokens(),
        tokens: output.tokens().map(token_ids).unwrap_or_default(),
        logprobs: read_logprobs(output.logprobs())?,
        prompt_logprobs: read_logprobs(output.prompt_logprobs())?,
        finish: output.finish().map(|finish| read_finish(&finish)).transpose()?,
    })
}

/// Positions side by side and their alternatives end to end: three vectors, however many positions there are.
fn write_logprobs(
    builder: &mut Builder,
    positions: &[TokenLogprobs],
) -> Option<WIPOffset<fb::Logprobs<'static>>> {
    if positions.is_empty() {
        return None;
    }
    let logprobs = builder.create_vector_from_iter(positions.iter().map(|position| position.logprob));
    let top_counts =
        builder.create_vector_from_iter(positions.iter().map(|position| position.top.len() as u32));
    let total = positions.iter().map(|position| position.top.len()).sum();
    // A flatbuffer grows towards its front, so the last entry is written first.
    builder.start_vector::<fb::TokenScore>(total);
    for position in positions.iter().rev() {
        for &(token, logprob) in position.top.iter().rev() {
            builder.push(fb::TokenScore::new(token, logprob));
        }
    }
    let top: WIPOffset<Vector<'static, fb::TokenScore>> = builder.end_vector(total);
    let args = fb::LogprobsArgs { logprobs: Some(logprobs), top_counts: Some(top_counts), top: Some(top) };
    Some(fb::Logprobs::create(builder, &args))
}

fn read_logprobs(logprobs: Option<fb::Logprobs<'_>>) -> Result<Vec<TokenLogprobs>, ProtocolError> {
    let Some(logprobs) = logprobs else { return Ok(Vec::new()) };
    let (values, counts, top) = (logprobs.logprobs(), logprobs.top_counts(), logprobs.top());
    let announced: u64 = counts.iter().map(u64::from).sum();
    if values.len() != counts.len() || announced != top.len() as u64 {
        return Err(ProtocolError::Malformed {
            kind: KIND,
            reason: format!(
                "log probabilities of {} positions have {} counts that add up to {announced}, with {} entries",
                values.len(),
                counts.len(),
                top.len()
            ),
        });
    }
    let mut entries = top.iter();
    Ok(values
        .iter()
        .zip(counts.iter())
        .map(|(logprob, count)| TokenLogprobs {
            logprob,
            top: entries
                .by_ref()
                .take(count as usize)
                .map(|entry| (entry.token(), entry.logprob()))
                .collect(),
        })
        .collect())
}

fn write_finish(builder: &mut Builder, finish: &Finish) -> WIPOffset<fb::Finish<'static>> {
    let (reason, stop_token) = match finish.reason {
        FinishReason::Eos => (fb::FinishReason::Eos, 0),
        FinishReason::StopToken(token) => (fb::FinishReason::StopToken, token),
        FinishReason::Length => (fb::FinishReason::Length, 0),
        FinishReason::GrammarEnd => (fb::FinishReason::GrammarEnd, 0),
        FinishReason::Failed => (fb::FinishReason::Failed, 0),
    };
    fb::Finish::create(
        builder,
        &fb::FinishArgs {
            reason,
            stop_token,
            prompt_tokens: finish.prompt_tokens,
            cached_tokens: finish.cached_tokens,
            output_tokens: finish.output_tokens,
            queue_us: finish.queue_us,
            prefill_us: finish.prefill_us,
            decode_us: finish.decode_us,
            preemptions: finish.preemptions,
        },
    )
}

fn read_finish(finish: &fb::Finish<'_>) -> Result<Finish, ProtocolError> {
    let reason = match finish.reason() {
        fb::FinishReason::Eos => FinishReason::Eos,
        fb::FinishReason::StopToken => FinishReason::StopToken(finish.stop_token()),
        fb::FinishReason::Length => FinishReason::Length,
        fb::FinishReason::GrammarEnd => FinishReason::GrammarEnd,
        fb::FinishReason::Failed => FinishReason::Failed,
        other => return Err(unknown("finish.reason", other.0)),
    };
    Ok(Finish {
        reason,
        prompt_tokens: finish.prompt_tokens(),
        cached_tokens: finish.cached_tokens(),
        output_tokens: finish.output_tokens(),
        queue_us: finish.queue_us(),
        prefill_us: finish.prefill_us(),
        decode_us: finish.decode_us(),
        preemptions: finish.preemptions(),
    })
}

fn write_reject_reason(reason: RejectReason) -> fb::RejectReason {
    match reason {
        RejectReason::QueueFull => fb::RejectReason::QueueFull,
        RejectReason::TooLong => fb::RejectReason::TooLong,
        RejectReason::BadGrammar => fb::RejectReason::BadGrammar,
        RejectReason::BadParameter => fb::RejectReason::BadParameter,
        RejectReason::Draining => fb::RejectReason::Draining,
        RejectReason::QueueTimeout => fb::RejectReason::QueueTimeout,
    }
}

fn read_reject_reason(reason: fb::RejectReason) -> Result<RejectReason, ProtocolError> {
    match reason {
        fb::RejectReason::QueueFull => Ok(RejectReason::QueueFull),
        fb::RejectReason::TooLong => Ok(RejectReason::TooLong),
        fb::RejectReason::BadGrammar => Ok(RejectReason::BadGrammar),
        fb::RejectReason::BadParameter => Ok(RejectReason::BadParameter),
        fb::RejectReason::Draining => Ok(RejectReason::Draining),
        fb::RejectReason::QueueTimeout => Ok(RejectReason::QueueTimeout),
        other => Err(unknown("rejection.reason", other.0)),
    }
}

fn unknown(field: &'static str, value: u8) -> ProtocolError {
    ProtocolError::UnknownValue { kind: KIND, field, value: value.to_string() }
}

fn write_capacity(capacity: &Capacity) -> fb::Capacity {
    fb::Capacity::new(
        capacity.waiting_tokens,
        capacity.steps,
        capacity.step_age_ms,
        capacity.step_us,
        capacity.prompt_tokens_total,
        capacity.cached_tokens_total,
        capacity.output_tokens_total,
        capacity.preemptions_total,
        capacity.schedule_us_total,
        capacity.forward_us_total,
        capacity.sample_us_total,
        capacity.send_us_total,
        capacity.running,
        capacity.waiting,
        capacity.blocks_free,
        capacity.blocks_cached,
        capacity.blocks_held,
        capacity.blocks_total,
        capacity.step_tokens,
    )
}

fn read_capacity(capacity: &fb::Capacity) -> Capacity {
    Capacity {
        running: capacity.running(),
        waiting: capacity.waiting(),
        waiting_tokens: capacity.waiting_tokens(),
        blocks_free: capacity.blocks_free(),
        blocks_cached: capacity.blocks_cached(),
        blocks_held: capacity.blocks_held(),
        blocks_total: capacity.blocks_total(),
        steps: capacity.steps(),
        step_age_ms: capacity.step_age_ms(),
        step_us: capacity.step_us(),
        step_tokens: capacity.step_tokens(),
        prompt_tokens_total: capacity.prompt_tokens_total(),
        cached_tokens_total: capacity.cached_tokens_total(),
        output_tokens_total: capacity.output_tokens_total(),
        preemptions_total: capacity.preemptions_total(),
        schedule_us_total: capacity.schedule_us_total(),
        forward_us_total: capacity.forward_us_total(),
        sample_us_total: capacity.sample_us_total(),
        send_us_total: capacity.send_us_total(),
    }
}
