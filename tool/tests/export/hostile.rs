//! Damaged files: nothing is written outside of the directory, and each file that is written is a whole ELF file.

use std::path::Path;

use jitsym_tool::objects::{few_files, write, Loads, OutDir};
use object::read::elf::ElfFile64;
use object::{Endianness, Object, ObjectSymbol};

use crate::build::{dump, record, words, Load, Unwinding, TIME};
use crate::damage::{corpus, damage};
use crate::rng::Random;
use crate::support::fresh_dir;

/// Makes the objects of a file. Returns their number and the number of their symbols.
fn make(bytes: &[u8], dir: &Path) -> (usize, usize) {
    let mut loads = Loads::new();
    if !loads.add_jitdump(bytes) {
        loads.add_map(bytes);
    }
    loads.finish();
    let (files, left_out) = few_files(&loads.all);
    let out = OutDir::new(dir).expect("directory");
    let made = write(&loads, &files, &out, None).expect("written");
    let mut symbols = 0;
    for object in &made.objects {
        assert_eq!(object.path.parent(), Some(out.path()));
        let bytes = std::fs::read(&object.path).expect("object");
        let file = ElfFile64::<Endianness>::parse(&*bytes).expect("an ELF file");
        let count = file.symbols().filter(|symbol| symbol.size() > 0 && symbol.name().is_ok()).count();
        assert_eq!((count, file.build_id().expect("notes")), (object.pieces, Some(&object.build_id[..])));
        symbols += count;
    }
    assert_eq!(symbols + left_out.too_large + left_out.too_many, loads.all.len());
    (made.objects.len(), symbols)
}

#[test]
fn damaged_files() {
    let seeds = corpus();
    let mut random = Random::new(0x6f62_6a73);
    let dir = fresh_dir("damaged");
    let (mut objects, mut symbols) = (0, 0);
    for round in 0..3000 {
        let mut file = seeds[round % seeds.len()].clone();
        damage(&mut file, &seeds, &mut random);
        let out = dir.join("out");
        let made = make(&file, &out);
        (objects, symbols) = (objects + made.0, symbols + made.1);
        assert!(std::fs::read_dir(&dir).expect("directory").all(|entry| entry.expect("entry").file_name() == "out"));
        for entry in std::fs::read_dir(&out).expect("directory") {
            let name = entry.expect("entry").file_name().into_string().expect("UTF-8");
            assert!(name.starts_with("jitcode-") && name.ends_with(".so"), "round {round}: {name}");
        }
        std::fs::remove_dir_all(&out).expect("remove the directory");
    }
    assert!(objects > 2000 && symbols > objects, "{objects} objects, {symbols} symbols");
}

/// A torn file has the code of its whole records.
#[test]
fn torn_files() {
    let whole = corpus().into_iter().max_by_key(Vec::len).expect("a file");
    let dir = fresh_dir("torn");
    let mut last = 0;
    for len in (0..whole.len()).step_by(97).chain([whole.len()]) {
        let (_, symbols) = make(&whole[..len], &dir);
        assert!(symbols >= last, "{len}");
        last = symbols;
    }
    assert!(last > 3);
}

/// Records that ask for more than any disk has: what is written is in proportion to the file.
#[test]
fn hostile_records() {
    let dir = fresh_dir("hostile");
    // Moves of much code, to places of their own.
    let big = Load { code: vec![0x90; 1 << 20], ..Load::default() };
    let moved = |number: u64| record(1, TIME, &words(&[0, 0, 0, 0x7000_0000 + (number << 21), 1 << 20, 1]));
    let moves: Vec<Vec<u8>> = (0..2000).map(moved).collect();
    let file = dump(&[big.bytes(), moves.concat()]);
    let (objects, symbols) = make(&file, &dir.join("moves"));
    assert!(objects <= symbols && symbols < 40, "{objects} objects, {symbols} symbols");
    // A long name in each row of a table, in one byte.
    let mut rows = words(&[crate::build::ADDR, 100_000]);
    for number in 0..100_000u64 {
        let name = if number == 0 { vec![b'n'; 1 << 20] } else { vec![0xff] };
        rows.extend(
            [&(crate::build::ADDR + number % 8).to_ne_bytes()[..], &[1, 0, 0, 0, 0, 0, 0, 0], &name, &[0]].concat(),
        );
    }
    let file = dump(&[record(2, TIME, &rows), Load::default().bytes()]);
    assert_eq!(make(&file, &dir.join("rows")), (1, 1));
    // Code at both ends of the address space, and code without an end.
    let ends = [0, 1, 16, 4096, u64::MAX - 64, u64::MAX - 7, u64::MAX];
    let loads =
        ends.map(|addr| [Unwinding::default().bytes(), Load { addr, index: addr, ..Load::default() }.bytes()].concat());
    let (_, symbols) = make(&dump(&loads), &dir.join("ends"));
    assert_eq!(symbols, 5);
    let huge = Load { size: Some(1 << 40), ..Load::default() };
    assert_eq!(make(&dump(&[huge.bytes()]), &dir.join("huge")), (0, 0));
    assert_eq!(make(b"1000 fffffffff huge\n1000 10000000 large\n", &dir.join("map")).1, 1);
}
