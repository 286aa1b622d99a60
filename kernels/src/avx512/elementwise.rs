//! The row operations compiled for AVX-512. The rule: nothing but the portable source with wider registers, so that
//! both sets give the same bits.

use crate::portable::elementwise as source;
use crate::rope::Rope;

macro_rules! compiled {
    ($($name:ident($($argument:ident: $type:ty),*) $(-> $result:ty)?;)*) => {$(
        #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx2,fma")]
        pub(crate) fn $name($($argument: $type),*) $(-> $result)? {
            source::$name($($argument),*)
        }
    )*};
}

compiled! {
    rms_norm(x: &[f32], weight: &[f32], eps: f32, out: &mut [f32]);
    add_assign(x: &mut [f32], y: &[f32]);
    silu_mul(gate: &[f32], up: &[f32], out: &mut [f32]);
    rope(x: &mut [f32], heads: usize, rope: &Rope, positions: &[u32]);
    max(x: &[f32]) -> f32;
    sum_exp(x: &[f32], most: f32) -> f64;
}
