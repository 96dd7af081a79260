//! Tests that the bridge reads from objects the data that was written to them, and that damaged objects do no harm.

use gimli::{BaseAddresses, CfaRule, EhFrame, LittleEndian, UnwindContext, UnwindSection};
use object::{Object, ObjectSection};

use super::objects::{LineTables, UnwindTables};
use crate::api::code::Unwind;
use crate::format::arch::Arch;
use crate::format::cfi;
use crate::format::code_info::Info;
use crate::format::elf::read::Image;
use crate::sink::gdb::objects::{Code, Objects};
use crate::sink::gdb::tests::{info, Truth};
use crate::sink::test_random::{Random, Seed};

/// Returns objects with some functions. For each function, also returns the address, and the data that was written to the
/// object.
fn objects(random: &mut Random) -> (Vec<Vec<u8>>, Vec<(u64, Truth)>) {
    let (mut objects, mut said) = (Objects::default(), Vec::new());
    for number in 1..20 {
        let (addr, size) = (0x7000_0000_0000 + number * 64, 1 + random.below(60));
        let line = (random.below(2) == 0).then(|| 1 + random.below(1000));
        let truth = Truth { size, name: format!("f{number}"), cfa_offset: 8 + 8 * random.below(8) as i64, line };
        let (name, records) = (truth.name.clone(), info(addr, &truth));
        objects.add(&Code { id: number, addr, size, name: name.as_bytes(), info: Some(Info::new(&records)) });
        said.push((addr, truth));
    }
    objects.list_fresh(true).unwrap();
    (objects.images().map(<[u8]>::to_vec).collect(), said)
}

/// Changes the unwind tables of an object into tables like those of LuaJIT: pointers to code are relative to the section of
/// the code, and the table has no address.
fn count_from_code(bytes: &mut [u8]) {
    let elf = object::File::parse(&*bytes).unwrap();
    let section = elf.section_by_name(".eh_frame").unwrap();
    let text = elf.sections().find(|section| section.name().unwrap().starts_with(".text")).unwrap().address();
    let (number, addr, (offset, _)) = (section.index().0, section.address(), section.file_range().unwrap());
    let header = u64::from_le_bytes(bytes[40..48].try_into().unwrap()) as usize + number * 64;
    bytes[header + 16..header + 24].fill(0);
    let table = &mut bytes[offset as usize..];
    let word = |table: &[u8], at: usize| u32::from_le_bytes(table[at..at + 4].try_into().unwrap());
    let mut at = 0;
    while word(table, at) != 0 {
        if word(table, at + 4) == 0 {
            let encoding = table[at..].iter_mut().find(|byte| **byte == 0x1b).unwrap();
            *encoding = 0x23;
        } else {
            let field = at + 8;
            let start = addr.wrapping_add(field as u64).wrapping_add_signed(i64::from(word(table, field) as i32));
            table[field..field + 4].copy_from_slice(&((start - text) as u32).to_le_bytes());
        }
        at += 4 + word(table, at) as usize;
    }
}

#[test]
fn all_of_an_object() {
    let seed = Seed::new();
    let (images, said) = objects(&mut Random(seed.0));
    check_all(&images, &said);
}

#[test]
fn tables_that_count_from_the_code() {
    let seed = Seed::new();
    let (mut images, said) = objects(&mut Random(seed.0));
    images.iter_mut().for_each(|bytes| count_from_code(bytes));
    check_all(&images, &said);
}

fn check_all(images: &[Vec<u8>], said: &[(u64, Truth)]) {
    let mut found = 0;
    for bytes in images {
        let image = Image::parse(bytes).unwrap();
        let (lines, tables) = (LineTables::of(&image), UnwindTables::of(&image));
        for function in image.functions() {
            let (_, truth) = said.iter().find(|(addr, _)| *addr == function.addr).unwrap();
            assert_eq!((function.size, function.name), (truth.size, truth.name.as_bytes()));
            let rows = lines.of_function(function.addr, function.size);
            assert_eq!(rows.first().map(|row| (row.offset, u64::from(row.line))), truth.line.map(|line| (0, line)));
            assert!(rows.iter().all(|row| row.file == b"/a.toy"), "{rows:?}");
            let (section, addr) = tables.of_function(function.addr).unwrap();
            let (eh_frame, bases) = (EhFrame::new(&section, LittleEndian), BaseAddresses::default().set_eh_frame(addr));
            let mut context = UnwindContext::new();
            let at = function.addr + function.size - 1;
            let row = eh_frame.unwind_info_for_address(&bases, &mut context, at, EhFrame::cie_from_offset).unwrap();
            let is_right =
                matches!(*row.cfa(), CfaRule::RegisterAndOffset { offset, .. } if offset == truth.cfa_offset);
            assert!(is_right, "{row:?}");
            found += 1;
        }
    }
    assert_eq!(found, said.len());
}

#[test]
fn bytes_at_random() {
    let seed = Seed::new();
    let mut random = Random(seed.0);
    let (images, _) = objects(&mut random);
    for _ in 0..3000 {
        let mut bytes = images[random.below(images.len() as u64) as usize].clone();
        for _ in 0..1 + random.below(20) {
            let at = random.below(bytes.len() as u64) as usize;
            bytes[at] = match random.below(3) {
                0 => 0xff,
                1 => 0,
                _ => random.below(256) as u8,
            };
        }
        bytes.truncate(bytes.len() - random.below(2) as usize * random.below(bytes.len() as u64) as usize);
        let Some(image) = Image::parse(&bytes) else { continue };
        let (lines, tables) = (LineTables::of(&image), UnwindTables::of(&image));
        for function in image.functions() {
            lines.of_function(function.addr, function.size);
            if let Some((section, addr)) = tables.of_function(function.addr) {
                let unwind = Unwind::EhFrame { bytes: &section, addr };
                let _ = cfi::encode(Arch::X86_64, &unwind, function.addr, function.size.min(1 << 20));
            }
        }
    }
}
