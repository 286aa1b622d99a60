//! Writing tokens into the arena. The rule: a part of the work is all rows of one head's keys or values, so that
//! no two threads ever write the same element, even where rows repeat.
#![allow(unsafe_code)]

use super::{BLOCK, KvArena, KvRow, MAX_HEAD_DIM, Store, key_at, key_len, value_at, value_len};
use crate::dispatch::Isa;
use crate::pool::Pool;
use crate::portable::elementwise;
use crate::rope::Rope;

/// Elements below which waking another thread costs more than it saves.
const LEAST_SHARED: usize = 16_384;

/// A store that parts write disjoint elements of.
#[derive(Clone, Copy)]
struct Target<T> {
    start: *mut T,
    len: usize,
}

// SAFETY: only a pointer and a length; whoever writes keeps to one head, which no other part has.
unsafe impl<T> Send for Target<T> {}
// SAFETY: as for `Send`.
unsafe impl<T> Sync for Target<T> {}

impl<T> Target<T> {
    fn new(slice: &mut [T]) -> Target<T> {
        Target { start: slice.as_mut_ptr(), len: slice.len() }
    }

    /// # Safety
    /// No other part writes this element, and nobody reads it meanwhile.
    #[inline(always)]
    unsafe fn set(self, at: usize, value: T) {
        debug_assert!(at < self.len);
        // SAFETY: `rows_fit` has bounded every block and slot; aliasing is the caller's duty.
        unsafe { *self.start.add(at) = value };
    }

    /// As [`Target::set`], two elements side by side.
    ///
    /// # Safety
    /// As for [`Target::set`].
    #[inline(always)]
    unsafe fn set_pair(self, at: usize, values: [T; 2]) {
        debug_assert!(at + 1 < self.len);
        // SAFETY: as for `set`; an array is aligned as its elements are.
        unsafe { *self.start.add(at).cast::<[T; 2]>() = values };
    }
}

/// All rows of one head's keys or values.
struct Part<'a> {
    rows: &'a [KvRow],
    x: &'a [f32],
    /// Elements of one row of `x`.
    width: usize,
    head: usize,
    dim: usize,
    /// The first head-block of the layer, and heads a block.
    first: usize,
    heads: usize,
    values: bool,
    /// How each row's head is turned before it is written, if at all.
    turn: Option<Turn<'a>>,
}

/// Rotations, and the position of each row.
#[derive(Clone, Copy)]
pub(crate) struct Turn<'a> {
    pub(crate) rope: &'a Rope,
    pub(crate) positions: &'a [u32],
}

/// A form in which elements are stored.
trait Element: Copy + Default {
    /// Brings one token's elements of one head into this form; returns what they are to be multiplied by.
    fn render(x: &[f32], bits: &mut [Self]) -> f32;
}

/// bfloat16, rounded to nearest even; a NaN stays one.
impl Element for u16 {
    #[inline(always)]
    fn render(x: &[f32], bits: &mut [u16]) -> f32 {
        for (to, &x) in bits.iter_mut().zip(x) {
            let bits = x.to_bits();
            let rounded = bits.wrapping_add(0x7fff + ((bits >> 16) & 1)) >> 16;
            *to = (if x.is_nan() { (bits >> 16) | 0x40 } else { rounded }) as u16;
        }
        1.0
    }
}

/// Eight-bit integers, of which the largest is 127.
impl Element for u8 {
    #[inline(always)]
    fn render(x: &[f32], bits: &mut [u8]) -> f32 {
        let mut most = [0.0_f32; 16];
        let (chunks, rest) = x.as_chunks::<16>();
        for chunk in chunks {
            for (most, x) in most.iter_mut().zip(chunk) {
                *most = if x.abs() > *most { x.abs() } else { *most };
            }
        }
        let most =
            most.iter().chain(rest).fold(0.0_f32, |most, x| if x.abs() > most { x.abs() } else { most });
        let scale = most / 127.0;
        let inverse = if scale > 0.0 { 1.0 / scale } else { 0.0 };
        let mut broken = false;
        for (bits, &x) in bits.iter_mut().zip(x) {
            // Adding 1.5 · 2^23 rounds to a whole number, which is then in the low bits.
            *bits = (x * inverse + 12_582_912.0).to_bits() as u8;
            broken |= !x.is_finite();
        }
        // What is no number must not become one.
        if broken { f32::NAN } else { scale }
    }
}

impl Part<'_> {
    /// Writes all rows; `scales` is where each token's belongs, if it has one.
    #[inline(always)]
    fn write<T: Element>(&self, target: Target<T>, scales: Option<Target<f32>>) {
        let mut buffers = [[T::default(); MAX_HEAD_DIM]; 2];
        let mut turned = [0.0_f32; MAX_HEAD_DIM];
        let mut index = 0;
        while index < self.rows.len() {
            let [one, two] = &mut buffers;
            let (place, slot) = self.render(index, one, &mut turned, scales);
            let next = KvRow { slot: slot as u32 + 1, ..self.rows[index] };
            index += 1;
            if !self.values {
                self.write_key(target, place, slot, &one[..self.dim]);
            } else if slot.is_multiple_of(2) && self.rows.get(index) == Some(&next) {
                self.render(index, two, &mut turned, scales);
                index += 1;
                let start = place * value_len(self.dim) + value_at(slot, 0, self.dim);
                for (dim, (&one, &two)) in one[..self.dim].iter().zip(&two[..self.dim]).enumerate() {
                    // SAFETY: this part alone has this head's values, of which these are two tokens'.
                    unsafe { target.set_pair(start + dim * 2, [one, two]) };
                }
            } else {
                let start = place * value_len(self.dim) + value_at(slot, 0, self.dim);
                for (dim, &bits) in one[..self.dim].iter().enumerate() {
                    // SAFETY: this part alone has this head's values.
                    unsafe { target.set(start + dim * 2, bits) };
                }
            }
        }
    }

    /// Brings one row into its form. Returns which head-block and slot it belongs to.
    #[inline(always)]
    fn render<T: Element>(
        &self,
        index: usize,
        buffer: &mut [T; MAX_HEAD_DIM],
        turned: &mut [f32; MAX_HEAD_DIM],
        scales: Option<Target<f32>>,
    ) -> (usize, usize) {
        let row = &self.rows[index];
        let x = &self.x[index * self.width + self.head * self.dim..][..self.dim];
        let x = match self.turn {
            None => x,
            Some(turn) => {
                let turned = &mut turned[..self.dim];
                turned.copy_from_slice(x);
                elementwise::rope(turned, 1, turn.rope, &turn.positions[index..=index]);
                turned
            }
        };
        let scale = T::render(x, &mut buffer[..self.dim]);
        let place = self.first + row.block as usize * self.heads + self.head;
        if let Some(scales) = scales {
            // SAFETY: this part alone has this head's scales.
            unsafe { scales.set(place * BLOCK + row.slot as usize, scale) };
        }
        (place, row.slot as usize)
    }

    #[inline(always)]
    fn write_key<T: Element>(&self, target: Target<T>, place: usize, slot: usize, key: &[T]) {
        let start = place * key_len(self.dim) + key_at(slot, 0);
        let (pairs, rest) = key.as_chunks::<2>();
        for (pair, &bits) in pairs.iter().enumerate() {
            // SAFETY: this part alone has this head's keys.
            unsafe { target.set_pair(start + pair * 2 * BLOCK, bits) };
        }
        if let [last] = *rest {
            // SAFETY: as above.
            unsafe { target.set(start + pairs.len() * 2 * BLOCK, last) };
        }
    }

    #[cfg(target_arch = "x86_64")]
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx2,fma")]
    fn write_bf16_avx512(&self, target: Target<u16>) {
        self.write(target, None);
    }

    #[cfg(target_arch = "x86_64")]
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx2,fma")]
    fn write_int8_avx512(&self, target: Target<u8>, scales: Target<f32>) {
        self.write(target, Some(scales));
    }
}

/// What is written: places, keys and values of tokens, and how keys are turned on the way.
pub(crate) struct Rows<'a> {
    pub(crate) rows: &'a [KvRow],
    pub(crate) k: &'a [f32],
    pub(crate) v: &'a [f32],
    pub(crate) turn: Option<Turn<'a>>,
}

/// Other work that is done in the same round.
pub(crate) struct Beside<'a> {
    pub(crate) parts: usize,
    /// Numbers that it touches.
    pub(crate) elements: usize,
    pub(crate) job: &'a (dyn Fn(usize) + Sync),
}

impl Beside<'_> {
    fn nothing() -> Self {
        Beside { parts: 0, elements: 0, job: &|_| {} }
    }
}

/// Does everything on the calling thread.
fn pool_of_one(writes: usize, others: usize, job: &dyn Fn(usize), other: &dyn Fn(usize)) {
    (0..writes).for_each(job);
    (0..others).for_each(other);
}

impl KvArena {
    /// Writes the keys and values of `rows.len()` tokens, `kv_heads * head_dim` each. Of rows for the same place the
    /// last one stays.
    ///
    /// # Panics
    /// When a length does not fit, or a layer, block or slot is out of range.
    pub fn write(&mut self, pool: &Pool, isa: Isa, layer: usize, rows: &[KvRow], k: &[f32], v: &[f32]) {
        self.write_beside(pool, isa, layer, Rows { rows, k, v, turn: None }, Beside::nothing());
    }

    /// As [`KvArena::write`], with keys turned on the way and other work done in the same round.
    pub(crate) fn write_beside(
        &mut self,
        pool: &Pool,
        isa: Isa,
        layer: usize,
        of: Rows<'_>,
        beside: Beside<'_>,
    ) {
        let Rows { rows, k, v, turn } = of;
        let width = self.kv_heads * self.head_dim;
        self.rows_fit(layer, rows, k.len(), v.len());
        let (dim, heads, first) = (self.head_dim, self.kv_heads, layer * self.blocks * self.kv_heads);
        let part = |index: usize| {
            let (head, values) = (index / 2, index % 2 == 1);
            let (x, turn) = if values { (v, None) } else { (k, turn) };
            Part { rows, x, width, head, dim, first, heads, values, turn }
        };
        let writes = heads * 2;
        let share = |job: &(dyn Fn(usize) + Sync)| {
            if rows.len() * width + beside.elements < LEAST_SHARED {
                pool_of_one(writes, beside.parts, job, beside.job);
            } else {
                pool.run(writes + beside.parts, &|index| match index.checked_sub(writes) {
                    None => job(index),
                    Some(other) => (beside.job)(other),
                });
            }
        };
        match &mut self.store {
            Store::Bf16 { keys, values } => {
                let targets = [Target::new(keys), Target::new(values)];
                share(&|index| {
                    let (part, target) = (part(index), targets[index % 2]);
                    #[cfg(target_arch = "x86_64")]
                    if isa.runs_avx512() {
                        // SAFETY: the check above found the features.
                        return unsafe { part.write_bf16_avx512(target) };
                    }
                    let _ = isa;
                    part.write(target, None);
                });
            }
            Store::Int8 { keys, values, key_scales, value_scales } => {
                let targets = [Target::new(keys), Target::new(values)];
                let scales = [Target::new(key_scales), Target::new(value_scales)];
                share(&|index| {
                    let (part, target, scales) = (part(index), targets[index % 2], scales[index % 2]);
                    #[cfg(target_arch = "x86_64")]
                    if isa.runs_avx512() {
                        // SAFETY: the check above found the features.
                        return unsafe { part.write_int8_avx512(target, scales) };
                    }
                    let _ = isa;
                    part.write(target, Some(scales));
                });
            }
        }
    }

    fn rows_fit(&self, layer: usize, rows: &[KvRow], keys: usize, values: usize) {
        let width = self.kv_heads * self.head_dim;
        assert!(layer < self.layers, "layer is {layer}; the arena has {}", self.layers);
        assert!(
            keys == rows.len() * width && values == keys,
            "{} rows of {width} need as many keys and values; {keys} and {values} were given",
            rows.len(),
        );
        for row in rows {
            let (block, slot) = (row.block as usize, row.slot as usize);
            assert!(block < self.blocks, "block is {block}; the arena has {}", self.blocks);
            assert!(slot < BLOCK, "slot is {slot}; a block has {BLOCK}");
        }
    }
}
