//! Checks that the cache returns the same tables as a fresh encoding.

use super::*;
use crate::api::code::{FramePointer, UnwindRow};
use crate::format::jitdump::{put_time, Group, LOAD_FIXED_SIZE};

const SAVED: [SavedRegister; 2] = [SavedRegister { reg: 3, offset: -24 }, SavedRegister { reg: 12, offset: -32 }];

fn fp(set: u32) -> Unwind<'static> {
    Unwind::FramePointer(FramePointer { set, ..FramePointer::default() })
}

fn fresh(unwind: &Unwind, size: u64) -> Result<Option<Tables>> {
    cfi::encode(Arch::X86_64, unwind, 0, size)
}

/// Checks that the cache returns the same tables as a fresh encoding. Returns the address of the cached bytes.
fn ask(cache: &mut Cache, unwind: &Unwind, size: u64) -> *const u8 {
    let expected = fresh(unwind, size).unwrap().unwrap();
    let tables = cache.tables(unwind, 0, size).unwrap().unwrap();
    assert_eq!(
        (tables.copied(size), tables.hdr_size),
        (expected.bytes, expected.hdr_size),
        "{unwind:?} of {size} bytes"
    );
    tables.bytes.as_ptr()
}

#[test]
fn nothing() {
    let mut cache = Cache::default();
    assert_eq!(cache.tables(&Unwind::None, 0, 100), Ok(None));
    assert_eq!(cache.entries.capacity() + cache.key.capacity(), 0);
}

#[test]
fn a_hit_is_the_same_memory_and_a_fresh_encoding() {
    let mut cache = Cache::default();
    let rows = [
        UnwindRow { offset: 0, cfa_register: 7, cfa_offset: 96, saved: &SAVED },
        UnwindRow { offset: 30, cfa_register: 7, cfa_offset: 192, saved: &SAVED[1..] },
    ];
    let moar = FramePointer { epilogue_begin: 30, epilogue_end: 31, saved: &SAVED, ..FramePointer::default() };
    for unwind in [
        fp(0),
        Unwind::FramePointer(moar),
        Unwind::FixedFrame(FixedFrame::new(96, &SAVED)),
        Unwind::FixedFrame(FixedFrame::new(96, &SAVED[..1])),
        Unwind::Rows(&rows),
        Unwind::Rows(&rows[..1]),
        Unwind::Rows(&[]),
    ] {
        let first = ask(&mut cache, &unwind, 100);
        for size in [101, 102, 100, 40, 4096, 1 << 30] {
            assert_eq!(ask(&mut cache, &unwind, size), first, "{unwind:?} of {size} bytes");
        }
    }
    assert_eq!(cache.entries.len(), 7);
}

#[test]
fn equal_descriptions_share_an_entry() {
    let mut cache = Cache::default();
    let spelled = FramePointer { pushed: 1, set: 4, cfa_offset: 16, saved_from: 9, ..FramePointer::default() };
    assert_eq!(ask(&mut cache, &fp(0), 50), ask(&mut cache, &Unwind::FramePointer(spelled), 60));
    // Two epilogues end where the code ends, and one epilogue ends before the end of the code.
    let to_end = FramePointer { epilogue_begin: 20, ..FramePointer::default() };
    let to_21 = FramePointer { epilogue_end: 21, ..to_end };
    let at = ask(&mut cache, &Unwind::FramePointer(to_end), 30);
    assert_eq!(at, ask(&mut cache, &Unwind::FramePointer(to_21), 21));
    assert_ne!(at, ask(&mut cache, &Unwind::FramePointer(to_21), 22));
    assert_eq!(cache.entries.len(), 3);
}

#[test]
fn keys_tell_rows_apart() {
    let mut cache = Cache::default();
    // The cache key contains the number of saved registers. Without this number, the keys of `one` and `three` would have the
    // same words: 0 7 16, 3 8 24, 32 6 40.
    let row = |offset, cfa_register, cfa_offset| UnwindRow { offset, cfa_register, cfa_offset, saved: &[] };
    let saved = [(3, 8), (24, 32), (6, 40)].map(|(reg, offset)| SavedRegister { reg, offset });
    let one = [UnwindRow { saved: &saved, ..row(0, 7, 16) }];
    let three = [row(0, 7, 16), row(3, 8, 24), row(32, 6, 40)];
    for size in [100, 101] {
        ask(&mut cache, &Unwind::Rows(&one), size);
        ask(&mut cache, &Unwind::Rows(&three), size);
    }
    assert_eq!(cache.entries.len(), 2);
}

#[test]
fn places_are_checked_on_hits() {
    let mut cache = Cache::default();
    let ends = FramePointer { epilogue_begin: 20, epilogue_end: 21, ..FramePointer::default() };
    let ends = Unwind::FramePointer(ends);
    let rows = [UnwindRow { offset: 20, cfa_register: 7, cfa_offset: 96, saved: &[] }];
    let rows = Unwind::Rows(&rows);
    for (unwind, least) in [(ends, 21), (rows, 21), (fp(0), 4), (fp(9), 9)] {
        ask(&mut cache, &unwind, 100);
        ask(&mut cache, &unwind, least);
        assert_eq!(cache.tables(&unwind, 0, least - 1), Err(Error::UnwindOrder), "{unwind:?}");
        ask(&mut cache, &unwind, least + 1);
    }
    for (size, error) in [(0, Error::SizeZero), (1 << 31, Error::TooLarge), ((1 << 31) - 1, Error::TooLarge)] {
        assert_eq!(cache.tables(&fp(0), 0, size), Err(error));
        assert_eq!(fresh(&fp(0), size), Err(error));
        ask(&mut cache, &fp(0), 10);
    }
}

#[test]
fn the_oldest_entry_is_replaced() {
    let mut cache = Cache::default();
    for round in 0..3 {
        for set in 1..=ENTRIES as u32 + 5 {
            ask(&mut cache, &fp(set), 100 + u64::from(set + round));
            ask(&mut cache, &fp(set), 200);
        }
    }
    assert_eq!(cache.entries.len(), ENTRIES);
    let found = ask(&mut cache, &fp(ENTRIES as u32 + 5), 300);
    ask(&mut cache, &fp(ENTRIES as u32 + 4), 300);
    assert_eq!(found, ask(&mut cache, &fp(ENTRIES as u32 + 5), 301), "an older entry is still there");
}

#[test]
fn not_kept() {
    let mut cache = Cache::default();
    let saved: Vec<_> = (0..16).map(|reg| SavedRegister { reg, offset: -24 - 8 * reg as i32 }).collect();
    let row = |offset| UnwindRow { offset, cfa_register: 7, cfa_offset: 8, saved: &saved[offset as usize..] };
    let rows: Vec<_> = (0..8).map(row).collect();
    for (count, kept) in [(3, 1), (4, 1), (8, 1)] {
        ask(&mut cache, &Unwind::Rows(&rows[..count]), 100);
        ask(&mut cache, &Unwind::Rows(&rows[..count]), 200);
        assert_eq!(cache.entries.len(), kept, "{count}");
    }
    let bytes = fresh(&fp(0), 100).unwrap().unwrap();
    let unwind = Unwind::EhFrame { bytes: &bytes.bytes[..bytes.eh_frame_size()], addr: 104 };
    for size in [100, 50] {
        ask(&mut cache, &unwind, size);
    }
    assert_eq!(cache.entries.len(), 1);
    assert_eq!(cache.tables(&unwind, 100, 50), Err(Error::UnwindFormat));
    // If `cfi::encode` refuses a description, the cache does not keep the description.
    assert_eq!(cache.tables(&Unwind::FixedFrame(FixedFrame::new(7, &[])), 0, 50), Err(Error::UnwindFormat));
    assert_eq!(cache.tables(&Unwind::FixedFrame(FixedFrame::new(7, &[])), 0, 50), Err(Error::UnwindFormat));
    assert_eq!(cache.entries.len(), 1);
}

#[test]
fn the_same_raw_description_again_is_the_same_tables() {
    // SAFETY: `raw` is a reference.
    let is_ready = |cache: &Cache, raw: &Raw, size| unsafe { cache.is_ready(raw, size) };
    let mut cache = Cache::default();
    let (one, other): (Raw, Raw) = ([1; 12], [2; 12]);
    assert!(!is_ready(&cache, &one, 100) && !is_ready(&cache, &Raw::default(), 100));
    cache.template(&fp(0), 0, 100).unwrap().unwrap();
    cache.remember(&one, &SAVED, 100);
    for size in [100, 101, 5000, 100] {
        assert!(is_ready(&cache, &one, size) && cache.ready_saves(&SAVED));
    }
    assert!(!is_ready(&cache, &one, 99), "smaller code is checked again");
    assert!(!is_ready(&cache, &one, 1 << 31) && !is_ready(&cache, &one, (1 << 31) - 1), "it is too large");
    assert!(!is_ready(&cache, &other, 100));
    assert!(!cache.ready_saves(&SAVED[..1]) && !cache.ready_saves(&[]));
    // The template of another frame replaces this template.
    cache.template(&fp(5), 0, 100).unwrap().unwrap();
    assert!(!is_ready(&cache, &one, 100));
}

#[test]
fn a_copied_record_is_a_fresh_one() {
    let rows = [0, 10, 20, 30, 40].map(|at| UnwindRow { offset: at, cfa_register: 7, cfa_offset: 96, saved: &SAVED });
    let moar = FramePointer { epilogue_begin: 30, epilogue_end: 31, saved: &SAVED, ..FramePointer::default() };
    let frames = [fp(0), Unwind::FramePointer(moar), Unwind::FixedFrame(FixedFrame::new(96, &[])), Unwind::Rows(&rows)];
    let mut cache = Cache::default();
    for size in [100, 101, 200, 4096, 50, 1 << 30] {
        for unwind in &frames {
            let tables = fresh(unwind, size).unwrap().unwrap();
            let (lines, name) = (crate::api::code::Lines::Rows(&[]), b"name");
            let group = Group { pid: 1, tid: 2, index: 3, addr: 4096, size, name, lines, unwind: Some(&tables) };
            let mut written = vec![0; group.size().unwrap()];
            let load_at = group.write(77, &mut written, 0).unwrap().unwrap() - LOAD_FIXED_SIZE - name.len() - 1;

            let template = cache.template(unwind, 0, size).unwrap().unwrap();
            assert_eq!(template.record_len(), load_at);
            let mut copied = vec![0xaa; template.record_len() + UnwindingTemplate::SLACK];
            // SAFETY: `copied` has room for the record and `SLACK` more bytes.
            unsafe {
                template.copy_to(copied.as_mut_ptr(), size);
                put_time(copied.as_mut_ptr(), 77);
            }
            assert_eq!(copied[..template.record_len()], written[..load_at], "{unwind:?} of {size} bytes");
        }
    }
    // Tables that are too long have no template.
    let many: Vec<_> = (0..20).map(|at| UnwindRow { offset: 2 * at, ..rows[0] }).collect();
    assert_eq!(cache.template(&Unwind::Rows(&many), 0, 100).map(|_| ()), Err(Error::TooLarge));
    assert!(cache.template(&frames[3], 0, 100).unwrap().is_some());
}
