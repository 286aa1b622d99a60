//! Where the sums of a product go. The rule: outputs that a half strip has only as padding are neither read nor
//! written.

use std::arch::x86_64::*;

use crate::layout::quant::LANES;

/// Which of the sixteen outputs from `first` on exist, of `n`.
#[inline]
pub(crate) fn lanes(n: usize, first: usize) -> __mmask16 {
    ((1_u32 << n.saturating_sub(first).min(LANES)) - 1) as __mmask16
}

/// Stores sums, or with `add` adds them to what is there.
///
/// # Safety
/// The processor has AVX-512 F; the outputs that `mask` names may be read and written, by nobody else meanwhile.
#[inline]
#[target_feature(enable = "avx512f")]
pub(crate) unsafe fn put(out: *mut f32, mask: __mmask16, mut sum: __m512, add: bool) {
    // SAFETY: the caller's duty.
    unsafe {
        if add {
            sum = _mm512_add_ps(_mm512_maskz_loadu_ps(mask, out), sum);
        }
        _mm512_mask_storeu_ps(out, mask, sum);
    }
}
