//! Numbers to compute with. The rule: they follow from a seed alone, and keep to magnitudes at which a bound on
//! rounding errors is easy to state.

use pons_kernels::Matrix;

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
    /// `exact` scales and minima are representable in half precision.
    Grouped {
        group: usize,
        bits: u32,
        exact: bool,
    },
}

pub(crate) const FORMATS: [Format; 9] = [
    Format::F32,
    Format::Bf16,
    Format::F16,
    Format::Grouped { group: 32, bits: 4, exact: false },
    Format::Grouped { group: 32, bits: 4, exact: true },
    Format::Grouped { group: 16, bits: 4, exact: false },
    Format::Grouped { group: 32, bits: 8, exact: false },
    Format::Grouped { group: 32, bits: 8, exact: true },
    Format::Grouped { group: 16, bits: 8, exact: false },
];

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
        Format::Grouped { group, bits, exact } => {
            let most = (1_u32 << bits) as f32;
            let kept = |x: f32| if exact { half::f16::from_f32(x).to_f32() } else { x };
            Matrix::from_grouped(rows, cols, group, bits, &mut |_, q, scale, min| {
                q.iter_mut().for_each(|q| *q = (numbers.next_u64() % (1 << bits)) as u8);
                scale.iter_mut().for_each(|scale| *scale = kept(numbers.unit() / most));
                min.iter_mut().for_each(|min| *min = kept(numbers.unit() / 2.0));
            })
        }
    }
}
