//! Tests descriptions for code of any size, invalid descriptions, and random descriptions.

use super::eh_frame::{compiled, Input, SECTION};
use super::presets::{lua_row, LUA_ROWS, LUA_SAVED, MOAR, MOAR_BY_SP};
use super::*;
use crate::api::code::{FixedFrame, FramePointer, UnwindRow};

/// Descriptions whose tables can be copied for code of any size from 100 bytes on.
fn presets() -> Vec<(Arch, Unwind<'static>)> {
    let mut all = vec![
        (Arch::X86_64, MOAR),
        (Arch::X86_64, Unwind::FixedFrame(FixedFrame::new(96, &LUA_SAVED))),
        (Arch::X86_64, Unwind::FixedFrame(MOAR_BY_SP)),
        (Arch::X86_64, Unwind::Rows(&LUA_ROWS)),
    ];
    for arch in WITH_ALL_PRESETS {
        all.push((arch, Unwind::FramePointer(FramePointer::default())));
        let to_end = FramePointer { epilogue_begin: 90, ..FramePointer::default() };
        all.push((arch, Unwind::FramePointer(to_end)));
        all.push((arch, Unwind::FramePointer(FramePointer { epilogue_end: 91, ..to_end })));
    }
    all
}

#[test]
fn a_copy_for_another_size_is_a_fresh_encoding() {
    for (arch, unwind) in presets() {
        let tables = tables_of(arch, &unwind, 777);
        for size in (100..400).chain([4095, 65_536, 1 << 20, (1 << 31) - 200]) {
            tables.check_size(size).unwrap();
            assert_eq!(tables.copied(size), tables_of(arch, &unwind, size).bytes, "{unwind:?} of {size} bytes");
        }
        assert_eq!(tables.check_size(0), Err(Error::SizeZero));
        assert_eq!(tables.check_size(CODE_SIZE_MAX), Err(Error::TooLarge));
        assert_eq!(tables.check_size(u64::MAX), Err(Error::TooLarge));
    }
    let bytes = compiled(&Input::default());
    let tables = tables_of(Arch::X86_64, &Unwind::EhFrame { bytes: &bytes, addr: SECTION }, 100);
    assert_eq!(tables.copied(200), tables.bytes);
}

#[test]
fn sizes() {
    let unwind = Unwind::FramePointer(FramePointer::default());
    assert_eq!(encode(Arch::X86_64, &Unwind::None, CODE, 0), Ok(None));
    assert_eq!(refused(Arch::X86_64, &unwind, 0), Error::SizeZero);
    assert_eq!(refused(Arch::X86_64, &unwind, 1 << 31), Error::TooLarge);
    assert_eq!(refused(Arch::X86_64, &unwind, u64::MAX), Error::TooLarge);
    // The distance from `.eh_frame_hdr` back to the start of the code must fit in 32 bits. `.eh_frame` takes 60 bytes here.
    assert!(encode(Arch::X86_64, &unwind, CODE, (1 << 31) - 64).is_ok());
    assert_eq!(refused(Arch::X86_64, &unwind, (1 << 31) - 56), Error::TooLarge);
    assert_eq!(refused(Arch::X86_64, &unwind, CODE_SIZE_MAX), Error::TooLarge);
}

#[test]
fn places_out_of_order() {
    let fp = FramePointer { pushed: 5, set: 8, epilogue_begin: 20, epilogue_end: 21, ..FramePointer::default() };
    let saved = regs([(3, -24)]);
    let try_size = |fp: FramePointer, size| encode(Arch::X86_64, &Unwind::FramePointer(fp), CODE, size).map(|_| ());
    let order = Err(Error::UnwindOrder);
    assert_eq!(try_size(fp, 21), Ok(()));
    assert_eq!(try_size(fp, 20), order);
    assert_eq!(try_size(FramePointer { epilogue_end: 0, ..fp }, 20), Ok(()));
    assert_eq!(try_size(FramePointer { epilogue_end: 0, ..fp }, 19), order);
    assert_eq!(try_size(FramePointer { epilogue_end: 19, ..fp }, 30), order);
    assert_eq!(try_size(FramePointer { epilogue_begin: 0, ..fp }, 30), order);
    assert_eq!(try_size(FramePointer { epilogue_begin: 7, ..fp }, 30), order);
    assert_eq!(try_size(FramePointer { set: 0, ..fp }, 30), order);
    assert_eq!(try_size(FramePointer { saved: &saved, saved_from: 21, ..fp }, 30), order);
    assert_eq!(try_size(FramePointer { saved: &saved, saved_from: 4, ..fp }, 30), order);
    assert_eq!(try_size(FramePointer { saved: &saved, saved_from: 5, ..fp }, 30), Ok(()));
    for (arch, size) in [(Arch::X86_64, 4), (Arch::Aarch64, 8), (Arch::Riscv64, 16)] {
        let unwind = Unwind::FramePointer(FramePointer::default());
        assert!(encode(arch, &unwind, CODE, size).is_ok());
        assert_eq!(refused(arch, &unwind, size - 1), Error::UnwindOrder);
    }

    assert_eq!(refused(Arch::X86_64, &Unwind::Rows(&[lua_row(0, 8), lua_row(0, 16)]), 10), Error::UnwindOrder);
    assert_eq!(refused(Arch::X86_64, &Unwind::Rows(&[lua_row(4, 8), lua_row(3, 16)]), 10), Error::UnwindOrder);
    assert_eq!(refused(Arch::X86_64, &Unwind::Rows(&LUA_ROWS), 90), Error::UnwindOrder);
}

#[test]
fn registers_and_offsets() {
    let valid = |arch, reg: u32| match arch {
        Arch::X86_64 => reg <= 32,
        Arch::Aarch64 => reg <= 31 || (64..=95).contains(&reg),
        _ => reg <= 63,
    };
    for arch in WITH_ALL_PRESETS {
        // On x86-64, register 16 stands for the return address, which has a slot already.
        for reg in (0..200).chain([0x1_0003, u32::MAX]).filter(|&reg| reg != 16) {
            let saved = regs([(reg, -64)]);
            let unwind = Unwind::FixedFrame(FixedFrame::new(96, &saved));
            let expected = if valid(arch, reg) { None } else { Some(Error::UnwindRegister) };
            assert_eq!(encode(arch, &unwind, CODE, 9).err(), expected, "{reg}");
        }
        for (cfa_register, expected) in [(0, None), (15, None), (64, Some(Error::UnwindRegister))] {
            let rows = [UnwindRow { offset: 0, cfa_register, cfa_offset: 16, saved: &[] }];
            assert_eq!(encode(arch, &Unwind::Rows(&rows), CODE, 9).err(), expected);
        }
        for offset in [-1, 4, i32::MAX] {
            let saved = regs([(3, offset)]);
            for unwind in [
                Unwind::FixedFrame(FixedFrame::new(96, &saved)),
                Unwind::FixedFrame(FixedFrame::new(offset, &[])),
                Unwind::Rows(&[UnwindRow { offset: 0, cfa_register: 7, cfa_offset: 96, saved: &saved }]),
                Unwind::Rows(&[UnwindRow { offset: 0, cfa_register: 7, cfa_offset: offset, saved: &[] }]),
                Unwind::FramePointer(FramePointer { saved: &saved, ..Default::default() }),
                Unwind::FramePointer(FramePointer { cfa_offset: offset, ..Default::default() }),
            ] {
                assert_eq!(refused(arch, &unwind, 100), Error::UnwindFormat, "{unwind:?}");
            }
        }
        // The lowest offset cannot be negated.
        let saved = regs([(3, i32::MIN)]);
        for (cfa_offset, saved) in [(i32::MIN, &[][..]), (16, &saved)] {
            let _ = encode(arch, &Unwind::FixedFrame(FixedFrame::new(cfa_offset, saved)), CODE, 100);
            let fp = FramePointer { cfa_offset, saved, ..Default::default() };
            let _ = encode(arch, &Unwind::FramePointer(fp), CODE, 100);
        }
    }
    // A register must not be saved in two different slots.
    for (list, expected) in [
        ([(3, -16), (3, -24)], Some(Error::UnwindFormat)),
        ([(3, -16), (3, -16)], None),
        ([(3, -16), (16, -16)], Some(Error::UnwindFormat)),
        ([(3, -16), (16, -8)], None),
    ] {
        let saved = regs(list);
        let unwind = Unwind::FixedFrame(FixedFrame::new(96, &saved));
        assert_eq!(encode(Arch::X86_64, &unwind, CODE, 9).err(), expected, "{list:?}");
    }
    let saved = regs([(6, -32)]);
    let fp = FramePointer { saved: &saved, ..Default::default() };
    assert_eq!(refused(Arch::X86_64, &Unwind::FramePointer(fp), 100), Error::UnwindFormat);
}

#[test]
fn descriptions_at_random() {
    let mut random = Random(0x2545_f491_4f6c_dd1d);
    let mut accepted = 0;
    for _ in 0..ROUNDS / 2 {
        let arch = WITH_ALL_PRESETS[random.below(3) as usize];
        let saved: Vec<_> = (0..random.below(4))
            .map(|_| SavedRegister { reg: random.below(40) as u32, offset: -8 * (1 + random.below(20) as i32) })
            .collect();
        let mut place = |limit| if random.below(3) == 0 { 0 } else { random.below(limit) as u32 };
        let fp = FramePointer {
            pushed: place(6),
            set: place(20),
            epilogue_begin: place(60),
            epilogue_end: place(70),
            cfa_offset: 8 * place(9) as i32,
            saved: &saved,
            saved_from: place(30),
            signed: None,
        };
        let size = 1 + random.below(70);
        let unwind = Unwind::FramePointer(fp);
        let Ok(Some(tables)) = encode(arch, &unwind, CODE, size) else { continue };
        accepted += 1;
        // In the epilogue, the state is the same as at entry. If `epilogue_end` is 0, the epilogue ends with the code.
        let image = Image::new(arch, &tables, size);
        let rows: Vec<_> = (0..size).map(|offset| plain(&image.find(offset).unwrap())).collect();
        let frame = resolve_frame_pointer(arch, &fp, size).unwrap();
        let stands = |row: &Row| {
            row.0
                == match arch {
                    Arch::X86_64 => 6,
                    Arch::Aarch64 => 29,
                    _ => 8,
                }
        };
        for (offset, row) in rows.iter().enumerate() {
            let offset = offset as u32;
            let down = frame.epilogue_begin != 0
                && offset >= frame.epilogue_begin
                && (frame.epilogue_end == 0 || offset < frame.epilogue_end);
            assert_eq!(stands(row), offset >= frame.set && !down, "{fp:?} at {offset} of {size}");
            let has_saved = saved.iter().all(|it| row.2.get(&(it.reg as u16)) == Some(&i64::from(it.offset)));
            if offset >= frame.saved_from && !down {
                assert!(has_saved, "{fp:?} at {offset} of {size}");
            }
        }
        // If the resolved frame is the same for a larger code size, `copy_to` must make the right tables for the larger size,
        // because the cache of tables relies on this.
        if resolve_frame_pointer(arch, &fp, size + 100) == Ok(frame) {
            let other = encode(arch, &unwind, CODE, size + 100).unwrap().unwrap();
            assert_eq!(tables.copied(size + 100), other.bytes);
        }
    }
    assert!(accepted > ROUNDS / 40, "{accepted} accepted");
}
