//! A growing array of plain values in separate pages. Its pages go back to the kernel when it is dropped, where an allocator
//! would keep them. So a process that has remembered much and forgotten it is as small as before.

use std::io;
use std::ops::{Deref, DerefMut};
use std::ptr::{self, NonNull};
use std::slice;

use super::mem::page_size;

/// Bytes that the smallest one takes of the address space.
const LEAST: usize = 64 * 1024;

/// See the module's description.
#[derive(Debug)]
pub struct Table<T: Copy> {
    start: NonNull<T>,
    len: usize,
    /// Bytes that are mapped.
    mapped: usize,
}

// SAFETY: it owns its values, which are plain.
unsafe impl<T: Copy + Send> Send for Table<T> {}
// SAFETY: as above.
unsafe impl<T: Copy + Sync> Sync for Table<T> {}

impl<T: Copy> Default for Table<T> {
    fn default() -> Table<T> {
        Table { start: NonNull::dangling(), len: 0, mapped: 0 }
    }
}

impl<T: Copy> Table<T> {
    fn capacity(&self) -> usize {
        self.mapped / size_of::<T>()
    }

    /// Makes room for more values. Only pages that are written to take memory.
    pub fn try_reserve(&mut self, more: usize) -> io::Result<()> {
        let wanted = self.len.checked_add(more).ok_or(io::ErrorKind::OutOfMemory)?;
        if wanted <= self.capacity() {
            return Ok(());
        }
        let wanted = wanted.max(self.capacity() * 2).checked_mul(size_of::<T>()).ok_or(io::ErrorKind::OutOfMemory)?;
        let bytes = wanted.max(LEAST).next_multiple_of(page_size());
        let (protection, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
        let start = match self.mapped {
            // SAFETY: a new mapping at an address that the kernel picks touches nothing that exists.
            0 => unsafe { libc::mmap(ptr::null_mut(), bytes, protection, flags, -1, 0) },
            // SAFETY: the mapping is ours, and there is no reference to what is in it.
            mapped => unsafe { libc::mremap(self.start.as_ptr().cast(), mapped, bytes, libc::MREMAP_MAYMOVE) },
        };
        if start == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        self.start = NonNull::new(start.cast()).ok_or(io::ErrorKind::OutOfMemory)?;
        self.mapped = bytes;
        Ok(())
    }

    /// Adds a value, if there is room: see `try_reserve`.
    pub fn push(&mut self, value: T) {
        self.extend_from_slice(&[value]);
    }

    /// Adds values, if there is room for all.
    pub fn extend_from_slice(&mut self, values: &[T]) {
        if values.len() <= self.capacity() - self.len || self.try_reserve(values.len()).is_ok() {
            // SAFETY: there is room for them after the existing ones, and the two do not overlap.
            unsafe { ptr::copy_nonoverlapping(values.as_ptr(), self.start.as_ptr().add(self.len), values.len()) };
            self.len += values.len();
        }
    }
}

impl<T: Copy> Deref for Table<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        // SAFETY: this number of values has been written there; with none the pointer is dangling, and aligned.
        unsafe { slice::from_raw_parts(self.start.as_ptr(), self.len) }
    }
}

impl<T: Copy> DerefMut for Table<T> {
    fn deref_mut(&mut self) -> &mut [T] {
        // SAFETY: as above.
        unsafe { slice::from_raw_parts_mut(self.start.as_ptr(), self.len) }
    }
}

impl<T: Copy> Drop for Table<T> {
    fn drop(&mut self) {
        if self.mapped > 0 {
            // SAFETY: the mapping is ours, and nobody uses it any more.
            unsafe { libc::munmap(self.start.as_ptr().cast(), self.mapped) };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_grows_and_keeps_what_is_in_it() {
        let mut table: Table<[u64; 5]> = Table::default();
        assert!(table.is_empty());
        for number in 0..100_000 {
            table.push([number; 5]);
        }
        table[7][2] = 0;
        table.extend_from_slice(&[[1; 5], [2; 5]]);
        assert_eq!(
            (table.len(), table[7], table[99_999], table[100_001]),
            (100_002, [7, 7, 0, 7, 7], [99_999; 5], [2; 5])
        );
        assert!(table.try_reserve(usize::MAX).is_err() && table.try_reserve(usize::MAX / 64).is_err());
        assert_eq!(table.len(), 100_002);
    }
}
