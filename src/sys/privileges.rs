//! Determines whether this process has more rights than other processes of its user.
//!
//! If this process has rights that other processes of the user lack, the kernel denies those processes access to the memory of
//! this process (ptrace(2), "Ptrace access mode checking"). But part of the memory of this process may be a mapping of a file
//! that the user owns. Other processes of the user could change this part by writing to the file.

use rustix::thread::capabilities;

use super::process::user;

/// The error text for a refusal to map a file that other processes could open.
pub const WHY_NO_FILE: &str = "this process has more rights than others of its user, which could write to the file";

/// Whether the program was started with more rights than its caller has: setuid, setgid, or with file capabilities.
pub fn is_started_with_more() -> bool {
    // SAFETY: getauxval only reports a value.
    unsafe { libc::getauxval(libc::AT_SECURE) != 0 }
}

/// Whether this process has more rights than other processes of its user. The result is also true if the kernel hides this
/// process's memory from other processes of the user.
pub fn are_more() -> bool {
    is_started_with_more() || is_hidden() || ids_differ() || has_capabilities()
}

/// Whether the kernel hides the memory of this process from other processes of its user. The kernel hides the memory after each
/// change of the process's user or group, and at the request of the process (prctl(2), `PR_SET_DUMPABLE`).
pub fn is_hidden() -> bool {
    // SAFETY: the call only reports a value. If a sandbox refuses prctl(2), this function returns false. A sandbox that refuses
    // prctl(2) also prevents the process from asking the kernel to hide its memory.
    matches!(unsafe { libc::prctl(libc::PR_GET_DUMPABLE, 0, 0, 0, 0) }, 0 | 2)
}

/// Whether the real, effective and saved ids of the process differ. A process whose ids differ can change to another user or
/// group.
fn ids_differ() -> bool {
    let (mut users, mut groups) = ([0; 3], [0; 3]);
    // SAFETY: the pointers are valid. If a call fails, the three numbers of this call stay 0, and so are equal.
    unsafe {
        libc::getresuid(&mut users[0], &mut users[1], &mut users[2]);
        libc::getresgid(&mut groups[0], &mut groups[1], &mut groups[2]);
    }
    let differ = |ids: [u32; 3]| ids.iter().any(|&id| id != ids[0]);
    differ(users) || differ(groups)
}

/// Whether the process has capabilities without being root.
fn has_capabilities() -> bool {
    user() != 0 && capabilities(None).is_ok_and(|sets| !sets.permitted.is_empty())
}
