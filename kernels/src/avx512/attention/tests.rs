//! What the operation itself cannot show: the exponential, and the form for processors without bfloat16 products.

use super::*;
use crate::{Isa, KvArena, KvFormat, KvRow, Pool};

fn usable() -> bool {
    Isa::Avx512.runs_avx512()
}

/// [`kernel::exp2`] of each number, in the lane that its index names.
fn each(numbers: &[f32]) -> Vec<f32> {
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq")]
    fn vector(numbers: &mut [f32; LANES]) {
        // SAFETY: the array is one vector long.
        unsafe {
            let result = kernel::exp2(_mm512_loadu_ps(numbers.as_ptr()));
            _mm512_storeu_ps(numbers.as_mut_ptr(), result);
        }
    }
    let mut out = Vec::new();
    for chunk in numbers.chunks(LANES) {
        let mut lanes = [0.0_f32; LANES];
        lanes[..chunk.len()].copy_from_slice(chunk);
        // SAFETY: the tests below ask for the features first.
        unsafe { vector(&mut lanes) };
        out.extend_from_slice(&lanes[..chunk.len()]);
    }
    out
}

#[test]
fn exp2_is_close_whatever_the_lane() {
    if !usable() {
        return;
    }
    let numbers: Vec<f32> = (0..500_000).map(|step| step as f32 * (-126.0 / 500_000.0)).collect();
    let results = each(&numbers);
    for (&x, &got) in numbers.iter().zip(&results) {
        let exact = f64::from(x).exp2();
        assert!((f64::from(got) - exact).abs() <= 4e-7 * exact, "{x}: {got}");
        let portable = f64::from(portable::exp2(x));
        assert!((portable - exact).abs() <= 4e-7 * exact, "{x}: {portable}");
    }
    // The same numbers one lane further on.
    assert!(each(&numbers[1..]) == results[1..]);
}

#[test]
fn exp2_keeps_its_promises_at_the_edges() {
    if !usable() {
        return;
    }
    let edges = [0.0, -0.0, f32::NEG_INFINITY, -1e30, -127.0, f32::NAN];
    for results in [each(&edges), edges.map(portable::exp2).to_vec()] {
        assert_eq!(results[..5], [1.0, 1.0, 0.0, 0.0, 0.0]);
        assert!(results[5].is_nan());
    }
}

#[test]
fn a_processor_without_the_products_computes_the_same_but_for_rounding() {
    if !usable() || !Isa::Avx512.runs_bf16() {
        return;
    }
    let (heads, kv_heads, dim, len) = (6, 2, 80, 300);
    let number = |i: usize| ((i * 7919) % 1013) as f32 / 506.0 - 1.0;
    let numbers = |count: usize, from: usize| (from..from + count).map(number).collect::<Vec<f32>>();
    for format in [KvFormat::Bf16, KvFormat::Int8] {
        let mut arena = KvArena::new(1, kv_heads, dim, 20, format).unwrap();
        let rows: Vec<KvRow> = (0..len as u32).map(|p| KvRow { block: p / 16, slot: p % 16 }).collect();
        let (k, v) = (numbers(len * kv_heads * dim, 5), numbers(len * kv_heads * dim, 77));
        arena.write(&Pool::new(1), Isa::Avx512, 0, &rows, &k, &v);
        let q = numbers(len * heads * dim, 300);
        let table: Vec<u32> = (0..20).collect();
        let scene = Scene { arena: &arena, layer: 0, q: &q, heads, scale: 0.3 };
        let tile = AttentionTile { row: 230, rows: 32, position: 230, kv_head: 1, table: &table };
        let count = 32 * heads / kv_heads;
        for segment in 0..2 {
            let run = |form: unsafe fn(&Scene<'_>, &AttentionTile<'_>, usize, &mut Scratch, &mut [f32])| {
                let mut scratch = Scratch::default();
                let mut partial = vec![0.0; count * (padded(dim) + 2)];
                pack(&scene, &tile, &mut scratch);
                // SAFETY: the features were asked for above.
                unsafe { form(&scene, &tile, segment, &mut scratch, &mut partial) };
                partial
            };
            let (fast, slow) = (run(native), run(widened));
            let total = slow[count * (padded(dim) + 1)..].iter().fold(1.0_f32, |most, &x| most.max(x));
            for (fast, slow) in fast.iter().zip(&slow) {
                assert!((fast - slow).abs() <= 1e-3 * total, "{format:?} {segment}: {fast} for {slow}");
            }
        }
    }
}
