//! A growing array of plain values in a separate mapping.
//!
//! When the array is dropped, its pages return to the kernel. An allocator would keep the pages. So a process that stores
//! many records and drops them needs no more memory afterwards than before.

use std::io;
use std::marker::PhantomData;
use std::ops::{Deref, DerefMut};
use std::ptr;
use std::slice;

use super::{page_size, OwnedMapping, PRIVATE, READ_WRITE};

/// The minimum address space of an array, in bytes.
const LEAST: usize = 64 * 1024;

/// When an array grows beyond `LARGE` bytes, it asks the kernel for pages before their first use, `AT_ONCE` bytes at a time.
/// Without this request, each page would cause a fault at its first use, and would take a sixth more time. `AT_ONCE` is small,
/// because a thread of the host that changes the process's mappings has to wait while the kernel provides `AT_ONCE` bytes.
const LARGE: usize = 1 << 20;
const AT_ONCE: usize = 128 * 1024;

#[derive(Debug)]
pub struct Table<T: Copy> {
    mapping: OwnedMapping,
    len: usize,
    /// An offset in bytes. The array asks the kernel only for pages from this offset on.
    made: usize,
    values: PhantomData<T>,
}

impl<T: Copy> Default for Table<T> {
    fn default() -> Table<T> {
        Table { mapping: OwnedMapping::none::<T>(), len: 0, made: LARGE, values: PhantomData }
    }
}

impl<T: Copy> Table<T> {
    fn start(&self) -> *mut T {
        self.mapping.start.as_ptr().cast()
    }

    /// Makes room for more values. Memory is used only for pages that are written to, and for up to `AT_ONCE` bytes after
    /// these pages.
    #[inline]
    pub fn try_reserve(&mut self, more: usize) -> io::Result<()> {
        let wanted = self.len.checked_add(more).and_then(|wanted| wanted.checked_mul(size_of::<T>()));
        match wanted {
            Some(wanted) if wanted <= self.made.min(self.mapping.len) => Ok(()),
            _ => self.grow(wanted.ok_or(io::ErrorKind::OutOfMemory)?),
        }
    }

    #[cold]
    #[inline(never)]
    fn grow(&mut self, wanted: usize) -> io::Result<()> {
        if wanted > self.mapping.len {
            let bytes = wanted.max(self.mapping.len * 2).max(LEAST).checked_next_multiple_of(page_size());
            let bytes = bytes.ok_or(io::ErrorKind::OutOfMemory)?;
            match self.mapping.len {
                0 => self.mapping = OwnedMapping::new(bytes, READ_WRITE, PRIVATE, None)?,
                _ => self.mapping.resize(bytes, libc::MREMAP_MAYMOVE)?,
            }
        }
        while self.made < wanted {
            let end = (self.made + AT_ONCE).min(self.mapping.len);
            self.mapping.advise(self.made..end, libc::MADV_POPULATE_WRITE);
            self.made = end;
        }
        Ok(())
    }

    /// Removes all values. If the array takes more than `kept` bytes of address space, its pages are freed.
    pub fn clear(&mut self, kept: usize) {
        match self.mapping.len <= kept {
            true => self.len = 0,
            false => *self = Table::default(),
        }
    }

    /// Removes the values from index `len` on. The array keeps its pages.
    pub fn truncate(&mut self, len: usize) {
        self.len = self.len.min(len);
    }

    /// Adds a value. Does nothing if there is no memory for the value: see `try_reserve`.
    #[inline]
    pub fn push(&mut self, value: T) {
        if self.try_reserve(1).is_ok() {
            // SAFETY: there is room for the value after the existing ones.
            unsafe { self.start().add(self.len).write(value) };
            self.len += 1;
        }
    }

    /// Adds values. If there is not enough memory for all values, adds no value.
    pub fn extend_from_slice(&mut self, values: &[T]) {
        if self.try_reserve(values.len()).is_ok() {
            // SAFETY: there is room for the values after the existing ones, and source and target do not overlap.
            unsafe { ptr::copy_nonoverlapping(values.as_ptr(), self.start().add(self.len), values.len()) };
            self.len += values.len();
        }
    }
}

impl<T: Copy> Deref for Table<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        // SAFETY: `len` values have been written to the mapping. If `len` is 0, the pointer may be dangling, but is aligned.
        unsafe { slice::from_raw_parts(self.start(), self.len) }
    }
}

impl<T: Copy> DerefMut for Table<T> {
    fn deref_mut(&mut self) -> &mut [T] {
        // SAFETY: `len` values have been written to the mapping. If `len` is 0, the pointer may be dangling, but is aligned.
        unsafe { slice::from_raw_parts_mut(self.start(), self.len) }
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
        let mapped = table.mapping.len;
        table.truncate(usize::MAX);
        assert_eq!(table.len(), 100_002);
        table.truncate(3);
        assert_eq!((&*table, table.mapping.len), (&[[0; 5], [1; 5], [2; 5]][..], mapped));
        table.clear(mapped);
        assert_eq!((table.len(), table.mapping.len), (0, mapped));
        table.clear(mapped - 1);
        assert_eq!((table.len(), table.mapping.len), (0, 0));
    }

    #[test]
    fn pages_of_a_large_one_are_there_before_they_are_used() {
        let mut table: Table<u8> = Table::default();
        let is_there = |table: &Table<u8>, at: usize| {
            let (mut found, page) = (0u8, page_size());
            // SAFETY: the page lies in the mapping, and `found` has room for the result for one page.
            assert_eq!(unsafe { libc::mincore(table.start().add(at).cast(), page, &mut found) }, 0);
            found & 1 == 1
        };
        table.push(1);
        assert!(!is_there(&table, LEAST - page_size()));
        table.extend_from_slice(&[1; LARGE - 1]);
        table.push(1);
        // Before Linux 5.14 each page becomes present at its first use.
        let is_old = !table.mapping.heeds(0..page_size(), libc::MADV_POPULATE_WRITE);
        assert!(is_old || is_there(&table, LARGE + AT_ONCE - page_size()) && !is_there(&table, LARGE + AT_ONCE));
    }
}
