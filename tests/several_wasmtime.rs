//! Beside wasmtime's own writer of jitdumps, in one process: whoever comes first, the files of both are whole, and no two pieces of
//! code have one index.

use std::collections::BTreeSet;
use std::path::Path;
use std::time::Duration;

use crate::support::checker::assert_sound;
use jitsym::format::jitdump::raw::RawRecords;
use jitsym::format::jitdump::HEADER_SIZE;
use jitsym::{Bytes, Code, Options, Session, Sinks};
use wasmtime_internal_jit_debug::perf_jitdump::JitDumpFile;

/// `EM_X86_64`; wasmtime writes what it is told.
const MACHINE: u32 = 62;

static CODE: [u8; 16] = [0xc3; 16];

fn theirs(dir: &Path) -> JitDumpFile {
    JitDumpFile::new(dir.join(format!("jit-{}.dump", std::process::id())), MACHINE).expect("wasmtime's jitdump")
}

fn ours(dir: &Path) -> Session {
    let (map_dir, jitdump_dir) = (Some(dir.to_owned()), Some(dir.to_owned()));
    Session::open(&Options { map_dir, jitdump_dir, ..Options::default() }).expect("session")
}

/// Both write in turn, more than once.
fn both(theirs: &mut JitDumpFile, ours: &Session) {
    for number in 0..3 {
        let (pid, time) = (std::process::id(), theirs.get_time_stamp());
        theirs.dump_code_load_record(&format!("theirs {number}"), &CODE, time, pid, pid).expect("written");
        let name = format!("ours {number}");
        let code = Code { bytes: Bytes::Here(&CODE), ..Code::new(0x1000 * (number + 1), 16, &name) };
        ours.register(&code).expect("registered");
        ours.flush(Duration::from_secs(60)).expect("flushed");
    }
}

/// Names and indices in all jitdumps of a directory, which perf reads one by one.
fn check(dir: &Path, dumps: usize) {
    let (mut names, mut indices, mut files) = (Vec::new(), BTreeSet::new(), 0);
    for entry in std::fs::read_dir(dir).expect("directory") {
        let path = entry.expect("entry").path();
        if path.extension().is_none_or(|extension| extension != "dump") {
            continue;
        }
        files += 1;
        assert_sound(&path, &[]);
        let file = std::fs::read(&path).expect("jitdump");
        for load in RawRecords::from(&file, HEADER_SIZE).filter_map(|record| record.load()) {
            names.push(String::from_utf8_lossy(load.name().expect("name")).into_owned());
            assert!(indices.insert(load.index), "index {} is there twice", load.index);
        }
    }
    names.sort();
    assert_eq!(names, ["ours 0", "ours 1", "ours 2", "theirs 0", "theirs 1", "theirs 2"]);
    assert_eq!(files, dumps);
}

#[test]
fn whoever_comes_first() {
    let dir = crate::support::fresh_dir("theirs");
    let mut writer = theirs(&dir);
    let session = ours(&dir);
    let name = session.path(Sinks::JITDUMP).expect("path");
    assert_eq!(name, dir.join(format!("jit-0{}.dump", std::process::id())));
    both(&mut writer, &session);
    session.close().expect("closed");
    drop(writer);
    check(&dir, 2);

    // They append to ours.
    let dir = crate::support::fresh_dir("ours");
    let session = ours(&dir);
    let mut writer = theirs(&dir);
    both(&mut writer, &session);
    session.close().expect("closed");
    check(&dir, 1);
}
