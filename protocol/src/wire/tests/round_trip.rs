//! Messages come back equal; broken bytes come back as errors.

use proptest::prelude::*;

use super::arbitrary;
use crate::capacity::Capacity;
use crate::error::ProtocolError;
use crate::id::SequenceId;
use crate::inference::{FromBrain, SequenceOutput, StepOutput, ToBrain, TokenLogprobs};
use crate::wire::{Encoder, decode_from_brain, decode_to_brain, encode_from_brain, encode_to_brain};

proptest! {
    #[test]
    fn every_message_of_the_gateway_comes_back_equal(messages in prop::collection::vec(arbitrary::to_brain(), 1..4)) {
        let mut encoder = Encoder::new();
        for message in messages {
            let frame = encode_to_brain(&message, &mut encoder);
            prop_assert_eq!(frame.len() - 4, u32::from_le_bytes([frame[0], frame[1], frame[2], frame[3]]) as usize);
            prop_assert_eq!(decode_to_brain(&frame), Ok(message));
        }
    }

    #[test]
    fn every_message_of_the_brain_comes_back_equal(messages in prop::collection::vec(arbitrary::from_brain(), 1..4)) {
        let mut encoder = Encoder::new();
        for message in messages {
            let frame = encode_from_brain(&message, &mut encoder);
            prop_assert_eq!(decode_from_brain(&frame), Ok(message));
        }
    }

    #[test]
    fn flipped_bits_never_panic(
        ours in arbitrary::to_brain(),
        theirs in arbitrary::from_brain(),
        flips in prop::collection::vec((any::<prop::sample::Index>(), 0u8..8), 1..6),
    ) {
        let mut encoder = Encoder::new();
        let mut to = encode_to_brain(&ours, &mut encoder);
        let mut from = encode_from_brain(&theirs, &mut encoder);
        for (place, bit) in flips {
            let (at_to, at_from) = (place.index(to.len()), place.index(from.len()));
            to[at_to] ^= 1 << bit;
            from[at_from] ^= 1 << bit;
        }
        if let Ok(ToBrain::Submit(submits)) = decode_to_brain(&to) {
            let tokens: usize = submits.iter().map(|submit| submit.prompt.len() + submit.generated.len()).sum();
            prop_assert!(tokens <= 8 * to.len() + 1024);
        }
        if let Ok(FromBrain::Step(step)) = decode_from_brain(&from) {
            let tokens: usize = step.outputs.iter().map(|output| output.tokens.len()).sum();
            prop_assert!(tokens <= 8 * from.len() + 1024);
        }
    }

    #[test]
    fn every_truncation_is_an_error(ours in arbitrary::to_brain(), theirs in arbitrary::from_brain()) {
        let mut encoder = Encoder::new();
        let to = encode_to_brain(&ours, &mut encoder);
        for end in 0..to.len() {
            prop_assert!(decode_to_brain(&to[..end]).is_err());
            // Only padding may be missing from the end of a buffer.
            let read = decode_to_brain(&with_true_length(&to[..end]));
            prop_assert!(read.is_err() || read.as_ref() == Ok(&ours));
        }
        let from = encode_from_brain(&theirs, &mut encoder);
        for end in 0..from.len() {
            prop_assert!(decode_from_brain(&from[..end]).is_err());
        }
    }

    #[test]
    fn random_bytes_never_panic(mut bytes in prop::collection::vec(any::<u8>(), 0..200), as_frame in any::<bool>()) {
        if as_frame && bytes.len() >= 12 {
            bytes[8..12].copy_from_slice(b"PONS");
            bytes = with_true_length(&bytes);
            let root = (bytes.len() / 8) as u32 * 4;
            bytes[4..8].copy_from_slice(&root.to_le_bytes());
        }
        let readers = (decode_to_brain(&bytes).is_ok(), decode_from_brain(&bytes).is_ok());
        prop_assert!(readers != (true, true), "one frame can't be a message of both directions");
    }
}

/// The same bytes with a length field that fits what is left, so that the verifier has to notice.
fn with_true_length(bytes: &[u8]) -> Vec<u8> {
    let mut bytes = bytes.to_vec();
    if bytes.len() >= 4 {
        let body = (bytes.len() - 4) as u32;
        bytes[..4].copy_from_slice(&body.to_le_bytes());
    }
    bytes
}

#[test]
fn a_message_of_the_other_direction_is_refused_by_name() {
    let mut encoder = Encoder::new();
    let frame = encode_to_brain(&ToBrain::Drain, &mut encoder);
    assert_eq!(
        decode_from_brain(&frame),
        Err(ProtocolError::UnknownValue {
            kind: "brain-to-gateway",
            field: "message",
            value: "Drain".to_owned()
        })
    );
    let frame = encode_from_brain(&FromBrain::Heartbeat(Capacity::default()), &mut encoder);
    assert!(decode_to_brain(&frame).is_err());
}

#[test]
fn the_missing_log_probability_of_a_first_prompt_token_stays_nan() {
    let first = TokenLogprobs { logprob: f32::NAN, top: Vec::new() };
    let second = TokenLogprobs { logprob: -0.5, top: vec![(3, -0.5), (4, -1.5)] };
    let output = SequenceOutput {
        sequence: SequenceId(1),
        position: 0,
        cached_tokens: 0,
        tokens: vec![9],
        logprobs: Vec::new(),
        prompt_logprobs: vec![first, second.clone()],
        finish: None,
    };
    let step = StepOutput { step: 1, outputs: vec![output], capacity: Capacity::default() };
    let frame = encode_from_brain(&FromBrain::Step(step), &mut Encoder::new());
    let Ok(FromBrain::Step(read)) = decode_from_brain(&frame) else { panic!("not a step") };
    let positions = &read.outputs[0].prompt_logprobs;
    assert!(positions[0].logprob.is_nan() && positions[0].top.is_empty());
    assert_eq!(positions[1], second);
}

#[test]
fn a_large_prompt_comes_back_equal_and_the_encoder_gives_its_memory_back() {
    let mut encoder = Encoder::new();
    let ids: Vec<SequenceId> = (0..300_000).map(SequenceId).collect();
    let frame = encode_to_brain(&ToBrain::Abort(ids.clone()), &mut encoder);
    assert_eq!(decode_to_brain(&frame), Ok(ToBrain::Abort(ids)));
    let small = encode_to_brain(&ToBrain::Drain, &mut encoder);
    assert_eq!(decode_to_brain(&small), Ok(ToBrain::Drain));
}
