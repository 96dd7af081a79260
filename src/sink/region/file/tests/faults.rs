//! Tests that a region's file is valid between any two writes, and that failed writes are repeated.

use std::os::unix::fs::FileExt;
use std::sync::{Arc, Mutex};

use gimli::read::{BaseAddresses, EhFrame, EhFrameHdr, UnwindSection};
use gimli::LittleEndian;
use object::ObjectSymbol as _;

use super::seen::units;
use super::*;
use crate::format::code_info::Info;

/// Adds code in random order, partly over older code, and writes the file at random times.
#[test]
#[ignore = "long: scripts/test.sh runs it"]
fn the_file_is_in_order_between_any_two_writes() {
    let mut region = Region::new(1 << 18);
    let reads = Arc::new(Mutex::new((0, 0)));
    let shared = reads.clone();
    region.file.disk.before_write = Some(Box::new(move |file, at, bytes| {
        let read = || {
            let names = read_anytime(&bytes_of(file));
            let mut reads = shared.lock().unwrap();
            assert!(names > 0 || reads.1 == 0, "for a moment there were no names");
            *reads = (reads.0 + 1, reads.1.max(names));
        };
        read();
        // A reader may also read in the middle of a write, except for writes that the kernel makes in one step: the header
        // page, a symbol or an address.
        if at > 0 && bytes.len() > SYMBOL_SIZE {
            file.write_all_at(&bytes[..bytes.len() / 2], at)?;
            read();
        }
        Ok(())
    }));
    let mut random = Random(77);
    for number in 0..500 {
        let size = 20 + random.below(300);
        region.add(random.below((1 << 18) - size), Truth::new(number, size));
        if random.below(3) == 0 {
            region.file.write(random.below(2) == 0).unwrap();
        } else if random.below(3) == 0 {
            // Like `add` when much code is added at once, this branch calls `write_parts`, and does not write the header page.
            region.file.write_parts().unwrap();
        }
        if number % 130 == 100 {
            region.file.set_begin(4096 * (number % 3));
            region.file.reset();
            region.truth.clear();
            // A second reset before the next write makes no difference.
            if number > 200 {
                region.add(0, Truth::new(number, 100));
                region.file.reset();
                region.truth.clear();
            }
        }
    }
    region.file.disk.before_write = None;
    region.file.write(true).unwrap();
    region.check();
    let (count, most) = *reads.lock().unwrap();
    assert!(count > 1000 && most > 100, "{count} {most}");
}

/// Checks that a reader can read every structure of the file to its end, which must be possible at any time. Until a new header
/// is written, the old header may lack rows, or may still describe dead code.
fn read_anytime(bytes: &[u8]) -> usize {
    let elf = ElfFile64::<object::Endianness>::parse(bytes).unwrap();
    let section = |name: &str| elf.section_by_name(name).map_or(&[][..], |section| section.data().unwrap());
    let mut names = 0;
    for symbol in elf.symbols().filter(|symbol| symbol.kind() == object::SymbolKind::Text) {
        assert!(symbol.name().unwrap().starts_with("function "));
        names += 1;
    }
    units(&section, false);
    let (eh_frame, hdr) = (section(".eh_frame"), section(".eh_frame_hdr"));
    if hdr.is_empty() {
        return names;
    }
    let address =
        |name: &str| elf.section_by_name(name).and_then(|section| section.file_range()).map_or(0, |(at, _)| at);
    let bases = BaseAddresses::default().set_eh_frame(address(".eh_frame")).set_eh_frame_hdr(address(".eh_frame_hdr"));
    let parsed = EhFrameHdr::new(hdr, LittleEndian).parse(&bases, 8).unwrap();
    let table = parsed.table().unwrap();
    let section = EhFrame::new(eh_frame, LittleEndian);
    let mut rows = table.iter(&bases);
    let mut last = 0;
    while let Some((start, fde)) = rows.next().unwrap() {
        assert!(start.pointer() > last);
        last = start.pointer();
        let at = gimli::EhFrameOffset((fde.pointer() - address(".eh_frame")) as usize);
        let fde = section.fde_from_offset(&bases, at, EhFrame::cie_from_offset).unwrap();
        assert!(fde.initial_address() == last || fde.len() == 0);
    }
    names
}

/// Each write fails once, in turn. A failed write leaves no incomplete structure, and after the next attempt the file has the
/// same contents as without the failure.
#[test]
#[ignore = "long: scripts/test.sh runs it"]
fn a_write_that_fails_is_made_up_for() {
    for in_order in [false, true] {
        let failures = (0..).take_while(|&fail_at| add_with_failure(fail_at, in_order)).count();
        assert!(failures > 70, "{failures}");
    }
}

/// Adds code, and lets the write with the number `fail_at` fail. Returns false if no write has this number.
fn add_with_failure(fail_at: u32, in_order: bool) -> bool {
    let mut region = Region::new(1 << 18);
    let mut writes = 0;
    region.file.disk.before_write = Some(Box::new(move |_, _, _| {
        writes += 1;
        if writes - 1 == fail_at {
            return Err(io::ErrorKind::StorageFull.into());
        }
        Ok(())
    }));
    let mut failed = false;
    let mut random = Random(5);
    for number in 0..60 {
        let size = 20 + random.below(300);
        // The names are long, so that sections outgrow their ranges and move.
        let mut truth = Truth::new(number, size);
        truth.name += &"x".repeat(900);
        let anywhere = random.below((1 << 18) - size);
        region.add(if in_order { number * 400 } else { anywhere }, truth);
        if number % 6 == 0 {
            let result = region.file.write(true);
            assert!(read_anytime(&region.bytes()) > 0 || number == 0);
            if result.is_err() {
                failed = true;
                assert!(region.file.has_work());
                region.file.write(true).unwrap();
            }
            region.check();
        }
        if number % 15 == 10 {
            region.file.set_begin(4096);
            region.file.reset();
            region.truth.clear();
        }
    }
    failed
}

/// If too many bytes wait for a file that cannot be written, new code is left out. After a reset, all code can be added again.
#[test]
#[ignore = "long: scripts/test.sh runs it"]
fn what_waits_for_a_file_that_cannot_be_written_is_bounded() {
    let mut region = Region::new(1 << 20);
    region.add(0, Truth::new(3, 100));
    region.file.write(true).unwrap();
    region.file.disk.before_write = Some(Box::new(|_, _, _| Err(io::ErrorKind::StorageFull.into())));
    let name = [b'x'; 65_000];
    let count = 2 * WAITING_MAX as u64 / 65_000;
    let add_all = |region: &mut Region| {
        (0..count).for_each(|at| region.file.add(&Code { offset: 8 * at, size: 8, name: &name, info: Info::NOTHING }));
        let waiting: usize = region.file.parts.all().iter().map(|part| part.pending.len()).sum();
        (region.file.left_out(), waiting)
    };
    let (names, waiting) = add_all(&mut region);
    assert!((count / 2 - 2..count / 2 + 20).contains(&names), "{names} of {count}");
    assert!(waiting <= WAITING_MAX + (66 << 10) && region.file.again.is_some());
    region.file.disk.before_write = None;
    region.file.reset();
    assert_eq!(region.file.left_out(), 0);
    region.file.write(true).unwrap();
    assert!(region.file.again.is_none());
    let (names, waiting) = add_all(&mut region);
    assert!(names == 0 && waiting <= AT_ONCE + (66 << 10), "{names} {waiting}");
    region.file.write(true).unwrap();
    assert_eq!(Seen::read(&region.bytes()).names.len() as u64, count);
}
