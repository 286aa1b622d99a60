//! Activations to eight bits, in plain Rust. The rule: one multiplication and one rounding (to nearest, ties to even)
//! a number, so that every instruction set gives the same.

use crate::layout::quant::GROUP;

/// Adding this rounds a number of magnitude below 2^22 to an integer in the low bits of the sum.
const ROUNDER: f32 = 12_582_912.0;

/// One group as it is stored.
pub(crate) struct Group<'a> {
    pub(crate) q: &'a mut [i8],
    pub(crate) scale: &'a mut f32,
    pub(crate) less: &'a mut [i32],
    pub(crate) less_group: &'a mut i32,
    pub(crate) sum: &'a mut f32,
}

/// Quantises up to [`GROUP`] values; what is missing to a whole group counts as zero.
#[inline(always)]
pub(crate) fn group(x: &[f32], to: Group<'_>) {
    let mut values = [0.0_f32; GROUP];
    values[..x.len()].copy_from_slice(x);
    // The bits of magnitudes order like the magnitudes, with NaN above all, so that it shows in the scale.
    let most = values.iter().fold(0, |most, x| most.max(x.to_bits() & 0x7fff_ffff));
    let most = f32::from_bits(most);
    let inverse = if most > 0.0 { 127.0 / most } else { 0.0 };
    *to.scale = most / 127.0;
    let mut numbers = [0_i32; GROUP];
    for (number, value) in numbers.iter_mut().zip(values) {
        *number = (value * inverse + ROUNDER).to_bits().wrapping_sub(ROUNDER.to_bits()).cast_signed();
    }
    for (q, number) in to.q.iter_mut().zip(numbers) {
        *q = number as i8;
    }
    // Of what is stored, also where a NaN or an infinity made a number that does not fit.
    let sum = |q: &[i8]| q.iter().map(|&q| i32::from(q)).sum::<i32>();
    let (first, second) = (sum(&to.q[..GROUP / 2]), sum(&to.q[GROUP / 2..]));
    to.less.copy_from_slice(&[-first, -second]);
    *to.less_group = -(first + second);
    *to.sum = *to.scale * (first + second) as f32;
}

/// Quantises whole rows of `cols` values into groups given one after the other.
#[inline(always)]
pub(crate) fn rows<'a>(x: &[f32], cols: usize, groups: impl Iterator<Item = Group<'a>>) {
    let values = x.chunks_exact(cols).flat_map(|row| row.chunks(GROUP));
    for (x, to) in values.zip(groups) {
        group(x, to);
    }
}
