//! Requests to valgrind: instructions that together change nothing on a processor, and that valgrind recognises.
//!
//! The address of six words, which are the number of the request and its arguments, is in one register, and the answer comes in
//! another one. It is what it was before where no valgrind runs (valgrind's manual, "The Client Request mechanism"; its
//! include/valgrind.h has the instructions for each architecture).

use std::ffi::CStr;
use std::sync::atomic::{AtomicU8, Ordering};

/// The numbers of requests (include/valgrind.h), and of one for memcheck (memcheck/memcheck.h), which other tools do not heed.
const RUNNING_ON_VALGRIND: usize = 0x1001;
const DISCARD_TRANSLATIONS: usize = 0x1002;
const MAP_IP_TO_SRCLOC: usize = 0x1701;
const CHANGE_ERR_DISABLEMENT: usize = 0x1801;
const MAKE_MEM_DEFINED: usize = (b'M' as usize) << 24 | (b'C' as usize) << 16 | 2;

/// How many bytes valgrind writes to tell of a line.
const LINE_SIZE: usize = 64;

#[inline(always)]
fn request(number: usize, one: usize, two: usize) -> usize {
    let words = [number, one, two, 0, 0, 0];
    let mut result = 0_usize;
    // SAFETY: the registers have the values that they had before, except for the one with the result. Where a request writes, and
    // what it reads, is said by the callers.
    unsafe {
        #[cfg(target_arch = "x86_64")]
        std::arch::asm!(
            "rol rdi, 3",
            "rol rdi, 13",
            "rol rdi, 61",
            "rol rdi, 51",
            "xchg rbx, rbx",
            in("rax") words.as_ptr(),
            inout("rdx") result,
            options(nostack),
        );
        #[cfg(target_arch = "aarch64")]
        std::arch::asm!(
            "ror x12, x12, #3",
            "ror x12, x12, #13",
            "ror x12, x12, #51",
            "ror x12, x12, #61",
            "orr x10, x10, x10",
            in("x4") words.as_ptr(),
            inout("x3") result,
            options(nostack),
        );
        #[cfg(target_arch = "riscv64")]
        std::arch::asm!(
            ".option push",
            ".option norvc",
            "srli zero, zero, 3",
            "srli zero, zero, 13",
            "srli zero, zero, 51",
            "srli zero, zero, 61",
            "or a0, a0, a0",
            ".option pop",
            in("a4") words.as_ptr(),
            inout("a3") result,
            options(nostack),
        );
    }
    let _ = (&words, &mut result);
    result
}

/// Whether valgrind runs this process. It is asked once.
pub fn is_running() -> bool {
    static KNOWN: AtomicU8 = AtomicU8::new(0);
    match KNOWN.load(Ordering::Relaxed) {
        0 => {
            let is_running = request(RUNNING_ON_VALGRIND, 0, 0) != 0;
            KNOWN.store(1 + u8::from(is_running), Ordering::Relaxed);
            is_running
        }
        known => known == 2,
    }
}

/// Has valgrind forget what it has made of code: other code lies there from now on.
pub fn discard_translations(addr: u64, size: u64) {
    request(DISCARD_TRANSLATIONS, addr as usize, size as usize);
}

/// The file and the line that valgrind knows for an address; empty if it knows none.
pub fn line_of(addr: u64) -> String {
    let mut text = [0_u8; LINE_SIZE];
    request(MAP_IP_TO_SRCLOC, addr as usize, text.as_mut_ptr() as usize);
    let text = CStr::from_bytes_until_nul(&text).unwrap_or_default();
    text.to_string_lossy().into_owned()
}

/// Does something of which valgrind is to report no error. For what the calling thread does meanwhile.
pub fn unreported<T>(body: impl FnOnce() -> T) -> T {
    request(CHANGE_ERR_DISABLEMENT, 1, 0);
    let result = body();
    request(CHANGE_ERR_DISABLEMENT, -1_isize as usize, 0);
    result
}

/// Has memcheck take bytes for initialised: code has padding that nobody has written.
pub fn make_defined(bytes: &[u8]) {
    request(MAKE_MEM_DEFINED, bytes.as_ptr() as usize, bytes.len());
}

/// Under valgrind one thread runs at a time, each for 100,000 blocks of instructions. Afterwards the calling thread has nearly all
/// of its time before it, so that what it does without waiting is done before any other thread runs.
///
/// An instruction that is for waiting leaves a thread 300 blocks (valgrind, coregrind/m_scheduler/scheduler.c,
/// `VEX_TRC_JMP_YIELD`), and then its turn comes again.
pub fn begin_turn() {
    const BLOCKS: usize = 400;
    #[inline(never)]
    fn block() {
        std::hint::black_box(());
    }
    #[cfg(target_arch = "x86_64")]
    std::hint::spin_loop();
    // What Rust has for waiting is another instruction here.
    #[cfg(target_arch = "aarch64")]
    // SAFETY: it does nothing.
    unsafe {
        std::arch::asm!("yield", options(nomem, nostack));
    }
    let block = std::hint::black_box(block as fn());
    (0..BLOCKS).for_each(|_| block());
}

#[cfg(test)]
mod tests {
    use super::*;

    /// None of the unit tests runs under valgrind. Natively requests do nothing.
    #[test]
    fn natively_requests_do_nothing() {
        assert!(!is_running());
        assert_eq!(line_of(line_of as fn(u64) -> String as usize as u64), "");
        assert_eq!(unreported(|| 7), 7);
        let code = [1, 2, 3];
        make_defined(&code);
        discard_translations(code.as_ptr() as u64, 3);
        begin_turn();
        assert_eq!(code, [1, 2, 3]);
    }
}
