//! Inputs of benchmarks. The rule: they follow from a seed alone, so that each run computes the same.

/// A small generator (SplitMix64; Steele, Lea and Flood, 2014).
#[derive(Debug, Clone)]
pub struct Numbers(u64);

impl Numbers {
    /// Numbers that follow from this seed.
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// Any number.
    pub fn next_u64(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    /// A number below `end`, which is above 0.
    pub fn below(&mut self, end: usize) -> usize {
        (self.next_u64() % end as u64) as usize
    }

    /// A number between -1 and 1.
    pub fn unit(&mut self) -> f32 {
        (self.next_u64() >> 40) as f32 / (1_u64 << 23) as f32 - 1.0
    }

    /// So many numbers between -1 and 1.
    pub fn units(&mut self, count: usize) -> Vec<f32> {
        (0..count).map(|_| self.unit()).collect()
    }
}
