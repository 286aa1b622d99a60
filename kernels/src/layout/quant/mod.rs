//! Quantised weight matrices. The rule: the numbers of the file are kept bit for bit, at the width they have there,
//! in the order in which a product reads them.
//!
//! Outputs are packed in strips of `STRIP`, two *halves* of `LANES`; inputs in groups of `GROUP`. A *unit* is
//! one half of a strip by one group; units follow each other as (strip, group, half). Inside a unit a vector of 64
//! bytes holds four consecutive inputs (a *quad*) of sixteen outputs, the operand of an 8-bit dot product: of the
//! eight quads of a group, vector `j` holds quad `j` in the low nibbles and quad `j + 4` in the high ones. Six-bit
//! numbers have their upper two bits in two further vectors, the second for the quads `4..8`; eight-bit numbers have
//! one vector a quad.

mod pack;
mod unpack;

use super::matrix::STRIP;
use super::stored::Stored;

/// Outputs in one vector of sums.
pub(crate) const LANES: usize = 16;

/// Inputs that share a scale, at most, and one scale of the activations.
pub(crate) const GROUP: usize = 32;

/// Groups that share the outer scale of a nested format.
pub(crate) const NEST: usize = 8;

/// Words of six-bit scales and minima of one half of a strip in one nest, for each lane.
pub(crate) const NEST_WORDS: usize = 3;

/// Bits of one stored number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Width {
    /// 0..16.
    Four,
    /// 0..64.
    Six,
    /// 0..256.
    Eight,
}

/// How numbers become weights. Scales named `d` and minima named `m` are half-precision numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scaling {
    /// `w = d · (q − zero)`, one `d` for 32 inputs. `zero` is a power of two.
    Centred {
        /// The number that stands for zero.
        zero: u8,
    },
    /// `w = d · q + m`, one of each for 32 inputs.
    Affine,
    /// `w = (d · s) · q − m · t`: `d` and `m` for 256 inputs, six-bit `s` and `t` for 32.
    NestedAffine,
    /// `w = (d · s) · (q − zero)`: `d` for 256 inputs, a signed byte `s` for 16. `zero` is a power of two.
    NestedCentred {
        /// The number that stands for zero.
        zero: u8,
    },
}

/// A quantised format.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Form {
    /// Bits of a number.
    pub width: Width,
    /// From numbers to weights.
    pub scaling: Scaling,
}

/// Room for one row of a quantised matrix.
#[derive(Debug)]
pub struct QuantRow<'a> {
    /// The numbers, one a byte.
    pub q: &'a mut [u8],
    /// Bits of `d`, in order.
    pub d: &'a mut [u16],
    /// Bits of `m`, in order; empty for centred formats.
    pub m: &'a mut [u16],
    /// `s` of nested formats (signed bytes by their bits), in order.
    pub s: &'a mut [u8],
    /// `t` of the nested affine format, in order.
    pub t: &'a mut [u8],
}

/// What writes one row: its index, then room for its parts.
pub type FillRow<'a> = dyn FnMut(usize, QuantRow<'_>) + 'a;

impl Width {
    /// Bytes of one unit.
    pub(crate) const fn unit_bytes(self) -> usize {
        LANES * GROUP / 8
            * match self {
                Width::Four => 4,
                Width::Six => 6,
                Width::Eight => 8,
            }
    }

    /// The first number that does not fit.
    pub(crate) const fn limit(self) -> u32 {
        match self {
            Width::Four => 16,
            Width::Six => 64,
            Width::Eight => 256,
        }
    }
}

impl Form {
    /// Entries of `d`, `m`, `s` and `t` in a row of `cols` inputs.
    pub fn entries(self, cols: usize) -> [usize; 4] {
        let (groups, nests) = (cols.div_ceil(GROUP), cols.div_ceil(GROUP * NEST));
        match self.scaling {
            Scaling::Centred { .. } => [groups, 0, 0, 0],
            Scaling::Affine => [groups, groups, 0, 0],
            Scaling::NestedAffine => [nests, nests, groups, groups],
            Scaling::NestedCentred { .. } => [nests, 0, cols.div_ceil(GROUP / 2), 0],
        }
    }

    /// The format in words.
    pub fn name(self) -> &'static str {
        match (self.width, self.scaling) {
            (Width::Four, Scaling::Centred { .. }) => "4-bit",
            (Width::Four, Scaling::Affine) => "4-bit with minima",
            (Width::Four, _) => "4-bit nested",
            (Width::Six, Scaling::Centred { .. } | Scaling::Affine) => "5-bit in six",
            (Width::Six, Scaling::NestedAffine) => "5-bit nested in six",
            (Width::Six, Scaling::NestedCentred { .. }) => "6-bit nested",
            (Width::Eight, _) => "8-bit",
        }
    }
}

/// The scales of all units.
pub(crate) enum Scales {
    /// `d`, [`LANES`] a unit.
    Centred { d: Stored<u16>, zero: u8 },
    /// [`LANES`] `d` and then as many `m` a unit.
    Affine { dm: Stored<u16> },
    /// [`LANES`] `d` and then as many `m` for each (strip, nest, half); beside them [`NEST_WORDS`] times [`LANES`]
    /// words: numbers 0..5, 5..10, 10..15 of the sixteen `s0..s8, t0..t8` in six bits each from the lowest up, and in
    /// the upper two bits of the three words the sixteenth, `t7`, lowest bits first.
    NestedAffine { dm: Stored<u16>, st: Stored<u32> },
    /// [`LANES`] `d` for each (strip, nest, half); beside them sixteen times [`LANES`] bytes `s`.
    NestedCentred { d: Stored<u16>, s: Stored<u8>, zero: u8 },
}

/// A quantised matrix in packed form.
pub(crate) struct Quants {
    pub(crate) width: Width,
    pub(crate) digits: Stored<u8>,
    pub(crate) scales: Scales,
}

impl Quants {
    pub(crate) fn form(&self) -> Form {
        let scaling = match self.scales {
            Scales::Centred { zero, .. } => Scaling::Centred { zero },
            Scales::Affine { .. } => Scaling::Affine,
            Scales::NestedAffine { .. } => Scaling::NestedAffine,
            Scales::NestedCentred { zero, .. } => Scaling::NestedCentred { zero },
        };
        Form { width: self.width, scaling }
    }

    pub(crate) fn bytes(&self) -> usize {
        self.digits.len()
            + match &self.scales {
                Scales::Centred { d, .. } => d.len() * 2,
                Scales::Affine { dm } => dm.len() * 2,
                Scales::NestedAffine { dm, st } => dm.len() * 2 + st.len() * 4,
                Scales::NestedCentred { d, s, .. } => d.len() * 2 + s.len(),
            }
    }
}

/// The number of a unit in (strip, group, half) order; with nests for groups, of a nest.
pub(crate) const fn unit_at(groups: usize, strip: usize, group: usize, half: usize) -> usize {
    (strip * groups + group) * (STRIP / LANES) + half
}

/// The six-bit number `index` (0..8 are `s`, 8..16 are `t`) of one lane's words of a nest.
pub(crate) const fn six_bits(words: [u32; NEST_WORDS], index: usize) -> u32 {
    if index < 15 {
        (words[index / 5] >> (6 * (index % 5))) & 63
    } else {
        (words[0] >> 30) | ((words[1] >> 30) << 2) | ((words[2] >> 30) << 4)
    }
}

#[cfg(test)]
mod tests;
