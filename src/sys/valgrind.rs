//! Makes requests to valgrind, for example to discard translations of code. A request is a sequence of instructions that
//! valgrind recognises, and that has no effect on a real processor.
//!
//! The number and the arguments of a request are six words in memory. One register has the address of the words, and valgrind
//! puts the answer into another register. Without valgrind, the answer register keeps its value (valgrind's manual, "The Client
//! Request mechanism"; valgrind's include/valgrind.h has the instructions for each architecture).

use std::ffi::CStr;
use std::sync::atomic::AtomicU8;

use once_cell::race::OnceRef;

/// valgrind's request numbers (include/valgrind.h). Some requests are for one tool, and other tools ignore them
/// (memcheck/memcheck.h, helgrind/helgrind.h, drd/drd.h).
const RUNNING_ON_VALGRIND: usize = 0x1001;
const DISCARD_TRANSLATIONS: usize = 0x1002;
const MAP_IP_TO_SRCLOC: usize = 0x1701;
const CHANGE_ERR_DISABLEMENT: usize = 0x1801;
const MAKE_MEM_DEFINED: usize = of_tool(b"MC") + 2;
const HELGRIND_GET_ABITS: usize = of_tool(b"HG") + 0x12e;
const HELGRIND_MAKE_UNTRACKED: usize = of_tool(b"HG") + 0x127;
const DRD_GET_THREAD_ID: usize = of_tool(b"DR");
const DRD_START_SUPPRESSION: usize = of_tool(b"DR") + 2;

const fn of_tool(letters: &[u8; 2]) -> usize {
    (letters[0] as usize) << 24 | (letters[1] as usize) << 16
}

const DHAT: &[u8] = b"vgpreload_dhat-";

/// The size of the buffer into which valgrind writes a file name and a line.
const LINE_SIZE: usize = 64;

#[inline(always)]
fn request(number: usize, one: usize, two: usize, three: usize) -> usize {
    let words = [number, one, two, three, 0, 0];
    let mut result = 0_usize;
    // On other processors, the process counts as not running under valgrind.
    #[cfg(any(target_arch = "x86_64", target_arch = "aarch64", target_arch = "riscv64"))]
    // SAFETY: all registers except the register with the result keep their values. The callers ensure that the request reads
    // and writes only valid memory.
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

/// The tool of valgrind that runs the process. Tools that need no special treatment are all `Other`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tool {
    Memcheck,
    /// The tools that detect races: helgrind and DRD.
    Races,
    Other,
    /// The process does not run under valgrind.
    Nothing,
}

/// The result of the first call of `tool`. The value is empty before this call.
static KNOWN: OnceRef<'static, Tool> = OnceRef::new();

/// Returns the tool of valgrind that runs the process. Only the first call asks valgrind. The first call happens at the
/// latest when the first session is opened.
#[inline]
pub fn tool() -> Tool {
    *KNOWN.get_or_init(ask_for_tool)
}

#[cold]
#[inline(never)]
fn ask_for_tool() -> &'static Tool {
    // Each tool answers only its own requests. The request to memcheck concerns zero bytes, and so changes nothing. The
    // request to helgrind concerns a byte that belongs to this library.
    static BYTE: AtomicU8 = AtomicU8::new(0);
    let known = std::ptr::from_ref(&BYTE) as usize;
    // DHAT complains about requests to other tools, so DHAT must be recognised before requests to other tools are made. Under
    // DHAT, `LD_PRELOAD` contains DHAT's library.
    let is_dhat = || {
        let loaded = std::env::var_os("LD_PRELOAD").unwrap_or_default();
        loaded.as_encoded_bytes().windows(DHAT.len()).any(|part| part == DHAT)
    };
    match () {
        () if request(RUNNING_ON_VALGRIND, 0, 0, 0) == 0 => &Tool::Nothing,
        () if is_dhat() => &Tool::Other,
        () if request(MAKE_MEM_DEFINED, 0, 0, 0) != 0 => &Tool::Memcheck,
        () if request(HELGRIND_GET_ABITS, known, 0, 1) != 0 || request(DRD_GET_THREAD_ID, 0, 0, 0) != 0 => &Tool::Races,
        () => &Tool::Other,
    }
}

pub fn is_running() -> bool {
    tool() != Tool::Nothing
}

/// Makes valgrind discard its translation of code, because other code is at the same addresses from now on.
pub fn discard_translations(addr: u64, size: u64) {
    request(DISCARD_TRANSLATIONS, addr as usize, size as usize, 0);
}

/// The file and the line that valgrind has recorded for an address. The result is empty if valgrind has recorded no line.
pub fn line_of(addr: u64) -> String {
    let mut text = [0_u8; LINE_SIZE];
    request(MAP_IP_TO_SRCLOC, addr as usize, text.as_mut_ptr() as usize, 0);
    let text = CStr::from_bytes_until_nul(&text).unwrap_or_default();
    text.to_string_lossy().into_owned()
}

/// While this value exists, valgrind reports no errors for the calling thread.
struct Silence;

impl Silence {
    #[cold]
    #[inline(never)]
    fn begin() -> Silence {
        request(CHANGE_ERR_DISABLEMENT, 1, 0, 0);
        Silence
    }
}

impl Drop for Silence {
    #[cold]
    #[inline(never)]
    fn drop(&mut self) {
        request(CHANGE_ERR_DISABLEMENT, -1_isize as usize, 0, 0);
    }
}

/// Runs `body` while valgrind reports no errors for the calling thread.
pub fn unreported<T>(body: impl FnOnce() -> T) -> T {
    let _silence = Silence::begin();
    body()
}

/// Runs code of the library on any thread. While `body` runs, helgrind and DRD report no error of this thread. Otherwise
/// helgrind and DRD would report the library's atomic operations as accesses without a lock. helgrind and DRD still report
/// errors of the host's code before and after `body`.
#[inline]
pub fn without_races<T>(body: impl FnOnce() -> T) -> T {
    let _silence = (tool() == Tool::Races).then(Silence::begin);
    body()
}

/// Like `without_races`, but may be called by a signal handler. A signal handler must not ask valgrind for the tool, so this
/// function uses valgrind's earlier answer. If valgrind was not asked yet, no session was opened yet, and there are no reports
/// to suppress.
#[inline]
pub fn without_races_in_handler<T>(body: impl FnOnce() -> T) -> T {
    let _silence = (KNOWN.get() == Some(&Tool::Races)).then(Silence::begin);
    body()
}

/// Prevents reports of helgrind and DRD about races on a value that threads of the host read in every call.
pub fn share<T>(value: &T) {
    let (start, size) = (std::ptr::from_ref(value) as usize, size_of::<T>());
    if tool() == Tool::Races {
        request(HELGRIND_MAKE_UNTRACKED, start, size, 0);
        request(DRD_START_SUPPRESSION, start, size, 0);
    }
}

/// Makes memcheck treat bytes of code as initialised. Code has padding that was never written, and memcheck would report
/// errors for the padding.
pub fn make_defined(bytes: &[u8]) {
    if tool() == Tool::Memcheck {
        request(MAKE_MEM_DEFINED, bytes.as_ptr() as usize, bytes.len(), 0);
    }
}

/// Makes the calling thread begin a new time slice. Under valgrind one thread runs at a time, and a time slice lasts 100,000
/// blocks of instructions. So if the thread does only a little work after this call and does not wait, no other thread runs
/// before the work is finished.
///
/// A pause instruction shortens the thread's time slice to 300 blocks (valgrind, coregrind/m_scheduler/scheduler.c,
/// `VEX_TRC_JMP_YIELD`). This function executes a pause instruction, and then more than 300 blocks of instructions, to use up
/// the time slice. So the thread's next time slice has begun when this function returns.
pub fn begin_turn() {
    const BLOCKS: usize = 400;
    #[inline(never)]
    fn block() {
        std::hint::black_box(());
    }
    #[cfg(target_arch = "x86_64")]
    std::hint::spin_loop();
    // On aarch64, `spin_loop` is not the pause instruction that valgrind recognises.
    #[cfg(target_arch = "aarch64")]
    // SAFETY: the instruction changes nothing.
    unsafe {
        std::arch::asm!("yield", options(nomem, nostack));
    }
    let block = std::hint::black_box(block as fn());
    (0..BLOCKS).for_each(|_| block());
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The unit tests do not run under valgrind.
    #[test]
    fn natively_requests_do_nothing() {
        assert!(!is_running());
        assert_eq!(line_of(line_of as fn(u64) -> String as usize as u64), "");
        assert_eq!((unreported(|| 7), without_races(|| 7), tool()), (7, 7, Tool::Nothing));
        share(&7);
        let code = [1, 2, 3];
        make_defined(&code);
        discard_translations(code.as_ptr() as u64, 3);
        begin_turn();
        assert_eq!(code, [1, 2, 3]);
    }
}
