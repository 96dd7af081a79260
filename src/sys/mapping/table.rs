//! A growing array of plain values. A small array is in the heap, and a larger array is in a separate mapping.
//!
//! When a larger array is dropped, its pages return to the kernel. An allocator would keep the pages. So a process that stores
//! many records and drops them needs no more memory afterwards than before.

use std::alloc::{alloc, dealloc, Layout};
use std::io;
use std::marker::PhantomData;
use std::mem::ManuallyDrop;
use std::ops::{Deref, DerefMut};
use std::ptr::{self, NonNull};
use std::slice;

use super::{page_size, OwnedMapping, PRIVATE, READ_WRITE};

/// An array of at most this many bytes is in the heap, because a process that registers only a few functions would spend more
/// time on mappings than on its functions.
const IN_HEAP: usize = 1024;
/// The minimum address space of a mapping, in bytes.
const LEAST: usize = 64 * 1024;

/// When an array grows beyond `LARGE` bytes, it asks the kernel for pages before their first use, `AT_ONCE` bytes at a time.
/// Without this request, each page would cause a fault at its first use, and would take a sixth more time. `AT_ONCE` is small,
/// because a thread of the host that changes the process's mappings has to wait while the kernel provides `AT_ONCE` bytes.
const LARGE: usize = 1 << 20;
const AT_ONCE: usize = 128 * 1024;

/// See the module's description.
#[derive(Debug)]
pub struct Table<T: Copy> {
    start: NonNull<T>,
    /// Bytes that the array has: 0, `IN_HEAP` in the heap, or at least `LEAST` in a mapping.
    room: usize,
    len: usize,
    /// An offset in bytes. The array asks the kernel only for pages from this offset on.
    made: usize,
    values: PhantomData<T>,
}

// SAFETY: the array owns its memory, and `T` is plain data.
unsafe impl<T: Copy + Send> Send for Table<T> {}
// SAFETY: a shared reference only reads the values.
unsafe impl<T: Copy + Sync> Sync for Table<T> {}

impl<T: Copy> Default for Table<T> {
    fn default() -> Table<T> {
        Table { start: NonNull::dangling(), room: 0, len: 0, made: LARGE, values: PhantomData }
    }
}

impl<T: Copy> Drop for Table<T> {
    fn drop(&mut self) {
        match self.room {
            0 => {}
            // SAFETY: `grow` has allocated this memory with this layout.
            IN_HEAP => unsafe { dealloc(self.start.as_ptr().cast(), Table::<T>::HEAP) },
            _ => drop(ManuallyDrop::into_inner(self.mapping())),
        }
    }
}

impl<T: Copy> Table<T> {
    // SAFETY: the alignment of a type is a power of two, and the size is far below the limit.
    const HEAP: Layout = unsafe { Layout::from_size_align_unchecked(IN_HEAP, align_of::<T>()) };

    /// The mapping of an array that has one.
    fn mapping(&self) -> ManuallyDrop<OwnedMapping> {
        ManuallyDrop::new(OwnedMapping { start: self.start.cast(), len: self.room })
    }

    fn start(&self) -> *mut T {
        self.start.as_ptr()
    }

    /// Makes room for more values. Memory is used only for pages that are written to, and for up to `AT_ONCE` bytes after
    /// these pages.
    #[inline]
    pub fn try_reserve(&mut self, more: usize) -> io::Result<()> {
        let wanted = self.len.checked_add(more).and_then(|wanted| wanted.checked_mul(size_of::<T>()));
        match wanted {
            Some(wanted) if wanted <= self.made.min(self.room) => Ok(()),
            _ => self.grow(wanted.ok_or(io::ErrorKind::OutOfMemory)?),
        }
    }

    #[cold]
    #[inline(never)]
    fn grow(&mut self, wanted: usize) -> io::Result<()> {
        if wanted <= IN_HEAP && self.room == 0 {
            // SAFETY: the layout is not empty.
            let start = NonNull::new(unsafe { alloc(Table::<T>::HEAP) }).ok_or(io::ErrorKind::OutOfMemory)?;
            (self.start, self.room) = (start.cast(), IN_HEAP);
        } else if wanted > self.room {
            let bytes = wanted.max(self.room * 2).max(LEAST).checked_next_multiple_of(page_size());
            self.map(bytes.ok_or(io::ErrorKind::OutOfMemory)?)?;
        }
        while self.made < wanted {
            let end = (self.made + AT_ONCE).min(self.room);
            self.mapping().advise(self.made..end, libc::MADV_POPULATE_WRITE);
            self.made = end;
        }
        Ok(())
    }

    /// Moves the values to a mapping of `bytes` bytes, or enlarges the array's mapping.
    fn map(&mut self, bytes: usize) -> io::Result<()> {
        if self.room > IN_HEAP {
            let mut mapping = self.mapping();
            mapping.resize(bytes, libc::MREMAP_MAYMOVE)?;
            (self.start, self.room) = (mapping.start.cast(), mapping.len);
            return Ok(());
        }
        let mapping = ManuallyDrop::new(OwnedMapping::new(bytes, READ_WRITE, PRIVATE, None)?);
        let larger: NonNull<T> = mapping.start.cast();
        // SAFETY: both memories have room for the values, and do not overlap.
        unsafe { ptr::copy_nonoverlapping(self.start(), larger.as_ptr(), self.len) };
        *self = Table { start: larger, room: bytes, len: self.len, made: self.made, values: PhantomData };
        Ok(())
    }

    /// Removes all values. If the array takes more than `kept` bytes of address space, its pages are freed.
    pub fn clear(&mut self, kept: usize) {
        match self.room <= kept {
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

impl Table<u32> {
    /// An array of `len` zeros. Only pages that are written to take memory.
    pub fn zeroed(len: usize) -> io::Result<Table<u32>> {
        let bytes =
            len.checked_mul(size_of::<u32>()).and_then(|bytes| bytes.max(LEAST).checked_next_multiple_of(page_size()));
        let mut table = Table::default();
        table.map(bytes.ok_or(io::ErrorKind::OutOfMemory)?)?;
        // The kernel fills new mappings with zeros.
        (table.len, table.made) = (len, table.room);
        Ok(table)
    }
}

impl<T: Copy> Deref for Table<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        // SAFETY: `len` values have been written to the array. If `len` is 0, the pointer may be dangling, but is aligned.
        unsafe { slice::from_raw_parts(self.start(), self.len) }
    }
}

impl<T: Copy> DerefMut for Table<T> {
    fn deref_mut(&mut self) -> &mut [T] {
        // SAFETY: `len` values have been written to the array. If `len` is 0, the pointer may be dangling, but is aligned.
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
        let mapped = table.room;
        table.truncate(usize::MAX);
        assert_eq!(table.len(), 100_002);
        table.truncate(3);
        assert_eq!((&*table, table.room), (&[[0; 5], [1; 5], [2; 5]][..], mapped));
        table.clear(mapped);
        assert_eq!((table.len(), table.room), (0, mapped));
        table.clear(mapped - 1);
        assert_eq!((table.len(), table.room), (0, 0));
    }

    #[test]
    fn zeros_take_no_memory_until_they_are_written_to() {
        let mut table = Table::zeroed(1 << 28).unwrap();
        assert_eq!((table.len(), table[0], table[(1 << 28) - 1]), (1 << 28, 0, 0));
        table[1 << 27] = 7;
        assert_eq!(table[1 << 27], 7);
        assert_eq!(Table::zeroed(0).unwrap().len(), 0);
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
        table.extend_from_slice(&[1; IN_HEAP + 1]);
        assert!(!is_there(&table, LEAST - page_size()));
        table.extend_from_slice(&[1; LARGE - IN_HEAP - 1]);
        table.push(1);
        // Before Linux 5.14 each page becomes present at its first use.
        let is_old = !table.mapping().heeds(0..page_size(), libc::MADV_POPULATE_WRITE);
        assert!(is_old || is_there(&table, LARGE + AT_ONCE - page_size()) && !is_there(&table, LARGE + AT_ONCE));
    }
}
