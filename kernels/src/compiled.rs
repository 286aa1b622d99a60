//! The portable source compiled for wider instruction sets. The rule: nothing but the same source with wider
//! registers, so that every set gives the same bits; the calls are sound only where [`crate::Isa`] has found the set.

#[cfg(target_arch = "x86_64")]
macro_rules! compiled {
    ($module:ident, $features:literal) => {
        pub(crate) mod $module {
            use crate::layout::quant::Quants;
            use crate::layout::rows::QuantRows;
            use crate::ops::{self, Product, ProductTile, Run, Share};
            use crate::portable::{self, elementwise};
            use crate::rope::Rope;

            compiled! { @functions $features
                elementwise::rms_norm(x: &[f32], weight: &[f32], eps: f32, out: &mut [f32]);
                elementwise::silu_mul(gate: &[f32], up: &mut [f32]);
                elementwise::rope(x: &mut [f32], heads: usize, rope: &Rope, positions: &[u32]);
                elementwise::max(x: &[f32]) -> f32;
                elementwise::sum_exp(x: &[f32], most: f32) -> f64;
                ops::quantise_rows(x: &[f32], cols: usize, run: Run<'_>);
                portable::matmul_tile(product: &Product<'_>, tile: &ProductTile, out: Share<'_>);
                portable::quantised_tile(product: &Product<'_>, w: &Quants, x: &QuantRows, tile: &ProductTile, out: Share<'_>);
            }
        }
    };
    (@functions $features:literal
     $($from:ident::$name:ident($($argument:ident: $type:ty),*) $(-> $result:ty)?;)*) => {$(
        #[target_feature(enable = $features)]
        pub(crate) fn $name($($argument: $type),*) $(-> $result)? {
            $from::$name($($argument),*)
        }
    )*};
}

#[cfg(target_arch = "x86_64")]
compiled!(avx512, "avx512f,avx512bw,avx512vl,avx512dq,avx2,fma");
#[cfg(target_arch = "x86_64")]
compiled!(avx2, "avx2,fma");

/// Calls the form of a portable function that a set has: `dispatch!(isa, module::name(arguments))`.
macro_rules! dispatch {
    ($isa:expr, $module:ident::$name:ident($($argument:expr),*)) => {{
        #[cfg(target_arch = "x86_64")]
        if $isa.runs_avx512() {
            // SAFETY: the check above found every feature that the function is compiled for.
            unsafe { crate::compiled::avx512::$name($($argument),*) }
        } else if $isa.runs_avx2() {
            // SAFETY: as above.
            unsafe { crate::compiled::avx2::$name($($argument),*) }
        } else {
            $module::$name($($argument),*)
        }
        #[cfg(not(target_arch = "x86_64"))]
        {
            let _ = $isa;
            $module::$name($($argument),*)
        }
    }};
}
pub(crate) use dispatch;
