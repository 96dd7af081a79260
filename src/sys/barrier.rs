//! A memory barrier that one thread makes on behalf of all others (membarrier(2), Linux 4.14).
//!
//! With it the registering threads need no fence of their own between publishing a record and looking whether the writer
//! sleeps or the session closes; the writer, which does so rarely, pays for both sides.

use crate::sys::sync::atomic::{fence, Ordering};

const CMD_PRIVATE_EXPEDITED: libc::c_int = 1 << 3;
const CMD_REGISTER_PRIVATE_EXPEDITED: libc::c_int = 1 << 4;

fn membarrier(command: libc::c_int) -> bool {
    // SAFETY: membarrier takes no pointers and touches no memory of ours.
    unsafe { libc::syscall(libc::SYS_membarrier, command, 0, 0) == 0 }
}

/// Asks the kernel to keep such barriers ready for this process. False if it cannot: then nobody may rely on `all_threads`.
///
/// loom does not know them. The fences on both sides that take their place there guarantee the same of the two accesses
/// on either side: that at least one of the threads sees what the other has announced.
pub fn register() -> bool {
    cfg!(not(jitsym_loom)) && membarrier(CMD_REGISTER_PRIVATE_EXPEDITED)
}

/// Returns once every running thread of the process has passed a full memory barrier.
pub fn all_threads() {
    fence(Ordering::SeqCst);
    membarrier(CMD_PRIVATE_EXPEDITED);
    fence(Ordering::SeqCst);
}
