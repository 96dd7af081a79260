//! Calls take as much time and memory as their input is large: twice the size costs twice as much. Instructions are counted by valgrind,
//! and memory by the program (`c-tests/cost/growth.c`).

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;

use crate::support::*;

/// Sizes that one call is measured for.
const SIZES: [usize; 2] = [125, 250];

/// What one call costs: instructions, and bytes of memory.
type Cost = (u64, u64);

/// What the program measures, in the order of its output.
fn measured(mode: &str, size: usize, objects: &[PathBuf]) -> Vec<(String, Cost)> {
    let program = compile("gcc", &["c-tests/cost/growth.c"], Link::Shared, &["-std=gnu11", "-O1"], "growth");
    let dir = scratch_dir(format!("{mode}-{size}"));
    let profiles = scratch_dir(format!("profiles-{mode}-{size}"));
    let mut command = Command::new("valgrind");
    command.args(["-q", "--tool=callgrind", "--fair-sched=yes", "--collect-atstart=no", "--toggle-collect=measured_*"]);
    command.arg(format!("--callgrind-out-file={}", profiles.join("of").display())).arg(&program).arg(&dir).arg(mode);
    let output = run(command.arg(size.to_string()).args(objects).env_remove("JITSYM").env("LD_BIND_NOW", "1"));
    let text = stdout(&output);
    assert!(text.ends_with("ok\n"), "{}", describe(&command, &output));
    let memory = text.lines().filter_map(|line| line.split_once('='));
    let memory: Vec<(&str, u64)> = memory.map(|(what, bytes)| (what, bytes.parse().expect("a number"))).collect();
    let number = |number: usize| std::fs::read_to_string(profiles.join(format!("of.{}", number + 1))).expect("profile");
    let instructions = |profile: String| {
        let total = profile.lines().find_map(|line| line.strip_prefix("totals: ")).expect("totals").trim().parse();
        total.expect("a number")
    };
    let all = memory.into_iter().enumerate();
    all.map(|(at, (what, bytes))| (what.to_owned(), (instructions(number(at)), bytes))).collect()
}

/// The same for both sizes, side by side: valgrind takes a processor for each. `objects` makes those of a size.
fn both(mode: &str, objects: impl Fn(usize) -> Vec<PathBuf>) -> BTreeMap<String, [Cost; 2]> {
    let made = SIZES.map(objects);
    let [once, twice] = thread::scope(|scope| {
        let once = scope.spawn(|| measured(mode, SIZES[0], &made[0]));
        let twice = measured(mode, SIZES[1], &made[1]);
        [once.join().expect("measured"), twice]
    });
    println!("{once:?}\n{twice:?}");
    once.into_iter().zip(twice).map(|((what, once), (_, twice))| (what, [once, twice])).collect()
}

/// A quarter more than twice as much, for what is sorted or is there once.
fn assert_linear(what: &str, [once, twice]: [Cost; 2]) {
    assert!(4 * twice.0 <= 9 * once.0 && 4 * twice.1 <= 9 * once.1, "{what}: {once:?}, {twice:?}");
}

/// A name of half a MiB and one of a MiB that has to be cleaned and cut, an `.eh_frame` with a long CIE for all of its entries, and functions that were
/// inlined into one another and are told of from the innermost one on.
#[test]
fn of_one_call() {
    let all = both("calls", |_| Vec::new());
    assert_eq!(all.len(), 4);
    // All of them together are more than there may be, which is known before any is copied. The lengths of the names are counted.
    assert!(all["files"].iter().all(|(_, bytes)| *bytes < 64 << 10), "names of files are copied: {:?}", all["files"]);
    let [name, section, inlines] = ["name", "section", "inlines"].map(|what| all[what]);
    assert_linear("a name", name);
    assert!(name.iter().all(|(_, bytes)| *bytes < 16 << 10), "a name takes memory: {name:?}");
    assert_linear("inlined functions", inlines);
    // The CIE alone is twice as long.
    assert_linear("an .eh_frame", section);
    assert!(2 * section[1].0 <= 3 * section[0].0, "a CIE is converted for each FDE: {section:?}");
}

/// A list of objects, each of which is told of when it comes, and objects whose parts lie upon one another.
#[test]
fn of_objects_for_debuggers() {
    let all = both("objects", |size| {
        let dir = scratch_dir(format!("made-{size}"));
        OBJECTS.iter().map(|(what, make)| make(size).write(&dir.join(what))).collect()
    });
    assert_linear("a list", all["list"]);
    for (number, (what, _)) in OBJECTS.iter().enumerate() {
        // Half a GiB is asked for, and not used.
        if *what != "wrong" {
            assert_linear(what, all[&format!("object {number}")]);
        }
        // What was found is known, and so is that there was nothing. Its names are looked at, which are cut.
        for (instructions, bytes) in all[&format!("again {number}")] {
            assert!(instructions < 1_000_000 && bytes < 200_000, "{what} is looked at again: {instructions}, {bytes}");
        }
    }
}

/// An object as it is made here: sections in a row, after the header and before the sections' headers.
struct Object {
    sections: Vec<Section>,
}

#[derive(Clone, Default)]
struct Section {
    name: &'static str,
    kind: u32,
    flags: u64,
    addr: u64,
    size: u64,
    link: u32,
    info: u32,
    data: Vec<u8>,
    /// It lies upon the section with this number.
    upon: Option<usize>,
}

const SHT_PROGBITS: u32 = 1;
const SHT_SYMTAB: u32 = 2;
const SHT_STRTAB: u32 = 3;
const SHT_NOBITS: u32 = 8;
/// Memory that is code.
const CODE_FLAGS: u64 = 2 | 4;
/// Where the code is said to be. Nothing is there.
const CODE: u64 = 0x7100_0000_0000;
const SYMBOL: usize = 24;

impl Object {
    fn new(code_size: usize) -> Object {
        let code =
            Section { kind: SHT_NOBITS, flags: CODE_FLAGS, addr: CODE, size: code_size as u64, ..Section::default() };
        Object { sections: vec![Section::default(), code] }
    }

    fn with(mut self, section: Section) -> Object {
        self.sections.push(section);
        self
    }

    /// With a table of symbols of functions, which follow one another: where each name begins, and the names.
    fn with_symbols(self, names: impl Iterator<Item = u32>, size: usize, strings: Vec<u8>) -> Object {
        let mut table = vec![0; SYMBOL];
        for (number, name) in names.enumerate() {
            // A global function, in the first section.
            table.extend_from_slice(&name.to_le_bytes());
            table.extend_from_slice(&[0x12, 0, 1, 0]);
            table.extend_from_slice(&(CODE + (number * size) as u64).to_le_bytes());
            table.extend_from_slice(&(size as u64).to_le_bytes());
        }
        let link = self.sections.len() as u32 + 1;
        let symbols = Section { kind: SHT_SYMTAB, link, data: table, ..Section::default() };
        self.with(symbols).with(Section { kind: SHT_STRTAB, data: strings, ..Section::default() })
    }

    fn write(&self, path: &Path) -> PathBuf {
        let mut bytes = vec![0; 64];
        let (mut names, mut places) = (vec![0], Vec::new());
        for section in &self.sections {
            let place = section.upon.map(|upon| places[upon]);
            places.push(place.unwrap_or((bytes.len(), section.data.len().max(section.size as usize))));
            bytes.extend_from_slice(&section.data);
        }
        let names_of: Vec<u32> = self
            .sections
            .iter()
            .map(|section| {
                let at = names.len() as u32;
                names.extend_from_slice(section.name.as_bytes());
                names.push(0);
                at
            })
            .collect();
        let names_at = (bytes.len(), names.len());
        bytes.extend_from_slice(&names);
        let table = bytes.len();
        let strings = Section { kind: SHT_STRTAB, ..Section::default() };
        let all = self.sections.iter().chain([&strings]).zip(places.into_iter().chain([names_at]));
        for (number, (section, (offset, size))) in all.enumerate() {
            bytes.extend_from_slice(&names_of.get(number).copied().unwrap_or_default().to_le_bytes());
            bytes.extend_from_slice(&section.kind.to_le_bytes());
            for word in [section.flags, section.addr, offset as u64, size as u64] {
                bytes.extend_from_slice(&word.to_le_bytes());
            }
            bytes.extend_from_slice(&section.link.to_le_bytes());
            bytes.extend_from_slice(&section.info.to_le_bytes());
            bytes.extend_from_slice(&[0; 16]);
        }
        let count = self.sections.len() as u16 + 1;
        // Linked, for this machine.
        bytes[..20].copy_from_slice(b"\x7fELF\x02\x01\x01\0\0\0\0\0\0\0\0\0\x03\0\x3e\0");
        bytes[40..48].copy_from_slice(&(table as u64).to_le_bytes());
        bytes[60..62].copy_from_slice(&count.to_le_bytes());
        bytes[62..64].copy_from_slice(&(count - 1).to_le_bytes());
        std::fs::write(path, bytes).expect("write an object");
        path.to_owned()
    }
}

type Make = fn(usize) -> Object;

/// What lies upon one another: see each.
const OBJECTS: &[(&str, Make)] = &[
    ("names", long_names),
    ("tables", many_tables),
    ("paths", long_paths),
    ("entries", one_entry_for_many),
    ("wrong", larger_than_it_is),
];

/// Names that all end at the same place.
fn long_names(size: usize) -> Object {
    let mut strings = vec![b'n'; 40 * size];
    strings.push(0);
    Object::new(16 * size / 2).with_symbols(1..=size as u32 / 2, 16, strings)
}

/// One table of symbols, as many times as it has symbols.
fn many_tables(size: usize) -> Object {
    let object = Object::new(size).with_symbols((0..size as u32).map(|_| 1), 1, b"\0same\0".to_vec());
    let table = Section { data: Vec::new(), upon: Some(2), ..object.sections[2].clone() };
    (0..size).fold(object, |object, _| object.with(table.clone()))
}

/// A line for each file, and the paths all end at the same place.
fn long_paths(size: usize) -> Object {
    let mut strings = vec![b'/'; 100 * size];
    strings.push(0);
    let uleb = |number: usize| [number as u8 & 0x7f | 0x80, (number >> 7) as u8];
    // From min_inst_length to the lengths of the standard opcodes; then formats with a path in .debug_line_str.
    let mut header = vec![1, 1, 1, 0xfb, 14, 13, 0, 1, 1, 1, 1, 0, 0, 0, 1, 0, 0, 1];
    header.extend_from_slice(&[1, 1, 0x1f, 1, 0, 0, 0, 0, 1, 1, 0x1f]);
    header.extend_from_slice(&uleb(size));
    header.extend((0..size as u32).flat_map(u32::to_le_bytes));
    let mut program = vec![0, 9, 2];
    program.extend_from_slice(&CODE.to_le_bytes());
    for file in 0..size {
        // DW_LNS_set_file, and an opcode that goes on by a byte and a line.
        program.push(4);
        program.extend_from_slice(&uleb(file));
        program.push(33);
    }
    program.extend_from_slice(&[0, 1, 1]);
    let mut unit = vec![5, 0, 8, 0];
    unit.extend_from_slice(&(header.len() as u32).to_le_bytes());
    let mut lines = ((unit.len() + header.len() + program.len()) as u32).to_le_bytes().to_vec();
    lines.extend([unit, header, program].concat());
    let section = |name, data| Section { name, kind: SHT_PROGBITS, data, ..Section::default() };
    Object::new(size)
        .with_symbols([1].into_iter(), size, b"\0with_lines\0".to_vec())
        .with(section(".debug_line", lines))
        .with(section(".debug_line_str", strings))
}

/// A long FDE for all functions.
fn one_entry_for_many(size: usize) -> Object {
    let mut table = [&20_u32.to_le_bytes()[..], &[0; 4], b"\x01zR\0\x01\x78\x10\x01\x00\x0c\x07\x08", &[0; 4]].concat();
    let instructions = [8, 3].repeat(10 * size);
    let fde = table.len() as u32;
    table.extend_from_slice(&(4 + 16 + 1 + instructions.len() as u32).to_le_bytes());
    table.extend_from_slice(&(fde + 4).to_le_bytes());
    table.extend_from_slice(&CODE.to_le_bytes());
    table.extend_from_slice(&(16 * size as u64).to_le_bytes());
    table.push(0);
    table.extend_from_slice(&instructions);
    table.extend_from_slice(&[0; 4]);
    let section = Section {
        name: ".eh_frame",
        kind: SHT_PROGBITS,
        flags: 2,
        addr: CODE + (1 << 30),
        data: table,
        ..Section::default()
    };
    Object::new(16 * size).with_symbols((0..size as u32).map(|_| 1), 16, b"\0same\0".to_vec()).with(section)
}

/// A section of half a GiB, which the file does not have.
fn larger_than_it_is(size: usize) -> Object {
    let section = Section { kind: SHT_PROGBITS, size: 1 << 29, ..Section::default() };
    Object::new(size).with_symbols([1].into_iter(), size, b"\0larger\0".to_vec()).with(section)
}
