//! Reading a jitdump back: for moved code, and for the command-line program.

use super::{id, LOAD_FIXED_SIZE, MOVE_SIZE, UNWINDING_FIXED_SIZE};
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

/// Checks that `head` is a whole group but for the code bytes at its end, for code of this size with a name of this length.
pub fn is_group_head(head: &[u8], size: u64, name_len: usize) -> bool {
    let mut at = 0;
    while let Some(record) = raw(head, at) {
        let end = at + record.total_size;
        match record.id {
            id::LOAD => {
                let name_at = at + LOAD_FIXED_SIZE;
                return u64_at(head, at + 40) == Some(size)
                    && end as u64 == head.len() as u64 + size
                    && name_at + name_len + 1 == head.len()
                    && name_len > 0
                    && head[name_at..].iter().position(|&byte| byte == 0) == Some(name_len);
            }
            id::DEBUG_INFO | id::UNWINDING_INFO if decode(record.id, head.get(at..end).unwrap_or(&[])).is_some() => {
                at = end
            }
            _ => return false,
        }
    }
    false
}

/// Checks that `head` is a whole group as above, of the code with this index and name.
pub fn is_group_of(head: &[u8], size: u64, index: u64, name: &[u8]) -> bool {
    let load = || head.len().checked_sub(LOAD_FIXED_SIZE + name.len() + 1);
    is_group_head(head, size, name.len())
        && load()
            .is_some_and(|at| u64_at(head, at + 48) == Some(index) && head[at + LOAD_FIXED_SIZE..].starts_with(name))
}

/// A LOAD or MOVE record of a file, as far as it matters to what comes later.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Place {
    /// Code was loaded.
    Load {
        /// Where in the file its group starts.
        offset: u64,
        /// Size of the group without the code bytes.
        head_len: usize,
        /// Where the code runs.
        addr: u64,
        /// Its size.
        size: u64,
        /// Its index.
        index: u64,
        /// Its name.
        name: Vec<u8>,
        /// Size of its unwind tables.
        tables_len: u32,
    },
    /// Code was moved.
    Move {
        /// Where it ran.
        old_addr: u64,
        /// Where it runs.
        new_addr: u64,
    },
}

/// Reads the records of a file without their code, by way of `read_at`, which fills a buffer from an offset of the file.
/// Stops at the first one that is not whole.
pub fn places(
    len: u64,
    mut read_at: impl FnMut(&mut [u8], u64) -> std::io::Result<()>,
    mut found: impl FnMut(Place),
) -> std::io::Result<()> {
    let (mut at, mut group, mut tables_len) = (HEADER_SIZE as u64, HEADER_SIZE as u64, 0);
    let mut fixed = [0; MOVE_SIZE];
    while at + PREFIX_SIZE as u64 <= len {
        let known = (len - at).min(MOVE_SIZE as u64) as usize;
        read_at(&mut fixed[..known], at)?;
        let Some(record) = raw(&fixed[..known], 0).filter(|record| at + record.total_size as u64 <= len) else { break };
        let word = |offset: usize| u64_at(&fixed[..known], offset).unwrap_or(0);
        match record.id {
            id::LOAD if record.total_size > LOAD_FIXED_SIZE => {
                let (addr, size, index) = (word(32), word(40), word(48));
                let Some(name_len) = (record.total_size - LOAD_FIXED_SIZE - 1).checked_sub(size as usize) else {
                    break;
                };
                let mut name = vec![0; name_len];
                read_at(&mut name, at + LOAD_FIXED_SIZE as u64)?;
                let head_len = (at - group) as usize + LOAD_FIXED_SIZE + name_len + 1;
                found(Place::Load { offset: group, head_len, addr, size, index, name, tables_len });
            }
            id::MOVE => found(Place::Move { old_addr: word(32), new_addr: word(40) }),
            id::UNWINDING_INFO => tables_len = word(16) as u32,
            _ => {}
        }
        at += record.total_size as u64;
        if !matches!(record.id, id::DEBUG_INFO | id::UNWINDING_INFO) {
            (group, tables_len) = (at, 0);
        }
    }
    Ok(())
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
