//! The panic boundary: a panic inside the library becomes a status for C.

use super::probes;
use super::status::jitsym_status;
use crate::api::error::{Error, Result};
use crate::session::{self, process};
use crate::sys::panic_guard::PerThread;
use crate::sys::{thread, valgrind};

/// Runs the body of a C function, and returns its result as a status. A panic becomes `JITSYM_ERR_INTERNAL`.
#[inline]
pub fn boundary(body: impl FnOnce() -> Result<()>) -> jitsym_status {
    valgrind::without_races(|| boundary_on(|_| body()))
}

/// Does the same as `boundary`, but passes the library's data about the calling thread to `body`. Parts of the body
/// that access shared data must run in `valgrind::without_races`.
#[inline]
pub fn boundary_on(body: impl FnOnce(&PerThread) -> Result<()>) -> jitsym_status {
    // `body` may have stored the reason for its error. The stored reason is valid only until the guard ends, so `refused` is
    // called inside the guard.
    let tell = |thread: &PerThread| {
        body(thread).inspect_err(|&error| {
            session::refused(error);
            if error == Error::Dropped {
                probes::lost();
            }
        })
    };
    match process::guarded_on(tell) {
        Ok(()) => jitsym_status::JITSYM_OK,
        Err(error) => error.into(),
    }
}

/// Does the same as `boundary`, for functions that access files or wait.
///
/// File accesses and waits are cancellation points of POSIX threads, so cancellation of the calling thread is disabled
/// while `body` runs.
pub fn blocking_boundary(body: impl FnOnce() -> Result<()>) -> jitsym_status {
    thread::uncancelled(|| boundary(body))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::error::Error;
    use crate::sys::panic_guard;

    #[test]
    fn results_become_statuses() {
        assert_eq!(boundary(|| Ok(())), jitsym_status::JITSYM_OK);
        assert_eq!(boundary(|| Err(Error::Forked)), jitsym_status::JITSYM_ERR_FORKED);
    }

    #[test]
    fn a_panic_becomes_a_status_without_a_word() {
        panic_guard::silence_panics();
        let status = boundary(|| {
            let empty: Vec<u32> = Vec::new();
            let index = std::hint::black_box(3);
            Err(if empty[index] == 0 { Error::Null } else { Error::Busy })
        });
        assert_eq!(status, jitsym_status::JITSYM_ERR_INTERNAL);
        assert!(!panic_guard::is_inside());
    }

    #[test]
    fn every_error_has_the_number_of_its_status() {
        for &error in Error::ALL {
            assert_eq!(jitsym_status::from(error) as u32, error as u32, "{error}");
        }
    }
}
