//! A memory barrier that one thread makes on behalf of all others (membarrier(2), Linux 4.14).
//!
//! A registering thread publishes a record, and then checks whether the writer sleeps or the session closes. The thread needs
//! no fence between the publication and the check, because the writer makes a barrier on behalf of all registering threads. The
//! writer rarely needs a barrier.
//!
//! membarrier(2) may begin to fail at any time, because a sandbox forbids the call or memory runs out. After the first failure,
//! threads make their own fences. Threads may have made stores without a fence before the failure. So the writer waits once,
//! after the failure of membarrier(2), until the stores of all threads have reached memory.
//!
//! No other system call reliably makes all threads pass a barrier. A change of a mapping makes no barrier on aarch64 and on
//! newer x86-64 processors (INVLPGB), which do not interrupt each other for the change. A thread that moves to each processor
//! in turn (sched_setaffinity) may have to wait for real-time threads without limit, or may not be allowed to run on some
//! processors.

use std::sync::atomic::AtomicBool;

use rustix::thread::{membarrier, MembarrierCommand as Command};

use super::thread::sleep_micros;
use crate::sys::sync::atomic::{fence, Ordering};

/// How long the writer waits for stores to reach memory, in microseconds. A processor can handle thousands of cache misses in
/// 10 ms, so the stores reach memory in time. The writer need not wait for the stores of a thread that is not running, because
/// that thread passed a barrier in the kernel when it stopped running.
const STORE_TIMEOUT: u64 = 10_000;

/// A flag that has a cache line for itself, because every registration reads the flag.
#[repr(align(64))]
struct Light(AtomicBool);

/// Whether the kernel makes membarrier(2) barriers for this process. The atomic type is std's and not loom's, because the flag
/// is always false under loom.
static LIGHT: Light = Light(AtomicBool::new(false));

/// Registers this process with the kernel for membarrier(2).
///
/// loom does not model membarrier(2). So under loom the writer and the registering threads make fences. Fences give the same
/// guarantee: if each of two threads makes an announcement and then looks for the announcement of the other thread, at least
/// one thread finds the other's announcement.
pub fn register() {
    LIGHT.0.store(cfg!(not(jitsym_loom)) && membarrier(Command::RegisterPrivateExpedited).is_ok(), Ordering::Relaxed);
}

/// Whether a thread may omit its fence, because the barrier of `all_threads` replaces the fence. A thread must call this
/// function at each point in the code that needs a fence, and must not keep an earlier result.
#[inline(always)]
pub fn is_light() -> bool {
    LIGHT.0.load(Ordering::Relaxed)
}

/// Makes every running thread of the process pass a full memory barrier. If `is_light` is false, this function only makes
/// fences on the calling thread, because all other threads then make their own fences.
pub fn all_threads() {
    fence(Ordering::SeqCst);
    if is_light() && membarrier(Command::PrivateExpedited).is_err() {
        LIGHT.0.store(false, Ordering::SeqCst);
        fence(Ordering::SeqCst);
        sleep_micros(STORE_TIMEOUT);
    }
    fence(Ordering::SeqCst);
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{compiler_fence, AtomicU64};

    use super::*;

    /// Makes a system call fail with EPERM on the calling thread.
    fn forbid(number: libc::c_long) {
        let code = |code: u32, jt, jf, k| libc::sock_filter { code: code as u16, jt, jf, k };
        // The data that the filter examines begins with the number of the system call.
        let mut filter = [
            code(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, 0, 0),
            code(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, 0, 1, number as u32),
            code(libc::BPF_RET | libc::BPF_K, 0, 0, libc::SECCOMP_RET_ERRNO | libc::EPERM as u32),
            code(libc::BPF_RET | libc::BPF_K, 0, 0, libc::SECCOMP_RET_ALLOW),
        ];
        let program = libc::sock_fprog { len: filter.len() as u16, filter: filter.as_mut_ptr() };
        // SAFETY: the filter is valid, and copied by the call.
        unsafe {
            assert_eq!(libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), 0);
            assert_eq!(libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &program), 0);
        }
    }

    fn wait_until(reached: impl Fn() -> bool) {
        for turn in 0.. {
            match turn {
                _ if reached() => return,
                0..1000 => std::hint::spin_loop(),
                // The thread that makes `reached` true may be waiting for this processor.
                _ => std::thread::yield_now(),
            }
        }
    }

    /// Each of two threads makes an announcement, and then looks for the announcement of the other thread. At least one of the
    /// two threads must find the other thread's announcement, both while membarrier(2) works and after a sandbox has forbidden
    /// membarrier(2).
    #[test]
    #[ignore = "long: scripts/test.sh runs it"]
    fn order_outlives_the_barrier() {
        #[repr(align(64))]
        struct Word(AtomicU64);
        static WORDS: [Word; 4] = [const { Word(AtomicU64::new(0)) }; 4];
        static FAR: [Word; 1 << 16] = [const { Word(AtomicU64::new(0)) }; 1 << 16];
        let [own, others, begun, seen] = &WORDS;
        const ROUNDS: u64 = 50_000;
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for round in 1..=ROUNDS {
                    wait_until(|| begun.0.load(Ordering::Acquire) >= round);
                    // These slow stores enter the processor's store queue before the announcement, and so delay the
                    // announcement.
                    for far in 0..8 {
                        FAR[(round as usize * 97 + far * 8191) % FAR.len()].0.store(round, Ordering::Relaxed);
                    }
                    others.0.store(round, Ordering::Relaxed);
                    if is_light() {
                        compiler_fence(Ordering::SeqCst);
                    } else {
                        fence(Ordering::SeqCst);
                    }
                    let found = own.0.load(Ordering::Relaxed) == round;
                    seen.0.store(2 * round + u64::from(found), Ordering::Release);
                }
            });
            scope.spawn(|| {
                register();
                let mut missed = 0;
                for round in 1..=ROUNDS {
                    if round == ROUNDS / 10 {
                        forbid(libc::SYS_membarrier);
                    }
                    begun.0.store(round, Ordering::Release);
                    for _ in 0..round % 61 {
                        std::hint::spin_loop();
                    }
                    own.0.store(round, Ordering::Relaxed);
                    all_threads();
                    let found = others.0.load(Ordering::Relaxed) == round;
                    wait_until(|| seen.0.load(Ordering::Acquire) >= 2 * round);
                    missed += u64::from(!found && seen.0.load(Ordering::Relaxed) == 2 * round);
                }
                assert_eq!(missed, 0, "neither has seen the other");
                assert!(!is_light());
            });
        });
    }
}
