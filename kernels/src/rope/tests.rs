use super::*;

fn close(a: f64, b: f64) -> bool {
    (a - b).abs() <= 1e-6 * b.abs().max(1.0)
}

#[test]
fn tables_hold_cosine_and_sine_of_position_times_frequency() {
    let rope = Rope::new(64, 64, 5000, 10_000.0, RopeScaling::None, RopeLayout::Half);
    for position in [0_u32, 1, 1023, 1024, 4999] {
        let (cos, sin) = rope.at(position);
        assert_eq!((cos.len(), sin.len()), (32, 32));
        for pair in 0..32 {
            let angle = f64::from(position) * 10_000_f64.powf(-(pair as f64) / 32.0);
            assert!(close(f64::from(cos[pair]), angle.cos()), "{position} {pair}");
            assert!(close(f64::from(sin[pair]), angle.sin()), "{position} {pair}");
        }
    }
}

#[test]
#[should_panic(expected = "position is 10")]
fn a_position_past_the_end_is_refused() {
    Rope::new(8, 8, 10, 10_000.0, RopeScaling::None, RopeLayout::Half).at(10);
}

#[test]
fn linear_scaling_divides_positions() {
    let plain = Rope::new(8, 8, 100, 1e4, RopeScaling::None, RopeLayout::Half);
    let scaled = Rope::new(8, 8, 100, 1e4, RopeScaling::Linear { factor: 4.0 }, RopeLayout::Half);
    assert_eq!(scaled.at(40), plain.at(10));
}

#[test]
fn llama3_keeps_short_waves_and_stretches_long_ones() {
    let scaling = RopeScaling::Llama3 {
        factor: 8.0,
        low_freq_factor: 1.0,
        high_freq_factor: 4.0,
        original_max_positions: 8192,
    };
    let (plain, _) = frequencies(128, 500_000.0, RopeScaling::None);
    let (scaled, magnitude) = frequencies(128, 500_000.0, scaling);
    assert_eq!(magnitude, 1.0);
    for (plain, scaled) in plain.iter().zip(&scaled) {
        let wave = 2.0 * PI / plain;
        if wave < 8192.0 / 4.0 {
            assert!(close(*scaled / plain, 1.0));
        } else if wave > 8192.0 {
            assert!(close(*scaled / plain, 1.0 / 8.0));
        } else {
            let smooth = (8192.0 / wave - 1.0) / 3.0;
            assert!(close(*scaled / plain, (1.0 - smooth) / 8.0 + smooth));
        }
    }
}

#[test]
fn yarn_ramps_between_the_two_betas_and_scales_magnitude() {
    let scaling = RopeScaling::Yarn {
        factor: 4.0,
        original_max_positions: 32_768,
        beta_fast: 32.0,
        beta_slow: 1.0,
        attn_factor: 1.138_629,
    };
    let (plain, _) = frequencies(128, 1e6, RopeScaling::None);
    let (scaled, magnitude) = frequencies(128, 1e6, scaling);
    assert_eq!(magnitude, 1.138_629);
    let ratios: Vec<f64> = scaled.iter().zip(&plain).map(|(scaled, plain)| scaled / plain).collect();
    assert!(close(ratios[0], 1.0) && close(ratios[63], 0.25));
    assert!(ratios.windows(2).all(|pair| pair[1] <= pair[0] + 1e-12), "{ratios:?}");
    // By hand: low = floor(128 ln(32768 / (32 · 2π)) / (2 ln 1e6)) = 23, high = ceil(…(1 · 2π)…) = 40.
    assert!(close(ratios[23], 1.0) && ratios[24] < 1.0 - 1e-3);
    assert!(close(ratios[40], 0.25) && ratios[39] > 0.25 + 1e-3);
}

#[test]
fn divisors_slow_each_frequency_by_its_own_number() {
    let plain = || Rope::new(4, 4, 100, 1e4, RopeScaling::None, RopeLayout::Half);
    let divided = plain().divided(&[1.0, 8.0]);
    let (cos, _) = divided.at(80);
    let plain_cos_80 = plain().at(80).0.to_vec();
    let plain_cos_10 = plain().at(10).0.to_vec();
    assert_eq!(cos, [plain_cos_80[0], plain_cos_10[1]]);
}
