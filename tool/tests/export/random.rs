//! Random code that replaces other code, used at random: at each time, the mappings show the object with the code that is used,
//! and the unwind tables lie where unwinders look for them.

use std::collections::HashMap;

use jitsym_tool::objects::{write, Epochs, Loads, Made, OutDir, Taken};
use object::read::elf::{ElfFile64, ProgramHeader};
use object::{Endianness, Object, ObjectSection, ObjectSymbol};

use crate::build::{dump, Load, Unwinding};
use crate::rng::Random;
use crate::support::fresh_dir;

/// An object, read by another reader.
struct Read {
    bytes: Vec<u8>,
    /// Address, size and name.
    symbols: Vec<(u64, u64, String)>,
    /// Address of `.eh_frame_hdr`.
    hdr: u64,
    /// Where the loaded segment ends.
    end: u64,
}

fn read(path: &std::path::Path) -> Read {
    let bytes = std::fs::read(path).expect("object");
    let file = ElfFile64::<Endianness>::parse(&*bytes).expect("an ELF file");
    let symbols = file.symbols().filter(|symbol| symbol.size() > 0);
    let symbols =
        symbols.map(|symbol| (symbol.address(), symbol.size(), symbol.name().expect("name").to_owned())).collect();
    let hdr = file.section_by_name(".eh_frame_hdr").expect("tables").address();
    let loaded: Vec<_> = file
        .elf_program_headers()
        .iter()
        .filter(|header| header.p_type(Endianness::Little) == object::elf::PT_LOAD)
        .collect();
    let [loaded] = loaded[..] else { panic!("one segment") };
    assert_eq!((loaded.p_vaddr(Endianness::Little), loaded.p_offset(Endianness::Little)), (0, 0));
    let end = loaded.p_memsz(Endianness::Little);
    Read { symbols, hdr, end, bytes }
}

/// The object and the offset that lie at an address.
fn mapped(made: &Made, time: u64, addr: u64) -> Option<(usize, u64)> {
    let is_here = |mapping: &&jitsym_tool::objects::Mapping| {
        mapping.time <= time && (mapping.start..mapping.start + mapping.len).contains(&addr)
    };
    let last = made.mappings.iter().rev().find(is_here)?;
    Some((last.object, addr - last.start + last.offset))
}

/// The FDE that the search table in memory leads to: the first address and the size of its code.
fn search(made: &Made, read: &HashMap<usize, Read>, time: u64, object: usize, addr: u64) -> Option<(u64, u64)> {
    let origin = made.objects[object].origin;
    // All bytes are read through the mappings.
    let word = |at: u64| {
        let (there, offset) = mapped(made, time, at).expect("mapped tables");
        assert_eq!(there, object, "tables of another object");
        let offset = offset as usize;
        i32::from_le_bytes(read[&object].bytes[offset..offset + 4].try_into().expect("a word"))
    };
    let hdr = origin + read[&object].hdr;
    let rows = (0..word(hdr + 8) as u64).map(|row| hdr + 12 + 8 * row);
    let row = rows.take_while(|&row| hdr.wrapping_add_signed(word(row).into()) <= addr).last()?;
    let fde = hdr.wrapping_add_signed(word(row + 4).into());
    Some(((fde + 8).wrapping_add_signed(word(fde + 8).into()), word(fde + 12) as u64))
}

fn check(seed: u64) {
    let mut random = Random::new(seed);
    // Code in some places, near and far, with as much reuse as the seed wants.
    let (room, count) = (64 << random.below(8), 20 + random.below(200));
    let mut next = 1;
    let (mut records, mut known) = (Vec::new(), Vec::new());
    for index in 0..count {
        next += 1 + random.below(10) as u64;
        let base = [0x7f00_0000_0000, 0x7f00_0010_0000, 0x7f00_0800_0000][random.below(3)];
        let (addr, size) = (base + 8 * random.below(room) as u64, 1 + random.below(100) as u64);
        let code: Vec<u8> = (0..size).map(|_| random.below(256) as u8).collect();
        let name = format!("code{index}");
        records.push(Unwinding::of_size(size).bytes());
        let load =
            Load { addr, time: next, index: index as u64, name: [name.as_bytes(), b"\0"].concat(), ..Load::default() };
        records.push(Load { code: code.clone(), ..load }.bytes());
        known.push((next, addr..addr + size, name, code));
    }
    let file = dump(&records);
    let mut loads = Loads::new();
    assert!(loads.add_jitdump(&file));
    loads.finish();
    assert_eq!(loads.all.len(), count);

    let mut taken = Taken::new();
    taken.add(0x7f00_0000_0000..0x7f00_0008_0000);
    let library = 0x7f00_000f_0000..0x7f00_000f_8000;
    if random.one_in(2) {
        taken.add_file(library.clone());
    }
    let mut epochs = Epochs::new(&loads.all, &taken);
    let mut uses = Vec::new();
    for time in 2..next + 50 {
        // Code is alive until its first byte is covered.
        let alive = |index: &usize| {
            let (begin, range, ..) = &known[*index];
            let covers = |(later, other, ..): &(u64, std::ops::Range<u64>, String, Vec<u8>)| {
                *later > *begin && *later <= time && other.start < range.end && range.start < other.end
            };
            *begin <= time && !known.iter().any(covers)
        };
        let all: Vec<usize> = (0..count).filter(alive).collect();
        for _ in 0..random.below(4) {
            let Some(&index) = all.get(random.below(all.len())) else { continue };
            epochs.hit(time, index);
            let range = &known[index].1;
            uses.push((time, index, range.start + random.below((range.end - range.start) as usize) as u64));
        }
    }
    assert_eq!(epochs.left_out, 0);
    let dir = OutDir::new(&fresh_dir("random")).expect("directory");
    let made = write(&loads, &epochs.all, &dir, Some(&taken)).expect("written");
    let objects: HashMap<usize, Read> = made.objects.iter().map(|object| read(&object.path)).enumerate().collect();

    for (time, index, addr) in uses {
        let (_, range, name, code) = &known[index];
        let (object, offset) = mapped(&made, time, addr).expect("mapped");
        let here = &objects[&object];
        let symbol = here.symbols.iter().find(|(at, size, _)| (*at..at + size).contains(&offset)).expect("symbol");
        assert_eq!(&symbol.2, name, "at {time}");
        assert_eq!(here.bytes[offset as usize], code[(addr - range.start) as usize]);
        let found = search(&made, &objects, time, object, addr);
        assert_eq!(found, Some((range.start, range.end - range.start)), "at {time}");
    }
    // Tables have addresses of their own, and later objects of a neighbourhood begin higher and end at the same address.
    let mut before: HashMap<(u64, u64), (u64, u64)> = HashMap::new();
    let mut tables: Vec<_> = Vec::new();
    for mapping in &made.mappings {
        let object = &made.objects[mapping.object];
        assert_eq!(mapping.start.wrapping_sub(mapping.offset), object.origin);
        let range = mapping.start..mapping.start + mapping.len;
        if range != object.code {
            assert!(range.end <= library.start || range.start >= library.end);
            assert!(made.objects.iter().all(|object| range.end <= object.code.start || range.start >= object.code.end));
            tables.push(range);
            continue;
        }
        let end = object.origin + objects[&mapping.object].end;
        let last = before.insert((range.start, range.end), (object.origin, end));
        assert!(last.is_none_or(|(origin, there)| origin < object.origin && there == end));
        assert_eq!(end, object.code.end);
    }
    assert_eq!(tables.len(), made.objects.len());
    tables.sort_by_key(|range| range.start);
    assert!(tables.windows(2).all(|two| two[0].end <= two[1].start));
}

#[test]
fn random_code() {
    let first = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).expect("time").as_nanos() as u64;
    let seed = std::env::var("JITSYM_SEED").ok().and_then(|seed| seed.parse().ok());
    for seed in seed.map_or(first..first + 60, |seed| seed..seed + 1) {
        println!("JITSYM_SEED={seed}");
        check(seed);
    }
}
