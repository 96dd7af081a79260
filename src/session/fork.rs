//! Prepares the library for `fork`, and lets a forked child continue its parent's sessions.
//!
//! Before `fork`, the library pauses (`quiesce`). In the child, the fork handler only records the state that the library had at
//! the fork. The child's first call that uses one of the parent's sessions makes a separate state, with the child's files and
//! writer. With `Fork::AtOnce`, the fork handler makes this state. The sessions continue in this state: all code that was live
//! at the fork is registered, and its ids are valid. If a child never uses the parent's sessions, for instance because the
//! child executes another program, the child leaves no files.
//!
//! If the child cannot use the inherited state, its calls with the parent's sessions return `Error::Forked`. For example, the
//! child cannot use the state after a raw clone system call, which runs no fork handlers.

use std::cell::Cell;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use once_cell::race::OnceBox;

use crate::api::error::{Error, Result};
use crate::api::options::{Config, Fork, Options, Sinks};
use crate::queue::quiesce::{Found, Rest};
use crate::queue::shared::Shared;
use crate::registry::Registry;
use crate::session::handle;
use crate::session::lifecycle::STOP_TIMEOUT;
use crate::session::process::{self, Process};
use crate::session::register::{unread_until, watch_thread_if_running};
use crate::sink::lookup;
use crate::sys::child_copy::ChildCopy;
use crate::sys::futex::keeping_errno;
use crate::sys::{clock, fork_lock, panic_guard, reserve, thread};
use crate::writer::{Inheritance, Writer};

/// The maximum total time that a fork waits for the library. A fork waits longer than `PATIENCE` only while a thread makes
/// private copies of the pages of a file mapping (`fork_lock::Parting`), while the writer lacks a processor
/// (`Quiesce::prepare`), or while the child copies shared memory (`COPY_PATIENCE`).
const PATIENCE: Duration = Duration::from_millis(75);

/// While the child copies shared code memory, a fork waits at most `COPY_PATIENCE`, plus another `COPY_PATIENCE` for each
/// `COPY_PART` bytes of the memory.
const COPY_PATIENCE: Duration = Duration::from_secs(1);
const COPY_PART: u64 = 256 << 20;

/// The maximum time that a thread waits while another thread takes over the parent's state.
const TAKE_OVER_TIMEOUT: Duration = Duration::from_secs(10);

/// The value that a thread of the child stores in `Words::taking` before it takes over the parent's state.
const TAKING: u32 = 1;

/// The state of a fork that a thread is making.
#[derive(Clone, Copy, Debug)]
pub struct Underway {
    /// The number of forks that the thread is making, which exceeds 1 if a signal handler interrupts a fork of the thread and
    /// forks too.
    depth: u32,
    /// Whether the fork has begun to quiesce the library. If so, the parent lets the library continue after the fork. The fork
    /// may have stopped waiting before the library was quiescent.
    held: bool,
    /// Whether the fork has waited for the threads that hold the fork lock. A thread that holds the fork lock may be changing
    /// state that the child inherits, for example the regions.
    is_alone: bool,
    /// Whether `fork_lock` counts this fork.
    is_counted: bool,
    found: Found,
    /// The page in which the child reports that it has its copy of shared code memory.
    copy: Option<ChildCopy>,
}

impl Underway {
    pub const NONE: Underway =
        Underway { depth: 0, held: false, is_alone: false, is_counted: false, found: Found::NOTHING, copy: None };
}

thread_local! {
    /// The fork that the thread is about to make.
    static UNDERWAY: Cell<Underway> = const { Cell::new(Underway::NONE) };
}

/// Whether the fork handlers are registered with the C library.
static WATCHING: AtomicBool = AtomicBool::new(false);

/// The function that restarts the bridge's thread in a child, or no function if the bridge was never started.
static START_BRIDGE: OnceBox<fn()> = OnceBox::new();

/// Registers a function for forked children. A child calls the function only if the parent's fork has waited for the threads
/// that hold the fork lock.
pub fn call_in_children(start_bridge: fn()) {
    START_BRIDGE.get_or_init(|| Box::new(start_bridge));
    watch();
}

/// Makes the C library call the fork handlers from now on.
///
/// The first session that writes files calls this function, so a program that only loads the library has no cost. When a plugin
/// that contains the library is unloaded, the C library removes the handlers.
pub fn watch() {
    if !WATCHING.swap(true, Ordering::Relaxed) {
        // SAFETY: the code of the handlers stays loaded as long as the handlers are registered.
        unsafe { libc::pthread_atfork(Some(before), Some(in_parent), Some(in_child)) };
    }
}

/// The fork handler that runs before `fork`. All fork handlers disable thread cancellation, because `close` and waits are
/// cancellation points.
extern "C" fn before() {
    thread::uncancelled(prepare);
}

extern "C" fn in_parent() {
    thread::uncancelled(go_on_in_parent);
}

extern "C" fn in_child() {
    thread::uncancelled(begin_in_child);
}

fn prepare() {
    let errno = errno::errno();
    UNDERWAY.with(|of_thread| {
        let mut underway = of_thread.get();
        underway.depth += 1;
        // A fork in a signal handler that has interrupted the library does not wait, because this thread may hold the library's
        // locks.
        if underway.depth == 1 && !panic_guard::is_inside() {
            let end = Instant::now() + PATIENCE;
            // The fork first waits for the threads that hold the fork lock, because these threads may need the writer, and then
            // for the writer. A third of the time is reserved for the writer.
            fork_lock::wait(end - PATIENCE / 3);
            (underway.is_alone, underway.is_counted) = (true, true);
            if thread::are_forbidden() {
                // This thread runs the writer, which must not wait for the fork.
                fork_lock::give_up();
            }
            process::shielded(|| {
                (underway.found, underway.held) =
                    quiesce(end.saturating_duration_since(Instant::now()).max(PATIENCE / 3));
            });
        } else if !underway.is_counted {
            fork_lock::hurry();
            underway.is_counted = true;
        }
        if underway.depth == 1 {
            process::current_or_inherited().inspect(|process| process.regions.note_fork());
            if shared_len() > 0 {
                underway.copy = ChildCopy::new(errno);
            }
        }
        of_thread.set(underway);
    });
}

/// How many bytes of code memory a child would share with this process.
fn shared_len() -> u64 {
    process::current_or_inherited().map_or(0, |process| process.regions.shared_len())
}

/// Quiesces the library, within `patience`. Returns the library's state at the fork, and the value of `Underway::held`.
fn quiesce(patience: Duration) -> (Found, bool) {
    let Some(process) = process::current_or_inherited() else { return (Found::NOTHING, false) };
    let words = process.host.page.words;
    if !process.is_this_one() && words.taking.load(Ordering::Acquire) == 0 {
        // This process is a forked child that has not taken over its parent's state, and passes that state on to the new child.
        let (rest, writer) = (Rest::of(words.state.load(Ordering::Relaxed)), words.writer.load(Ordering::Relaxed));
        return (Found::inherited(rest, writer), false);
    }
    match process::current_shared() {
        Some(shared) if shared.fork() != Fork::Alone => (shared.quiesce(unread_until(process), patience), true),
        _ => (Found::NOTHING, false),
    }
}

fn go_on_in_parent() {
    UNDERWAY.with(|of_thread| {
        let mut underway = of_thread.get();
        underway.depth = underway.depth.saturating_sub(1);
        if underway.depth > 0 {
            of_thread.set(underway);
            return;
        }
        // The writer and the other threads continue while the child copies memory.
        let shared = process::current_shared().filter(|_| underway.held);
        keeping_errno(|| process::shielded(|| shared.into_iter().for_each(|shared| shared.status.quiesce.over())));
        if let Some(copy) = underway.copy {
            copy.wait(COPY_PATIENCE + COPY_PATIENCE * (shared_len() / COPY_PART) as u32);
            copy.end();
        }
        of_thread.set(Underway::NONE);
        if underway.is_counted {
            fork_lock::over();
        }
        // If a signal handler has interrupted this thread while it was writing a record, no writer may run on this thread.
        let is_inside = panic_guard::is_inside();
        if let Ok(process) = process::current() {
            process::shielded(|| {
                let is_due =
                    |shared: &&Shared| shared.has_forked() | process.regions.has_forked() | shared.has_missed();
                let may_wake = |shared: &&Shared| !(is_inside && shared.in_place.is_used());
                if let Some(shared) = process.shared().filter(is_due).filter(may_wake) {
                    shared.wake_if_asleep();
                }
            });
        }
    });
}

fn begin_in_child() {
    let underway = UNDERWAY.replace(Underway::NONE);
    fork_lock::begin_in_child();
    lookup::begin_in_child();
    take_note_in_child(underway);
    if underway.is_alone {
        process::shielded(|| START_BRIDGE.get().into_iter().for_each(|start| start()));
    }
}

fn take_note_in_child(underway: Underway) {
    let Some(parent) = process::current_or_inherited() else { return };
    if !parent.host.page.kept_by_kernel {
        parent.host.page.clear();
    }
    let (words, shared) = (parent.host.page.words, parent.shared());
    let Underway { held, found, depth, copy, .. } = underway;
    // If `depth` exceeds 1, this fork is made by a signal handler that has interrupted another fork of this thread. The page in
    // `copy` then belongs to the interrupted fork.
    let copy = copy.filter(|_| depth == 1);
    // While the child copies memory, the parent's threads may continue, and may change the state that they share with the
    // child. So the child reads the shared state before it begins to copy.
    let mut rest = if held { found.rest_in_child(parent.host.page.shared) } else { found.rest };
    if let Some(shared) = shared {
        copy.inspect(|copy| copy.begin());
        // If the parent has not waited for the copy, the copy may contain code that the parent wrote after the fork.
        let go_on = |is_parted: bool| {
            let has_waited = copy.map_or_else(|| parent.regions.shared_len() == 0, ChildCopy::copied);
            if !is_parted || !has_waited {
                rest = Rest::Disturbed;
            }
        };
        // If the child exceeds a limit on file sizes, the kernel sends SIGXFSZ, which would end the child. `quietly` discards
        // this signal.
        thread::quietly(|| parent.regions.part_in_child(&shared.status, go_on));
        clock::find_host();
        words.forked_at.store(shared.status.clock.now(), Ordering::Relaxed);
        shared.pool.memory().leave_in_child();
    }
    copy.into_iter().for_each(ChildCopy::end);
    // Another thread of the parent may have been inside a call for longer than a fork waits. The locks that the other thread
    // held are still locked in the child, in which the other thread does not exist.
    let is_whole = parent.allocator.arenas.is_free() && parent.collector.state.is_free();
    let rest = if is_whole { rest } else { Rest::Disturbed };
    words.writer.store(found.writer, Ordering::Relaxed);
    words.state.store(rest as u32, Ordering::Release);
    if shared.is_some_and(|shared| shared.fork() == Fork::AtOnce) && has_open_sessions(parent) {
        // A failure of `take_over` is ignored here, because the next call tries again, and reports any failure.
        process::shielded(|| _ = take_over(parent, None));
    }
}

pub fn has_open_sessions(process: &Process) -> bool {
    process.sessions.iter().any(|place| place.load(Ordering::Relaxed) != 0)
}

/// How much of the inherited state a child can use. `None` if the inherited state is unusable.
fn usable(parent: &Process) -> Option<Rest> {
    let rest = match WATCHING.load(Ordering::Relaxed) {
        true => Rest::of(parent.host.page.words.state.load(Ordering::Acquire)),
        // No fork handler is registered, so all sessions that were opened so far write nothing.
        false => Rest::NoWriter,
    };
    (rest != Rest::Disturbed && !parent.host.is_broken()).then_some(rest)
}

/// Whether the first call in a child can make the child's state from the parent's state.
pub fn can_be_taken_over(parent: &Process) -> bool {
    usable(parent).is_some()
}

/// Returns the state of a forked child for a call that uses an inherited session. If the child has no state yet, first takes
/// over the parent's state.
#[cold]
pub fn inheritor_for(handle: u64) -> Result<&'static Process> {
    let parent = process::current_or_inherited().ok_or(Error::Session)?;
    if parent.is_this_one() {
        return Ok(parent);
    }
    handle::place_of(parent, handle)?;
    take_over(parent, None)
}

/// Returns the state of a child that opens a session itself. The inherited sessions continue with the options of the new
/// session. `None` if there is no state to take over.
pub fn inheritor_with(options: &Options) -> Option<Result<&'static Process>> {
    let parent = process::current_or_inherited().filter(|process| !process.is_this_one())?;
    usable(parent).filter(|_| has_open_sessions(parent))?;
    Some(Config::new(options).and_then(|config| take_over(parent, Some(config))))
}

/// Closes a session that a child has inherited and not used, without taking over any state. `None` if the child has begun to
/// use its sessions, or if this process has inherited no sessions.
pub fn close_unused(handle: u64) -> Option<Result<()>> {
    let parent = process::current_or_inherited().filter(|process| !process.is_this_one())?;
    if parent.host.page.words.taking.load(Ordering::Acquire) == TAKING {
        return None;
    }
    let ended = handle::place_of(parent, handle).and_then(|place| {
        usable(parent).ok_or(Error::Forked)?;
        let ended = place.compare_exchange(handle, 0, Ordering::SeqCst, Ordering::Relaxed);
        ended.map_err(|_| Error::Closed)?;
        handle::forget_off(handle);
        Ok(())
    });
    Some(ended)
}

/// Makes a child's state from the inherited state. `wanted` is the configuration of a session that the child opens.
fn take_over(parent: &'static Process, wanted: Option<Config>) -> Result<&'static Process> {
    if reserve::is_short() {
        return Err(Error::NoMemory);
    }
    let rest = usable(parent).ok_or(Error::Forked)?;
    let taking = &parent.host.page.words.taking;
    let end = Instant::now() + TAKE_OVER_TIMEOUT;
    while taking.compare_exchange(0, TAKING, Ordering::AcqRel, Ordering::Acquire).is_err() {
        // Another thread of the child is taking over the state, or has already taken over the state.
        match process::current() {
            Ok(process) => return Ok(process),
            Err(_) if Instant::now() > end => return Err(Error::Timeout),
            Err(_) => thread::sleep_micros(100),
        }
    }
    let taken = thread::quietly(|| take(parent, rest, wanted));
    if taken.is_err() {
        taking.store(0, Ordering::Release);
    }
    taken
}

/// The state of this process. If another thread of a forked child is making the child's state, this function waits for that
/// thread, at most until `end`.
pub fn current_once_taken_over(end: Instant) -> Result<&'static Process> {
    loop {
        let taking =
            process::current_or_inherited().map_or(0, |known| known.host.page.words.taking.load(Ordering::Acquire));
        match process::current() {
            Err(Error::Forked) if taking == TAKING && Instant::now() < end => thread::sleep_micros(100),
            found => return found,
        }
    }
}

fn take(parent: &'static Process, rest: Rest, wanted: Option<Config>) -> Result<&'static Process> {
    let words = parent.host.page.words;
    // SAFETY: the parent's writer was quiescent when the child was forked, so the writer's state is consistent. The writer's
    // thread does not exist in this process. `taking` ensures that no other thread of the child runs this code.
    let writer = unsafe { Writer::of_parent(words.writer.load(Ordering::Relaxed)) };
    let wanted = wanted.filter(|config| config.sinks != Sinks::NONE);
    let before = writer.as_ref().map_or_else(|| parent.unstarted_config(), |writer| writer.config().cloned());
    let remember = before.as_ref().is_some_and(|config| config.remember);
    let config = wanted.or(before);
    let config = match (config, parent.configs.first()) {
        (Some(config), _) => Config { recover: false, remember: remember || config.remember, ..config },
        // All sessions are off.
        (None, Some(config)) => Config { sinks: Sinks::NONE, ..config },
        (None, None) => Config::new(&Options { sinks: Some(Sinks::NONE), ..Options::default() })?,
    };

    let process = Process::new(parent.generation, Some(parent))?;
    let mut shared = Shared::new(&config, &process.host.last_error)?;
    // After this point, the function returns no error. The steps below move data out of the parent's state, so a second attempt
    // would not find this data.
    process.allocator.take_over(&parent.allocator);
    process.collector.state.take_over(&parent.collector.state);
    let forked_at = words.forked_at.load(Ordering::Relaxed);
    let mut inheritance =
        writer.map_or_else(|| parent.hand_down(forked_at), |writer| Some(writer.hand_down(forked_at)));
    let regions = &*parent.regions;
    if let Some(parent) = parent.shared() {
        let mut none = Registry::default();
        shared.inherit(parent, inheritance.as_mut().map_or(&mut none, |inheritance| &mut inheritance.registry));
        match &mut inheritance {
            Some(inheritance) => _ = inheritance.regions.get_or_insert(regions),
            None => process.regions.inherit(&shared.status, regions),
        }
        if parent.status.clock != config.clock {
            inheritance.iter_mut().for_each(|inheritance| inheritance.forked_at = config.clock.now());
        }
    }
    for (place, inherited) in process.sessions.iter().zip(&parent.sessions) {
        place.store(inherited.load(Ordering::Relaxed), Ordering::Relaxed);
    }
    process.serial.store(parent.serial.load(Ordering::Relaxed), Ordering::Relaxed);
    let process: &'static Process = Box::leak(process);
    let shared = process.shared_or_new(|| Ok(shared))?;
    if rest == Rest::Partial {
        process
            .host
            .last_error
            .set("the fork did not wait for the writer: code that was registered just before may be missing".into());
    }
    process.configs.inherit(&parent.configs);
    continue_sessions(process, shared, config, inheritance);
    Ok(process.publish().unwrap_or(process))
}

/// Continues the sessions that a forked child has inherited. Sinks that cannot start count as failed, and are tried again
/// later.
fn continue_sessions(
    process: &'static Process,
    shared: &'static Shared,
    config: Config,
    inheritance: Option<Inheritance>,
) {
    // No other thread has the new state yet, so the state's lock is free, and `with_lifecycle` does not fail.
    let _ = process.with_lifecycle(Instant::now() + STOP_TIMEOUT, |lifecycle| {
        let open = process.sessions.iter().filter(|place| place.load(Ordering::Relaxed) != 0).count();
        lifecycle.open = open as u32;
        if inheritance.is_some() {
            let _ = lifecycle.start(process.parts(shared), config, inheritance);
        }
        watch_thread_if_running(shared, lifecycle);
        Ok(())
    });
}
