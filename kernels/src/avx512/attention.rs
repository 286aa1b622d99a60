//! Attention for AVX-512. The rule: what happens to one query in one segment is the same however many queries share
//! its keys; masked keys are not read into the result at all, so that whatever an earlier owner of the block left
//! there, even a NaN, cannot show.
//!
//! Queries and weights are rounded to bfloat16, as keys and values are, and multiplied in pairs. Where the processor
//! lacks the instruction for that, the same products are made of `f32`.
#![allow(unsafe_code)]
#![allow(
    clippy::needless_range_loop,
    reason = "loops over constant counts become registers; iterators hide that"
)]

mod kernel;

use std::arch::x86_64::*;
use std::cell::RefCell;

use kernel::{ABREAST, BROAD, Dot, LANES, Native, Values, Widened};

use crate::Isa;
use crate::kv::{BLOCK, HeadBlock, key_len, padded, value_len};
use crate::layout::aligned::Aligned;
use crate::ops::{AttentionTile, SEGMENT, SEGMENT_BLOCKS, Scene, Share};
use crate::portable::attention::{self as portable, Progress};

/// Queries whose scores of a segment are kept together.
const BUNDLE: usize = 24;

/// Buffers of one thread, kept from call to call.
#[derive(Default)]
struct Scratch {
    /// The queries, `[run][pair][ABREAST]`.
    q: Grown<u32>,
    /// Scores, then weights, `[query][SEGMENT]`.
    scores: Grown<f32>,
    /// Results of one segment, and of all so far.
    partial: Grown<f32>,
    running: Grown<f32>,
    /// Keys of [`BROAD`] blocks, and values of a segment, as bfloat16.
    keys: Grown<u16>,
    values: Grown<u16>,
    value_scales: Grown<f32>,
}

/// An aligned buffer that grows when it must.
struct Grown<T>(Option<Aligned<T>>);

impl<T> Default for Grown<T> {
    fn default() -> Self {
        Grown(None)
    }
}

macro_rules! grown {
    ($($type:ty),*) => {$(
        impl Grown<$type> {
            /// The first `len` numbers, whatever is in them.
            fn take(&mut self, len: usize) -> &mut [$type] {
                if self.0.as_ref().is_none_or(|buffer| buffer.len() < len) {
                    self.0 = Aligned::zeroed(len);
                }
                let buffer = self.0.as_mut().expect("a tile's numbers are few enough to be addressed");
                &mut buffer[..len]
            }
        }
    )*};
}

grown!(u16, u32, f32);

thread_local! {
    static SCRATCH: RefCell<Scratch> = RefCell::default();
}

/// Computes the outputs of one tile.
pub(crate) fn whole(scene: &Scene<'_>, tile: &AttentionTile<'_>, out: Share<'_>) {
    let (group, width) = (scene.group(), padded(scene.arena.head_dim()));
    let count = tile.rows * group;
    SCRATCH.with_borrow_mut(|scratch| {
        let mut running = std::mem::take(&mut scratch.running);
        let mut partial = std::mem::take(&mut scratch.partial);
        let mut progress = Progress::in_buffer(running.take(count * (width + 2)), count, width);
        let partial_part = partial.take(count * (width + 2));
        progress.clear();
        pack(scene, tile, scratch);
        for segment in 0..tile.segments() {
            run_segment(scene, tile, segment, scratch, partial_part);
            let first = tile.first_query(group, segment);
            // SAFETY: `Isa` has found the features before it chose this function.
            unsafe { absorb(&mut progress, &Progress::read(partial_part, count, width), first, width) };
        }
        // SAFETY: as above.
        unsafe { finish(&progress, scene, tile, out) };
        (scratch.running, scratch.partial) = (running, partial);
    });
}

/// Computes what one segment adds to a tile's outputs.
pub(crate) fn one_segment(scene: &Scene<'_>, tile: &AttentionTile<'_>, segment: usize, partial: &mut [f32]) {
    SCRATCH.with_borrow_mut(|scratch| {
        pack(scene, tile, scratch);
        run_segment(scene, tile, segment, scratch, partial);
    });
}

/// Computes a tile's outputs from all its segments' results.
pub(crate) fn merge(scene: &Scene<'_>, tile: &AttentionTile<'_>, partials: &[f32], out: Share<'_>) {
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx2,fma")]
    fn compiled(scene: &Scene<'_>, tile: &AttentionTile<'_>, partials: &[f32], out: Share<'_>) {
        portable::merge(scene, tile, partials, out);
    }
    // SAFETY: `Isa` has found the features before it chose this function.
    unsafe { compiled(scene, tile, partials, out) }
}

#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx2,fma")]
fn absorb(running: &mut Progress<&mut [f32]>, segment: &Progress<&[f32]>, first: usize, width: usize) {
    running.absorb(segment, first, width);
}

#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx2,fma")]
fn finish(running: &Progress<&mut [f32]>, scene: &Scene<'_>, tile: &AttentionTile<'_>, out: Share<'_>) {
    running.finish(scene, tile, out);
}

/// Queries `0..count` in runs of at most [`ABREAST`], as equal as can be: the first query and the length of each.
fn runs(count: usize) -> impl Iterator<Item = (usize, usize)> {
    let runs = count.div_ceil(ABREAST);
    (0..runs).map(move |run| (run * count / runs, (run + 1) * count / runs - run * count / runs))
}

/// Rounds a tile's queries to bfloat16, in the order in which they are used.
fn pack(scene: &Scene<'_>, tile: &AttentionTile<'_>, scratch: &mut Scratch) {
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx2,fma")]
    fn compiled(scene: &Scene<'_>, tile: &AttentionTile<'_>, scratch: &mut Scratch) {
        pack_runs(scene, tile, scratch);
    }
    // SAFETY: `Isa` has found the features before it chose this module.
    unsafe { compiled(scene, tile, scratch) }
}

#[inline(always)]
fn pack_runs(scene: &Scene<'_>, tile: &AttentionTile<'_>, scratch: &mut Scratch) {
    let (dim, count) = (scene.arena.head_dim(), tile.rows * scene.group());
    let pairs = dim.div_ceil(2);
    let packed = scratch.q.take(count.div_ceil(ABREAST) * pairs * ABREAST);
    for ((first, len), packed) in runs(count).zip(packed.chunks_exact_mut(pairs * ABREAST)) {
        for n in 0..len {
            let q = &scene.q[scene.at(tile, first + n)..][..dim];
            for (q, packed) in q.chunks(2 * LANES).zip(packed.chunks_mut(LANES * ABREAST)) {
                let mut row = [0.0; 2 * LANES];
                row[..q.len()].copy_from_slice(q);
                let mut bits = [0_u32; LANES];
                // SAFETY: two vectors of numbers become one; the features are the caller's. Rounding without the
                // instruction gives the same bits, but for subnormal numbers, and is no bottleneck here.
                unsafe {
                    let low = _mm512_loadu_ps(row.as_ptr());
                    let high = _mm512_loadu_ps(row.as_ptr().add(LANES));
                    _mm512_storeu_si512(bits.as_mut_ptr().cast(), Widened::round(low, high));
                }
                for (place, &pair) in packed.chunks_mut(ABREAST).zip(&bits) {
                    place[n] = pair;
                }
            }
        }
    }
}

/// One segment's keys and values of one head.
struct Blocks<'a> {
    keys: [&'a [u16]; SEGMENT_BLOCKS],
    bytes: [&'a [u8]; SEGMENT_BLOCKS],
    key_scales: [&'a [f32]; SEGMENT_BLOCKS],
    values: [*const u16; SEGMENT_BLOCKS],
    value_scales: Option<&'a [f32]>,
    /// In the order of use, all blocks' keys, their values, and the next segment's first keys.
    order: [*const u8; 2 * SEGMENT_BLOCKS + BROAD],
    count: usize,
}

fn run_segment(
    scene: &Scene<'_>,
    tile: &AttentionTile<'_>,
    segment: usize,
    scratch: &mut Scratch,
    partial: &mut [f32],
) {
    if Isa::Avx512.runs_bf16() {
        // SAFETY: `Isa` has found most features before it chose this module, and this the last.
        unsafe { native(scene, tile, segment, scratch, partial) }
    } else {
        // SAFETY: `Isa` has found the features before it chose this module.
        unsafe { widened(scene, tile, segment, scratch, partial) }
    }
}

#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512bf16,avx2,fma")]
fn native(
    scene: &Scene<'_>,
    tile: &AttentionTile<'_>,
    segment: usize,
    scratch: &mut Scratch,
    partial: &mut [f32],
) {
    attend::<Native>(scene, tile, segment, scratch, partial);
}

#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx2,fma")]
fn widened(
    scene: &Scene<'_>,
    tile: &AttentionTile<'_>,
    segment: usize,
    scratch: &mut Scratch,
    partial: &mut [f32],
) {
    attend::<Widened>(scene, tile, segment, scratch, partial);
}

/// Gathers the blocks of a segment; eight-bit values are unpacked.
#[inline(always)]
fn gather<'a>(
    scene: &Scene<'a>,
    tile: &AttentionTile<'_>,
    segment: usize,
    unpacked: &'a mut [u16],
    scales: &'a mut [f32],
) -> Blocks<'a> {
    let table = tile.blocks(segment);
    let len = value_len(scene.arena.head_dim());
    let mut blocks = Blocks {
        keys: [&[]; SEGMENT_BLOCKS],
        bytes: [&[]; SEGMENT_BLOCKS],
        key_scales: [&[]; SEGMENT_BLOCKS],
        values: [std::ptr::null(); SEGMENT_BLOCKS],
        value_scales: None,
        order: [std::ptr::null(); 2 * SEGMENT_BLOCKS + BROAD],
        count: table.len(),
    };
    for (index, &id) in table.iter().enumerate() {
        match scene.arena.head_block(scene.layer, id, tile.kv_head) {
            HeadBlock::Bf16 { keys, values } => {
                blocks.keys[index] = keys;
                blocks.values[index] = values.as_ptr();
                blocks.order[index] = keys.as_ptr().cast();
                blocks.order[table.len() + index] = values.as_ptr().cast();
            }
            HeadBlock::Int8 { keys, values, key_scales, value_scales } => {
                let unpacked = &mut unpacked[index * len..][..len];
                // SAFETY: both hold one block's values; the features are as for the caller.
                unsafe { kernel::unpack(values.as_ptr(), unpacked.as_mut_ptr(), len) };
                scales[index * BLOCK..][..BLOCK].copy_from_slice(value_scales);
                blocks.values[index] = unpacked.as_ptr();
                blocks.bytes[index] = keys;
                blocks.key_scales[index] = key_scales;
            }
        }
    }
    for (index, &id) in tile.blocks(segment + 1).iter().take(BROAD).enumerate() {
        let next = scene.arena.head_block(scene.layer, id, tile.kv_head);
        if let HeadBlock::Bf16 { keys, .. } = next {
            blocks.order[2 * table.len() + index] = keys.as_ptr().cast();
        }
    }
    if scene.arena.format() == crate::KvFormat::Int8 {
        blocks.value_scales = Some(scales);
    }
    blocks
}

/// Results of one segment for all queries of a tile.
#[inline(always)]
fn attend<D: Dot>(
    scene: &Scene<'_>,
    tile: &AttentionTile<'_>,
    segment: usize,
    scratch: &mut Scratch,
    partial: &mut [f32],
) {
    let (dim, group) = (scene.arena.head_dim(), scene.group());
    let (count, width, pairs) = (tile.rows * group, padded(dim), dim.div_ceil(2));
    let eight_bit = scene.arena.format() == crate::KvFormat::Int8;
    let unpacked = scratch.values.take(if eight_bit { SEGMENT_BLOCKS * value_len(dim) } else { 0 });
    let scales = scratch.value_scales.take(if eight_bit { SEGMENT } else { 0 });
    let blocks = gather(scene, tile, segment, unpacked, scales);
    let unpacked_keys = scratch.keys.take(if eight_bit { BROAD * key_len(dim) } else { 0 });
    let packed = scratch.q.take(count.div_ceil(ABREAST) * pairs * ABREAST);
    let scores = scratch.scores.take(BUNDLE * SEGMENT);
    let progress = Progress::in_buffer(partial, count, width);
    let seen = |query: usize| tile.seen(query, group, segment);
    let mut all = runs(count).zip(packed.chunks_exact(pairs * ABREAST)).peekable();
    while all.peek().is_some() {
        let mut bundle = [((0, 0), &[][..]); BUNDLE / ABREAST];
        let mut len = 0;
        while let Some(run) = if len < bundle.len() { all.next() } else { None } {
            if seen(run.0.0 + run.0.1 - 1) > 0 {
                (bundle[len], len) = ((run.0, run.1), len + 1);
            }
        }
        let bundle = &bundle[..len];
        score_bundle::<D>(scene, bundle, &seen, &blocks, unpacked_keys, scores);
        for (index, &((first, len), _)) in bundle.iter().enumerate() {
            let mut seen_by = [0; ABREAST];
            let scores = &mut scores[index * ABREAST * SEGMENT..];
            for n in 0..len {
                seen_by[n] = seen(first + n);
                if seen_by[n] > 0 {
                    let row = scores[n * SEGMENT..][..SEGMENT].as_mut_ptr();
                    // SAFETY: the row is a segment long; a segment's scales are too.
                    let result = unsafe { kernel::weigh::<D>(row, seen_by[n], blocks.value_scales) };
                    (progress.most[first + n], progress.totals[first + n]) = result;
                }
            }
            let sums = &mut progress.sums[first * width..][..len * width];
            mix_run::<D>(&blocks, scores, len, &seen_by, sums, index == 0);
        }
    }
}

/// Calls `$function::<D, n, broad, fetch>` for the counts at hand.
macro_rules! for_counts {
    ($function:ident, $n:expr, $broad:expr, $fetch:expr, $arguments:tt) => {
        if $fetch {
            for_counts!(@n $function, $n, $broad, true, $arguments, 1 2 3 4 5 6)
        } else {
            for_counts!(@n $function, $n, $broad, false, $arguments, 1 2 3 4 5 6)
        }
    };
    (@n $function:ident, $n:expr, $broad:expr, $fetch:literal, $arguments:tt, $($count:literal)*) => {
        match $n {
            $($count => for_counts!(@broad $function, $count, $broad, $fetch, $arguments),)*
            _ => unreachable!("a run has one to six queries"),
        }
    };
    (@broad $function:ident, $count:literal, $broad:expr, $fetch:literal, ($($argument:expr),*)) => {
        match $broad {
            1 => kernel::$function::<D, $count, 1, $fetch>($($argument),*),
            2 => kernel::$function::<D, $count, 2, $fetch>($($argument),*),
            3 => kernel::$function::<D, $count, 3, $fetch>($($argument),*),
            _ => kernel::$function::<D, $count, 4, $fetch>($($argument),*),
        }
    };
}

/// A run's first query and length, and its packed queries.
type Run<'a> = ((usize, usize), &'a [u32]);

/// The scores of a bundle of queries, each with all blocks of which it sees something.
#[inline(always)]
fn score_bundle<D: Dot>(
    scene: &Scene<'_>,
    bundle: &[Run<'_>],
    seen: &dyn Fn(usize) -> usize,
    blocks: &Blocks<'_>,
    unpacked: &mut [u16],
    scores: &mut [f32],
) {
    let (dim, scale) = (scene.arena.head_dim(), scene.scale * std::f32::consts::LOG2_E);
    let len = key_len(dim);
    assert!(bundle.len() * ABREAST * SEGMENT <= scores.len());
    for first_block in (0..blocks.count).step_by(BROAD) {
        let broad = BROAD.min(blocks.count - first_block);
        let mut keys = [std::ptr::null(); BROAD];
        // SAFETY: a plain broadcast; the features are the caller's.
        let mut factors = [unsafe { _mm512_set1_ps(scale) }; BROAD];
        let mut ahead = [std::ptr::null(); BROAD];
        for b in 0..broad {
            let block = first_block + b;
            keys[b] = blocks.keys[block].as_ptr();
            ahead[b] = blocks.order[block + BROAD];
            if blocks.value_scales.is_some() {
                let unpacked = &mut unpacked[b * len..][..len];
                // SAFETY: both hold one block's keys, and a block has a vector of scales.
                unsafe {
                    kernel::unpack(blocks.bytes[block].as_ptr(), unpacked.as_mut_ptr(), len);
                    let scales = _mm512_loadu_ps(blocks.key_scales[block].as_ptr());
                    factors[b] = _mm512_mul_ps(factors[b], scales);
                }
                keys[b] = unpacked.as_ptr();
            }
        }
        for (index, &((first, len), q)) in bundle.iter().enumerate() {
            let needed = seen(first + len - 1).div_ceil(BLOCK).saturating_sub(first_block).min(broad);
            if needed > 0 {
                let out = scores[index * ABREAST * SEGMENT + first_block * BLOCK..].as_mut_ptr();
                // SAFETY: `q` holds all pairs of a run, each block's keys are whole, and the scores of a run's
                // queries are in bounds by the assertion above.
                unsafe {
                    for_counts!(
                        scores,
                        len,
                        needed,
                        index == 0,
                        (q.as_ptr(), &keys, &ahead, dim.div_ceil(2), &factors, out)
                    );
                }
            }
        }
    }
}

/// The sums of values of one run of queries.
#[inline(always)]
fn mix_run<D: Dot>(
    blocks: &Blocks<'_>,
    weights: &[f32],
    len: usize,
    seen: &[usize; ABREAST],
    sums: &mut [f32],
    fetch: bool,
) {
    let width = sums.len() / len;
    let mut ahead = [std::ptr::null(); SEGMENT_BLOCKS];
    ahead[..blocks.count].copy_from_slice(&blocks.order[blocks.count + BROAD..][..blocks.count]);
    let values = Values { blocks: &blocks.values, ahead: &ahead, width };
    assert!(weights.len() >= len * SEGMENT && sums.len() >= len * width && len <= ABREAST);
    let weights: *const u32 = weights.as_ptr().cast();
    for first in (0..width).step_by(BROAD * LANES) {
        let broad = ((width - first) / LANES).min(BROAD);
        // SAFETY: weights and sums are there by the assertion above; nobody sees more than the segment's blocks.
        unsafe {
            for_counts!(mix, len, broad, fetch, (weights, &values, first, seen, sums.as_mut_ptr()));
        }
    }
}

#[cfg(test)]
mod tests;
