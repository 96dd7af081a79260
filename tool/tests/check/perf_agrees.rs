//! What the checker says of a damaged dump is what the real perf does with it.

use std::collections::BTreeSet;
use std::path::Path;

use jitsym::format::jitdump::raw::{RawHeader, RawRecords};
use jitsym::format::jitdump::{id, HEADER_SIZE};
use jitsym_tool::check::{check, Facts, Severity};

use crate::build::record;
use crate::perf::{self, Recording};
use crate::support::try_run;

/// The errors and warnings of a file.
fn rules(file: &[u8], path: &Path) -> BTreeSet<&'static str> {
    let (mut findings, facts) = (Vec::new(), Facts { path: Some(path.into()), ..Facts::default() });
    check(file, &facts, &mut findings);
    findings.iter().filter(|found| found.rule.severity > Severity::Note).map(|found| found.rule.id).collect()
}

/// How many objects `perf inject` makes of the dump that lies there now; `None` if it fails.
fn objects(recording: &Recording, dump: &Path) -> Option<usize> {
    let dir = dump.parent().expect("directory");
    let prefix = format!("jitted-{}-", recording.truth.pid);
    let made = || {
        let entries = std::fs::read_dir(dir).expect("directory").flatten();
        entries
            .map(|entry| entry.path())
            .filter(|path| path.file_name().is_some_and(|name| name.display().to_string().starts_with(&prefix)))
    };
    made().for_each(|path| std::fs::remove_file(path).expect("remove an object"));
    let injected = recording.data.with_file_name("damaged.data");
    let output = try_run(perf::perf("inject").arg("--jit").arg("-i").arg(&recording.data).arg("-o").arg(&injected));
    output.status.success().then(|| made().count())
}

/// A damaged dump: what it is, its bytes, what the checker says, and how many objects perf makes of it.
type Damaged<'a> = (&'a str, Vec<u8>, &'a [&'a str], Option<usize>);

#[test]
fn perf_does_what_the_checker_says() {
    let arguments = ["scenario=stacks", "layout=gap", "seconds=0.2"];
    let recording = Recording::with_stacks("perf-agrees", perf::program(), &arguments);
    let path = recording.truth.paths["jitdump"].clone();
    let good = std::fs::read(&path).expect("dump");
    let header = RawHeader::read(&good).expect("header");
    let loads: Vec<_> = RawRecords::new(&good, &header).filter(|record| record.id == id::LOAD).collect();
    let all = loads.len();
    assert!(all >= 4, "{all} pieces of code");
    let (time, second) = (loads[0].timestamp, loads[1].timestamp);
    let behind_second = loads[1].offset + loads[1].size();

    let inserted = |at: usize, bytes: Vec<u8>| [&good[..at], &bytes, &good[at..]].concat();
    let patched = |at: usize, bytes: &[u8]| crate::build::with(good.clone(), at, bytes);
    let long_header = patched(8, &64u32.to_ne_bytes());
    let first_index = good[loads[0].offset + 48..][..8].to_vec();
    let last = loads[all - 1].offset;
    let cases: Vec<Damaged> = vec![
        ("as it is", good.clone(), &[], Some(all)),
        ("CLOSE at the start", inserted(HEADER_SIZE, record(id::CLOSE, time, &[])), &["close-not-last"], Some(0)),
        ("CLOSE at the end", [&good[..], &record(id::CLOSE, u64::MAX >> 8, &[])].concat(), &[], Some(all)),
        ("a longer CLOSE", inserted(behind_second, record(id::CLOSE, second, &[0; 8])), &["close-not-last"], Some(all)),
        ("16 bytes", inserted(behind_second, record(77, second, &[])), &["record-16-bytes", "record-unknown"], Some(2)),
        ("24 bytes", inserted(behind_second, record(77, second, &[0; 8])), &["record-unknown"], Some(all)),
        ("torn", good[..good.len() - 1].into(), &["truncated"], Some(all - 1)),
        ("zeros", [&good[..], &[0; 64]].concat(), &["zero-tail"], Some(all)),
        ("version 2", patched(4, &2u32.to_ne_bytes()), &["header-version"], None),
        ("a flag", patched(32, &2u64.to_ne_bytes()), &["header-flags"], None),
        (
            "a longer header",
            [&long_header[..HEADER_SIZE], &[0; 24], &good[HEADER_SIZE..]].concat(),
            &["header-size"],
            Some(0),
        ),
        ("an index twice", patched(last + 48, &first_index), &["index-reused"], Some(all - 1)),
    ];
    for (what, file, expected, made) in cases {
        std::fs::write(&path, &file).expect("write the dump");
        let expected: BTreeSet<&str> = expected.iter().copied().collect();
        assert_eq!(rules(&file, &path), expected, "{what}: what the checker says");
        assert_eq!(objects(&recording, &path), made, "{what}: what perf makes of {all} pieces of code");
    }
}

/// How much of the samples in code of the guest perf unwinds down to `main`, in percent.
fn unwound(recording: &Recording) -> usize {
    let samples = perf::samples(&recording.truth, &recording.inject(), true);
    let guest: Vec<_> = samples.iter().filter(|sample| recording.truth.in_arena(sample.ip)).collect();
    assert!(guest.len() >= 100, "only {} samples in code of the guest", guest.len());
    let whole = guest.iter().filter(|sample| sample.frames.iter().any(|frame| frame.sym == "main")).count();
    whole * 100 / guest.len()
}

/// A change of unwind tables, whose header is at an offset: what it is, what the checker says, and whether perf unwinds still.
type Change<'a> = (&'a str, &'a [&'a str], &'a dyn Fn(&mut [u8], usize), bool);

/// Where an entry has its instructions: behind length, distance to the CIE, start and size of the code, and an empty augmentation.
const INSTRUCTIONS: usize = 17;

/// Adds 8 to each distance of a CFA, but to that of code without a frame (DWARF 5, 7.24).
fn enlarge(instructions: &mut [u8]) {
    let mut at = 0;
    while at < instructions.len() {
        let offset = match instructions[at] {
            0x0c => Some(at + 2),
            0x0e => Some(at + 1),
            _ => None,
        };
        if let Some(offset) = offset.filter(|&offset| instructions[offset] > 8) {
            instructions[offset] += 8;
            // Those of these functions take one byte.
            assert!(instructions[offset] < 0x80, "{instructions:x?}");
        }
        at += match instructions[at] {
            0x0c => 3,
            0x02 | 0x06..=0x08 | 0x0d | 0x0e | 0x80..=0xbf => 2,
            0x03 => 3,
            0x00 | 0x0a | 0x0b | 0x40..=0x7f | 0xc0..=0xff => 1,
            // A number of several bytes, of which all but the last have the highest bit.
            0x2e => 2 + instructions[at + 1..].iter().take_while(|&&byte| byte >= 0x80).count(),
            other => panic!("{other:#x} in {instructions:x?}"),
        };
    }
}

/// Unwind tables that the checker calls unusable are of no use to perf, and others are.
#[test]
fn perf_unwinds_as_the_checker_says() {
    let arguments = ["scenario=stacks", "layout=gap", "seconds=0.6"];
    let recording = Recording::with_stacks("perf-unwinds", perf::program(), &arguments);
    let path = recording.truth.paths["jitdump"].clone();
    let good = std::fs::read(&path).expect("dump");
    let header = RawHeader::read(&good).expect("header");
    // What is changed in the tables, whose header is at `hdr`; their only entry is behind a CIE.
    let fde = |tables: &[u8]| 4 + tables[0] as usize;
    let cases: &[Change] = &[
        ("as they are", &[], &|_, _| {}, true),
        ("the header first", &["unwind-order"], &|tables, hdr| tables.rotate_left(hdr), false),
        ("wider fields in the header", &["unwind-hdr"], &|tables, hdr| tables[hdr + 1] = 0x1c, false),
        ("a row with another address", &["unwind-hdr"], &|tables, hdr| tables[hdr + 12] ^= 0x40, false),
        ("a row for another entry", &["unwind-hdr"], &|tables, hdr| tables[hdr + 16] ^= 4, false),
        ("no rows", &["unwind-hdr"], &|tables, hdr| tables[hdr + 8] = 0, false),
        (
            "an entry for other code",
            &["unwind-fde-base", "unwind-hdr"],
            &|tables, _| tables[fde(tables) + 9] ^= 0x10,
            false,
        ),
        ("an entry for less", &["unwind-fde-range"], &|tables, _| tables[fde(tables) + 12] -= 1, true),
        (
            "frames that are 8 bytes larger",
            &["unwind-cfa-wrong"],
            &|tables, hdr| {
                let from = fde(tables) + INSTRUCTIONS;
                enlarge(&mut tables[from..hdr]);
            },
            false,
        ),
        ("another version", &[], &|tables, hdr| tables[hdr] = 2, true),
        ("another encoding of the rows", &[], &|tables, hdr| tables[hdr + 3] = 0x1b, true),
        ("another pointer to the table", &[], &|tables, hdr| tables[hdr + 4] ^= 0x10, true),
    ];
    for &(what, expected, change, unwinds) in cases {
        let mut file = good.clone();
        for record in RawRecords::new(&good, &header) {
            if let Some((eh_frame, hdr)) =
                record.unwinding_info().filter(|_| record.id == id::UNWINDING_INFO).and_then(|info| info.tables())
            {
                let end = record.offset + record.size();
                change(&mut file[end - eh_frame.len() - hdr.len()..end], eh_frame.len());
            }
        }
        std::fs::write(&path, &file).expect("write the dump");
        let percent = unwound(&recording);
        println!("{what}: {percent} % unwound");
        assert_eq!(rules(&file, &path), expected.iter().copied().collect(), "{what}: what the checker says");
        // Where it finds no table it tries the frame pointer, which some functions keep.
        assert!(if unwinds { percent > 90 } else { percent < 30 }, "{what}: perf unwinds {percent} %");
    }
}
