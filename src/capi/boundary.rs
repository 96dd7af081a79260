//! The panic boundary: whatever goes wrong inside, C gets a status.

use std::panic::{self, AssertUnwindSafe};
use std::sync::atomic::{AtomicBool, Ordering};

use super::status::jitsym_status;
use crate::error::Result;
use crate::process;
use crate::producer::PER_THREAD;
use crate::sys::thread;

/// Runs the body of a C function.
#[inline]
pub fn boundary(body: impl FnOnce() -> Result<()>) -> jitsym_status {
    let result = PER_THREAD.with(|thread| {
        let outer = thread.inside.replace(true);
        let result = panic::catch_unwind(AssertUnwindSafe(body));
        thread.inside.set(outer);
        result
    });
    match result {
        Ok(Ok(())) => jitsym_status::JITSYM_OK,
        Ok(Err(error)) => error.into(),
        Err(payload) => {
            // Dropping a payload can panic again; it is a string in all but hostile cases, and lost only once.
            std::mem::forget(payload);
            broken()
        }
    }
}

/// As `boundary`, for functions that access files or wait, which are cancellation points of POSIX threads.
pub fn blocking_boundary(body: impl FnOnce() -> Result<()>) -> jitsym_status {
    thread::uncancelled(|| boundary(body))
}

#[cold]
fn broken() -> jitsym_status {
    if let Ok(process) = process::current() {
        process.last_error.set("internal failure".into());
        process.set_broken();
    }
    jitsym_status::JITSYM_ERR_INTERNAL
}

/// Keeps Rust from printing a message about a panic in this library to the host's standard error. Panics of the host's own
/// Rust code, if there is any, go to the hook that was there before.
pub fn silence_panics() {
    // Not a lock: one that another thread holds when the process forks would never be released in the child.
    static DONE: AtomicBool = AtomicBool::new(false);
    if !std::thread::panicking() && !DONE.swap(true, Ordering::Relaxed) {
        let before = panic::take_hook();
        panic::set_hook(Box::new(move |info| {
            if !PER_THREAD.with(|thread| thread.inside.get()) {
                before(info);
            }
        }));
    }
}

/// Marks the calling thread as one of the library's own.
pub fn enter_for_good() {
    PER_THREAD.with(|thread| thread.inside.set(true));
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::Error;

    #[test]
    fn results_become_statuses() {
        assert_eq!(boundary(|| Ok(())), jitsym_status::JITSYM_OK);
        assert_eq!(boundary(|| Err(Error::Forked)), jitsym_status::JITSYM_ERR_FORKED);
    }

    #[test]
    fn a_panic_becomes_a_status_without_a_word() {
        silence_panics();
        let status = boundary(|| {
            let empty: Vec<u32> = Vec::new();
            let index = std::hint::black_box(3);
            Err(if empty[index] == 0 { Error::Null } else { Error::Busy })
        });
        assert_eq!(status, jitsym_status::JITSYM_ERR_INTERNAL);
        assert!(!PER_THREAD.with(|thread| thread.inside.get()));
    }

    #[test]
    fn every_error_has_the_number_of_its_status() {
        for &error in Error::ALL {
            assert_eq!(jitsym_status::from(error) as u32, error as u32, "{error}");
        }
    }
}
