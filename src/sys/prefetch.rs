//! Prefetches cache lines that the caller is about to use, and that may be in another processor's cache. An unmapped address
//! does no harm.

/// Prefetches the line at an address for reading.
#[inline(always)]
pub fn to_read(at: *const u8) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: the instruction is a hint, and takes any address. The instruction belongs to SSE, which every x86-64 processor
    // has.
    unsafe {
        use std::arch::x86_64::{_mm_prefetch, _MM_HINT_T0};
        _mm_prefetch::<_MM_HINT_T0>(at.cast());
    }
    #[cfg(target_arch = "aarch64")]
    // SAFETY: the instruction is a hint, and takes any address.
    unsafe {
        std::arch::asm!("prfm pldl1keep, [{}]", in(reg) at, options(nostack, preserves_flags, readonly));
    }
    #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
    let _ = at;
}

/// Prefetches a line for writing. The line is `BYTES` bytes after the address `at`.
#[inline(always)]
pub fn to_write<const BYTES: usize>(at: *mut u8) {
    // This function uses assembly, because the compiler's intrinsic prefetches for writing only if the compiler is configured
    // for a processor with `prefetchw`.
    #[cfg(target_arch = "x86_64")]
    // SAFETY: the instruction is a hint, and takes any address. 64-bit processors that do not have the instruction ignore it.
    unsafe {
        std::arch::asm!("prefetchw [{} + {}]", in(reg) at, const BYTES, options(nostack, preserves_flags));
    }
    #[cfg(target_arch = "aarch64")]
    // SAFETY: the instruction is a hint, and takes any address.
    unsafe {
        std::arch::asm!("prfm pstl1keep, [{}, {}]", in(reg) at, const BYTES, options(nostack, preserves_flags));
    }
    #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
    let _ = at;
}
