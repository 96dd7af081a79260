//! The library's state in this process. The first session makes the state, and a forked child replaces it.
//!
//! The state is never freed, so a call that races with `close` finds valid memory. A forked child has a copy of the parent's
//! state, and recognizes the copy by the fork page. During the fork, another thread of the parent may have been changing the
//! locks and queues in the state. So the child does not use them, and makes a separate state (`fork`).

use std::ptr;
use std::sync::atomic::{AtomicPtr, AtomicU32, AtomicU64, Ordering};
use std::time::Instant;

use once_cell::sync::OnceCell;

use crate::api::error::{Error, Result};
use crate::api::options::{Config, Sinks};
use crate::code_alloc::Allocator;
use crate::queue::process_state::Host;
use crate::queue::shared::Shared;
use crate::session::collector::reported_code::Collector;
use crate::session::config_slots::{Configs, SESSIONS};
use crate::session::host_mistakes::Checked;
use crate::session::lifecycle::{Lifecycle, Parts};
use crate::sink::region::Regions;
use crate::sys::panic_guard::{self, PerThread};
use crate::sys::sync::outside::Arc;
use crate::sys::timed_lock::TimedLock;
use crate::sys::{thread, valgrind};
use crate::writer::Inheritance;

/// The state of a process.
#[derive(Debug)]
pub struct Process {
    /// A number that each handle of this process contains. A child that takes over its parent's state also keeps the
    /// generation, so the inherited handles stay valid. If a child opens a session but does not take over the parent's state,
    /// the child gets the next generation.
    pub generation: u16,
    pub host: Host,
    /// The parent's state, in a forked child. Because of this pointer, leak checkers do not report the parent's state as lost.
    inherited: Option<&'static Process>,
    /// The handles of the open sessions; 0 marks a free entry.
    pub sessions: [AtomicU64; SESSIONS],
    pub configs: Configs,
    /// Serial number of the next session.
    pub serial: AtomicU32,
    lifecycle: TimedLock<Lifecycle>,
    /// `Lifecycle::unstarted`, copied by the last call that held `lifecycle`.
    unstarted: AtomicU32,
    /// Number of sessions that were closed while another call held `lifecycle` for too long.
    closed_meanwhile: AtomicU32,
    shared: OnceCell<Shared>,
    /// Code memory that is a mapping of an ELF file.
    pub regions: Arc<Regions>,
    /// Regions that are cut into pieces.
    pub allocator: Allocator,
    /// The reports of runtimes through Intel's JIT profiling API.
    pub collector: Collector,
    /// The code that the host's calls have reported, if these calls are checked.
    pub checked: Checked,
}

static CURRENT: AtomicPtr<Process> = AtomicPtr::new(ptr::null_mut());

/// The state of this process. Returns an error if the process has no state yet, or if the process is a forked child that still
/// has the parent's state.
#[inline]
pub fn current() -> Result<&'static Process> {
    // SAFETY: a published state is never freed.
    let process = unsafe { CURRENT.load(Ordering::Acquire).as_ref() }.ok_or(Error::Session)?;
    if process.is_this_one() {
        Ok(process)
    } else {
        Err(Error::Forked)
    }
}

/// The shared state of this process, if a session was ever opened.
pub fn current_shared() -> Option<&'static Shared> {
    current().ok()?.shared()
}

/// The state of this process. A forked child gets its parent's state until the child has made its own state.
pub fn current_or_inherited() -> Option<&'static Process> {
    // SAFETY: as above.
    unsafe { CURRENT.load(Ordering::Acquire).as_ref() }
}

/// The state of this process. Makes the state if there is none yet.
pub fn current_or_new() -> Result<&'static Process> {
    let inherited = current_or_inherited();
    let generation = match inherited {
        Some(process) if process.is_this_one() => return Ok(process),
        Some(parent) => parent.generation.wrapping_add(1),
        None => 0,
    };
    let new = Box::into_raw(Process::new(generation, inherited)?);
    // SAFETY: no other thread has this state yet, and the state is freed only if it was not published.
    let process = unsafe { &*new };
    if let Some(faster) = process.publish() {
        // SAFETY: as above. The fork page of the dropped state stays mapped. Few fork pages leak, because only the first
        // sessions of a process can race to publish a state.
        drop(unsafe { Box::from_raw(new) });
        return Ok(faster);
    }
    Ok(process)
}

/// Runs `body` inside the panic guard.
#[inline]
pub fn guarded<T>(body: impl FnOnce() -> Result<T>) -> Result<T> {
    valgrind::without_races(|| guarded_on(|_| body()))
}

/// Runs `body` inside the panic guard, and passes the calling thread's state to `body`.
#[inline]
pub fn guarded_on<T>(body: impl FnOnce(&PerThread) -> Result<T>) -> Result<T> {
    panic_guard::guarded(body).unwrap_or_else(|| Err(broken()))
}

/// Runs `body` inside the panic guard, and ignores a failure, because there is no caller that could receive it.
pub fn shielded(body: impl FnOnce()) {
    let _ = guarded(|| {
        body();
        Ok(())
    });
}

/// Does the same as `shielded`, with thread cancellation disabled. Must be used if `body` accesses files or waits, because file
/// access and waiting are cancellation points of POSIX threads.
pub fn blocking_guarded(body: impl FnOnce()) {
    thread::uncancelled(|| shielded(body));
}

#[cold]
fn broken() -> Error {
    if let Ok(process) = current() {
        process.host.last_error.set("internal failure".into());
        process.host.set_broken();
        if let Some(shared) = process.shared() {
            shared.status.stop_sinks();
        }
    }
    Error::Internal
}

impl Process {
    /// A new state for this process, which no other thread has seen.
    pub fn new(generation: u16, inherited: Option<&'static Process>) -> Result<Box<Process>> {
        Ok(Box::new(Process {
            generation,
            host: Host::new()?,
            inherited,
            sessions: [const { AtomicU64::new(0) }; SESSIONS],
            configs: Configs::default(),
            serial: AtomicU32::new(1),
            lifecycle: TimedLock::new(Lifecycle::default()),
            unstarted: AtomicU32::new(0),
            closed_meanwhile: AtomicU32::new(0),
            shared: OnceCell::new(),
            regions: Arc::default(),
            allocator: Allocator::default(),
            collector: Collector::default(),
            checked: Checked::default(),
        }))
    }

    /// Makes `self` the state of this process. If another thread was faster, returns that thread's state.
    pub fn publish(&'static self) -> Option<&'static Process> {
        let (old, new) = (self.inherited.map_or(ptr::null(), ptr::from_ref), ptr::from_ref(self));
        match CURRENT.compare_exchange(old.cast_mut(), new.cast_mut(), Ordering::AcqRel, Ordering::Acquire) {
            Ok(_) => None,
            // SAFETY: a published state is never freed.
            Err(faster) => Some(unsafe { &*faster }),
        }
    }

    /// Whether this state belongs to this process. A forked child has only a copy of its parent's state, so the result is
    /// false.
    #[inline]
    pub fn is_this_one(&self) -> bool {
        self.host.page.words.same_process()
    }

    /// Runs `body` with the lock of the lifecycle, under which sessions open and close. Fails if another call still holds the
    /// lock at the time `end`. `body` may wait for the writer, but not longer than until `end`.
    pub fn with_lifecycle<T>(&self, end: Instant, body: impl FnOnce(&mut Lifecycle) -> Result<T>) -> Result<T> {
        if self.shared().is_some_and(|shared| shared.in_place.is_mine()) {
            return Err(Error::Writer);
        }
        let mut lifecycle = self.lifecycle.lock_until(end).ok_or(Error::Timeout)?;
        lifecycle.begin(end);
        let closed = || self.closed_meanwhile.swap(0, Ordering::Relaxed);
        lifecycle.note_closed(self.shared(), closed());
        let result = body(&mut lifecycle);
        lifecycle.note_closed(self.shared(), closed());
        self.unstarted.store(lifecycle.unstarted().0, Ordering::Relaxed);
        result
    }

    /// The value of `Lifecycle::unstarted`, read without the lock. A forked child gets its parent's code only when these sinks
    /// start.
    pub fn unstarted(&self) -> Sinks {
        Sinks(self.unstarted.load(Ordering::Relaxed))
    }

    /// The options with which this process tries to start the sinks of `unstarted`. A child of this process calls this function
    /// while the child has only one thread.
    pub fn unstarted_config(&self) -> Option<Config> {
        self.lifecycle.try_lock()?.unstarted_config().cloned()
    }

    /// Calls `Lifecycle::hand_down`, for a child of this process.
    pub fn hand_down(&self, forked_at: u64) -> Option<Inheritance> {
        self.lifecycle.try_lock()?.hand_down(forked_at)
    }

    /// Counts a session that was closed although its `close` could not take the lock in time.
    pub fn is_closed_meanwhile(&self) {
        self.closed_meanwhile.fetch_add(1, Ordering::Relaxed);
    }

    /// Removes files at exit. Returns false if the files could not be removed before the time `end`, for instance because
    /// another thread opens or closes a session.
    pub fn remove_files_at_exit(&self, end: Instant) -> bool {
        let Some(shared) = self.shared() else { return true };
        self.with_lifecycle(end, |lifecycle| lifecycle.remove_files(shared)).is_ok()
    }

    /// The shared state, if a session was ever opened.
    #[inline]
    pub fn shared(&self) -> Option<&Shared> {
        self.shared.get()
    }

    pub fn parts(&'static self, shared: &'static Shared) -> Parts {
        Parts { host: &self.host, shared, regions: &self.regions }
    }

    /// Returns the shared state, which the first session makes with `make`.
    pub fn shared_or_new(&self, make: impl FnOnce() -> Result<Shared>) -> Result<&Shared> {
        self.shared.get_or_try_init(make)
    }
}
