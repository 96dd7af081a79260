//! Determines whether the process that owns a file still runs. Files may outlive their owners.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::Read;
use std::os::unix::fs::MetadataExt;

use super::clock::{boottime_ahead, tick_ns};
use super::process::is_alive;

/// The process that a file belongs to. The pid alone does not identify the process: pids are reused, and each pid namespace has
/// its own pids.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Owner {
    pub pid: u32,
    /// Clock ticks between the machine's boot and the start of the process; 0 if unknown.
    pub start_time: u64,
    /// Number of the pid namespace; 0 if unknown.
    pub pid_namespace: u64,
    /// Number of the mount namespace; 0 if unknown. For a process in another mount namespace, the owner's paths refer to other
    /// files.
    pub mount_namespace: u64,
}

impl Owner {
    pub fn this_process() -> Owner {
        let pid = std::process::id();
        Owner {
            pid,
            start_time: start_time("self").unwrap_or(0),
            pid_namespace: namespace("pid"),
            mount_namespace: namespace("mnt"),
        }
    }

    /// Whether the owner is running or possibly running, as far as this process can determine. Returns false if the owner is in
    /// another pid namespace, because only the lock on the file shows whether such an owner runs.
    pub fn is_visibly_alive(&self) -> bool {
        let here = namespace("pid");
        if self.pid_namespace != here && self.pid_namespace != 0 && here != 0 {
            return false;
        }
        let stat = if self.is_visible() && shows_our_numbers() { stat(&self.pid.to_string()) } else { None };
        match stat {
            // If the owner is in another time namespace, its start time may be rounded differently.
            Some(stat) => start_in(&stat).is_some_and(|time| time.abs_diff(self.start_time) <= 1),
            // Without the start time, a later process with the same pid cannot be distinguished from the owner.
            None => is_alive(self.pid),
        }
    }

    /// Whether this process can recognise a running owner by pid and start time.
    pub fn is_visible(&self) -> bool {
        self.start_time != 0 && self.pid_namespace != 0 && self.pid_namespace == namespace("pid")
    }

    /// Whether the owner's paths refer to the same files in this process.
    pub fn has_our_paths(&self) -> bool {
        self.mount_namespace == namespace("mnt")
    }
}

/// Clock ticks between the machine's boot and the start of a process. `None` if the process no longer exists, or is a zombie.
pub fn start_time(process: &str) -> Option<u64> {
    start_in(&stat(process)?)
}

fn stat(process: &str) -> Option<String> {
    let mut stat = [0; 1024];
    let len = File::open(format!("/proc/{process}/stat")).and_then(|mut file| file.read(&mut stat)).ok()?;
    // The second field, the name of the program, may contain any bytes.
    Some(String::from_utf8_lossy(&stat[..len]).into_owned())
}

/// Whether `/proc` shows the pids of this pid namespace.
fn shows_our_numbers() -> bool {
    fs::read_link("/proc/self").is_ok_and(|own| own.as_os_str() == OsStr::new(&std::process::id().to_string()))
}

/// The start time in the text of `/proc/PID/stat`: field 22 (proc(5)). `None` if the process has ended. If only the first
/// thread has ended, `/proc/PID/stat` shows the state of an ended process, but a number of threads above 1.
fn start_in(stat: &str) -> Option<u64> {
    // The second field is the program's name in parentheses, and the name may contain parentheses too.
    let mut fields = stat.rsplit_once(')')?.1.split_ascii_whitespace();
    let state = fields.next()?;
    let threads: u32 = fields.nth(16)?.parse().ok()?;
    if matches!(state, "Z" | "X") && threads <= 1 {
        return None;
    }
    // Converts the time from this thread's time namespace to the machine's boot clock.
    let ahead = boottime_ahead() / tick_ns();
    fields.nth(1)?.parse::<i64>().ok()?.checked_sub(ahead)?.try_into().ok()
}

/// The number of a namespace of this thread; 0 if unknown. `/proc/self/ns` is not used, because it shows no namespaces after
/// the first thread has ended.
fn namespace(kind: &str) -> u64 {
    fs::metadata(format!("/proc/thread-self/ns/{kind}")).map_or(0, |data| data.ino())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn processes_are_told_apart() {
        let own = Owner::this_process();
        assert!(own.is_visibly_alive());
        let earlier = Owner { start_time: own.start_time - 2, ..own };
        assert!(!earlier.is_visibly_alive(), "an earlier process with the same pid");
        let mut child = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        let dead = Owner { pid: child.id(), start_time: start_time(&child.id().to_string()).unwrap(), ..own };
        assert!(dead.is_visibly_alive());
        child.kill().unwrap();
        while dead.is_visibly_alive() {
            std::thread::yield_now();
        }
        child.wait().unwrap();
        assert!(!dead.is_visibly_alive());
    }
}
