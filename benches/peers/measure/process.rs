//! What the kernel knows about this process and its threads.

use std::collections::BTreeSet;
use std::mem::MaybeUninit;

/// Shows in a trace where something begins or ends.
pub fn mark() {
    // SAFETY: it only answers.
    unsafe { libc::getppid() };
}

/// Processor time of all threads, ended ones too, in nanoseconds.
pub fn cpu_ns() -> u64 {
    let ns = |time: libc::timeval| time.tv_sec as u64 * 1_000_000_000 + time.tv_usec as u64 * 1000;
    let usage = usage();
    ns(usage.ru_utime) + ns(usage.ru_stime)
}

/// Page faults of all threads.
pub fn faults() -> i64 {
    let usage = usage();
    usage.ru_minflt + usage.ru_majflt
}

fn usage() -> libc::rusage {
    let mut usage = MaybeUninit::uninit();
    // SAFETY: `usage` is writable, and filled when the call succeeds.
    unsafe {
        assert_eq!(libc::getrusage(libc::RUSAGE_SELF, usage.as_mut_ptr()), 0);
        usage.assume_init()
    }
}

/// The most memory that this process has had, in MiB. Not that of `getrusage`, which begins with its parent's.
pub fn peak_mib() -> f64 {
    field("/proc/self/status", "VmHWM:") as f64 / 1024.0
}

/// The threads of this process.
pub fn threads() -> BTreeSet<u32> {
    let entries = std::fs::read_dir("/proc/self/task").expect("list threads");
    entries.flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect()
}

/// Processor time of a thread in nanoseconds.
pub fn thread_cpu_ns(thread: u32) -> u64 {
    let text = std::fs::read_to_string(format!("/proc/self/task/{thread}/schedstat")).expect("schedstat");
    text.split_whitespace().next().and_then(|word| word.parse().ok()).expect("nanoseconds")
}

/// How often a thread has gone to sleep.
pub fn thread_sleeps(thread: u32) -> u64 {
    field(&format!("/proc/self/task/{thread}/status"), "voluntary_ctxt_switches:")
}

fn field(path: &str, name: &str) -> u64 {
    let text = std::fs::read_to_string(path).expect("a file of /proc");
    let line = text.lines().find_map(|line| line.strip_prefix(name)).expect("the field");
    line.split_whitespace().next().and_then(|word| word.parse().ok()).expect("a number")
}
