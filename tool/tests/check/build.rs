//! Jitdumps byte by byte, right in all that a test does not make wrong.

use std::path::PathBuf;

use jitsym::format::arch::Arch;
use jitsym::format::cfi::{encode, Tables};
use jitsym::{Unwind, UnwindRow};
use jitsym_tool::check::Facts;

pub const ADDR: u64 = 0x7f00_0000_1000;
pub const PID: u32 = 100;
pub const TIME: u64 = 5_000_000_000;
/// The size of the code unless a test says otherwise.
pub const SIZE: u64 = 8;

/// A file header.
#[derive(Clone, Copy)]
pub struct Header {
    pub magic: u32,
    pub version: u32,
    pub size: u32,
    pub machine: u32,
    pub pid: u32,
    pub time: u64,
    pub flags: u64,
}

impl Default for Header {
    fn default() -> Self {
        Header { magic: 0x4a69_5444, version: 1, size: 40, machine: 62, pid: PID, time: TIME, flags: 0 }
    }
}

impl Header {
    pub fn bytes(&self) -> Vec<u8> {
        let words = [self.magic, self.version, self.size, self.machine, 0, self.pid];
        let mut bytes: Vec<u8> = words.iter().flat_map(|word| word.to_ne_bytes()).collect();
        bytes.extend(self.time.to_ne_bytes());
        bytes.extend(self.flags.to_ne_bytes());
        bytes
    }
}

/// A record of any kind.
pub fn record(id: u32, time: u64, body: &[u8]) -> Vec<u8> {
    let size = 16 + body.len() as u32;
    [&id.to_ne_bytes()[..], &size.to_ne_bytes(), &time.to_ne_bytes(), body].concat()
}

/// The announced size of a record, changed.
pub fn resized(mut record: Vec<u8>, size: u32) -> Vec<u8> {
    record[4..8].copy_from_slice(&size.to_ne_bytes());
    record
}

pub fn words(words: &[u64]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_ne_bytes()).collect()
}

/// A JIT_CODE_LOAD.
#[derive(Clone)]
pub struct Load {
    pub time: u64,
    pub pid: u32,
    pub tid: u32,
    /// If it is not `addr`.
    pub vma: Option<u64>,
    pub addr: u64,
    pub index: u64,
    /// With its NUL, and what is behind it.
    pub name: Vec<u8>,
    pub code: Vec<u8>,
    /// If it is not that of `code`.
    pub size: Option<u64>,
}

impl Default for Load {
    fn default() -> Self {
        Load {
            time: TIME,
            pid: PID,
            tid: PID,
            vma: None,
            addr: ADDR,
            index: 1,
            name: b"fib_int\0".to_vec(),
            code: vec![0x90; SIZE as usize],
            size: None,
        }
    }
}

impl Load {
    pub fn named(name: &[u8]) -> Load {
        // Whole words, by the size of the code.
        let name = [name, b"\0"].concat();
        let code = vec![0x90; 16 - name.len() % 8];
        Load { name, code, ..Load::default() }
    }

    pub fn bytes(&self) -> Vec<u8> {
        let mut body = Vec::new();
        body.extend(self.pid.to_ne_bytes());
        body.extend(self.tid.to_ne_bytes());
        let size = self.size.unwrap_or(self.code.len() as u64);
        body.extend(words(&[self.vma.unwrap_or(self.addr), self.addr, size, self.index]));
        body.extend(&self.name);
        body.extend(&self.code);
        record(0, self.time, &body)
    }
}

/// A JIT_CODE_DEBUG_INFO for the code at `addr`, with offsets from there, and with a count that may be wrong.
pub fn debug_with(addr: u64, count: u64, entries: &[(u64, u32, &[u8])]) -> Vec<u8> {
    let mut body = words(&[addr, count]);
    for (offset, line, file) in entries {
        body.extend(addr.wrapping_add(*offset).to_ne_bytes());
        body.extend(line.to_ne_bytes());
        body.extend(0u32.to_ne_bytes());
        body.extend(*file);
        body.push(0);
    }
    record(2, TIME, &body)
}

pub fn debug(entries: &[(u64, u32, &[u8])]) -> Vec<u8> {
    debug_with(ADDR, entries.len() as u64, entries)
}

/// A DEBUG_INFO2 of `inner`, which was inlined into `fib_int`.
#[derive(Clone)]
pub struct Inlines {
    pub addr: u64,
    /// If it is not that of `offsets`, of `positions` or of `strings`.
    pub counts: [Option<u64>; 3],
    /// Code offset, source position.
    pub offsets: Vec<[u32; 2]>,
    /// Caller, function, file, start line, start column, line, column.
    pub positions: Vec<[i32; 7]>,
    /// Each with its NUL.
    pub strings: Vec<&'static [u8]>,
}

impl Default for Inlines {
    fn default() -> Self {
        Inlines {
            addr: ADDR,
            counts: [None; 3],
            offsets: vec![[0, 0], [4, 1]],
            positions: vec![[-1, 0, -1, 0, 0, 0, 0], [0, 1, 2, 0, 0, 7, 3]],
            strings: vec![b"fib_int\0", b"inner\0", b"/a.c\0"],
        }
    }
}

impl Inlines {
    pub fn bytes(&self) -> Vec<u8> {
        let counts = [self.offsets.len(), self.positions.len(), self.strings.len()];
        let counts: Vec<u64> = counts.iter().zip(self.counts).map(|(&is, said)| said.unwrap_or(is as u64)).collect();
        let mut body = words(&[&[self.addr], &counts[..]].concat());
        body.extend(self.offsets.iter().flatten().flat_map(|word| word.to_ne_bytes()));
        body.extend(self.positions.iter().flatten().flat_map(|word| word.to_ne_bytes()));
        body.extend(self.strings.concat());
        record(827_346_260, TIME, &body)
    }
}

/// A JIT_CODE_UNWINDING_INFO.
#[derive(Clone)]
pub struct Unwinding {
    pub eh_frame: Vec<u8>,
    pub hdr: Vec<u8>,
    /// If it is not that of both.
    pub size: Option<u64>,
    /// If it is not that of `hdr`.
    pub hdr_size: Option<u64>,
    pub mapped_size: u64,
    /// Behind the tables.
    pub padding: Vec<u8>,
}

impl Default for Unwinding {
    fn default() -> Self {
        Unwinding::of_size(SIZE)
    }
}

impl Unwinding {
    /// As the library makes them for code of this size.
    pub fn of_size(size: u64) -> Unwinding {
        let rows = [UnwindRow { offset: 0, cfa_register: 7, cfa_offset: 16, saved: &[] }];
        let tables = encode(Arch::X86_64, &Unwind::Rows(&rows), ADDR, size).expect("encoded").expect("tables");
        let Tables { bytes, hdr_size, .. } = &tables;
        let (eh_frame, hdr) = bytes.split_at(bytes.len() - hdr_size);
        let none = Vec::new();
        Unwinding {
            eh_frame: eh_frame.into(),
            hdr: hdr.into(),
            size: None,
            hdr_size: None,
            // More than any test needs, and less than there is to other code.
            mapped_size: 128,
            padding: none,
        }
    }

    pub fn bytes(&self) -> Vec<u8> {
        let size = self.size.unwrap_or((self.eh_frame.len() + self.hdr.len()) as u64);
        let fixed = words(&[size, self.hdr_size.unwrap_or(self.hdr.len() as u64), self.mapped_size]);
        record(4, TIME, &[fixed, self.eh_frame.clone(), self.hdr.clone(), self.padding.clone()].concat())
    }
}

/// A dump of code for an architecture with the tables that say this.
pub fn described(arch: Arch, code: &[u8], rows: &[UnwindRow]) -> Vec<u8> {
    described_by(arch, code, &Unwind::Rows(rows))
}

/// The same for any description.
pub fn described_by(arch: Arch, code: &[u8], unwind: &Unwind) -> Vec<u8> {
    let tables = encode(arch, unwind, ADDR, code.len() as u64).expect("encoded").expect("tables");
    let (eh_frame, hdr) = tables.bytes.split_at(tables.bytes.len() - tables.hdr_size);
    let mapped_size = tables.bytes.len() as u64;
    let unwinding = Unwinding { eh_frame: eh_frame.into(), hdr: hdr.into(), mapped_size, ..Unwinding::default() };
    let load = Load { code: code.into(), ..Load::default() };
    let header = Header { machine: arch.abi().elf_machine, ..Header::default() };
    file(header, &[unwinding.bytes(), load.bytes()])
}

/// A file of these records.
pub fn file(header: Header, records: &[Vec<u8>]) -> Vec<u8> {
    [header.bytes(), records.concat()].concat()
}

/// A file with the usual header.
pub fn dump(records: &[Vec<u8>]) -> Vec<u8> {
    file(Header::default(), records)
}

/// A file with the usual code and nothing else.
pub fn plain() -> Vec<u8> {
    dump(&[Load::default().bytes()])
}

/// A file with the usual code behind other records.
pub fn before_load(records: &[Vec<u8>]) -> Vec<u8> {
    dump(&[records.concat(), Load::default().bytes()])
}

/// Where a file lies.
pub fn at(path: &str) -> Facts {
    Facts { path: Some(PathBuf::from(path)), mode: Some(0o100_644), copied: false }
}

/// The same piece of data with some bytes changed.
pub fn with(mut bytes: Vec<u8>, at: usize, new: &[u8]) -> Vec<u8> {
    bytes[at..at + new.len()].copy_from_slice(new);
    bytes
}
