//! Limits follow from the measurement, within their bounds.

use proptest::prelude::*;

use super::*;
use crate::calibrate::DecodeTime;

const LIMITS: ExecutorLimits = ExecutorLimits {
    blocks: 10_000,
    slots: MOST_SEQUENCES,
    step_tokens: MOST_STEP_TOKENS,
    context_tokens: 2048,
    vocab_size: 1000,
};
const TARGETS: Targets = Targets { ttft_us: 800_000, itl_us: 100_000 };

/// A device whose decode step takes `base_us` and `row_us` for each row.
fn device(base_us: u64, row_us: u64, rate: f64) -> Calibration {
    let curve =
        [1, 2, 4, 8, 16, 32].map(|rows| DecodeTime { rows, step_us: base_us + row_us * u64::from(rows) });
    Calibration::new(rate, curve.to_vec()).expect("a sensible device")
}

#[test]
fn rows_leave_room_for_a_chunk_within_the_inter_token_target() {
    // 80 ms are usable, a chunk of 64 takes 32 ms: 48 ms are left for 4 ms + rows x 1 ms.
    let sizes = derive(Some(&device(4_000, 1_000, 2000.0)), TARGETS, Given::default(), &LIMITS);
    assert_eq!(sizes.max_sequences, 44);
    assert!(sizes.sequences_reason.contains("within the 80000 us"), "{}", sizes.sequences_reason);
    // 400 ms at 2000 tokens/s.
    assert_eq!(sizes.step_tokens, 800);
    assert_eq!(sizes.kv_blocks, 10_000, "memory is the bound");
    assert_eq!(sizes.max_waiting_tokens, 120_000, "a minute of prompt work");
}

#[test]
fn a_device_that_cannot_keep_the_target_still_gets_the_fewest_rows_and_says_so() {
    let sizes = derive(Some(&device(200_000, 1_000, 100.0)), TARGETS, Given::default(), &LIMITS);
    assert_eq!(sizes.max_sequences, FEWEST_SEQUENCES);
    assert!(sizes.sequences_reason.contains("one row takes 201000 us already"), "{}", sizes.sequences_reason);
    assert_eq!(sizes.step_tokens, FEWEST_STEP_TOKENS);
    let sizes = derive(Some(&device(10_000, 1_000, 100.0)), TARGETS, Given::default(), &LIMITS);
    assert_eq!(sizes.max_sequences, 70, "the chunk doesn't fit, so the decodes alone decide");
    assert!(sizes.sequences_reason.contains("does not fit beside"), "{}", sizes.sequences_reason);
}

#[test]
fn few_full_contexts_bound_the_cache() {
    let given = Given { max_sequences: Some(2), ..Given::default() };
    let sizes = derive(None, TARGETS, given, &LIMITS);
    assert_eq!((sizes.kv_blocks, sizes.max_sequences), (2 * 2 * 128, 2));
    assert_eq!(derive(None, TARGETS, Given { kv_memory: true, ..given }, &LIMITS).kv_blocks, 10_000);
}

proptest! {
    #[test]
    fn every_limit_is_within_the_executor_and_given_ones_win(
        base_us in 1u64..5_000_000, row_us in 0u64..1_000_000, rate in 0.1f64..1e8,
        ttft_us in 1_000u64..60_000_000, itl_us in 1_000u64..60_000_000,
        sequences in prop::option::of(1u32..5000), step in prop::option::of(16u32..65_536),
        blocks in 1u32..1_000_000, slots in 1u32..5000, step_limit in 1u32..70_000,
    ) {
        let limits = ExecutorLimits { blocks, slots, step_tokens: step_limit, ..LIMITS };
        let given = Given { max_sequences: sequences, step_tokens: step, ..Given::default() };
        let sizes = derive(Some(&device(base_us, row_us, rate)), Targets { ttft_us, itl_us }, given, &limits);
        prop_assert!((1..=slots.min(step_limit).min(blocks)).contains(&sizes.max_sequences));
        prop_assert!((sizes.max_sequences..=step_limit).contains(&sizes.step_tokens));
        prop_assert!((1..=blocks).contains(&sizes.kv_blocks));
        prop_assert!((FEWEST_WAITING_TOKENS..=MOST_WAITING_TOKENS).contains(&sizes.max_waiting_tokens));
        if let Some(count) = sequences.filter(|count| *count <= slots.min(step_limit).min(blocks).min(step.unwrap_or(u32::MAX))) {
            prop_assert_eq!(sizes.max_sequences, count);
        }
    }

    #[test]
    fn a_faster_device_or_a_laxer_target_never_lowers_a_limit(
        base_us in 1u64..100_000, row_us in 0u64..10_000, rate in 10.0f64..1e5, itl_us in 10_000u64..1_000_000,
    ) {
        let size = |base_us, rate, itl_us| {
            derive(Some(&device(base_us, row_us, rate)), Targets { itl_us, ..TARGETS }, Given::default(), &LIMITS)
        };
        let slow = size(base_us, rate, itl_us);
        for better in [size(base_us / 2 + 1, rate, itl_us), size(base_us, rate, itl_us * 2)] {
            // Where a chunk begins to fit, room is made for it.
            let chunk_fits = |sizes: &Sizes| sizes.sequences_reason.contains("prompt tokens") && !sizes.sequences_reason.contains("does not fit");
            if chunk_fits(&slow) == chunk_fits(&better) {
                prop_assert!(better.max_sequences >= slow.max_sequences);
            }
            prop_assert!(better.kv_blocks >= slow.kv_blocks || chunk_fits(&slow) != chunk_fits(&better));
        }
        prop_assert!(size(base_us, rate * 2.0, itl_us).max_waiting_tokens >= slow.max_waiting_tokens);
    }
}
