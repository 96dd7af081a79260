//! Whether a contender has written what it was told: nothing may be skipped to be fast.

use std::fs::File;
use std::path::{Path, PathBuf};

use memmap2::{Mmap, MmapOptions};

use crate::record::{HEADER_SIZE, LOAD, UNWINDING_INFO, UNWINDING_SIZE};

/// What a contender leaves behind.
#[derive(Default)]
pub struct Files {
    /// A jitdump, with a LOAD record for each call.
    pub dump: Option<PathBuf>,
    /// Its UNWINDING_INFO records for each LOAD.
    pub unwinding: usize,
    /// A perf map, with a line for each call.
    pub map: Option<PathBuf>,
}

impl Files {
    /// Ends the worker with a message unless there is exactly one record for each call.
    pub fn check(&self, calls: usize) {
        if let Some(path) = &self.dump {
            let dump = Dump::read(path);
            assert_eq!(dump.loads, calls, "LOAD records in {}", path.display());
            assert_eq!(dump.unwindings, calls * self.unwinding, "UNWINDING_INFO records in {}", path.display());
        }
        if let Some(path) = &self.map {
            let lines = map_file(path).iter().filter(|&&byte| byte == b'\n').count();
            assert_eq!(lines, calls, "lines in {}", path.display());
        }
    }

    /// Bytes of unwind tables in a record of the dump.
    pub fn tables(&self) -> usize {
        self.dump.as_ref().map_or(0, |path| Dump::read(path).unwinding_size.saturating_sub(UNWINDING_SIZE))
    }
}

/// What a jitdump holds.
#[derive(Default)]
struct Dump {
    loads: usize,
    unwindings: usize,
    /// Size of the last UNWINDING_INFO record.
    unwinding_size: usize,
}

impl Dump {
    /// Goes from record to record; they have to end where the file ends.
    fn read(path: &Path) -> Dump {
        let bytes = map_file(path);
        let word = |at: usize| u32::from_ne_bytes(bytes[at..at + 4].try_into().expect("four bytes"));
        let mut dump = Dump::default();
        let mut at = HEADER_SIZE;
        while at < bytes.len() {
            let (id, size) = (word(at), word(at + 4) as usize);
            match id {
                LOAD => dump.loads += 1,
                UNWINDING_INFO => {
                    dump.unwindings += 1;
                    dump.unwinding_size = size;
                }
                _ => panic!("record {id} in {}", path.display()),
            }
            at += size.max(1);
        }
        assert_eq!(at, bytes.len(), "end of the last record in {}", path.display());
        dump
    }
}

fn map_file(path: &Path) -> Mmap {
    let file = File::open(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    // SAFETY: the file is this worker's own, its writer is done, and nobody changes it.
    unsafe { MmapOptions::new().populate().map(&file) }.expect("map the file")
}
