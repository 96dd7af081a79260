//! Reading a jitdump back: for moved code, and for the command-line program.

use super::{id, LOAD_FIXED_SIZE, UNWINDING_FIXED_SIZE};
use super::{Header, DEBUG_ENTRY_FIXED_SIZE, DEBUG_FIXED_SIZE, FLAG_ARCH_TIMESTAMP, HEADER_SIZE, MAGIC, PREFIX_SIZE};

/// A record's prefix.
#[derive(Clone, Copy, Debug)]
pub(super) struct Raw {
    pub id: u32,
    pub total_size: usize,
    pub timestamp: u64,
}

/// The prefix at `at`; `None` at the end or if the size cannot be one.
pub(super) fn raw(bytes: &[u8], at: usize) -> Option<Raw> {
    let raw =
        Raw { id: u32_at(bytes, at)?, total_size: u32_at(bytes, at + 4)? as usize, timestamp: u64_at(bytes, at + 8)? };
    (raw.total_size >= PREFIX_SIZE).then_some(raw)
}

pub(super) fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_ne_bytes(bytes.get(at..at.checked_add(4)?)?.try_into().ok()?))
}

pub(super) fn u64_at(bytes: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_ne_bytes(bytes.get(at..at.checked_add(8)?)?.try_into().ok()?))
}

impl Header {
    /// Reads the header of a file in this machine's byte order; `None` if it is none.
    pub fn read(file: &[u8]) -> Option<Header> {
        if u32_at(file, 0)? != MAGIC || u32_at(file, 8)? as usize != HEADER_SIZE {
            return None;
        }
        Some(Header {
            machine: u32_at(file, 12)?,
            pid: u32_at(file, 20)?,
            timestamp: u64_at(file, 24)?,
            arch_timestamp: u64_at(file, 32)? & FLAG_ARCH_TIMESTAMP != 0,
        })
    }
}

/// One record, decoded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Record<'a> {
    /// JIT_CODE_LOAD.
    Load(Loaded<'a>),
    /// JIT_CODE_MOVE.
    Move {
        /// Where the code ran.
        old_addr: u64,
        /// Where it runs now.
        new_addr: u64,
        /// Its size.
        size: u64,
        /// The index of its LOAD.
        index: u64,
    },
    /// JIT_CODE_DEBUG_INFO.
    DebugInfo {
        /// Start of the code that the lines belong to.
        addr: u64,
        /// Address, line, column and file of each entry.
        entries: Vec<(u64, u32, u32, &'a [u8])>,
    },
    /// JIT_CODE_CLOSE.
    Close,
    /// JIT_CODE_UNWINDING_INFO.
    UnwindingInfo {
        /// `.eh_frame`.
        eh_frame: &'a [u8],
        /// `.eh_frame_hdr`.
        eh_frame_hdr: &'a [u8],
        /// Bytes behind the code that the tables are mapped to.
        mapped_size: u64,
    },
    /// An id that is not known, or a record too short for its id.
    Other(u32),
}

/// A LOAD record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Loaded<'a> {
    /// The process.
    pub pid: u32,
    /// The registering thread.
    pub tid: u32,
    /// Where the code runs.
    pub addr: u64,
    /// Unique number.
    pub index: u64,
    /// Name.
    pub name: &'a [u8],
    /// Code.
    pub code: &'a [u8],
}

/// The records of a file (without its header) in order, each with its time stamp. Ends where no whole record follows.
#[derive(Clone, Debug)]
pub struct Records<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Records<'a> {
    /// Starts behind the header.
    pub fn new(file: &'a [u8]) -> Self {
        Records { bytes: file, at: HEADER_SIZE }
    }

    /// Where the next record starts, or what is torn lies.
    pub fn offset(&self) -> usize {
        self.at
    }
}

impl<'a> Iterator for Records<'a> {
    type Item = (u64, Record<'a>);

    fn next(&mut self) -> Option<Self::Item> {
        let raw = raw(self.bytes, self.at)?;
        let record = self.bytes.get(self.at..self.at.checked_add(raw.total_size)?)?;
        self.at += raw.total_size;
        Some((raw.timestamp, decode(raw.id, record).unwrap_or(Record::Other(raw.id))))
    }
}

fn decode(id: u32, record: &[u8]) -> Option<Record<'_>> {
    Some(match id {
        id::LOAD => {
            let size = u64_at(record, 40)? as usize;
            let name = c_string(record.get(LOAD_FIXED_SIZE..)?)?;
            Record::Load(Loaded {
                pid: u32_at(record, 16)?,
                tid: u32_at(record, 20)?,
                addr: u64_at(record, 32)?,
                index: u64_at(record, 48)?,
                name,
                code: record.get(record.len().checked_sub(size)?..)?,
            })
        }
        id::MOVE => Record::Move {
            old_addr: u64_at(record, 32)?,
            new_addr: u64_at(record, 40)?,
            size: u64_at(record, 48)?,
            index: u64_at(record, 56)?,
        },
        id::DEBUG_INFO => {
            let mut entries = Vec::new();
            let mut at = DEBUG_FIXED_SIZE;
            for _ in 0..u64_at(record, 24)? {
                let file = c_string(record.get(at + DEBUG_ENTRY_FIXED_SIZE..)?)?;
                entries.push((u64_at(record, at)?, u32_at(record, at + 8)?, u32_at(record, at + 12)?, file));
                at += DEBUG_ENTRY_FIXED_SIZE + file.len() + 1;
            }
            Record::DebugInfo { addr: u64_at(record, 16)?, entries }
        }
        id::CLOSE => Record::Close,
        id::UNWINDING_INFO => {
            let (size, hdr_size) = (u64_at(record, 16)? as usize, u64_at(record, 24)? as usize);
            let tables = record.get(UNWINDING_FIXED_SIZE..UNWINDING_FIXED_SIZE.checked_add(size)?)?;
            let (eh_frame, eh_frame_hdr) = tables.split_at_checked(size.checked_sub(hdr_size)?)?;
            Record::UnwindingInfo { eh_frame, eh_frame_hdr, mapped_size: u64_at(record, 32)? }
        }
        _ => return None,
    })
}

fn c_string(bytes: &[u8]) -> Option<&[u8]> {
    let end = bytes.iter().position(|&byte| byte == 0)?;
    bytes.get(..end)
}
