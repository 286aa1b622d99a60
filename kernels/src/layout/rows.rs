//! Activations as whole numbers, for products with quantised weights. The rule: a row's numbers follow from that row
//! alone, and a row that holds a NaN or an infinity keeps it as the scale of its group.
//!
//! Each group of [`GROUP`] inputs has one scale, the largest magnitude over the largest number. Numbers of
//! [`Precision::Eight`] bits are bytes. Those of [`Precision::Fifteen`] bits are `128 · upper + lower` of two signed
//! bytes, which lie in two planes, so that both kinds are multiplied by the same 8-bit instructions. The sums of the
//! numbers let a product put a format's zero point or minimum on once a group instead of once a weight.

use super::aligned::Aligned;
use super::quant::GROUP;

/// How finely a product with quantised weights sees its activations.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub enum Precision {
    /// In 255 steps over the range of 32 neighbours: the fastest.
    #[default]
    Eight,
    /// In 32,639 steps: nearly as good as `f32`, at nearly twice the arithmetic.
    Fifteen,
}

impl Precision {
    /// Bytes of one number.
    pub(crate) fn planes(self) -> usize {
        match self {
            Precision::Eight => 1,
            Precision::Fifteen => 2,
        }
    }

    /// The largest number: with two planes the upper byte is at most 127, the lower between -64 and 63.
    pub(crate) fn most(self) -> f32 {
        match self {
            Precision::Eight => 127.0,
            Precision::Fifteen => 16_319.0,
        }
    }
}

/// Rows of activations as signed bytes. Rows end at a whole group, padded with zeros.
pub(crate) struct QuantRows {
    /// Numbers of a row, a whole number of groups.
    pub(crate) stride: usize,
    pub(crate) precision: Precision,
    /// The bytes, row after row; of a row, the plane of upper bytes and then that of lower ones.
    pub(crate) q: Aligned<i8>,
    /// One scale a group.
    pub(crate) scale: Vec<f32>,
    /// The sum of each half group's numbers, negated.
    pub(crate) less: Vec<i32>,
    /// The sum of each group's numbers, negated.
    pub(crate) less_group: Vec<i32>,
    /// The sum of each group's values: scale times sum of numbers.
    pub(crate) sum: Vec<f32>,
}

impl std::fmt::Debug for QuantRows {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "QuantRows({} numbers a row)", self.stride)
    }
}

impl Default for QuantRows {
    fn default() -> Self {
        let nothing = Aligned::zeroed(0).expect("an empty buffer always exists");
        let (scale, sum) = (Vec::new(), Vec::new());
        let precision = Precision::Eight;
        Self { stride: GROUP, precision, q: nothing, scale, less: Vec::new(), less_group: Vec::new(), sum }
    }
}

impl QuantRows {
    /// Makes room for `rows` rows of `cols` inputs; what was in it is lost.
    pub(crate) fn reset(&mut self, rows: usize, cols: usize, precision: Precision) {
        let groups = cols.div_ceil(GROUP);
        let stride = groups * GROUP;
        let len = rows.checked_mul(stride * precision.planes()).expect("rows of this length cannot exist");
        if self.q.len() < len {
            self.q = Aligned::zeroed(len).expect("rows of this length cannot exist");
        }
        self.stride = stride;
        self.precision = precision;
        self.scale.resize(rows * groups, 0.0);
        self.less.resize(rows * groups * 2, 0);
        self.less_group.resize(rows * groups, 0);
        self.sum.resize(rows * groups, 0.0);
    }

    /// Bytes from one row to the next.
    pub(crate) fn row_bytes(&self) -> usize {
        self.stride * self.precision.planes()
    }

    /// Groups of a row.
    pub(crate) fn groups(&self) -> usize {
        self.stride / GROUP
    }
}
