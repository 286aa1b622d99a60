//! Rotary position embedding: angles and their tables. The rule: sines and cosines are computed in f64 from the
//! position alone, so that a token's rotation never depends on what came before it.
//!
//! Source: RoFormer (arXiv 2104.09864); scalings as in Llama 3.1 and YaRN (arXiv 2309.00071).

use std::f64::consts::PI;
use std::sync::OnceLock;

/// Positions whose table is computed at once, when the first of them is asked for.
const CHUNK: usize = 1024;

/// The most positions a table may be made for.
pub const MAX_POSITIONS: usize = 1 << 24;

/// How a model stretches its positions beyond the length it was trained on.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum RopeScaling {
    /// Not at all.
    None,
    /// Positions are divided by `factor`.
    Linear {
        /// The stretch.
        factor: f64,
    },
    /// Long waves are stretched, short ones kept, those between blended.
    Llama3 {
        /// The stretch of long waves.
        factor: f64,
        /// Waves longer than `original_max_positions / low_freq_factor` are long.
        low_freq_factor: f64,
        /// Waves shorter than `original_max_positions / high_freq_factor` are short.
        high_freq_factor: f64,
        /// The length the model was first trained on.
        original_max_positions: usize,
    },
    /// As `Llama3` with a linear ramp over dimensions, and all values multiplied by `attn_factor`.
    Yarn {
        /// The stretch of long waves.
        factor: f64,
        /// The length the model was first trained on.
        original_max_positions: usize,
        /// Dimensions that turn at least this often in the original length are kept.
        beta_fast: f64,
        /// Dimensions that turn at most this often in the original length are stretched.
        beta_slow: f64,
        /// Multiplies sine and cosine; `0.1 ln(factor) + 1` where a model names none.
        attn_factor: f64,
    },
}

/// Which two elements of a head are rotated together.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RopeLayout {
    /// Element `i` with `i + rotary_dim / 2` (GPT-NeoX, and every model in Hugging Face's format).
    Half,
    /// Element `2 i` with `2 i + 1` (Llama models in GGUF).
    Interleaved,
}

/// The rotation of each position for one model.
pub struct Rope {
    head_dim: usize,
    rotary_dim: usize,
    max_positions: usize,
    layout: RopeLayout,
    frequencies: Vec<f64>,
    magnitude: f64,
    chunks: Vec<OnceLock<Box<[f32]>>>,
}

impl std::fmt::Debug for Rope {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Rope({} of {}, {:?})", self.rotary_dim, self.head_dim, self.layout)
    }
}

impl Rope {
    /// Rotations for heads of `head_dim` elements, of which the first `rotary_dim` (an even number) turn.
    ///
    /// # Panics
    /// When a size is zero, odd or too large, or `theta` or a factor is not a positive number.
    pub fn new(
        head_dim: usize,
        rotary_dim: usize,
        max_positions: usize,
        theta: f64,
        scaling: RopeScaling,
        layout: RopeLayout,
    ) -> Rope {
        assert!(
            rotary_dim > 0 && rotary_dim.is_multiple_of(2) && rotary_dim <= head_dim,
            "rotary_dim is {rotary_dim}; it must be even, above zero and at most head_dim, {head_dim}"
        );
        assert!(
            (1..=MAX_POSITIONS).contains(&max_positions),
            "max_positions is {max_positions}; it must be between 1 and {MAX_POSITIONS}"
        );
        assert!(theta.is_finite() && theta > 0.0, "theta is {theta}; it must be a positive number");
        let (frequencies, magnitude) = frequencies(rotary_dim, theta, scaling);
        let chunks = (0..max_positions.div_ceil(CHUNK)).map(|_| OnceLock::new()).collect();
        Rope { head_dim, rotary_dim, max_positions, layout, frequencies, magnitude, chunks }
    }

    /// The same rotations with each frequency divided by a number of its own, as GGUF files of Llama 3 give them.
    ///
    /// # Panics
    /// When there is not one divisor for each pair of elements, or one is not a positive number.
    pub fn divided(mut self, divisors: &[f32]) -> Rope {
        assert!(
            divisors.len() == self.frequencies.len(),
            "{} divisors were given for {} frequencies",
            divisors.len(),
            self.frequencies.len()
        );
        for (frequency, &divisor) in self.frequencies.iter_mut().zip(divisors) {
            assert!(divisor.is_finite() && divisor > 0.0, "a rope divisor is {divisor}; it must be positive");
            *frequency /= f64::from(divisor);
        }
        self.chunks.iter_mut().for_each(|chunk| *chunk = OnceLock::new());
        self
    }

    /// Elements of one head.
    pub fn head_dim(&self) -> usize {
        self.head_dim
    }

    /// Elements of one head that turn.
    pub fn rotary_dim(&self) -> usize {
        self.rotary_dim
    }

    /// Positions `0..max_positions` have a rotation.
    pub fn max_positions(&self) -> usize {
        self.max_positions
    }

    /// Which elements turn together.
    pub fn layout(&self) -> RopeLayout {
        self.layout
    }

    /// The cosines and the sines of `position`, `rotary_dim / 2` each.
    ///
    /// # Panics
    /// When `position` is not below [`Rope::max_positions`].
    pub fn at(&self, position: u32) -> (&[f32], &[f32]) {
        let position = position as usize;
        assert!(
            position < self.max_positions,
            "position is {position}; the model's rotations end at {}",
            self.max_positions
        );
        let half = self.rotary_dim / 2;
        let first = position / CHUNK * CHUNK;
        let table = self.chunks[position / CHUNK].get_or_init(|| self.chunk(first));
        let row = &table[(position - first) * self.rotary_dim..][..self.rotary_dim];
        row.split_at(half)
    }

    fn chunk(&self, first: usize) -> Box<[f32]> {
        let len = CHUNK.min(self.max_positions - first);
        let mut table = Vec::with_capacity(len * self.rotary_dim);
        for position in first..first + len {
            let angle = |frequency: &f64| position as f64 * frequency;
            table.extend(self.frequencies.iter().map(|f| (angle(f).cos() * self.magnitude) as f32));
            table.extend(self.frequencies.iter().map(|f| (angle(f).sin() * self.magnitude) as f32));
        }
        table.into_boxed_slice()
    }
}

/// Radians a position for each pair of elements, and the factor on sine and cosine.
fn frequencies(rotary_dim: usize, theta: f64, scaling: RopeScaling) -> (Vec<f64>, f64) {
    let plain = (0..rotary_dim / 2).map(|pair| theta.powf(-2.0 * pair as f64 / rotary_dim as f64));
    let positive = |name: &str, value: f64| {
        assert!(value.is_finite() && value > 0.0, "rope {name} is {value}; it must be a positive number");
    };
    match scaling {
        RopeScaling::None => (plain.collect(), 1.0),
        RopeScaling::Linear { factor } => {
            positive("factor", factor);
            (plain.map(|f| f / factor).collect(), 1.0)
        }
        RopeScaling::Llama3 { factor, low_freq_factor, high_freq_factor, original_max_positions } => {
            positive("factor", factor);
            positive("low_freq_factor", low_freq_factor);
            positive("high_freq_factor - low_freq_factor", high_freq_factor - low_freq_factor);
            let original = original_max_positions as f64;
            let stretch = |f: f64| {
                let turns = original * f / (2.0 * PI);
                let keep = ((turns - low_freq_factor) / (high_freq_factor - low_freq_factor)).clamp(0.0, 1.0);
                (1.0 - keep) * f / factor + keep * f
            };
            (plain.map(stretch).collect(), 1.0)
        }
        RopeScaling::Yarn { factor, original_max_positions, beta_fast, beta_slow, attn_factor } => {
            positive("factor", factor);
            positive("beta_fast", beta_fast);
            positive("beta_slow", beta_slow);
            positive("attn_factor", attn_factor);
            assert!(theta > 1.0, "rope theta is {theta}; yarn needs it above one");
            let dims = rotary_dim as f64;
            let original = original_max_positions as f64;
            // The dimension that turns `turns` times in the original length.
            let dimension = |turns: f64| dims * (original / (turns * 2.0 * PI)).ln() / (2.0 * theta.ln());
            let low = dimension(beta_fast).floor().max(0.0);
            let high = dimension(beta_slow).ceil().min(dims - 1.0);
            let width = if high > low { high - low } else { 0.001 };
            let stretch = |(pair, f): (usize, f64)| {
                let ramp = ((pair as f64 - low) / width).clamp(0.0, 1.0);
                f / factor * ramp + f * (1.0 - ramp)
            };
            (plain.enumerate().map(stretch).collect(), attn_factor)
        }
    }
}

#[cfg(test)]
mod tests;
