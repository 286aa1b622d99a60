use std::sync::Arc;

use pons_protocol::sampling::SamplingParams;
use proptest::prelude::*;

use super::*;

fn state_with(params: SamplingParams, prompt: &[u32], vocab: usize) -> SamplerState {
    SamplerState::new(Arc::new(params), 0, Arc::from([]), prompt, vocab)
}

fn pick(logits: &[f32], state: &SamplerState, position: u32) -> u32 {
    sample(logits, state, None, position, &mut Scratch::default()).unwrap().token
}

/// Logits without structure, from a fixed sequence.
fn wild(count: usize, seed: u64, spread: f32) -> Vec<f32> {
    let noise = Noise::new(seed, 99, 99);
    (0..count)
        .map(|i| (noise.bits(i as u32) >> 40) as f32 / (1 << 24) as f32 * spread - spread / 2.0)
        .collect()
}

fn softmax(logits: &[f32], temperature: f64) -> Vec<f64> {
    let max = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let weights: Vec<f64> =
        logits.iter().map(|&x| ((f64::from(x) - f64::from(max)) / temperature).exp()).collect();
    let sum: f64 = weights.iter().sum();
    weights.into_iter().map(|w| w / sum).collect()
}

/// The filters as their definition says: sort everything, then cut.
fn filtered(logits: &[f32], params: &SamplingParams) -> Vec<f64> {
    let p = softmax(logits, f64::from(params.temperature));
    let mut order: Vec<usize> = (0..p.len()).collect();
    order.sort_by(|&a, &b| logits[b].total_cmp(&logits[a]).then(a.cmp(&b)));
    if params.top_k > 0 {
        order.truncate(params.top_k as usize);
    }
    let total: f64 = order.iter().map(|&i| p[i]).sum();
    if params.top_p < 1.0 {
        let mut sum = 0.0;
        let keep = order.iter().position(|&i| {
            sum += p[i] / total;
            sum >= f64::from(params.top_p)
        });
        order.truncate(keep.map_or(order.len(), |k| k + 1));
    }
    let best = p[order[0]];
    order.retain(|&i| p[i] >= f64::from(params.min_p) * best * (1.0 - 1e-6));
    let total: f64 = order.iter().map(|&i| p[i]).sum();
    let mut out = vec![0.0; p.len()];
    for i in order {
        out[i] = p[i] / total;
    }
    out
}

/// Chi-square over many positions and seeds. Tokens of small expectation are pooled into one class.
fn assert_frequencies(logits: &[f32], params: &SamplingParams, expected: &[f64]) {
    let draws = 40_000u32;
    let state = state_with(params.clone(), &[], logits.len());
    let mut counts = vec![0u32; logits.len()];
    for position in 0..draws {
        counts[pick(logits, &state, position) as usize] += 1;
    }
    let (mut chi, mut classes) = (0.0, 0u32);
    let (mut pooled, mut pooled_seen) = (0.0, 0.0);
    for (&p, &seen) in expected.iter().zip(&counts) {
        let wanted = p * f64::from(draws);
        if p == 0.0 {
            assert_eq!(seen, 0, "a token outside the filter was sampled");
        } else if wanted < 10.0 {
            pooled += wanted;
            pooled_seen += f64::from(seen);
        } else {
            chi += (f64::from(seen) - wanted).powi(2) / wanted;
            classes += 1;
        }
    }
    if pooled > 1.0 {
        chi += (pooled_seen - pooled).powi(2) / pooled;
        classes += 1;
    }
    // Mean and standard deviation of chi-square with n degrees are n and sqrt(2 n); five of them are one in a million.
    let degrees = f64::from(classes.saturating_sub(1)).max(1.0);
    assert!(chi < degrees + 5.0 * (2.0 * degrees).sqrt() + 5.0, "chi-square {chi} with {degrees} degrees");
}

#[test]
fn frequencies_follow_the_softmax_at_every_temperature() {
    let logits = wild(60, 1, 8.0);
    for temperature in [0.3, 1.0, 1.7] {
        let params = SamplingParams { temperature, seed: 5, ..SamplingParams::default() };
        assert_frequencies(&logits, &params, &softmax(&logits, f64::from(temperature)));
    }
}

#[test]
fn frequencies_follow_the_filtered_distribution() {
    let logits = wild(60, 2, 8.0);
    let base = SamplingParams { seed: 11, ..SamplingParams::default() };
    for params in [
        SamplingParams { top_k: 5, ..base.clone() },
        SamplingParams { top_p: 0.8, ..base.clone() },
        SamplingParams { min_p: 0.1, ..base.clone() },
        SamplingParams { top_k: 20, top_p: 0.9, min_p: 0.02, temperature: 1.3, ..base.clone() },
    ] {
        assert_frequencies(&logits, &params, &filtered(&logits, &params));
    }
}

#[test]
fn choices_of_one_seed_are_independent() {
    let logits = vec![0.0; 4];
    let states: Vec<SamplerState> = (0..2)
        .map(|choice| {
            state_with(SamplingParams { seed: 3, choice, ..SamplingParams::default() }, &[], logits.len())
        })
        .collect();
    let mut table = [[0u32; 4]; 4];
    for position in 0..16_000 {
        let [a, b] = [0, 1].map(|c: usize| pick(&logits, &states[c], position) as usize);
        table[a][b] += 1;
    }
    let chi: f64 = table.iter().flatten().map(|&n| (f64::from(n) - 1000.0).powi(2) / 1000.0).sum();
    // Fifteen degrees of freedom; 50 is beyond one in ten thousand.
    assert!(chi < 50.0, "chi-square {chi}");
}

#[test]
fn a_token_depends_on_nothing_but_logits_parameters_and_position() {
    let logits = wild(5000, 4, 20.0);
    let params = SamplingParams { seed: 17, top_p: 0.9, ..SamplingParams::default() };
    let mut scratch = Scratch::default();
    let first: Vec<u32> =
        (0..50).map(|p| pick(&logits, &state_with(params.clone(), &[1], 5000), p)).collect();
    let state = state_with(params, &[2, 3], 5000);
    // Another order, other rows in between, and a scratch that has seen them.
    for position in (0..50u32).rev() {
        let other = wild(7000, u64::from(position), 9.0);
        sample(&other, &state, None, position, &mut scratch).unwrap();
        let again = sample(&logits, &state, None, position, &mut scratch).unwrap().token;
        assert_eq!(again, first[position as usize]);
    }
}

#[test]
fn temperature_zero_takes_the_best_and_of_equals_the_lowest_id() {
    let params = SamplingParams { temperature: 0.0, ..SamplingParams::default() };
    assert_eq!(pick(&[1.0, 3.0, 3.0, 2.0], &state_with(params, &[], 4), 0), 1);
}

#[test]
fn a_tiny_temperature_takes_the_best() {
    let params = SamplingParams { temperature: 1e-6, ..SamplingParams::default() };
    let state = state_with(params, &[], 4);
    assert!((0..100).all(|position| pick(&[1.0, 3.0, 2.9, 2.0], &state, position) == 1));
}

#[test]
fn a_logit_that_is_not_finite_is_a_fault_that_names_the_token() {
    for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
        let state = state_with(SamplingParams::default(), &[], 3);
        let error = sample(&[1.0, 2.0, bad], &state, None, 4, &mut Scratch::default()).unwrap_err();
        assert!(error.to_string().contains("token 2"), "{error}");
    }
}

#[test]
fn masks_that_leave_nothing_are_a_fault() {
    let params = SamplingParams { allowed_token_ids: vec![1], ..SamplingParams::default() };
    let state = state_with(params, &[], 3);
    let error = sample(&[0.0; 3], &state, Some(TokenMask(&[0b101])), 7, &mut Scratch::default()).unwrap_err();
    assert_eq!(error, SampleError::NothingAllowed { position: 7 });
    assert!(error.to_string().contains("allowed_token_ids"));
}

#[test]
fn a_mask_shorter_than_the_row_allows_nothing_past_its_end() {
    let mut logits = vec![0.0; 70];
    logits[69] = 50.0;
    let state = state_with(SamplingParams { temperature: 0.0, ..SamplingParams::default() }, &[], 70);
    let mask = [1 << 3, 0];
    let token = sample(&logits, &state, Some(TokenMask(&mask)), 0, &mut Scratch::default()).unwrap().token;
    assert_eq!(token, 3);
}

#[test]
fn end_tokens_are_masked_until_min_tokens_exist() {
    let params = Arc::new(SamplingParams { temperature: 0.0, ..SamplingParams::default() });
    let state = SamplerState::new(params, 2, Arc::from([0u32]), &[], 3);
    let logits = [5.0, 1.0, 0.0];
    assert_eq!([0, 1, 2].map(|position| pick(&logits, &state, position)), [1, 1, 0]);
}

#[test]
fn bias_and_penalties_change_the_choice_but_not_the_reported_log_probability() {
    let params = SamplingParams {
        temperature: 0.0,
        logit_bias: vec![(2, 10.0)],
        presence_penalty: 1.0,
        frequency_penalty: 1.5,
        logprobs: Some(3),
        ..SamplingParams::default()
    };
    let mut state = state_with(params, &[], 3);
    let logits = [2.0, 1.0, 0.0];
    let raw: Vec<f64> = softmax(&logits, 1.0).iter().map(|p| p.ln()).collect();
    let mut tokens = Vec::new();
    for position in 0..5 {
        let sampled = sample(&logits, &state, None, position, &mut Scratch::default()).unwrap();
        let logprobs = sampled.logprobs.unwrap();
        assert!((f64::from(logprobs.logprob) - raw[sampled.token as usize]).abs() < 1e-6);
        state.push(sampled.token);
        tokens.push(sampled.token);
    }
    // 10 against 2; then 10 − 1 − 1.5 n stays ahead until n is 5.
    assert_eq!(tokens, [2, 2, 2, 2, 2]);
    assert_eq!(pick(&logits, &state, 5), 0, "10 - 1 - 1.5 * 5 is below 2");
}

#[test]
fn the_repetition_penalty_counts_prompt_and_output_and_works_on_both_signs() {
    let params = SamplingParams { temperature: 0.0, repetition_penalty: 2.0, ..SamplingParams::default() };
    let mut state = state_with(params, &[0], 3);
    // Token 0 is in the prompt: 3.0 becomes 1.5.
    assert_eq!(pick(&[3.0, 2.0, 1.0], &state, 0), 1);
    state.push(1);
    // Token 1 as well now: 2.0 becomes 1.0; the prompt's token 0 leads again.
    assert_eq!(pick(&[3.0, 2.0, 1.0], &state, 1), 0);
    // Negative logits are pushed further down.
    assert_eq!(pick(&[-1.0, -1.1, -1.5], &state, 1), 2);
}

#[test]
fn the_sampled_token_shows_the_same_value_in_its_own_list() {
    let logits = wild(3000, 8, 12.0);
    for position in 0..40 {
        let params =
            SamplingParams { logprobs: Some(20), seed: 2, temperature: 0.5, ..SamplingParams::default() };
        let sampled =
            sample(&logits, &state_with(params, &[], 3000), None, position, &mut Scratch::default()).unwrap();
        let logprobs = sampled.logprobs.unwrap();
        assert_eq!(logprobs.top.len(), 20);
        assert!(logprobs.top.windows(2).all(|w| w[0].1 >= w[1].1));
        if let Some(own) = logprobs.top.iter().find(|(id, _)| *id == sampled.token) {
            assert_eq!(own.1.to_bits(), logprobs.logprob.to_bits());
        }
    }
}

#[test]
fn alternatives_with_equal_logits_come_by_id() {
    let logits = [1.0, 2.0, 1.0, 2.0, 2.0];
    let top = token_logprobs(Isa::detect(), &logits, TokenRow { token: None, top: 4 }).top;
    assert_eq!(top.iter().map(|t| t.0).collect::<Vec<_>>(), [1, 3, 4, 0]);
}

/// Every token's noise, without the shortcut.
fn draw_slowly(noise: Noise, row: &[f32], inverse: f64) -> u32 {
    let top = f64::from(row.iter().copied().fold(f32::NEG_INFINITY, f32::max));
    let mut best = (f64::NEG_INFINITY, 0);
    for (token, &x) in (0..).zip(row) {
        let value = (f64::from(x) - top) * inverse + Noise::gumbel(noise.bits(token));
        if value > best.0 {
            best = (value, token);
        }
    }
    best.1
}

proptest! {
    #[test]
    fn the_shortcut_finds_the_same_maximum(seed: u64, spread in 0.1f32..40.0, count in 1usize..3000, t in 0.05f64..4.0) {
        let logits = wild(count, seed, spread);
        let noise = Noise::new(seed, 0, 1);
        let first = ops::argmax(Isa::detect(), &logits);
        prop_assert_eq!(draw(Isa::detect(), noise, &logits, first, 1.0 / t), draw_slowly(noise, &logits, 1.0 / t));
    }

    #[test]
    fn filters_keep_what_their_definition_keeps(
        seed: u64,
        spread in 0.5f32..30.0,
        count in prop_oneof![4 => 1usize..400, 1 => 3000usize..6000],
        top_k in 0u32..50,
        top_p in 0.01f32..1.0,
        min_p in 0.0f32..0.5,
        temperature in 0.1f32..3.0,
    ) {
        let logits = wild(count, seed, spread);
        let params = SamplingParams { top_k, top_p, min_p, temperature, ..SamplingParams::default() };
        let best = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        let mut room = filter::Room::default();
        filter::candidates(Isa::detect(), &logits, best, 1.0 / f64::from(temperature), &params, &mut room);
        let mut kept: Vec<u32> = room.kept.iter().map(|c| c.id).collect();
        kept.sort_unstable();
        let expected: Vec<u32> =
            (0..).zip(filtered(&logits, &params)).filter(|(_, p)| *p > 0.0).map(|(id, _)| id).collect();
        // A token exactly at a border may fall on either side of it by a rounding of the sums.
        let differ = kept.iter().filter(|id| !expected.contains(id)).count()
            + expected.iter().filter(|id| !kept.contains(id)).count();
        prop_assert!(differ <= 1, "kept {kept:?}, expected {expected:?}");
        prop_assert!(!kept.is_empty());
    }
}
