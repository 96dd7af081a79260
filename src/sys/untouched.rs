//! Pages of this process that nobody has touched yet (linux Documentation/admin-guide/mm/pagemap.rst).

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

use super::mapping::page_size;

/// A page is in memory, or was and is in the swap. The kernel shows these bits without privileges.
const TOUCHED: u64 = 1 << 63 | 1 << 62;
/// Pages that are looked at in one step.
const STEP: u64 = 1 << 10;

/// Where the highest run of so many untouched pages, or more, ends in `[start, end)`.
pub fn highest_run(start: u64, end: u64, pages: u64) -> io::Result<Option<u64>> {
    let page = page_size() as u64;
    let file = File::open("/proc/thread-self/pagemap")?;
    let mut entries = Vec::new();
    entries.try_reserve_exact(STEP as usize * size_of::<u64>())?;
    let (mut run, mut to) = (0, end / page);
    while to > start / page {
        let from = (start / page).max(to.saturating_sub(STEP));
        entries.resize((to - from) as usize * size_of::<u64>(), 0);
        file.read_exact_at(&mut entries, from * size_of::<u64>() as u64)?;
        for (entry, number) in entries.as_chunks::<8>().0.iter().rev().zip((from..to).rev()) {
            run = if u64::from_ne_bytes(*entry) & TOUCHED == 0 { run + 1 } else { 0 };
            if run == pages {
                return Ok(Some((number + pages) * page));
            }
        }
        to = from;
    }
    Ok(None)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sys::code_memory::{self, READ_WRITE};

    #[test]
    fn what_was_written_is_touched() {
        let page = page_size() as u64;
        let len = 3 * STEP * page;
        let start = code_memory::reserve(len).unwrap();
        let run = |pages| highest_run(start, start + len, pages).unwrap();
        assert_eq!(run(STEP), Some(start + len));
        // SAFETY: it was just set aside, and nobody else has it.
        unsafe {
            code_memory::protect(start, len, READ_WRITE).unwrap();
            for number in [0, STEP + 2, 3 * STEP - 1, 3 * STEP - 5] {
                ((start + number * page) as *mut u8).write_volatile(1);
            }
        }
        assert_eq!(run(1), Some(start + len - page));
        assert_eq!(run(4), Some(start + len - 5 * page));
        assert_eq!(run(STEP + 1), Some(start + len - 5 * page));
        assert_eq!(run(2 * STEP - 7), None);
        // SAFETY: as above.
        unsafe { code_memory::unmap(start, len) };
    }
}
