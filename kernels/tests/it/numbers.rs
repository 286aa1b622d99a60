//! Numbers to compute with. The rule: they follow from a seed alone, and keep to magnitudes at which a bound on
//! rounding errors is easy to state.

use pons_kernels::{Form, Matrix, Scaling, Width};

/// A small generator (splitmix64).
pub(crate) struct Numbers(pub(crate) u64);

impl Numbers {
    pub(crate) fn next_u64(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Between -1 and 1.
    pub(crate) fn unit(&mut self) -> f32 {
        (self.next_u64() >> 40) as f32 / (1_u64 << 23) as f32 - 1.0
    }

    pub(crate) fn units(&mut self, count: usize) -> Vec<f32> {
        (0..count).map(|_| self.unit()).collect()
    }
}

/// The formats a matrix can be stored in.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Format {
    F32,
    Bf16,
    F16,
    Quantised(Form),
}

const fn quantised(width: Width, scaling: Scaling) -> Format {
    Format::Quantised(Form { width, scaling })
}

pub(crate) const FORMATS: [Format; 12] = [
    Format::F32,
    Format::Bf16,
    Format::F16,
    quantised(Width::Four, Scaling::Centred { zero: 8 }),
    quantised(Width::Four, Scaling::Affine),
    quantised(Width::Four, Scaling::NestedAffine),
    quantised(Width::Six, Scaling::Centred { zero: 16 }),
    quantised(Width::Six, Scaling::Affine),
    quantised(Width::Six, Scaling::NestedAffine),
    quantised(Width::Six, Scaling::NestedCentred { zero: 32 }),
    quantised(Width::Eight, Scaling::Centred { zero: 128 }),
    quantised(Width::Eight, Scaling::Affine),
];

impl Format {
    /// Whether products see activations in eight bits.
    pub(crate) fn is_quantised(self) -> bool {
        matches!(self, Format::Quantised(_))
    }
}

/// A matrix of weights of magnitude about one.
pub(crate) fn matrix(format: Format, rows: usize, cols: usize, seed: u64) -> Matrix {
    let mut numbers = Numbers(seed);
    match format {
        Format::F32 => Matrix::from_f32(rows, cols, &numbers.units(rows * cols)),
        Format::Bf16 => {
            let data = numbers.units(rows * cols);
            let bits: Vec<u16> = data.iter().map(|&x| half::bf16::from_f32(x).to_bits()).collect();
            Matrix::from_bf16_bits(rows, cols, &bits)
        }
        Format::F16 => {
            let data = numbers.units(rows * cols);
            let bits: Vec<u16> = data.iter().map(|&x| half::f16::from_f32(x).to_bits()).collect();
            Matrix::from_f16_bits(rows, cols, &bits)
        }
        Format::Quantised(form) => {
            let limit = match form.width {
                Width::Four => 16,
                Width::Six => 64,
                Width::Eight => 256,
            };
            let nested = matches!(form.scaling, Scaling::NestedAffine | Scaling::NestedCentred { .. });
            // Scales such that weights stay below about one, whatever the form.
            let (inner, outer) = if nested { (64, limit as f32 * 64.0) } else { (1, limit as f32) };
            let signed = matches!(form.scaling, Scaling::NestedCentred { .. });
            Matrix::from_quantised(rows, cols, form, &mut |_, row| {
                row.q.iter_mut().for_each(|q| *q = (numbers.next_u64() % limit) as u8);
                let mut half = |most: f32| half::f16::from_f32(numbers.unit() / most).to_bits();
                row.d.iter_mut().for_each(|d| *d = half(outer));
                row.m.iter_mut().for_each(|m| *m = half(2.0 * inner as f32));
                let mut small = || (numbers.next_u64() % if signed { 256 } else { inner }) as u8;
                row.s.iter_mut().for_each(|s| *s = small());
                row.t.iter_mut().for_each(|t| *t = small());
            })
        }
    }
}
