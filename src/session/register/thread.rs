//! Stores the state of each registering thread, and frees the state when the thread ends.

use std::ffi::c_void;
use std::ptr::NonNull;

use super::thread_state::Local;
use crate::api::error::{Error, Result};
use crate::queue::shared::Shared;
use crate::session::lifecycle::Lifecycle;
use crate::session::process::{self, blocking_guarded, Process};
use crate::sys::panic_guard::PER_THREAD;
use crate::sys::reserve;
use crate::sys::thread::at_end_of_thread;

/// Frees the thread's state when the thread ends. If the thread then calls the library again, each call makes and frees a new
/// state. The C library calls this function at most four times for a thread.
extern "C" fn end(_: *mut c_void) {
    // No panic may unwind into the C library.
    blocking_guarded(|| {
        PER_THREAD.with(|thread| {
            thread.is_ending.set(true);
            thread.local.take().into_iter().for_each(|local| drop_local(local.cast()));
        });
        // The ended thread may have been the last thread of the host.
        if let Some(shared) = process::current_shared() {
            shared.set_first_tells(false);
            shared.wake_if_asleep();
        }
    });
}

/// Makes the C library call `end` when the calling thread ends, so that `end` wakes the writer. Callers need this function only
/// while a writer runs. If memory is short, this function returns false, and the thread will end without waking the writer. If
/// this thread is the host's last thread, the writer may notice its end only when another watched thread ends, or when the
/// writer next checks the threads.
pub fn watch_thread(shared: &Shared) -> bool {
    let watched = at_end_of_thread(end);
    if watched {
        shared.set_first_tells(true);
    }
    watched
}

/// Calls `watch_thread` if a writer runs. If no writer runs, a plugin that contains the library may be unloaded before the
/// thread ends, so the ending thread would call code that no longer exists.
pub fn watch_thread_if_running(shared: &Shared, lifecycle: &Lifecycle) {
    if lifecycle.running.is_some() {
        watch_thread(shared);
    }
}

/// Runs `body` with the calling thread's state.
#[inline(always)]
pub fn with_local<T>(
    process: &'static Process,
    shared: &'static Shared,
    body: impl FnOnce(&mut Local) -> Result<T>,
) -> Result<T> {
    PER_THREAD.with(|thread| {
        if thread.in_use.replace(true) {
            return Err(Error::Busy);
        }
        let kept = thread.local.take().map(NonNull::cast::<Local>);
        // SAFETY: only the cell had the pointer, and the cell is empty now.
        let usable = kept.filter(|local| unsafe { std::ptr::eq(local.as_ref().process, process) });
        let result = match usable.map_or_else(|| new_local(kept, process, shared), Ok) {
            Ok(mut local) => {
                // SAFETY: as above.
                let result = body(unsafe { local.as_mut() });
                if thread.is_ending.get() {
                    drop_local(local);
                } else {
                    thread.local.set(Some(local.cast()));
                }
                result
            }
            Err(error) => Err(error),
        };
        thread.in_use.set(false);
        result
    })
}

/// Frees a thread's state. The caller must have taken the pointer out of the cell.
#[cold]
fn drop_local(local: NonNull<Local>) {
    // SAFETY: `new_local` has made the box, and no other reference to it exists.
    drop(unsafe { Box::from_raw(local.as_ptr()) });
}

/// `ThreadQueue::unread_until` of the calling thread. `None` if the thread has registered nothing in this process. Must not be
/// called inside a call of the library that uses the thread's state.
pub fn unread_until(process: &Process) -> Option<u64> {
    PER_THREAD.with(|thread| {
        let local = thread.local.get().map(NonNull::cast::<Local>);
        // SAFETY: only the cell has the pointer.
        let local = local.map(|local| unsafe { local.as_ref() }).filter(|local| std::ptr::eq(local.process, process));
        local.map(Local::unread_until)
    })
}

/// Makes the state of a thread that has none. A forked child also needs a new state, because the old state belongs to the
/// parent.
#[cold]
#[inline(never)]
fn new_local(
    old: Option<NonNull<Local>>,
    process: &'static Process,
    shared: &'static Shared,
) -> Result<NonNull<Local>> {
    old.into_iter().for_each(drop_local);
    if reserve::is_short() || !watch_thread(shared) {
        return Err(Error::NoMemory);
    }
    Local::new(process, shared).map(|local| NonNull::from(Box::leak(Box::new(local))))
}
