use super::*;
use crate::layout::matrix::Matrix;
use half::f16;

const FORMS: [Form; 8] = [
    Form { width: Width::Four, scaling: Scaling::Centred { zero: 8 } },
    Form { width: Width::Four, scaling: Scaling::Affine },
    Form { width: Width::Four, scaling: Scaling::NestedAffine },
    Form { width: Width::Six, scaling: Scaling::Affine },
    Form { width: Width::Six, scaling: Scaling::NestedAffine },
    Form { width: Width::Six, scaling: Scaling::NestedCentred { zero: 32 } },
    Form { width: Width::Eight, scaling: Scaling::Centred { zero: 128 } },
    Form { width: Width::Eight, scaling: Scaling::NestedCentred { zero: 128 } },
];

/// Any half-precision number of ordinary size.
fn half(index: usize) -> f16 {
    f16::from_f32(((index * 7919 % 1009) as f32 - 504.0) / 64.0)
}

fn number(form: Form, row: usize, k: usize) -> u8 {
    ((row * 31 + k * 17) % form.width.limit() as usize) as u8
}

fn six(row: usize, index: usize) -> u8 {
    ((row * 13 + index * 7) % 64) as u8
}

#[test]
fn a_row_comes_back_as_its_scales_and_numbers_say() {
    for form in FORMS {
        for (rows, cols) in [(3, 64), (33, 31), (40, 256), (65, 600)] {
            let mut asked = Vec::new();
            let matrix = Matrix::from_quantised(rows, cols, form, &mut |row, to| {
                asked.push(row);
                assert_eq!(to.q.len(), cols);
                assert_eq!([to.d.len(), to.m.len(), to.s.len(), to.t.len()], form.entries(cols));
                to.q.iter_mut().enumerate().for_each(|(k, q)| *q = number(form, row, k));
                to.d.iter_mut().enumerate().for_each(|(g, d)| *d = half(row + g).to_bits());
                to.m.iter_mut().enumerate().for_each(|(g, m)| *m = half(row + 3 * g).to_bits());
                to.s.iter_mut().enumerate().for_each(|(g, s)| *s = six(row, g));
                to.t.iter_mut().enumerate().for_each(|(g, t)| *t = six(row + 1, g));
            });
            assert_eq!(asked, (0..rows).collect::<Vec<_>>());
            let mut out = vec![0.0; cols];
            for row in 0..rows {
                matrix.row_to_f32(row, &mut out);
                for (k, &got) in out.iter().enumerate() {
                    let q = f64::from(number(form, row, k));
                    let d = |index: usize| half(row + index).to_f64();
                    let m = |index: usize| half(row + 3 * index).to_f64();
                    let s = |index: usize| f64::from(six(row, index));
                    let want = match form.scaling {
                        Scaling::Centred { zero } => d(k / 32) * (q - f64::from(zero)),
                        Scaling::Affine => d(k / 32) * q + m(k / 32),
                        Scaling::NestedAffine => {
                            d(k / 256) * s(k / 32) * q - m(k / 256) * f64::from(six(row + 1, k / 32))
                        }
                        Scaling::NestedCentred { zero } => d(k / 256) * s(k / 16) * (q - f64::from(zero)),
                    };
                    assert_eq!(got, want as f32, "{form:?} {rows} x {cols}: {row} {k}");
                }
            }
        }
    }
}

#[test]
fn packing_adds_nothing_but_padding_to_what_a_file_has() {
    let bytes = |form| Matrix::from_quantised(64, 512, form, &mut |_, _| ()).bytes() * 8;
    let weights = 64 * 512;
    // The bits a weight of ggml's Q4_0, Q4_1, Q4_K, Q6_K and Q8_0.
    let [q4_0, q4_1, q4_k, _, _, q6_k, q8_0, _] = FORMS.map(bytes);
    assert_eq!(q4_0, weights * 9 / 2);
    assert_eq!(q4_1, weights * 5);
    assert_eq!(q4_k, weights * 9 / 2);
    assert_eq!(q6_k, weights * 6 + weights / 16 * 8 + weights / 256 * 16);
    assert_eq!(q8_0, weights * 17 / 2);
}

#[test]
#[should_panic(expected = "hold numbers below 16")]
fn a_number_wider_than_its_bits_is_refused() {
    Matrix::from_quantised(1, 32, FORMS[0], &mut |_, row| row.q[5] = 16);
}

#[test]
#[should_panic(expected = "above 63")]
fn an_inner_scale_wider_than_six_bits_is_refused() {
    Matrix::from_quantised(1, 32, FORMS[2], &mut |_, row| row.s[0] = 64);
}

#[test]
#[should_panic(expected = "exceeds the address space")]
fn a_size_that_cannot_exist_is_refused_before_memory_is_asked_for() {
    Matrix::from_quantised(usize::MAX / 4, 1 << 20, FORMS[6], &mut |_, _| ());
}
