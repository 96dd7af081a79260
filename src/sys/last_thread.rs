//! Determines from `/proc` whether threads of the host still run. The answer is unknown without `/proc`, or if `/proc` does
//! not show this process.

use std::fs;
use std::path::Path;

use super::listing;
use super::thread::OURS;

/// Whether the process's first thread has ended, and so is a zombie, while other threads continue. Returns false if this is
/// unknown.
pub fn first_has_ended() -> bool {
    // The state of the thread follows its name, which is in parentheses and may contain any characters.
    let is_zombie = |stat: String| stat.rsplit_once(')').is_some_and(|(_, rest)| rest.starts_with(" Z"));
    fs::read_to_string("/proc/self/stat").is_ok_and(is_zombie)
}

/// Whether each thread of the process is the calling thread, the first thread, or a thread of a copy of this library. Threads
/// of the library are recognized by their names. Returns false if this is unknown.
pub fn is_this_one() -> bool {
    is_alone().unwrap_or(false)
}

/// Like `is_this_one`, but returns `None` if unknown. All thread ids in this function are from `/proc`, which may show the
/// ids of another pid namespace.
fn is_alone() -> Option<bool> {
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
    fn another_thread_is_found() {
        assert!(!first_has_ended());
        let (end, ends) = mpsc::channel::<()>();
        let other = std::thread::spawn(move || _ = ends.recv());
        assert_eq!(is_alone(), Some(false));
        drop(end);
        other.join().unwrap();
    }
}
