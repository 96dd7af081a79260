//! Whether this process may do more than other processes of its user.
//!
//! The kernel keeps these from its memory then (ptrace(2), "Ptrace access mode checking"). A file that the user owns, and that this
//! process maps, would be a way around that.

use rustix::thread::capabilities;

use super::process::user;

/// Why there is no file that this process maps and others can open.
pub const WHY_NO_FILE: &str = "this process has more rights than others of its user, which could write to the file";

/// Whether the program was started with more rights than its caller has: setuid, setgid, or with file capabilities.
pub fn is_started_with_more() -> bool {
    // SAFETY: getauxval only answers.
    unsafe { libc::getauxval(libc::AT_SECURE) != 0 }
}

/// Whether this process may do more than other processes of its user, or the kernel hides its memory from these for another reason.
pub fn are_more() -> bool {
    is_started_with_more() || is_hidden() || ids_differ() || has_capabilities()
}

/// Whether the kernel hides the memory of this process from other processes of its user. That is so after each change of its user or
/// group, and whenever the process asks for it (prctl(2), `PR_SET_DUMPABLE`).
pub fn is_hidden() -> bool {
    // SAFETY: it only answers. Where a sandbox refuses it, nobody has changed the answer by the same call.
    matches!(unsafe { libc::prctl(libc::PR_GET_DUMPABLE, 0, 0, 0, 0) }, 0 | 2)
}

/// Whether the process can take on another user or group.
fn ids_differ() -> bool {
    let (mut users, mut groups) = ([0; 3], [0; 3]);
    // SAFETY: the pointers are valid; without an answer the numbers stay alike.
    unsafe {
        libc::getresuid(&mut users[0], &mut users[1], &mut users[2]);
        libc::getresgid(&mut groups[0], &mut groups[1], &mut groups[2]);
    }
    let differ = |ids: [u32; 3]| ids.iter().any(|&id| id != ids[0]);
    differ(users) || differ(groups)
}

/// Whether a user other than root has rights of root.
fn has_capabilities() -> bool {
    user() != 0 && capabilities(None).is_ok_and(|sets| !sets.permitted.is_empty())
}
