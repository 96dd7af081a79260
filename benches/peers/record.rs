//! The record that every contender writes: the same name, code and tables for all.

use std::ffi::CStr;

/// About as long as names of compiled code are.
pub const NAME: &CStr = c"package/module.js:Class.method_with_a_name(int, long)";

/// Size of a LOAD record before the name.
const LOAD_SIZE: usize = 56;
/// Size of an UNWINDING_INFO record before the tables.
pub const UNWINDING_SIZE: usize = 40;
/// Size of the file's header.
pub const HEADER_SIZE: usize = 40;

pub const LOAD: u32 = 0;
pub const UNWINDING_INFO: u32 = 4;

/// `e_machine` of this program.
pub const MACHINE: u32 = if cfg!(target_arch = "aarch64") {
    183
} else if cfg!(target_arch = "riscv64") {
    243
} else {
    62
};

/// Sizes of the parts.
#[derive(Clone, Copy)]
pub struct Shape {
    /// Bytes of machine code.
    pub code: usize,
    /// Bytes of unwind tables, as many as this library writes.
    pub tables: usize,
}

impl Shape {
    pub fn load_size(&self) -> usize {
        LOAD_SIZE + NAME.to_bytes_with_nul().len() + self.code
    }

    pub fn unwinding_size(&self) -> usize {
        UNWINDING_SIZE + self.tables
    }

    /// All bytes of a record as they stand in this library's jitdump.
    pub fn total(&self) -> usize {
        self.unwinding_size() + self.load_size()
    }

    /// Machine code.
    pub fn code(&self) -> Vec<u8> {
        vec![0x90; self.code]
    }

    /// The first bytes of a LOAD record.
    pub fn load_head(&self, time: u64, pid: u32, tid: u32, addr: u64, index: u64) -> [u8; LOAD_SIZE] {
        let mut head = [0; LOAD_SIZE];
        head[..4].copy_from_slice(&LOAD.to_ne_bytes());
        head[4..8].copy_from_slice(&(self.load_size() as u32).to_ne_bytes());
        head[8..16].copy_from_slice(&time.to_ne_bytes());
        head[16..20].copy_from_slice(&pid.to_ne_bytes());
        head[20..24].copy_from_slice(&tid.to_ne_bytes());
        head[24..32].copy_from_slice(&addr.to_ne_bytes());
        head[32..40].copy_from_slice(&addr.to_ne_bytes());
        head[40..48].copy_from_slice(&(self.code as u64).to_ne_bytes());
        head[48..56].copy_from_slice(&index.to_ne_bytes());
        head
    }

    /// The first bytes of an UNWINDING_INFO record.
    pub fn unwinding_head(&self, time: u64) -> [u8; UNWINDING_SIZE] {
        let mut head = [0; UNWINDING_SIZE];
        head[..4].copy_from_slice(&UNWINDING_INFO.to_ne_bytes());
        head[4..8].copy_from_slice(&(self.unwinding_size() as u32).to_ne_bytes());
        head[8..16].copy_from_slice(&time.to_ne_bytes());
        head[16..24].copy_from_slice(&(self.tables as u64).to_ne_bytes());
        head[24..32].copy_from_slice(&20_u64.to_ne_bytes());
        head
    }
}

/// The header of a jitdump.
pub fn file_header() -> [u8; HEADER_SIZE] {
    let mut header = [0; HEADER_SIZE];
    for (at, word) in [0x4a69_5444, 1, HEADER_SIZE as u32, MACHINE, 0, std::process::id()].into_iter().enumerate() {
        header[at * 4..at * 4 + 4].copy_from_slice(&word.to_ne_bytes());
    }
    header
}

/// Where the code of a thread's functions is said to lie: apart from that of other threads.
pub fn first_address(thread: usize) -> u64 {
    0x1000_0000_0000 + ((thread as u64) << 40)
}

/// `CLOCK_MONOTONIC`, which records are stamped with.
pub fn monotonic_ns() -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `time` is a timespec to write to.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &mut time) };
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}
