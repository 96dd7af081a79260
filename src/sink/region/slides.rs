//! Where the mapping of a generation of a region with two views begins in its file.
//!
//! perf 7.2 (its libdw) keeps one table of found objects for a process, by their beginnings. So each generation has to begin at
//! another place, though nothing moves. For a path that begins like this, that place is the beginning of its mapping (linux
//! tools/perf/util/unwind-libdw.c, `__report_module`). For any other path it follows from the offset in the file, which cannot
//! change.

use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use crate::sys::mapping::page_size;

/// Whether perf takes it for one of those.
pub fn is_slid(path: &Path) -> bool {
    path.as_os_str().as_bytes().starts_with(b"/tmp/jitted-")
}

/// At how many places the generations of a region begin. Room for them is in each of its files, as a hole.
fn count(max_len: u64) -> u64 {
    (max_len / 4 / page_size() as u64).clamp(64, 1024)
}

/// Bytes after the header page in which the loaded segment may begin.
pub fn spare(max_len: u64) -> u64 {
    (count(max_len) + 1) * page_size() as u64
}

/// Each after the one before, as long as there is room; beyond that perf keeps the tables that it knows. But where an object
/// begins before another one that lies in it, libdw finds neither (elfutils libdwfl/segment.c, `reify_segments`).
pub fn begin_of(generation: u32, max_len: u64) -> u64 {
    // Not at the next page: the kernel would make one mapping of the header page and it.
    (u64::from(generation).min(count(max_len)) + 1) * page_size() as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_generation_begins_before_an_older_one() {
        for max_len in [1 << 12, 1 << 20, 1 << 30] {
            let begins: Vec<u64> = (1..2000).map(|generation| begin_of(generation, max_len)).collect();
            let page = page_size() as u64;
            assert!(begins.iter().all(|begin| begin % page == 0 && (2 * page..=spare(max_len)).contains(begin)));
            assert!(begins.is_sorted());
            let places = count(max_len) as usize;
            assert!(begins[..places].windows(2).all(|pair| pair[0] < pair[1]), "{places} places");
        }
        assert_eq!((count(1 << 12), count(1 << 30)), (64, 1024));
    }
}
