//! From rows of numbers to packed units. The rule: sizes are multiplied with checks, because they come from files.

use super::{
    FillRow, Form, GROUP, LANES, NEST, NEST_WORDS, QuantRow, Quants, Scales, Scaling, Width, unit_at,
};
use crate::layout::aligned::{Aligned, Zeroed};
use crate::layout::matrix::STRIP;

impl Quants {
    /// Packs `rows` rows of `cols` numbers; `fill` is asked for them in order, once each. A row's last group and
    /// nest may be cut short by its end; what is missing weighs nothing.
    ///
    /// # Panics
    /// When a number does not fit the width, `zero` is no power of two, a dimension is zero, or the size cannot exist.
    pub(crate) fn pack(rows: usize, cols: usize, form: Form, fill: &mut FillRow<'_>) -> Quants {
        assert!(rows > 0 && cols > 0, "a matrix of {rows} x {cols} has no weights; both must be above zero");
        let mut packed = Quants::zeroed(rows, cols, form);
        let [d_len, m_len, s_len, t_len] = form.entries(cols);
        // Room for whole groups, so that a short last one is padded with numbers of no weight.
        let mut q = vec![0_u8; cols.next_multiple_of(GROUP)];
        let (mut d, mut m) = (vec![0_u16; d_len], vec![0_u16; m_len]);
        let (mut s, mut t) = (vec![0_u8; s_len], vec![0_u8; t_len]);
        for row in 0..rows {
            fill(row, QuantRow { q: &mut q[..cols], d: &mut d, m: &mut m, s: &mut s, t: &mut t });
            let largest = q.iter().copied().max().unwrap_or(0);
            assert!(
                u32::from(largest) < form.width.limit(),
                "row {row} has the number {largest}; {:?} bits hold numbers below {}",
                form.width,
                form.width.limit()
            );
            packed.put_digits(row, &q);
            packed.scales.put(
                row,
                cols,
                &QuantRow { q: &mut [], d: &mut d, m: &mut m, s: &mut s, t: &mut t },
            );
        }
        packed
    }

    fn zeroed(rows: usize, cols: usize, form: Form) -> Quants {
        let (groups, nests) = (cols.div_ceil(GROUP), cols.div_ceil(GROUP * NEST));
        let power = |zero: u8| {
            assert!(zero.is_power_of_two(), "zero is {zero}; it must be a power of two");
            zero
        };
        let scales = match form.scaling {
            Scaling::Centred { zero } => {
                Scales::Centred { d: room(rows, groups, LANES).into(), zero: power(zero) }
            }
            Scaling::Affine => Scales::Affine { dm: room(rows, groups, 2 * LANES).into() },
            Scaling::NestedAffine => Scales::NestedAffine {
                dm: room(rows, nests, 2 * LANES).into(),
                st: room(rows, nests, NEST_WORDS * LANES).into(),
            },
            Scaling::NestedCentred { zero } => Scales::NestedCentred {
                d: room(rows, nests, LANES).into(),
                s: room(rows, nests, 2 * NEST * LANES).into(),
                zero: power(zero),
            },
        };
        Quants { width: form.width, digits: room(rows, groups, form.width.unit_bytes()).into(), scales }
    }

    fn put_digits(&mut self, row: usize, q: &[u8]) {
        let (strip, half, lane) = place(row);
        let groups = q.len() / GROUP;
        let bytes = self.width.unit_bytes();
        let digits = self.digits.own_mut();
        for (group, q) in q.chunks_exact(GROUP).enumerate() {
            let unit = &mut digits[unit_at(groups, strip, group, half) * bytes..][..bytes];
            for (quad, q) in q.chunks_exact(QUAD).enumerate() {
                let (vector, high) = (quad % 4 * 64 + lane * QUAD, quad / 4);
                match self.width {
                    Width::Four => put(unit, vector, q, |q| q << (4 * high)),
                    Width::Six => {
                        put(unit, vector, q, |q| (q & 15) << (4 * high));
                        put(unit, 256 + high * 64 + lane * QUAD, q, |q| (q >> 4) << (2 * (quad % 4)));
                    }
                    Width::Eight => put(unit, quad * 64 + lane * QUAD, q, |q| q),
                }
            }
        }
    }
}

/// Numbers of one output in a vector.
const QUAD: usize = 4;

/// Puts a quad's bits beside those that are there.
fn put(unit: &mut [u8], at: usize, quad: &[u8], bits: impl Fn(u8) -> u8) {
    for (byte, &number) in unit[at..at + QUAD].iter_mut().zip(quad) {
        *byte |= bits(number);
    }
}

impl Scales {
    fn put(&mut self, row: usize, cols: usize, from: &QuantRow<'_>) {
        let (strip, half, lane) = place(row);
        let (groups, nests) = (cols.div_ceil(GROUP), cols.div_ceil(GROUP * NEST));
        match self {
            Scales::Centred { d, .. } => {
                let d = d.own_mut();
                for (group, &bits) in from.d.iter().enumerate() {
                    d[unit_at(groups, strip, group, half) * LANES + lane] = bits;
                }
            }
            Scales::Affine { dm } => put_pairs(dm.own_mut(), from, groups, (strip, half, lane)),
            Scales::NestedAffine { dm, st } => {
                put_pairs(dm.own_mut(), from, nests, (strip, half, lane));
                let st = st.own_mut();
                for (nest, (s, t)) in from.s.chunks(NEST).zip(from.t.chunks(NEST)).enumerate() {
                    let words = nest_words(s, t);
                    let at = unit_at(nests, strip, nest, half) * NEST_WORDS * LANES + lane;
                    for (index, word) in words.into_iter().enumerate() {
                        st[at + index * LANES] = word;
                    }
                }
            }
            Scales::NestedCentred { d, s, .. } => {
                let (d, s) = (d.own_mut(), s.own_mut());
                for (nest, &bits) in from.d.iter().enumerate() {
                    d[unit_at(nests, strip, nest, half) * LANES + lane] = bits;
                }
                for (nest, subs) in from.s.chunks(2 * NEST).enumerate() {
                    let at = unit_at(nests, strip, nest, half) * 2 * NEST * LANES + lane;
                    for (index, &sub) in subs.iter().enumerate() {
                        s[at + index * LANES] = sub;
                    }
                }
            }
        }
    }
}

fn put_pairs(dm: &mut [u16], from: &QuantRow<'_>, groups: usize, (strip, half, lane): (usize, usize, usize)) {
    for (group, (&d, &m)) in from.d.iter().zip(from.m.iter()).enumerate() {
        let at = unit_at(groups, strip, group, half) * 2 * LANES + lane;
        dm[at] = d;
        dm[at + LANES] = m;
    }
}

/// The words of one lane; see [`super::Scales::NestedAffine`].
fn nest_words(s: &[u8], t: &[u8]) -> [u32; NEST_WORDS] {
    let mut numbers = [0_u32; 2 * NEST];
    for (number, &from) in numbers.iter_mut().zip(s) {
        *number = u32::from(from);
    }
    for (number, &from) in numbers[NEST..].iter_mut().zip(t) {
        *number = u32::from(from);
    }
    assert!(numbers.iter().all(|&number| number < 64), "a nested scale is above 63: {numbers:?}");
    let mut words = [0_u32; NEST_WORDS];
    for (index, word) in words.iter_mut().enumerate() {
        for (place, number) in numbers[index * 5..][..5].iter().enumerate() {
            *word |= number << (6 * place);
        }
        *word |= ((numbers[15] >> (2 * index)) & 3) << 30;
    }
    words
}

/// The strip, half and lane of an output.
fn place(row: usize) -> (usize, usize, usize) {
    (row / STRIP, row % STRIP / LANES, row % LANES)
}

/// A zeroed store of `each` elements for every (strip, group, half).
fn room<T: Copy + Default>(rows: usize, groups: usize, each: usize) -> Aligned<T>
where
    Vec<T>: Zeroed<T>,
{
    let units = rows.div_ceil(STRIP).checked_mul(STRIP / LANES).and_then(|halves| halves.checked_mul(groups));
    units
        .and_then(|units| units.checked_mul(each))
        .and_then(Aligned::zeroed)
        .unwrap_or_else(|| panic!("a matrix of {rows} rows by {groups} groups exceeds the address space"))
}
