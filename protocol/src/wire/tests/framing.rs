//! A stream cut anywhere yields the same frames; a length over the limit is refused before memory is taken.

use proptest::prelude::*;

use super::arbitrary;
use crate::error::ProtocolError;
use crate::inference::ToBrain;
use crate::wire::{Encoder, FrameReader, MAX_FRAME_BYTES, decode_to_brain};

proptest! {
    #[test]
    fn a_stream_cut_anywhere_yields_the_same_messages(
        messages in prop::collection::vec(arbitrary::to_brain(), 0..6),
        cuts in prop::collection::vec(1usize..200, 1..20),
    ) {
        let mut encoder = Encoder::new();
        let stream: Vec<u8> = messages.iter().flat_map(|message| encoder.to_brain(message).to_vec()).collect();
        let mut reader = FrameReader::new();
        let mut read = Vec::new();
        let (mut rest, mut cut) = (stream.as_slice(), cuts.iter().cycle());
        while !rest.is_empty() {
            let (now, later) = rest.split_at((*cut.next().expect("cycles")).min(rest.len()));
            reader.push(now);
            while let Some(frame) = reader.next_frame().expect("lengths are right") {
                read.push(decode_to_brain(frame).expect("frames are whole"));
            }
            rest = later;
        }
        prop_assert_eq!(reader.pending_bytes(), 0);
        prop_assert_eq!(read, messages);
    }
}

#[test]
fn an_oversized_length_is_refused_before_its_bytes_are_waited_for() {
    let mut reader = FrameReader::new();
    reader.push(&(MAX_FRAME_BYTES + 1).to_le_bytes());
    assert_eq!(
        reader.next_frame(),
        Err(ProtocolError::FrameTooLarge {
            bytes: u64::from(MAX_FRAME_BYTES) + 1,
            limit: u64::from(MAX_FRAME_BYTES)
        })
    );
}

#[test]
fn an_announced_length_takes_no_memory_until_its_bytes_arrive() {
    let mut reader = FrameReader::new();
    reader.push(&MAX_FRAME_BYTES.to_le_bytes());
    assert_eq!(reader.next_frame(), Ok(None));
    assert!(reader.capacity_bytes() < 1024);
}

#[test]
fn a_partial_frame_is_told_from_a_clean_end() {
    let mut encoder = Encoder::new();
    let frame = encoder.to_brain(&ToBrain::Drain).to_vec();
    let mut reader = FrameReader::new();
    reader.push(&frame[..frame.len() - 1]);
    assert_eq!(reader.next_frame(), Ok(None));
    assert_eq!(reader.pending_bytes(), frame.len() - 1);
    reader.push(&frame[frame.len() - 1..]);
    assert!(reader.next_frame().is_ok_and(|whole| whole.is_some()));
    assert_eq!(reader.pending_bytes(), 0);
}

#[test]
fn memory_of_a_large_frame_is_given_back() {
    let body = 8 << 20;
    let mut reader = FrameReader::new();
    reader.push(&(body as u32).to_le_bytes());
    let piece = vec![0u8; 64 << 10];
    for _ in 0..body / piece.len() {
        reader.push(&piece);
    }
    assert_eq!(reader.next_frame().expect("within the limit").map(<[u8]>::len), Some(body + 4));
    reader.push(&[]);
    assert!(reader.capacity_bytes() <= 1 << 20);
}
