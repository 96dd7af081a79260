//! Threads: ids, stacks, blocked signals, cancellation, and the start and the end of the library's threads.

use std::ffi::CStr;
use std::io;
use std::mem::MaybeUninit;
use std::panic::{catch_unwind, AssertUnwindSafe};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicU8, Ordering};

use rustix::thread::set_name;

use super::dynamic_symbols::Optional;
use super::{panic_guard, valgrind};

/// The kernel's id of the calling thread.
pub fn id() -> u32 {
    // The system call is made by number, because older C libraries have no wrapper.
    // SAFETY: gettid takes no argument and cannot fail.
    unsafe { libc::syscall(libc::SYS_gettid) as u32 }
}

/// Whether a thread of this process runs or waits for a processor. The result is false if this cannot be determined.
pub fn can_run(id: u32) -> bool {
    // The state follows the name of the thread, which is in parentheses (proc(5)).
    let stat = std::fs::read(format!("/proc/self/task/{id}/stat")).unwrap_or_default();
    stat.iter().rposition(|&byte| byte == b')').and_then(|end| stat.get(end + 2)) == Some(&b'R')
}

/// Whether a stack of the calling thread overlaps a range, as far as this can be determined. A thread may have three stacks:
/// the stack that it uses now, the stack that it began on, and its signal stack. The C library keeps the thread's data on the
/// stack that the thread began on, so `pthread_self` is an address in that stack.
pub fn has_stack_in(start: u64, end: u64) -> bool {
    let here = 0_u8;
    let mut signals = MaybeUninit::<libc::stack_t>::zeroed();
    // SAFETY: both calls only report values.
    let (own, signals) = unsafe {
        libc::sigaltstack(std::ptr::null(), signals.as_mut_ptr());
        (libc::pthread_self() as u64, signals.assume_init())
    };
    let is_in = |addr: u64| start <= addr && addr < end;
    let (first, size) = (signals.ss_sp as u64, signals.ss_size as u64);
    let overlaps = size != 0 && signals.ss_flags & libc::SS_DISABLE == 0 && first < end && start < first + size;
    is_in((&raw const here) as u64) || is_in(own) || overlaps
}

/// Sleeps for this number of microseconds or slightly longer, or for less time after a spurious wakeup. A thread cannot be
/// cancelled in this function. The function uses no thread-local storage. The standard library's sleep is not used, because
/// it panics if a sandbox refuses the system call.
#[cfg(not(jitsym_loom))]
pub fn sleep_micros(micros: u64) {
    super::futex::wait(&std::sync::atomic::AtomicU32::new(0), 0, Some(std::time::Duration::from_micros(micros)));
}

/// Lets other threads run. Does not sleep, because no time passes in a model (`sync::model`).
#[cfg(jitsym_loom)]
pub fn sleep_micros(_: u64) {
    super::sync::yield_now();
}

/// Whether this process has no other thread, according to the C library. The result is also true if the C library has no such
/// information.
pub fn is_alone() -> bool {
    let known = Optional::OneThread.get().cast::<AtomicU8>();
    // SAFETY: the pointer is NULL, or points to a byte of glibc (from version 2.32 on).
    unsafe { known.as_ref() }.is_none_or(|known| known.load(Ordering::Relaxed) != 0)
}

/// How long the calling thread has run on a processor, in nanoseconds.
pub fn cpu_time() -> u64 {
    super::clock::read_ns(libc::CLOCK_THREAD_CPUTIME_ID)
}

/// Signals that a thread raises by its own actions. The library never blocks these signals: if a thread raises one of them
/// while the signal is blocked, the kernel ends the process, even if the host has a handler for the signal. Crash reporters
/// have handlers for these signals, and some sandboxes have a SIGSYS handler that answers system calls in place of the kernel.
///
/// SIGABRT need not be in this list, because `abort` itself unblocks SIGABRT. If another process or thread sends SIGABRT, the
/// library treats SIGABRT like any other signal.
const OWN_FAULTS: [libc::c_int; 6] =
    [libc::SIGSEGV, libc::SIGBUS, libc::SIGFPE, libc::SIGILL, libc::SIGTRAP, libc::SIGSYS];

/// Returns a set of signals. If `all` is true, the set contains all signals except the signals in `but`. If `all` is false, the
/// set contains only the signals in `but`.
fn signals(all: bool, but: &[libc::c_int]) -> libc::sigset_t {
    let mut set = MaybeUninit::uninit();
    let (begin, change): (unsafe extern "C" fn(_) -> _, unsafe extern "C" fn(_, _) -> _) = match all {
        true => (libc::sigfillset, libc::sigdelset),
        false => (libc::sigemptyset, libc::sigaddset),
    };
    // SAFETY: this function owns the set, and the first call initialises it.
    unsafe {
        begin(set.as_mut_ptr());
        but.iter().for_each(|&signal| _ = change(set.as_mut_ptr(), signal));
        set.assume_init()
    }
}

/// Changes which signals the calling thread has blocked. Returns the previous set, or `None` if a sandbox has refused the
/// change.
fn change_blocked(how: libc::c_int, signals: &libc::sigset_t) -> Option<libc::sigset_t> {
    let mut before = MaybeUninit::uninit();
    // SAFETY: the pointers are valid, and the set is filled in if the call does not fail.
    unsafe { (libc::pthread_sigmask(how, signals, before.as_mut_ptr()) == 0).then(|| before.assume_init()) }
}

/// Runs `body` while the calling thread receives no signals except those of `OWN_FAULTS`, and cannot be cancelled. If a write
/// in `body` raises SIGXFSZ, the signal is discarded, because the write has already failed with EFBIG.
pub fn quietly<T>(body: impl FnOnce() -> T) -> T {
    with_others_blocked(&[libc::SIGXFSZ], body)
}

/// Like `quietly`, but discards SIGPIPE as well as SIGXFSZ. A write raises SIGPIPE if the file is a pipe without a reader.
pub fn quietly_writing<T>(body: impl FnOnce() -> T) -> T {
    with_others_blocked(&[libc::SIGPIPE, libc::SIGXFSZ], body)
}

/// Runs `body` with all signals blocked except those of `OWN_FAULTS`. `own` lists signals that `body` may raise. If `body`
/// raises such a signal, the signal is discarded afterwards.
fn with_others_blocked<T>(own: &[libc::c_int], body: impl FnOnce() -> T) -> T {
    uncancelled(|| {
        let before = block_others(own);
        let result = body();
        before.inspect(restore_blocked);
        result
    })
}

fn is_pending(signal: libc::c_int) -> bool {
    let mut pending = MaybeUninit::uninit();
    // SAFETY: the set is filled in if the call does not fail.
    unsafe { libc::sigpending(pending.as_mut_ptr()) == 0 && libc::sigismember(pending.as_ptr(), signal) == 1 }
}

/// The signals that a thread had blocked before, and the signals that `restore_blocked` discards.
type Blocked = (libc::sigset_t, [Option<libc::c_int>; 2]);

/// Blocks all signals except those of `OWN_FAULTS`. If a signal in `own` is already pending, somebody has sent this signal to
/// the host, so the result leaves out this signal, and `restore_blocked` does not discard it. Only a signal that the host has
/// blocked can be pending, so the kernel is asked only about blocked signals.
#[inline(never)]
fn block_others(own: &[libc::c_int]) -> Option<Blocked> {
    let before = change_blocked(libc::SIG_BLOCK, &signals(true, &OWN_FAULTS))?;
    let is_free = |&own: &libc::c_int| {
        // SAFETY: the set is initialised.
        let may_wait = unsafe { libc::sigismember(&before, own) == 1 };
        !(may_wait && is_pending(own))
    };
    Some((before, std::array::from_fn(|index| own.get(index).copied().filter(is_free))))
}

#[inline(never)]
fn restore_blocked((before, own): &Blocked) {
    let now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    for own in own.iter().flatten() {
        // SAFETY: the pointers are valid.
        unsafe { libc::sigtimedwait(&signals(false, &[*own]), std::ptr::null_mut(), &now) };
    }
    change_blocked(libc::SIG_SETMASK, before);
}

/// Runs `body` while the calling thread cannot be cancelled. File access is a cancellation point, and a cancellation must not
/// unwind through Rust.
pub fn uncancelled<T>(body: impl FnOnce() -> T) -> T {
    const PTHREAD_CANCEL_DISABLE: libc::c_int = 1;
    let set_state = |state| {
        let mut before = 0;
        // SAFETY: the pointer is valid.
        unsafe { pthread_setcancelstate(state, &mut before) };
        before
    };
    let before = set_state(PTHREAD_CANCEL_DISABLE);
    let result = body();
    set_state(before);
    result
}

/// Runs `body` on a thread of the host. `body` may take a lock. While `body` runs, the thread is not cancelled, and no signal
/// stops the thread. Some hosts stop threads by a signal, to collect garbage. If a thread were stopped or cancelled while it
/// holds a lock, other threads would wait for this lock.
pub fn undisturbed<T>(body: impl FnOnce() -> T) -> T {
    uncancelled(|| quietly(body))
}

extern "C" {
    fn pthread_setcancelstate(state: libc::c_int, before: *mut libc::c_int) -> libc::c_int;
}

/// Whether the host has forbidden threads of this library.
static FORBIDDEN: AtomicBool = AtomicBool::new(false);

/// Forbids threads of the library in this process and its children, or allows them again.
pub fn forbid(is_forbidden: bool) {
    FORBIDDEN.store(is_forbidden, Ordering::Release);
}

/// Whether threads of the library are forbidden (`forbid`). If threads are forbidden, the host's calls do the work that the
/// threads would do.
pub fn are_forbidden() -> bool {
    FORBIDDEN.load(Ordering::Acquire)
}

/// The lower half is the number of permanent threads of this library, and the upper half is the pid of the process that has
/// these threads. A forked child inherits the number but not the threads, and detects by the pid that the number is wrong.
static PERMANENT: AtomicU64 = AtomicU64::new(0);

/// Changes the number of permanent threads.
pub fn count_permanent(change: i32) {
    let pid = u64::from(std::process::id()) << 32;
    let _ = PERMANENT.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |count| {
        let before = if count & !u64::from(u32::MAX) == pid { count as u32 } else { 0 };
        Some(pid | u64::from(before.saturating_add_signed(change)))
    });
}

/// The number of permanent threads of this library that run in this process.
pub fn permanent() -> u32 {
    count_permanent(0);
    PERMANENT.load(Ordering::Relaxed) as u32
}

struct Start {
    name: &'static CStr,
    body: Box<dyn FnOnce() + Send>,
}

/// Name of the writer's thread.
pub const WRITER: &CStr = c"jitsym-writer";
/// Name of the thread that shares the host's descriptors (`host_fds`).
pub const DELEGATE: &CStr = c"jitsym-host";
/// Name of the threads that work on files while a call of the host waits.
pub const APART: &CStr = c"jitsym-files";
/// Name of the thread that reads the lists of code that other libraries make for debuggers.
pub const BRIDGE: &CStr = c"jitsym-bridge";
pub const OURS: [&CStr; 4] = [WRITER, DELEGATE, APART, BRIDGE];
/// The size of a thread's stack in bytes, without the part that the C library needs.
pub const STACK: usize = 512 << 10;

/// Ends the process by `exit(0)`, as the C library does when a program's last thread ends. This function starts a thread that
/// calls `exit`, because exit handlers expect a stack and a signal mask like those of the host's threads.
///
/// A sandbox or a limit may forbid the new thread. If the new thread cannot start, the calling thread, which belongs to the
/// library, becomes an ordinary thread and calls `exit` itself. Before the thread calls `exit`, it calls `leave`, so that no
/// other thread waits for the exiting thread.
pub fn end_process(leave: fn()) {
    /// The pid of the process, from the first call of this function until the exiting thread has the name `jitsym-exit`;
    /// otherwise 0. Before the exiting thread has the name `jitsym-exit`, its name is one of `OURS`. So another thread of the
    /// library may determine that the host has no thread left, and may call this function too. A second call of this function
    /// must do nothing, because the first call already ends the process.
    static BEGINS: AtomicU32 = AtomicU32::new(0);
    extern "C" fn run(_: *mut libc::c_void) -> *mut libc::c_void {
        // The thread gets a name that is not in `OURS`, because all copies of the library treat a thread with a name in
        // `OURS` as a thread of the library.
        let _ = set_name(c"jitsym-exit");
        BEGINS.store(0, Ordering::Release);
        change_blocked(libc::SIG_SETMASK, &signals(false, &[]));
        // SAFETY: no remaining frame of Rust code has a value to drop.
        unsafe { libc::exit(0) }
    }
    let own = std::process::id();
    if BEGINS.swap(own, Ordering::AcqRel) == own {
        return;
    }
    let mut thread = MaybeUninit::<libc::pthread_t>::uninit();
    // SAFETY: the pointers are valid.
    if unsafe { libc::pthread_create(thread.as_mut_ptr(), std::ptr::null(), run, std::ptr::null_mut()) } != 0 {
        leave();
        // From now on, the calling thread counts as a thread of the host. If it still counted as a thread of the library, the
        // exit handlers would assume that a signal handler has interrupted code of the library and has called `exit`.
        panic_guard::leave_for_good();
        run(std::ptr::null_mut());
    }
}

/// Starts a thread that receives no signals except those of `OWN_FAULTS`. So the host's handlers, for example those for
/// SIGPROF or SIGINT, do not run on the thread.
///
/// `std::thread` is not used, because it ends the process if there is no memory for its record of a thread.
/// `std::thread::current` would also make such a record, so code that runs in the new thread must not call it.
pub fn spawn_quiet(name: &'static CStr, stack: usize, body: impl FnOnce() + Send + 'static) -> io::Result<Thread> {
    let start = Box::into_raw(Box::new(Start { name, body: Box::new(body) }));
    let counted = i32::from(name != APART);
    count_permanent(counted);
    spawn_bare(stack, run, start.cast()).inspect_err(|_| {
        count_permanent(-counted);
        // SAFETY: no thread was started, so nobody else has the pointer.
        drop(unsafe { Box::from_raw(start) });
    })
}

/// A function that the C library can run in a new thread.
pub type Body = extern "C" fn(*mut libc::c_void) -> *mut libc::c_void;

/// Like `spawn_quiet`, for a thread that never allocates memory. A thread that allocates no memory saves address space, because
/// glibc reserves 64 MiB when a thread first allocates memory. The body must begin with a call of `become_quiet`.
pub fn spawn_bare(stack: usize, body: Body, argument: *mut libc::c_void) -> io::Result<Thread> {
    if are_forbidden() {
        return Err(io::Error::from_raw_os_error(libc::EPERM));
    }
    // `quietly` blocks signals on the calling thread, and the new thread inherits the signal mask. So the new thread receives
    // no signals even before it calls `become_quiet`.
    quietly(|| create(stack, body, argument)).map_err(io::Error::from_raw_os_error)
}

/// A thread of the library. The code that ends the thread should also join it, because the thread could otherwise become the
/// last thread of the process. The C library runs the exit handlers on the last thread, and the host expects its exit handlers
/// to run on a thread of the host.
#[derive(Debug)]
pub struct Thread(libc::pthread_t);

// SAFETY: the C library accepts the number of a thread from any thread.
unsafe impl Send for Thread {}

impl Thread {
    /// Waits until the thread ends. The thread must already be about to end. A library thread that is about to exit the process
    /// (`end_process`) may call this function for itself. The function then returns at once, because a thread cannot wait for
    /// its own end.
    pub fn join(self) {
        // SAFETY: the thread is joinable, and nobody else waits for it.
        unsafe {
            if libc::pthread_equal(self.0, libc::pthread_self()) == 0 {
                uncancelled(|| libc::pthread_join(self.0, std::ptr::null_mut()));
                std::mem::forget(self);
            }
        }
    }
}

impl Drop for Thread {
    fn drop(&mut self) {
        // SAFETY: the thread is joinable, and was not joined.
        unsafe { libc::pthread_detach(self.0) };
    }
}

fn create(stack: usize, body: Body, argument: *mut libc::c_void) -> Result<Thread, libc::c_int> {
    type Ask = unsafe extern "C" fn(*const libc::pthread_attr_t) -> usize;
    let mut attributes = MaybeUninit::<libc::pthread_attr_t>::uninit();
    let mut thread = MaybeUninit::<libc::pthread_t>::uninit();
    // SAFETY: the attributes belong to this function, and are initialised before they are used. The thread owns its argument.
    // `Optional::LeastStack` is a function of the C library that has the type `Ask`.
    unsafe {
        let error = libc::pthread_attr_init(attributes.as_mut_ptr());
        if error != 0 {
            return Err(error);
        }
        // The C library needs a part of the stack: glibc puts the thread-local storage of all loaded objects on the stack, and
        // that storage may be large. Rust's standard library also uses `__pthread_get_minstack` to find out how much stack the
        // C library needs. Other C libraries do not have this function, and do not need it.
        let ask: Option<Ask> = std::mem::transmute(Optional::LeastStack.get());
        let least = ask.map_or(libc::PTHREAD_STACK_MIN, |ask| ask(attributes.as_ptr()));
        libc::pthread_attr_setstacksize(attributes.as_mut_ptr(), stack + least);
        let error = libc::pthread_create(thread.as_mut_ptr(), attributes.as_ptr(), body, argument);
        libc::pthread_attr_destroy(attributes.as_mut_ptr());
        match error {
            0 => Ok(Thread(thread.assume_init())),
            error => Err(error),
        }
    }
}

extern "C" fn run(start: *mut libc::c_void) -> *mut libc::c_void {
    // SAFETY: `spawn_quiet` has made the value for this thread.
    let Start { name, body } = *unsafe { Box::from_raw(start.cast::<Start>()) };
    become_quiet(name);
    // A panic must not unwind into the C library. The body itself reports its result.
    let _ = valgrind::without_races(|| catch_unwind(AssertUnwindSafe(body)));
    if name != APART {
        count_permanent(-1);
    }
    std::ptr::null_mut()
}

/// Makes the calling thread a thread of the library. The thread gets this name, and receives no signals except those of
/// `OWN_FAULTS`.
pub fn become_quiet(name: &'static CStr) {
    change_blocked(libc::SIG_SETMASK, &signals(true, &OWN_FAULTS));
    let _ = set_name(name);
    // A call of the host waits for a thread named `APART`, so such a thread keeps the caller's priority and processors.
    if name != APART {
        be_ordinary();
    }
}

/// Gives the calling thread the scheduling policy and the niceness of an ordinary thread, and lets it run on the processors of
/// the process's first thread. The kernel may refuse any of these changes. The calling thread has inherited its policy,
/// niceness and processors from the thread that opened the session. A background thread must not have a real-time priority. If
/// the writer had a very low priority, it might run so rarely that records would be dropped.
fn be_ordinary() {
    let own = |kind: libc::c_int| kind & !libc::SCHED_RESET_ON_FORK;
    // The system calls are made by number, because musl's functions for scheduling policies only return ENOSYS.
    // SAFETY: the pointers are valid, and 0 is the calling thread.
    unsafe {
        if own(libc::syscall(libc::SYS_sched_getscheduler, 0) as libc::c_int) != libc::SCHED_OTHER {
            let priority: libc::c_int = 0;
            libc::syscall(libc::SYS_sched_setscheduler, 0, libc::SCHED_OTHER, &raw const priority);
        }
        // The kernel returns 20 minus the niceness.
        if libc::syscall(libc::SYS_getpriority, libc::PRIO_PROCESS, 0) != 20 {
            libc::syscall(libc::SYS_setpriority, libc::PRIO_PROCESS, 0, 0);
        }
        let (mut here, mut first) = ([0_u64; 128], [0_u64; 128]);
        let len = size_of_val(&here);
        let known = libc::syscall(libc::SYS_sched_getaffinity, 0, len, here.as_mut_ptr()) > 0
            && libc::syscall(libc::SYS_sched_getaffinity, std::process::id(), len, first.as_mut_ptr()) > 0;
        if known && here != first {
            here.iter_mut().zip(first).for_each(|(here, first)| *here |= first);
            libc::syscall(libc::SYS_sched_setaffinity, 0, len, here.as_ptr());
        }
    }
}

/// Makes the C library call `end` when the calling thread ends. Returns false if the C library has no key or no memory left.
///
/// `end` must stay loaded until the process ends (`dynamic_symbols`). When a plugin is unloaded, the C library drops the
/// plugin's exit handlers, but would still call `end`. Before the C library unloads the plugin, it does not wait for threads
/// that are running `end`.
///
/// A destructor of thread-local storage is no alternative, because the C library ends the process if there is no memory to
/// register the destructor.
pub fn at_end_of_thread(end: extern "C" fn(*mut libc::c_void)) -> bool {
    /// The key plus 1; 0 if no key was made yet.
    static KEY: AtomicU64 = AtomicU64::new(0);
    let mut known = KEY.load(Ordering::Acquire);
    if known == 0 {
        let mut made: libc::pthread_key_t = 0;
        // SAFETY: the pointer is valid, and the function stays loaded until the process ends.
        if unsafe { libc::pthread_key_create(&mut made, Some(end)) } != 0 {
            return false;
        }
        known = u64::from(made) + 1;
        if let Err(faster) = KEY.compare_exchange(0, known, Ordering::AcqRel, Ordering::Acquire) {
            // SAFETY: nobody else knows the key.
            unsafe { libc::pthread_key_delete(made) };
            known = faster;
        }
    }
    // The C library calls `end` for any value of the key except NULL.
    // SAFETY: the key was made and is never deleted.
    unsafe { libc::pthread_setspecific((known - 1) as libc::pthread_key_t, end as *const libc::c_void) == 0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_signal_that_waits_for_the_host_stays() {
        for own in [libc::SIGXFSZ, libc::SIGPIPE] {
            // SAFETY: the signal is blocked on this thread, and is delivered to no other thread.
            let raise = || assert_eq!(unsafe { libc::raise(own) }, 0);
            let before = change_blocked(libc::SIG_BLOCK, &signals(false, &[own])).unwrap();
            raise();
            with_others_blocked(&[own], || ());
            assert!(is_pending(own));
            restore_blocked(&(before, [None, Some(own)]));
            // A signal that the body raises is discarded, even if it was blocked before.
            with_others_blocked(&[libc::SIGURG, own], raise);
            let before = change_blocked(libc::SIG_BLOCK, &signals(false, &[own])).unwrap();
            with_others_blocked(&[own], raise);
            assert!(!is_pending(own));
            restore_blocked(&(before, [None; 2]));
        }
    }
}
