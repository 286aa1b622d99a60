//! Activations to whole numbers, in plain Rust. The rule: one multiplication and one rounding (to nearest, ties to
//! even) a number, so that every instruction set gives the same.

use crate::layout::quant::GROUP;
use crate::layout::rows::Precision;

/// Adding this rounds a number of magnitude below 2^22 to an integer in the low bits of the sum.
pub(crate) const ROUNDER: f32 = 12_582_912.0;

/// One group as it is stored.
pub(crate) struct Group<'a> {
    /// Upper bytes, or the only ones.
    pub(crate) upper: &'a mut [i8],
    /// Lower bytes; empty for one plane.
    pub(crate) lower: &'a mut [i8],
    pub(crate) scale: &'a mut f32,
    pub(crate) less: &'a mut [i32],
    pub(crate) less_group: &'a mut i32,
    pub(crate) sum: &'a mut f32,
}

/// Quantises up to [`GROUP`] values; what is missing to a whole group counts as zero.
#[inline(always)]
pub(crate) fn group(x: &[f32], precision: Precision, to: Group<'_>) {
    let mut values = [0.0_f32; GROUP];
    values[..x.len()].copy_from_slice(x);
    // The bits of magnitudes order like the magnitudes, with NaN above all, so that it shows in the scale.
    let most = values.iter().fold(0, |most, x| most.max(x.to_bits() & 0x7fff_ffff));
    let most = f32::from_bits(most);
    let inverse = if most > 0.0 { precision.most() / most } else { 0.0 };
    *to.scale = most / precision.most();
    let mut numbers = [0_i32; GROUP];
    for (number, value) in numbers.iter_mut().zip(values) {
        let rounded = (value * inverse + ROUNDER).to_bits().wrapping_sub(ROUNDER.to_bits()).cast_signed();
        // A NaN or an infinity makes a number that does not fit; the scale tells of it, so any number will do.
        *number = if precision == Precision::Eight {
            i32::from(rounded as i8)
        } else {
            rounded.clamp(-16_319, 16_319)
        };
    }
    if precision == Precision::Eight {
        for (q, number) in to.upper.iter_mut().zip(numbers) {
            *q = number as i8;
        }
    } else {
        for ((upper, lower), number) in to.upper.iter_mut().zip(to.lower).zip(numbers) {
            let high = (number + 64) >> 7;
            (*upper, *lower) = (high as i8, (number - (high << 7)) as i8);
        }
    }
    let (first, second) = numbers.split_at(GROUP / 2);
    let (first, second) = (first.iter().sum::<i32>(), second.iter().sum::<i32>());
    to.less.copy_from_slice(&[-first, -second]);
    *to.less_group = -(first + second);
    *to.sum = *to.scale * (first + second) as f32;
}
