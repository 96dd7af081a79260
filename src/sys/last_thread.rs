//! Whether the host has a thread left. `/proc` says so; where there is none, or one that does not show this process, the kernel is
//! asked for each number that a thread may have.

use std::fs;
use std::io;
use std::path::Path;
use std::time::{Duration, Instant};

use super::thread::{self, OURS};
use super::{host_fds, listing, process_memory};

/// No thread has a number as high (linux include/linux/threads.h, `PID_MAX_LIMIT`).
const MOST: u32 = 4 << 20;
/// Asking for all of them takes a second or so of a processor's time. This many times as long passes until it is done again, however
/// long others had the processor meanwhile.
const REST: u32 = 20;

/// Whether the process's first thread has ended while others go on: it stays as a zombie.
pub fn first_has_ended() -> bool {
    // The name in parentheses may hold anything.
    let is_zombie = |stat: String| stat.rsplit_once(')').is_some_and(|(_, rest)| rest.starts_with(" Z"));
    fs::read_to_string("/proc/self/stat").map_or_else(|_| process_memory::is_lost_to_first_thread(), is_zombie)
}

/// Looks for other threads.
#[derive(Debug, Default)]
pub struct LastThread {
    /// The other thread that was found last, where only numbers can be asked for; 0 if there is none.
    other: u32,
    /// How many times all numbers were asked for since then.
    asked: u32,
    not_before: Option<Instant>,
}

impl LastThread {
    /// Whether there is no thread but this one, the first one, and those of this library; those of its other copies are known by
    /// their names in `/proc` only. `is_woken`: there is something else to do, so that there is another thread.
    pub fn is_this_one(&mut self, is_woken: impl Fn() -> bool) -> bool {
        is_alone_in_proc().unwrap_or_else(|| self.is_alone_by_number(is_woken))
    }

    /// Never true while there is another thread, unless that is another one each time: all numbers are asked for twice, with a
    /// pause between.
    fn is_alone_by_number(&mut self, is_woken: impl Fn() -> bool) -> bool {
        let (process, own, begin) = (std::process::id(), thread::id(), thread::cpu_time());
        if self.other != 0 && is_thread(process, self.other) == Some(true) {
            return false;
        }
        if self.not_before.is_some_and(|time| Instant::now() < time) {
            return false;
        }
        self.other = 0;
        // New numbers go up, and begin again after the highest: so those that are given out meanwhile are met too.
        for number in (own + 1..MOST).chain(1..own) {
            let is_known = number == process || Some(number) == host_fds::tid();
            let is_other = if is_known { Some(false) } else { is_thread(process, number) };
            if is_other != Some(false) || number % 4096 == 0 && is_woken() {
                self.other = if is_other == Some(true) { number } else { 0 };
                self.asked = 0;
                self.rest_since(begin);
                return false;
            }
        }
        // A sandbox may answer that there is none.
        let is_honest = [process, own].iter().all(|&number| is_thread(process, number) == Some(true));
        self.asked = if is_honest { self.asked + 1 } else { 0 };
        if !is_honest {
            self.rest_since(begin);
        }
        self.asked >= 2
    }

    /// `begin`: the thread's processor time when it began to ask.
    fn rest_since(&mut self, begin: u64) {
        let took = Duration::from_nanos(thread::cpu_time().saturating_sub(begin));
        self.not_before = Some(Instant::now() + took * REST);
    }
}

/// Whether the process has a thread with this number, its first one included when it has ended; `None` if the kernel does not say.
fn is_thread(process: u32, number: u32) -> Option<bool> {
    // By number, because older C libraries have no wrapper.
    // SAFETY: signal 0 is none; the kernel only looks whether it could be sent.
    if unsafe { libc::syscall(libc::SYS_tgkill, process, number, 0) } == 0 {
        return Some(true);
    }
    (io::Error::last_os_error().raw_os_error() == Some(libc::ESRCH)).then_some(false)
}

/// `None` without `/proc`. Its numbers may be those of another pid namespace.
fn is_alone_in_proc() -> Option<bool> {
    let link = fs::read_link("/proc/thread-self").ok()?;
    let (first, own) = link.to_str()?.split_once("/task/")?;
    let is_ours = |number: &str| {
        let name = fs::read(format!("/proc/self/task/{number}/comm")).unwrap_or_default();
        OURS.iter().any(|ours| name.trim_ascii_end() == ours.to_bytes())
    };
    let mut found = false;
    for name in listing::names(Path::new("/proc/self/task")).ok()? {
        let number = name.to_str()?;
        if number != own && number != first && !is_ours(number) {
            return Some(false);
        }
        found |= number == own;
    }
    found.then_some(true)
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;

    #[test]
    fn another_thread_is_found_by_its_number() {
        assert!(!process_memory::is_lost_to_first_thread());
        let (end, ends) = mpsc::channel::<()>();
        let (say, said) = mpsc::channel();
        let other = std::thread::spawn(move || {
            say.send(thread::id()).unwrap();
            let _ = ends.recv();
        });
        let number = said.recv().unwrap();
        let process = std::process::id();
        assert_eq!(is_thread(process, number), Some(true));
        assert_eq!(is_thread(process + 1, number), Some(false));
        assert_eq!(is_thread(process, MOST), Some(false));
        assert_eq!(is_thread(process, 0), None);
        let mut last = LastThread { other: number, ..LastThread::default() };
        assert!(!last.is_alone_by_number(|| false) && last.other == number);
        let mut last = LastThread::default();
        for _ in 0..3 {
            last.not_before = None;
            assert!(!last.is_alone_by_number(|| false) && last.other != 0);
        }
        assert_eq!(is_alone_in_proc(), Some(false));
        drop(end);
        other.join().unwrap();
    }
}
