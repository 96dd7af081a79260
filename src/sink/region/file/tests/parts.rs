//! Tests code that lies in two regions, so that the file of each region describes a part of the code.

use gimli::read::{BaseAddresses, CfaRule, EhFrame, EhFrameHdr, EndianSlice, UnwindContext, UnwindSection};
use gimli::{LittleEndian, Register, X86_64};
use object::ObjectSymbol as _;

use super::seen::units;
use super::*;

const SIZE: u64 = 0x400;

/// Returns the records of a piece of code that has inlined functions and lines, and whose prologue builds the frame in the
/// first four bytes.
fn records() -> Vec<u8> {
    let unwind = Unwind::FramePointer(FramePointer::default());
    let tables = cfi::encode(Arch::X86_64, &unwind, BASE, SIZE).unwrap();
    let row = |offset, line| Line { offset, line, column: 3, file: b"/src/one.js" };
    let lines = [row(0, 1), row(2, 2), row(0x100, 3), row(0x101, 4), row(0x200, 5)];
    [inlines::record(&inlines(SIZE as u32), SIZE).unwrap(), info(BASE, SIZE, "both", &lines, tables.as_ref())].concat()
}

/// Returns the CFA rule at an offset in the text: a register, and an offset from the register.
fn cfa_at(bytes: &[u8], text: u64, offset: u64) -> (Register, i64) {
    let elf = ElfFile64::<object::Endianness>::parse(bytes).unwrap();
    let section = |name| {
        let section = elf.section_by_name(name).unwrap();
        (section.file_range().unwrap().0, section.data().unwrap())
    };
    let ((frame_at, frame), (hdr_at, hdr)) = (section(".eh_frame"), section(".eh_frame_hdr"));
    let bases = BaseAddresses::default().set_eh_frame(frame_at).set_eh_frame_hdr(hdr_at);
    let mut frame = EhFrame::from(EndianSlice::new(frame, LittleEndian));
    frame.set_address_size(8);
    let hdr = EhFrameHdr::new(hdr, LittleEndian).parse(&bases, 8).unwrap();
    let addr = text + offset;
    let fde = hdr.table().unwrap().fde_for_address(&frame, &bases, addr, EhFrame::cie_from_offset).unwrap();
    let mut context = UnwindContext::new();
    let row = fde.unwind_info_for_address(&frame, &bases, &mut context, addr).unwrap();
    let CfaRule::RegisterAndOffset { register, offset } = *row.cfa() else { panic!("{row:?}") };
    (register, offset)
}

#[test]
fn each_region_describes_its_part() {
    let records = records();
    for before in [1, 2, 3, 4, 5, 0x100, 0x101, 0x250, SIZE - 1] {
        let (mut first, mut second) = (Region::new(1 << 20), Region::new(1 << 20));
        let code = |offset, size| Code { offset, size, name: b"both", info: Info::new(&records) };
        let ends_at = first.file.layout.text_len;
        first.file.add_part(&code(ends_at - before, before), Whole { before: 0, size: SIZE });
        second.file.add_part(&code(0, SIZE - before), Whole { before, size: SIZE });
        for is_again in [false, true] {
            for (file, offset, from, size) in
                [(&mut first.file, ends_at - before, 0, before), (&mut second.file, 0, before, SIZE - before)]
            {
                if is_again {
                    // The part has replaced dead code at this offset. A rewrite adds the dead code, but the newer part stays.
                    let dead = Code { offset, size: 1, name: b"dead", info: Info::NOTHING };
                    file.reset_to(|file| file.add(&dead));
                }
                file.write(true).unwrap();
                assert_eq!(file.left_out(), 0);
                let bytes = bytes_of(file.disk.file());
                let elf = ElfFile64::<object::Endianness>::parse(&bytes[..]).unwrap();
                let symbols = elf.symbols().filter(|symbol| symbol.size() > 0);
                let symbols: Vec<_> =
                    symbols.map(|symbol| (symbol.name().unwrap(), symbol.address(), symbol.size())).collect();
                let text = file.layout.text;
                assert_eq!(symbols, [("both", text + offset, size)]);
                for at in [from, from + size / 2, from + size - 1] {
                    let expected = match at {
                        0 => (X86_64::RSP, 8),
                        1..4 => (X86_64::RSP, 16),
                        _ => (X86_64::RBP, 16),
                    };
                    assert_eq!(cfa_at(&bytes, text, offset + at - from), expected, "{before:#x} {at:#x}");
                }
                let data = |name: &str| elf.section_by_name(name).map_or(&[][..], |part| part.data().unwrap());
                let unit = units(&data, true).remove(&(text + offset)).unwrap();
                assert_eq!((unit.name.as_str(), unit.size), ("both", size));
                let line_at = |at: u64| unit.lines.iter().rfind(|line| u64::from(line.0) <= at).unwrap().1;
                for (at, line) in [(0, 1), (1, 1), (2, 2), (0xff, 2), (0x100, 3), (0x101, 4), (0x1ff, 4), (SIZE - 1, 5)]
                {
                    if from <= at && at < from + size {
                        assert_eq!(line_at(at - from), line, "{before:#x} {at:#x}");
                    }
                }
                // Returns the innermost inlined function at a byte of the code.
                let inlined_at = |all: &[Inline<'static>], at: u64| {
                    let has = |inline: &&Inline<'_>| u64::from(inline.begin) <= at && at < u64::from(inline.end);
                    all.iter().rfind(has).map(|inline| (inline.name, inline.call_line))
                };
                for at in from..from + size {
                    assert_eq!(inlined_at(&unit.inlines, at - from), inlined_at(&inlines(SIZE as u32), at), "{at:#x}");
                }
            }
        }
        // Other code replaces the part, so a rewrite must not add the part again.
        second.file.add(&Code { offset: 0, size: 1, name: b"new", info: Info::NOTHING });
        assert!(second.file.parts_of_code.is_empty());
        // A part that cannot be added is not kept for a rewrite.
        second.file.add_part(&code(second.file.layout.text_len, 1), Whole { before: 0, size: SIZE });
        assert!(second.file.parts_of_code.is_empty() && second.file.left_out() == 1);
        second.file.reset_to(|_| ());
        second.file.write(true).unwrap();
        second.check();
    }
}
