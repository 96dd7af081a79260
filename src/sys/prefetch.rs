//! Lines of memory that are asked for before they are used, because they come from another processor's cache. Nothing happens if
//! no memory is there.

/// Asks for the line at an address, which will be read.
#[inline(always)]
pub fn to_read(at: *const u8) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: a hint, which any address may be given. The instruction is SSE, a part of x86-64.
    unsafe {
        use std::arch::x86_64::{_mm_prefetch, _MM_HINT_T0};
        _mm_prefetch::<_MM_HINT_T0>(at.cast());
    }
    #[cfg(target_arch = "aarch64")]
    // SAFETY: as above.
    unsafe {
        std::arch::asm!("prfm pldl1keep, [{}]", in(reg) at, options(nostack, preserves_flags, readonly));
    }
    #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
    let _ = at;
}

/// Asks for the line this many bytes after an address, which will be written to.
#[inline(always)]
pub fn to_write<const BYTES: usize>(at: *mut u8) {
    // Not the compiler's function for it, which reads where it is not told that the processor has the instruction.
    #[cfg(target_arch = "x86_64")]
    // SAFETY: as above. 64-bit processors that do not have the instruction pass over it.
    unsafe {
        std::arch::asm!("prefetchw [{} + {}]", in(reg) at, const BYTES, options(nostack, preserves_flags));
    }
    #[cfg(target_arch = "aarch64")]
    // SAFETY: as above.
    unsafe {
        std::arch::asm!("prfm pstl1keep, [{}, {}]", in(reg) at, const BYTES, options(nostack, preserves_flags));
    }
    #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
    let _ = at;
}
