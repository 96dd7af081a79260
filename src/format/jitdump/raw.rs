//! Reads the records of a jitdump from any program. Every field is checked before it is used.

use std::ffi::CStr;

use super::record::{
    id, DEBUG_ENTRY_FIXED_SIZE, DEBUG_FIXED_SIZE, FLAG_ARCH_TIMESTAMP, HEADER_SIZE, LOAD_FIXED_SIZE, MAGIC, MOVE_SIZE,
    PREFIX_SIZE, UNWINDING_FIXED_SIZE,
};
use crate::format::get::{u32_at, u64_at};

/// Bytes from a file. `swapped` is true if the file's byte order differs from this machine's.
#[derive(Clone, Copy, Debug)]
pub struct Fields<'a> {
    pub bytes: &'a [u8],
    pub(super) swapped: bool,
}

impl Fields<'_> {
    pub(super) fn u32_at(&self, at: usize) -> Option<u32> {
        let value = u32_at(self.bytes, at)?;
        Some(if self.swapped { value.swap_bytes() } else { value })
    }

    pub(super) fn u64_at(&self, at: usize) -> Option<u64> {
        let value = u64_at(self.bytes, at)?;
        Some(if self.swapped { value.swap_bytes() } else { value })
    }
}

pub(super) fn c_string(bytes: &[u8]) -> Option<&[u8]> {
    CStr::from_bytes_until_nul(bytes).ok().map(CStr::to_bytes)
}

/// All fields of a file header, with unchecked values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RawHeader {
    /// Whether the file's byte order differs from this machine's.
    pub swapped: bool,
    pub version: u32,
    /// The header size that the header states.
    pub total_size: u32,
    /// `e_machine` of the code.
    pub machine: u32,
    pub pid: u32,
    /// When the file was made.
    pub timestamp: u64,
    pub flags: u64,
}

impl RawHeader {
    /// Whether a file begins with the magic number of a jitdump, in either byte order.
    pub fn has_magic(file: &[u8]) -> bool {
        u32_at(file, 0).is_some_and(|magic| magic == MAGIC || magic.swap_bytes() == MAGIC)
    }

    /// Returns `None` if the file has no magic number, or if the file is shorter than a header.
    pub fn read(file: &[u8]) -> Option<RawHeader> {
        if !RawHeader::has_magic(file) {
            return None;
        }
        let swapped = u32_at(file, 0)? != MAGIC;
        let fields = Fields { bytes: file, swapped };
        Some(RawHeader {
            swapped,
            version: fields.u32_at(4)?,
            total_size: fields.u32_at(8)?,
            machine: fields.u32_at(12)?,
            pid: fields.u32_at(20)?,
            timestamp: fields.u64_at(24)?,
            flags: fields.u64_at(32)?,
        })
    }

    pub fn arch_timestamp(&self) -> bool {
        self.flags & FLAG_ARCH_TIMESTAMP != 0
    }

    /// Flags that this format does not define.
    pub fn unknown_flags(&self) -> u64 {
        self.flags & !FLAG_ARCH_TIMESTAMP
    }

    /// The offset at which the records begin: the header size that the header states. If the stated size is too small, or is
    /// larger than the file, the records begin after the known fields.
    pub fn records_at(&self, file_len: usize) -> usize {
        let size = self.total_size as usize;
        if (HEADER_SIZE..=file_len).contains(&size) {
            size
        } else {
            HEADER_SIZE
        }
    }
}

/// Why there is no further record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// The file ends after a whole record.
    Clean,
    /// All bytes from here to the end are zero.
    Zeros,
    /// The record claims to be smaller than its own prefix.
    TooSmall(u32),
    /// The record claims to have this number of bytes, but the file ends within the record.
    Torn(u32),
    /// The file ends within the prefix of a record.
    TornPrefix,
}

/// The records of a file in order. The iterator ends before the first incomplete record.
#[derive(Clone, Debug)]
pub struct RawRecords<'a> {
    file: &'a [u8],
    at: usize,
    swapped: bool,
}

impl<'a> RawRecords<'a> {
    /// The records after this header.
    pub fn new(file: &'a [u8], header: &RawHeader) -> Self {
        RawRecords { file, at: header.records_at(file.len()), swapped: header.swapped }
    }

    /// The records from offset `at` on, where an earlier pass has found a record.
    pub fn at(file: &'a [u8], at: usize, header: &RawHeader) -> Self {
        RawRecords { file, at, swapped: header.swapped }
    }

    /// The records from offset `at` on, in this machine's byte order.
    pub fn from(file: &'a [u8], at: usize) -> Self {
        RawRecords { file, at, swapped: false }
    }

    /// Offset of the next record, or of the incomplete bytes at the end.
    pub fn offset(&self) -> usize {
        self.at
    }

    /// The bytes from [`offset`](RawRecords::offset) to the end.
    pub fn rest(&self) -> &'a [u8] {
        self.file.get(self.at..).unwrap_or_default()
    }

    /// Why `next` has returned `None`.
    pub fn end(&self) -> End {
        let rest = self.rest();
        let fields = Fields { bytes: rest, swapped: self.swapped };
        if rest.is_empty() {
            return End::Clean;
        }
        if rest.iter().all(|&byte| byte == 0) {
            return End::Zeros;
        }
        match fields.u32_at(4).filter(|_| rest.len() >= PREFIX_SIZE) {
            Some(size) if (size as usize) < PREFIX_SIZE => End::TooSmall(size),
            Some(size) => End::Torn(size),
            None => End::TornPrefix,
        }
    }
}

impl<'a> Iterator for RawRecords<'a> {
    type Item = RawRecord<'a>;

    fn next(&mut self) -> Option<RawRecord<'a>> {
        let rest = Fields { bytes: self.rest(), swapped: self.swapped };
        let total_size = rest.u32_at(4)? as usize;
        let bytes = rest.bytes.get(..total_size).filter(|bytes| bytes.len() >= PREFIX_SIZE)?;
        let fields = Fields { bytes, swapped: self.swapped };
        let record = RawRecord { offset: self.at, id: fields.u32_at(0)?, timestamp: fields.u64_at(8)?, fields };
        self.at += total_size;
        Some(record)
    }
}

#[derive(Clone, Copy, Debug)]
pub struct RawRecord<'a> {
    /// Offset of the record in the file.
    pub offset: usize,
    /// One of the constants in `id`, or any other value.
    pub id: u32,
    pub timestamp: u64,
    pub(super) fields: Fields<'a>,
}

impl<'a> RawRecord<'a> {
    /// Size in bytes, prefix included.
    pub fn size(&self) -> usize {
        self.fields.bytes.len()
    }

    pub(super) fn tail(&self, fixed_size: usize) -> &'a [u8] {
        self.fields.bytes.get(fixed_size..).unwrap_or_default()
    }

    /// The fields of a JIT_CODE_LOAD; `None` if the record has another id, or is too short.
    pub fn load(&self) -> Option<RawLoad<'a>> {
        (self.id == id::LOAD).then_some(())?;
        Some(RawLoad {
            pid: self.fields.u32_at(16)?,
            tid: self.fields.u32_at(20)?,
            vma: self.fields.u64_at(24)?,
            addr: self.fields.u64_at(32)?,
            size: self.fields.u64_at(40)?,
            index: self.fields.u64_at(48)?,
            tail: self.tail(LOAD_FIXED_SIZE),
        })
    }

    /// The fields of a JIT_CODE_MOVE; `None` if the record is too short.
    pub fn code_move(&self) -> Option<RawMove> {
        (self.size() >= MOVE_SIZE).then_some(())?;
        Some(RawMove {
            pid: self.fields.u32_at(16)?,
            tid: self.fields.u32_at(20)?,
            old_addr: self.fields.u64_at(32)?,
            new_addr: self.fields.u64_at(40)?,
            size: self.fields.u64_at(48)?,
            index: self.fields.u64_at(56)?,
        })
    }

    /// The fields of a JIT_CODE_DEBUG_INFO; `None` if the record is too short.
    pub fn debug_info(&self) -> Option<RawDebug<'a>> {
        Some(RawDebug {
            addr: self.fields.u64_at(16)?,
            count: self.fields.u64_at(24)?,
            tail: Fields { bytes: self.tail(DEBUG_FIXED_SIZE), swapped: self.fields.swapped },
        })
    }

    /// The fields of a JIT_CODE_UNWINDING_INFO; `None` if the record is too short.
    pub fn unwinding_info(&self) -> Option<RawUnwinding<'a>> {
        Some(RawUnwinding {
            size: self.fields.u64_at(16)?,
            hdr_size: self.fields.u64_at(24)?,
            mapped_size: self.fields.u64_at(32)?,
            tail: self.tail(UNWINDING_FIXED_SIZE),
        })
    }
}

/// A JIT_CODE_LOAD.
#[derive(Clone, Copy, Debug)]
pub struct RawLoad<'a> {
    pub pid: u32,
    /// The thread that registered the code.
    pub tid: u32,
    /// Address of the code, for readers that use `vma` instead of `addr`.
    pub vma: u64,
    /// Address of the code, for readers that use `addr` instead of `vma`.
    pub addr: u64,
    pub size: u64,
    /// The code index, which should be unique.
    pub index: u64,
    /// Name and code.
    pub tail: &'a [u8],
}

impl<'a> RawLoad<'a> {
    /// The name; `None` if the NUL at its end is missing.
    pub fn name(&self) -> Option<&'a [u8]> {
        c_string(self.tail)
    }

    /// The code, which is at the end of the record. perf also locates the code by its distance from the end. `None` if the
    /// record has fewer bytes than the code.
    pub fn code(&self) -> Option<&'a [u8]> {
        let from = self.tail.len().checked_sub(usize::try_from(self.size).ok()?)?;
        self.tail.get(from..)
    }
}

/// A JIT_CODE_MOVE.
#[derive(Clone, Copy, Debug)]
pub struct RawMove {
    pub pid: u32,
    /// The thread that moved the code.
    pub tid: u32,
    pub old_addr: u64,
    pub new_addr: u64,
    pub size: u64,
    /// The code index, which is the same as in the LOAD record of the code.
    pub index: u64,
}

/// A JIT_CODE_DEBUG_INFO.
#[derive(Clone, Copy, Debug)]
pub struct RawDebug<'a> {
    /// Start of the code that the lines belong to.
    pub addr: u64,
    /// The number of entries that the record states.
    pub count: u64,
    tail: Fields<'a>,
}

impl<'a> RawDebug<'a> {
    /// The entries, up to the first incomplete entry.
    pub fn entries(&self) -> RawEntries<'a> {
        RawEntries { left: self.count, rest: self.tail, last: &[] }
    }
}

/// One line of a line table.
#[derive(Clone, Copy, Debug)]
pub struct RawEntry<'a> {
    pub addr: u64,
    pub line: u32,
    /// The field is called discriminator, but some readers use it as the column.
    pub column: u32,
    pub file: &'a [u8],
}

/// The iterator of [`RawDebug::entries`].
#[derive(Clone, Copy, Debug)]
pub struct RawEntries<'a> {
    left: u64,
    rest: Fields<'a>,
    /// The file name of the entry that was read last, with the NUL.
    last: &'a [u8],
}

impl<'a> RawEntries<'a> {
    /// An upper bound for the number of entries that are left.
    pub fn most(&self) -> usize {
        self.rest.bytes.len() / (DEBUG_ENTRY_FIXED_SIZE + 1)
    }

    /// Returns the number of entries that are still unread, and the unread bytes. When the iteration has ended, the number
    /// counts only the entries that are missing or incomplete.
    pub fn rest(&self) -> (u64, &'a [u8]) {
        (self.left, self.rest.bytes)
    }
}

impl<'a> Iterator for RawEntries<'a> {
    type Item = RawEntry<'a>;

    #[inline(always)]
    fn next(&mut self) -> Option<RawEntry<'a>> {
        let left = self.left.checked_sub(1)?;
        let (fixed, rest) = self.rest.bytes.split_at_checked(DEBUG_ENTRY_FIXED_SIZE)?;
        let fixed = Fields { bytes: fixed, ..self.rest };
        let (addr, line, column) = (fixed.u64_at(0)?, fixed.u32_at(8)?, fixed.u32_at(12)?);
        // Most entries have the same file name as the previous entry, and then also the slice of the previous entry as `file`.
        // Callers recognize this slice by its address.
        if self.last.is_empty() || !rest.starts_with(self.last) {
            self.last = rest.get(..=c_string(rest)?.len())?;
        }
        (self.rest.bytes, self.left) = (rest.get(self.last.len()..)?, left);
        Some(RawEntry { addr, line, column, file: self.last.split_last()?.1 })
    }
}

/// A JIT_CODE_UNWINDING_INFO.
#[derive(Clone, Copy, Debug)]
pub struct RawUnwinding<'a> {
    /// Size of both tables.
    pub size: u64,
    /// Size of `.eh_frame_hdr` alone.
    pub hdr_size: u64,
    /// The size of the mapping in which perf puts the tables, right after the code.
    pub mapped_size: u64,
    /// The tables, and the bytes after them.
    pub tail: &'a [u8],
}

impl<'a> RawUnwinding<'a> {
    /// `.eh_frame` and `.eh_frame_hdr` as perf reads them: `.eh_frame_hdr` is last. `None` if the sizes contradict the record's
    /// size.
    pub fn tables(&self) -> Option<(&'a [u8], &'a [u8])> {
        let tables = self.tail.get(..usize::try_from(self.size).ok()?)?;
        tables.split_at_checked(tables.len().checked_sub(usize::try_from(self.hdr_size).ok()?)?)
    }
}
