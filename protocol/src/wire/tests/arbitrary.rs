//! Arbitrary messages. Floats avoid NaN so that equality means what it says; NaN has a test of its own.

use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;

use crate::capacity::Capacity;
use crate::id::{SequenceId, TenantId};
use crate::inference::{
    BrainHello, Calibration, ClientHello, Finish, FinishReason, FromBrain, RejectReason, Rejection,
    SequenceOutput, StepOutput, Submit, ToBrain, TokenLogprobs,
};
use crate::sampling::{Grammar, SamplingParams, StopParams};

fn number() -> impl Strategy<Value = f32> {
    prop_oneof![-1e9f32..1e9, Just(0.0), Just(1.0), Just(f32::NEG_INFINITY), Just(f32::MAX)]
}

fn tokens() -> impl Strategy<Value = Vec<u32>> {
    vec(any::<u32>(), 0..40)
}

fn text() -> impl Strategy<Value = String> {
    "\\PC{0,24}"
}

fn sampling() -> impl Strategy<Value = SamplingParams> {
    let plain = (number(), number(), any::<u32>(), number(), number(), number(), number());
    let rest = (
        any::<u64>(),
        any::<u32>(),
        vec((any::<u32>(), number()), 0..6),
        tokens(),
        option::of(any::<u32>()),
        option::of(any::<u32>()),
    );
    (plain, rest).prop_map(|(plain, rest)| SamplingParams {
        temperature: plain.0,
        top_p: plain.1,
        top_k: plain.2,
        min_p: plain.3,
        repetition_penalty: plain.4,
        presence_penalty: plain.5,
        frequency_penalty: plain.6,
        seed: rest.0,
        choice: rest.1,
        logit_bias: rest.2,
        allowed_token_ids: rest.3,
        logprobs: rest.4,
        prompt_logprobs: rest.5,
    })
}

fn stop() -> impl Strategy<Value = StopParams> {
    (any::<u32>(), any::<u32>(), any::<bool>(), tokens()).prop_map(
        |(max_tokens, min_tokens, ignore_eos, stop_token_ids)| StopParams {
            max_tokens,
            min_tokens,
            ignore_eos,
            stop_token_ids,
        },
    )
}

fn grammar() -> impl Strategy<Value = Grammar> {
    prop_oneof![
        text().prop_map(Grammar::JsonSchema),
        text().prop_map(Grammar::Regex),
        text().prop_map(Grammar::Lark)
    ]
}

fn submit() -> impl Strategy<Value = Submit> {
    let plain = (any::<u64>(), any::<u64>(), any::<[u8; 16]>(), any::<i32>(), any::<u32>());
    (plain, tokens(), tokens(), sampling(), stop(), option::of(grammar())).prop_map(
        |(plain, prompt, generated, sampling, stop, grammar)| Submit {
            sequence: SequenceId(plain.0),
            tenant: TenantId(plain.1),
            cache_salt: plain.2,
            priority: plain.3,
            prompt,
            generated,
            sampling,
            stop,
            grammar,
            queue_timeout_ms: plain.4,
        },
    )
}

/// Any message of the gateway.
pub(super) fn to_brain() -> impl Strategy<Value = ToBrain> {
    prop_oneof![
        (any::<u32>(), text()).prop_map(|(protocol_version, software)| ToBrain::Hello(ClientHello {
            protocol_version,
            software
        })),
        vec(submit(), 0..5).prop_map(ToBrain::Submit),
        vec(any::<u64>().prop_map(SequenceId), 0..20).prop_map(ToBrain::Abort),
        Just(ToBrain::Drain),
    ]
}

fn capacity() -> impl Strategy<Value = Capacity> {
    (any::<[u32; 7]>(), any::<[u64; 12]>()).prop_map(|(small, large)| Capacity {
        running: small[0],
        waiting: small[1],
        blocks_free: small[2],
        blocks_cached: small[3],
        blocks_held: small[4],
        blocks_total: small[5],
        step_tokens: small[6],
        waiting_tokens: large[0],
        steps: large[1],
        step_age_ms: large[2],
        step_us: large[3],
        prompt_tokens_total: large[4],
        cached_tokens_total: large[5],
        output_tokens_total: large[6],
        preemptions_total: large[7],
        schedule_us_total: large[8],
        forward_us_total: large[9],
        sample_us_total: large[10],
        send_us_total: large[11],
    })
}

fn logprobs() -> impl Strategy<Value = Vec<TokenLogprobs>> {
    let position = (number(), vec((any::<u32>(), number()), 0..4));
    vec(position.prop_map(|(logprob, top)| TokenLogprobs { logprob, top }), 0..6)
}

fn finish() -> impl Strategy<Value = Finish> {
    let reason = prop_oneof![
        Just(FinishReason::Eos),
        any::<u32>().prop_map(FinishReason::StopToken),
        Just(FinishReason::Length),
        Just(FinishReason::GrammarEnd),
        Just(FinishReason::Failed),
    ];
    (reason, any::<[u32; 4]>(), any::<[u64; 3]>()).prop_map(|(reason, small, large)| Finish {
        reason,
        prompt_tokens: small[0],
        cached_tokens: small[1],
        output_tokens: small[2],
        preemptions: small[3],
        queue_us: large[0],
        prefill_us: large[1],
        decode_us: large[2],
    })
}

fn output() -> impl Strategy<Value = SequenceOutput> {
    (any::<u64>(), any::<[u32; 2]>(), tokens(), logprobs(), logprobs(), option::of(finish())).prop_map(
        |(sequence, [position, cached_tokens], tokens, logprobs, prompt_logprobs, finish)| SequenceOutput {
            sequence: SequenceId(sequence),
            position,
            cached_tokens,
            tokens,
            logprobs,
            prompt_logprobs,
            finish,
        },
    )
}

fn brain_hello() -> impl Strategy<Value = BrainHello> {
    (text(), text(), text(), tokens(), any::<[u32; 8]>(), any::<u64>(), option::of(calibration())).prop_map(
        |(software, model, fingerprint, eos_token_ids, small, max_waiting_tokens, calibration)| BrainHello {
            protocol_version: small[0],
            software,
            model,
            fingerprint,
            vocab_size: small[1],
            context_tokens: small[2],
            eos_token_ids,
            max_sequences: small[3],
            max_waiting: small[4],
            max_waiting_tokens,
            block_tokens: small[5],
            blocks_total: small[6],
            step_tokens: small[7],
            calibration,
        },
    )
}

fn calibration() -> impl Strategy<Value = Calibration> {
    (any::<u32>(), any::<[u64; 3]>()).prop_map(|(prefill_tokens_per_s, decode_us)| Calibration {
        prefill_tokens_per_s,
        decode_us_1: decode_us[0],
        decode_us_8: decode_us[1],
        decode_us_32: decode_us[2],
    })
}

fn rejection() -> impl Strategy<Value = Rejection> {
    let reason = prop_oneof![
        Just(RejectReason::QueueFull),
        Just(RejectReason::TooLong),
        Just(RejectReason::BadGrammar),
        Just(RejectReason::BadParameter),
        Just(RejectReason::Draining),
        Just(RejectReason::QueueTimeout),
    ];
    (any::<u64>(), reason, text()).prop_map(|(sequence, reason, message)| Rejection {
        sequence: SequenceId(sequence),
        reason,
        message,
    })
}

/// Any message of the brain.
pub(super) fn from_brain() -> impl Strategy<Value = FromBrain> {
    prop_oneof![
        brain_hello().prop_map(FromBrain::Hello),
        vec(any::<u64>().prop_map(SequenceId), 0..20).prop_map(FromBrain::Accepted),
        rejection().prop_map(FromBrain::Rejected),
        (any::<u64>(), vec(output(), 0..6), capacity()).prop_map(|(step, outputs, capacity)| {
            FromBrain::Step(StepOutput { step, outputs, capacity })
        }),
        capacity().prop_map(FromBrain::Heartbeat),
    ]
}
