//! Threads: ids, and how the background thread is started.

use std::ffi::CStr;
use std::io;
use std::mem::MaybeUninit;
use std::panic::{catch_unwind, AssertUnwindSafe};
use std::sync::atomic::{AtomicU32, AtomicU64, AtomicU8, Ordering};

use rustix::thread::set_name;

use super::loader::Optional;
use super::{panic_guard, valgrind};

/// The kernel's id of the calling thread.
pub fn id() -> u32 {
    // By number, because older C libraries have no wrapper.
    // SAFETY: gettid takes nothing and cannot fail.
    unsafe { libc::syscall(libc::SYS_gettid) as u32 }
}

/// Whether a stack of the calling thread lies in a range, in whole or in part, as far as it can be known: the one it runs on, its
/// own one, on which the C library has its data, and one for signals.
pub fn has_stack_in(start: u64, end: u64) -> bool {
    let here = 0_u8;
    let mut signals = MaybeUninit::<libc::stack_t>::zeroed();
    // SAFETY: both calls only answer.
    let (own, signals) = unsafe {
        libc::sigaltstack(std::ptr::null(), signals.as_mut_ptr());
        (libc::pthread_self() as u64, signals.assume_init())
    };
    let is_in = |addr: u64| start <= addr && addr < end;
    let (first, size) = (signals.ss_sp as u64, signals.ss_size as u64);
    let overlaps = size != 0 && signals.ss_flags & libc::SS_DISABLE == 0 && first < end && start < first + size;
    is_in((&raw const here) as u64) || is_in(own) || overlaps
}

/// Sleeps for this number of microseconds, and some more; less if it is woken without a reason. No cancellation point, and no use
/// of thread-local storage. The standard library's panics if a sandbox refuses the system call.
#[cfg(not(jitsym_loom))]
pub fn sleep_micros(micros: u64) {
    super::futex::wait(&std::sync::atomic::AtomicU32::new(0), 0, Some(std::time::Duration::from_micros(micros)));
}

/// There is no time in a model, but there are other threads.
#[cfg(jitsym_loom)]
pub fn sleep_micros(_: u64) {
    super::sync::yield_now();
}

/// Whether the C library knows of no other thread in this process, or does not say.
pub fn is_alone() -> bool {
    let known = Optional::OneThread.get().cast::<AtomicU8>();
    // SAFETY: glibc has such a byte, from version 2.32 on.
    unsafe { known.as_ref() }.is_none_or(|known| known.load(Ordering::Relaxed) != 0)
}

/// How long the calling thread has had a processor, in nanoseconds.
pub fn cpu_time() -> u64 {
    super::clock::read_ns(libc::CLOCK_THREAD_CPUTIME_ID)
}

/// Signals that a thread raises by its own actions. While one is blocked, the kernel ends the process in its place, whatever
/// handler the host has. That may be the handler of a sandbox, which answers system calls for the kernel (SIGSYS), or that of a
/// crash reporter.
///
/// Not SIGABRT: `abort` unblocks it by itself, and from elsewhere it comes as any signal does.
const OWN_FAULTS: [libc::c_int; 6] =
    [libc::SIGSEGV, libc::SIGBUS, libc::SIGFPE, libc::SIGILL, libc::SIGTRAP, libc::SIGSYS];

/// All signals but these, or none but these.
fn signals(all: bool, but: &[libc::c_int]) -> libc::sigset_t {
    let mut set = MaybeUninit::uninit();
    let (begin, change): (unsafe extern "C" fn(_) -> _, unsafe extern "C" fn(_, _) -> _) = match all {
        true => (libc::sigfillset, libc::sigdelset),
        false => (libc::sigemptyset, libc::sigaddset),
    };
    // SAFETY: the set is ours to write, and initialised by the first call.
    unsafe {
        begin(set.as_mut_ptr());
        but.iter().for_each(|&signal| _ = change(set.as_mut_ptr(), signal));
        set.assume_init()
    }
}

/// Changes which signals the calling thread has blocked. Returns those it had before; `None` if a sandbox has refused it.
fn change_blocked(how: libc::c_int, signals: &libc::sigset_t) -> Option<libc::sigset_t> {
    let mut before = MaybeUninit::uninit();
    // SAFETY: the pointers are valid, and the set is filled in if the call does not fail.
    unsafe { (libc::pthread_sigmask(how, signals, before.as_mut_ptr()) == 0).then(|| before.assume_init()) }
}

/// Runs `body` with the signals of others blocked on this thread, which cannot be cancelled either. A SIGXFSZ that a write in it has
/// raised is taken away: the write has failed with EFBIG, which says it all.
pub fn quietly<T>(body: impl FnOnce() -> T) -> T {
    with_others_blocked(&[libc::SIGXFSZ], body)
}

/// As `quietly`, for writing to what may also be a pipe whose reader has gone.
pub fn quietly_writing<T>(body: impl FnOnce() -> T) -> T {
    with_others_blocked(&[libc::SIGPIPE, libc::SIGXFSZ], body)
}

/// `own`: the signals that `body` may raise.
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

/// The signals that a thread had blocked, and those that are taken away before it has these again.
type Blocked = (libc::sigset_t, [Option<libc::c_int>; 2]);

/// Those that are blocked already stay so. One that has come for the host is left to it. It can only wait where the host has it
/// blocked, so that the kernel is not asked elsewhere.
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

/// Runs `body` on a thread that cannot be cancelled meanwhile: file access is a cancellation point, and a cancellation must
/// not unwind through Rust.
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

/// Runs code that takes a lock on a thread of the host. The thread is not cancelled meanwhile, nor stopped by a signal, as for
/// garbage collection: others would wait for the lock.
pub fn undisturbed<T>(body: impl FnOnce() -> T) -> T {
    uncancelled(|| quietly(body))
}

extern "C" {
    fn pthread_setcancelstate(state: libc::c_int, before: *mut libc::c_int) -> libc::c_int;
}

/// What a new thread gets to do.
struct Start {
    name: &'static CStr,
    body: Box<dyn FnOnce() + Send>,
}

/// What the writer's thread is called.
pub const WRITER: &CStr = c"jitsym-writer";
/// And the one that shares the host's descriptors (`host_fds`), and those that work on files for a call.
pub const DELEGATE: &CStr = c"jitsym-host";
pub const APART: &CStr = c"jitsym-files";
/// The one that looks at the lists of debuggers.
pub const BRIDGE: &CStr = c"jitsym-bridge";
pub const OURS: [&CStr; 4] = [WRITER, DELEGATE, APART, BRIDGE];
/// How much of its stack a thread has for itself.
pub const STACK: usize = 512 << 10;

/// Ends the process as the C library does with the last thread of a program: `exit(0)`. On a thread with a stack and signals as
/// other threads have them, because exit handlers run there.
///
/// A sandbox or a limit may forbid another thread. Then the calling one, of ours, becomes such a thread and exits: nobody may wait for
/// it from then on. `leave` is called before, and sees to that.
pub fn end_process(leave: fn()) {
    /// The process in which a thread is about to exit, until that can be told from ours: another one of ours may look meanwhile.
    static BEGINS: AtomicU32 = AtomicU32::new(0);
    extern "C" fn run(_: *mut libc::c_void) -> *mut libc::c_void {
        // It has a name by which other copies would take it for one of ours.
        let _ = set_name(c"jitsym-exit");
        BEGINS.store(0, Ordering::Release);
        change_blocked(libc::SIG_SETMASK, &signals(false, &[]));
        // SAFETY: no frame of Rust code that has anything to drop is left.
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
        // Else exit handlers would take it for one that was interrupted in the middle of a call.
        panic_guard::leave_for_good();
        run(std::ptr::null_mut());
    }
}

/// Starts a thread that no signal of others is ever delivered to: a host's SIGPROF or SIGINT handler must not run on it.
///
/// Not by the standard library: its threads end the process if there is no memory for what it keeps of them. So in this one
/// nothing may be called that asks for the current thread.
pub fn spawn_quiet(name: &'static CStr, stack: usize, body: impl FnOnce() + Send + 'static) -> io::Result<Thread> {
    let start = Box::into_raw(Box::new(Start { name, body: Box::new(body) }));
    spawn_bare(stack, run, start.cast()).inspect_err(|_| {
        // SAFETY: nobody has got it.
        drop(unsafe { Box::from_raw(start) });
    })
}

/// The body of a thread, as the C library starts it.
pub type Body = extern "C" fn(*mut libc::c_void) -> *mut libc::c_void;

/// The same for a thread that allocates no memory: with a thread's first allocation glibc sets 64 MiB of address space aside. It
/// begins with `become_quiet`.
pub fn spawn_bare(stack: usize, body: Body, argument: *mut libc::c_void) -> io::Result<Thread> {
    // A new thread inherits the mask of its creator, until it sets its own.
    quietly(|| create(stack, body, argument)).map_err(io::Error::from_raw_os_error)
}

/// A thread of ours. It is waited for when it ends: the C library ends the process on whichever thread is the last one, and exit
/// handlers of the host want one of the host's.
#[derive(Debug)]
pub struct Thread(libc::pthread_t);

// SAFETY: a number for the C library.
unsafe impl Send for Thread {}

impl Thread {
    /// Waits for its end, which is near; not if it is the calling one, by which the process exits (`end_process`).
    pub fn join(self) {
        // SAFETY: it is joinable, and nobody else waits for it.
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
        // SAFETY: as above.
        unsafe { libc::pthread_detach(self.0) };
    }
}

fn create(stack: usize, body: Body, argument: *mut libc::c_void) -> Result<Thread, libc::c_int> {
    type Ask = unsafe extern "C" fn(*const libc::pthread_attr_t) -> usize;
    let mut attributes = MaybeUninit::<libc::pthread_attr_t>::uninit();
    let mut thread = MaybeUninit::<libc::pthread_t>::uninit();
    // SAFETY: the attributes are ours, and initialised before they are used; the thread owns what it is started with; a function
    // of that name is this one.
    unsafe {
        let error = libc::pthread_attr_init(attributes.as_mut_ptr());
        if error != 0 {
            return Err(error);
        }
        // The part that the C library needs: glibc puts the thread-local storage of all loaded objects there, which may be large.
        // The standard library asks in the same way. Other C libraries have no such function, and no such need.
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
    // SAFETY: `spawn_quiet` has made it for this thread.
    let Start { name, body } = *unsafe { Box::from_raw(start.cast::<Start>()) };
    become_quiet(name);
    // Nothing may unwind into the C library; the body says itself what has become of it.
    let _ = valgrind::without_races(|| catch_unwind(AssertUnwindSafe(body)));
    std::ptr::null_mut()
}

/// Makes the calling thread one of ours: it gets this name, and takes no signals except those that it causes itself.
pub fn become_quiet(name: &'static CStr) {
    change_blocked(libc::SIG_SETMASK, &signals(true, &OWN_FAULTS));
    let _ = set_name(name);
    // A call waits for that one, so that it goes on as the caller does.
    if name != APART {
        be_ordinary();
    }
}

/// Gives the calling thread the policy and niceness of an ordinary thread, and also the processors of the process's first thread, as
/// far as the kernel allows that. The calling thread has inherited those of the thread that has opened the session. A real-time
/// priority is not for work in the background. On processors where the writer hardly gets any time, records would be dropped.
fn be_ordinary() {
    let own = |kind: libc::c_int| kind & !libc::SCHED_RESET_ON_FORK;
    // Not by the C library, of which musl's has no such functions.
    // SAFETY: the pointers are valid, and 0 is the calling thread.
    unsafe {
        if own(libc::syscall(libc::SYS_sched_getscheduler, 0) as libc::c_int) != libc::SCHED_OTHER {
            let priority: libc::c_int = 0;
            libc::syscall(libc::SYS_sched_setscheduler, 0, libc::SCHED_OTHER, &raw const priority);
        }
        // The kernel answers with 20 less the niceness.
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

/// Has `end` called when the calling thread ends. False if there is no memory for that.
///
/// For code that stays (`loader`): unlike its other handlers, the C library does not forget these with a plugin that is unloaded, nor
/// wait for one that runs.
///
/// Not by a destructor of thread-local storage: the C library ends the process if there is no memory to note one.
pub fn at_end_of_thread(end: extern "C" fn(*mut libc::c_void)) -> bool {
    /// The key, and one more; 0 if there is none yet.
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
            // SAFETY: nobody else knows it.
            unsafe { libc::pthread_key_delete(made) };
            known = faster;
        }
    }
    // Any value but NULL will do.
    // SAFETY: the key was made and is never deleted.
    unsafe { libc::pthread_setspecific((known - 1) as libc::pthread_key_t, end as *const libc::c_void) == 0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_signal_that_waits_for_the_host_stays() {
        for own in [libc::SIGXFSZ, libc::SIGPIPE] {
            // SAFETY: the signal is blocked on this thread, and comes to no other one.
            let raise = || assert_eq!(unsafe { libc::raise(own) }, 0);
            let before = change_blocked(libc::SIG_BLOCK, &signals(false, &[own])).unwrap();
            raise();
            with_others_blocked(&[own], || ());
            assert!(is_pending(own));
            restore_blocked(&(before, [None, Some(own)]));
            // One that was raised meanwhile does not, blocked or not.
            with_others_blocked(&[libc::SIGURG, own], raise);
            let before = change_blocked(libc::SIG_BLOCK, &signals(false, &[own])).unwrap();
            with_others_blocked(&[own], raise);
            assert!(!is_pending(own));
            restore_blocked(&(before, [None; 2]));
        }
    }
}
