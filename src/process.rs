//! What this process has: made by the first session, left behind by a fork, never freed.
//!
//! Nothing here is ever freed, so that a call that races with `close` finds valid memory. A forked child recognises by the
//! fork word that it inherited a copy whose locks and channels may be in any state, touches none of it, and makes its own.

use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use once_cell::sync::OnceCell;

use crate::engine::Engine;
use crate::error::{Error, Result};
use crate::session::Control;
use crate::status::LastError;
use crate::sys::mem::ForkWord;

/// How many sessions a process may have open at a time.
pub const SESSIONS: usize = 256;

/// The state of a process.
#[derive(Debug)]
pub struct Process {
    /// Counts the forks between the first process and this one.
    pub generation: u16,
    word: ForkWord,
    /// The parent's state, which the child never touches: known here so that a leak checker in a child sees that it is not lost.
    _inherited: Option<&'static Process>,
    /// The handles of the open sessions; 0 is a free place.
    pub sessions: [AtomicU64; SESSIONS],
    /// Number of the next session.
    pub serial: AtomicU32,
    control: Mutex<Control>,
    engine: OnceCell<Engine>,
    /// Text of the last failure.
    pub last_error: Arc<LastError>,
    broken: AtomicBool,
}

static CURRENT: AtomicPtr<Process> = AtomicPtr::new(ptr::null_mut());

/// The state of this process; an error if there is none yet or if it is the parent's.
#[inline]
pub fn current() -> Result<&'static Process> {
    // SAFETY: what is published here is never freed.
    let process = unsafe { CURRENT.load(Ordering::Acquire).as_ref() }.ok_or(Error::Session)?;
    if process.is_this_one() {
        Ok(process)
    } else {
        Err(Error::Forked)
    }
}

/// The state of this process, made if need be.
pub fn current_or_new() -> Result<&'static Process> {
    let old = CURRENT.load(Ordering::Acquire);
    // SAFETY: as above.
    let inherited: Option<&'static Process> = unsafe { old.as_ref() };
    let generation = match inherited {
        Some(process) if process.is_this_one() => return Ok(process),
        Some(parent) => parent.generation.wrapping_add(1),
        None => 0,
    };
    let new = Box::into_raw(Box::new(Process {
        generation,
        word: ForkWord::new().map_err(|_| Error::NoMemory)?,
        _inherited: inherited,
        sessions: [const { AtomicU64::new(0) }; SESSIONS],
        serial: AtomicU32::new(1),
        control: Mutex::default(),
        engine: OnceCell::new(),
        last_error: Arc::default(),
        broken: AtomicBool::new(false),
    }));
    match CURRENT.compare_exchange(old, new, Ordering::AcqRel, Ordering::Acquire) {
        Ok(_) => {
            // SAFETY: published just now, never freed.
            let process = unsafe { &*new };
            if !process.word.kept_by_kernel {
                // Kernels before 4.14. This does not see a raw clone system call, but every fork of the C library.
                // SAFETY: the handler does nothing but a store, which is allowed in a child of a process with threads.
                unsafe { libc::pthread_atfork(None, None, Some(mark_child)) };
            }
            Ok(process)
        }
        Err(faster) => {
            // SAFETY: ours was never seen by anybody (its fork word stays mapped: one page, once in a process's life).
            drop(unsafe { Box::from_raw(new) });
            // SAFETY: as above.
            Ok(unsafe { &*faster })
        }
    }
}

extern "C" fn mark_child() {
    // SAFETY: as in `current`.
    if let Some(process) = unsafe { CURRENT.load(Ordering::Acquire).as_ref() } {
        process.word.clear();
    }
}

impl Process {
    /// False in a forked child.
    #[inline]
    pub fn is_this_one(&self) -> bool {
        self.word.same_process()
    }

    /// Opening and closing exclude each other.
    pub fn control(&self) -> MutexGuard<'_, Control> {
        self.control.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The engine, if a session was ever opened.
    #[inline]
    pub fn engine(&self) -> Option<&Engine> {
        self.engine.get()
    }

    /// The engine, made by the first session.
    pub fn engine_or_new(&self, make: impl FnOnce() -> Result<Engine>) -> Result<&Engine> {
        self.engine.get_or_try_init(make)
    }

    /// A panic was caught: from now on every call answers `Error::Internal`.
    pub fn set_broken(&self) {
        self.broken.store(true, Ordering::Relaxed);
        if let Some(engine) = self.engine() {
            engine.status.stop_sinks();
        }
    }

    /// Whether a panic was caught.
    #[inline]
    pub fn is_broken(&self) -> bool {
        self.broken.load(Ordering::Relaxed)
    }
}
