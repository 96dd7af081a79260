//! Readers and checker of jitdumps.
#![no_main]

use jitsym_tool::check::{check, Facts, Finding};
use jitsym::format::jitdump::raw::RawRecords;
use jitsym::format::jitdump::{places, Header, HEADER_SIZE};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let facts = Facts { path: Some("/tmp/jit-1.dump".into()), mode: Some(0o644), ..Facts::default() };
    let mut findings: Vec<Finding> = Vec::new();
    check(data, &facts, &mut findings);
    // The reader of recovery, which believes as little.
    let _ = Header::read(data);
    let mut records = RawRecords::from(data, HEADER_SIZE);
    while records.next().is_some() {}
    assert!(records.offset() <= data.len().max(40));
    let read_at = |bytes: &mut [u8], at: u64| {
        let from = data.get(at as usize..at as usize + bytes.len());
        bytes.copy_from_slice(from.ok_or(std::io::ErrorKind::UnexpectedEof)?);
        Ok(())
    };
    let _ = places(40..data.len() as u64, read_at, |_| Ok(()));
});
