//! Activations in eight bits, for products with quantised weights. The rule: a row's numbers follow from that row
//! alone, and a row that holds a NaN or an infinity keeps it as the scale of its group.
//!
//! Each group of [`GROUP`] inputs has one scale, the largest magnitude over 127. The sums of the numbers let a
//! product put a format's zero point or minimum on once a group instead of once a weight.

use super::aligned::Aligned;
use super::quant::GROUP;

/// Rows of activations as signed bytes. Rows end at a whole group, padded with zeros.
pub(crate) struct QuantRows {
    /// Numbers of a row, a whole number of groups.
    pub(crate) stride: usize,
    /// The numbers, row after row.
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
        Self { stride: GROUP, q: nothing, scale, less: Vec::new(), less_group: Vec::new(), sum }
    }
}

impl QuantRows {
    /// Makes room for `rows` rows of `cols` inputs; what was in it is lost.
    pub(crate) fn reset(&mut self, rows: usize, cols: usize) {
        let groups = cols.div_ceil(GROUP);
        let stride = groups * GROUP;
        let len = rows.checked_mul(stride).expect("rows of this length cannot exist");
        if self.q.len() < len {
            self.q = Aligned::zeroed(len).expect("rows of this length cannot exist");
        }
        self.stride = stride;
        self.scale.resize(rows * groups, 0.0);
        self.less.resize(rows * groups * 2, 0);
        self.less_group.resize(rows * groups, 0);
        self.sum.resize(rows * groups, 0.0);
    }

    /// Groups of a row.
    pub(crate) fn groups(&self) -> usize {
        self.stride / GROUP
    }
}
