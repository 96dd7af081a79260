//! A growing array of plain values in separate pages. Its pages go back to the kernel when it is dropped, where an allocator
//! would keep them. So a process that has remembered much and forgotten it is as small as before.

use std::io;
use std::marker::PhantomData;
use std::ops::{Deref, DerefMut};
use std::ptr;
use std::slice;

use super::{page_size, OwnedMapping, PRIVATE, READ_WRITE};

/// Bytes that the smallest one takes of the address space.
const LEAST: usize = 64 * 1024;

/// See the module's description.
#[derive(Debug)]
pub struct Table<T: Copy> {
    mapping: OwnedMapping,
    len: usize,
    values: PhantomData<T>,
}

impl<T: Copy> Default for Table<T> {
    fn default() -> Table<T> {
        Table { mapping: OwnedMapping::none::<T>(), len: 0, values: PhantomData }
    }
}

impl<T: Copy> Table<T> {
    fn start(&self) -> *mut T {
        self.mapping.start.as_ptr().cast()
    }

    fn capacity(&self) -> usize {
        self.mapping.len / size_of::<T>()
    }

    /// Makes room for more values. Only pages that are written to take memory.
    pub fn try_reserve(&mut self, more: usize) -> io::Result<()> {
        let wanted = self.len.checked_add(more).ok_or(io::ErrorKind::OutOfMemory)?;
        if wanted <= self.capacity() {
            return Ok(());
        }
        let wanted = wanted.max(self.capacity() * 2).checked_mul(size_of::<T>()).ok_or(io::ErrorKind::OutOfMemory)?;
        let bytes = wanted.max(LEAST).next_multiple_of(page_size());
        match self.mapping.len {
            0 => self.mapping = OwnedMapping::new(bytes, READ_WRITE, PRIVATE, None)?,
            _ => self.mapping.resize(bytes, libc::MREMAP_MAYMOVE)?,
        }
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
            unsafe { ptr::copy_nonoverlapping(values.as_ptr(), self.start().add(self.len), values.len()) };
            self.len += values.len();
        }
    }
}

impl<T: Copy> Deref for Table<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        // SAFETY: this number of values has been written there; with none the pointer is dangling, and aligned.
        unsafe { slice::from_raw_parts(self.start(), self.len) }
    }
}

impl<T: Copy> DerefMut for Table<T> {
    fn deref_mut(&mut self) -> &mut [T] {
        // SAFETY: as above.
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
    }
}
