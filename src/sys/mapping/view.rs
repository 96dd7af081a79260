//! A mapping of a file, through which forked children can read the file. Children inherit the mapping, but have no descriptor
//! of the file.

use std::fs::File;
use std::io;

use super::OwnedMapping;
use crate::sys::process::limit;
use crate::sys::process_memory;

/// The smallest view covers this many bytes.
const LEAST: u64 = 16 << 20;
/// A new view covers at least this many times the file's length, so views are rarely replaced. `perf record -d` records each
/// view, so there should be few views.
const STEP: u64 = 4;

/// Only system calls read this mapping. If the file was truncated, a system call fails, but a plain access would raise a
/// signal.
#[derive(Debug)]
pub struct View(OwnedMapping);

impl View {
    /// Maps a file of `len` bytes. The mapping is larger than the file, so that the file can grow. The pages after the file's
    /// end take only address space.
    pub fn new(file: &File, len: u64) -> io::Result<View> {
        if limit(libc::RLIMIT_AS).is_some() {
            // If the address space of the process is limited, the library makes no view, and leaves the address space to the
            // host.
            return Err(io::ErrorKind::OutOfMemory.into());
        }
        let len = len.max(LEAST / STEP).checked_mul(STEP).and_then(u64::checked_next_power_of_two);
        let size = len.and_then(|len| usize::try_from(len).ok()).ok_or(io::ErrorKind::OutOfMemory)?;
        Ok(View(OwnedMapping::unlocked(size, libc::PROT_READ, libc::MAP_SHARED, Some(file))?))
    }

    pub fn covers(&self, len: u64) -> bool {
        len <= self.0.len as u64
    }

    /// Reads a part of the file. Fails if the part ends after the view, or after the last page of the file. In this last page,
    /// bytes after the end of the file read as zeros.
    pub fn read(&self, bytes: &mut [u8], offset: u64) -> io::Result<()> {
        let end = offset.checked_add(bytes.len() as u64);
        let is_inside = end.is_some_and(|end| self.covers(end));
        let at = self.0.start.as_ptr() as u64;
        match is_inside && process_memory::read(std::process::id(), at + offset, bytes) == bytes.len() {
            true => Ok(()),
            false => Err(io::ErrorKind::UnexpectedEof.into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::FileExt;

    use super::*;

    #[test]
    fn it_shows_what_the_file_gets_and_survives_its_end() {
        let path = std::env::temp_dir().join(format!("jitsym-view-{}", std::process::id()));
        let file = File::options().read(true).write(true).create(true).truncate(true).open(&path).unwrap();
        std::fs::remove_file(&path).unwrap();
        file.write_all_at(b"one", 0).unwrap();
        let view = View::new(&file, 3).unwrap();
        assert!(view.covers(LEAST) && !view.covers(LEAST + 1));
        let mut bytes = [0; 3];
        assert!(view.read(&mut bytes, 0).is_ok() && &bytes == b"one");
        file.write_all_at(b"two", 40_000).unwrap();
        assert!(view.read(&mut bytes, 40_000).is_ok() && &bytes == b"two");
        assert!(view.read(&mut bytes, LEAST - 2).is_err() && view.read(&mut bytes, u64::MAX).is_err());
        file.set_len(10).unwrap();
        assert!(view.read(&mut bytes, 40_000).is_err() && view.read(&mut bytes, 0).is_ok());
        assert!(View::new(&file, LEAST + 1).unwrap().covers(STEP * LEAST));
    }
}
