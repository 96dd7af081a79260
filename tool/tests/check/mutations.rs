//! No bytes are too odd: files of the corpus, damaged in thousands of ways, are read to the end, and what is printed is text.
//!
//! The same in a shorter form as the fuzzing targets in `fuzz/`.

use jitsym_tool::check::report::Style;
use jitsym_tool::check::{check, Facts};
use jitsym_tool::show::{dump, stat, Dump, Look};

use crate::build::{dump as file_of, Load, Unwinding, ADDR, TIME};
use crate::cases::cases;
use crate::corpus::check_text;
use crate::damage::{corpus, damage};
use crate::rng::Random;

fn seeds() -> Vec<Vec<u8>> {
    let mut seeds: Vec<Vec<u8>> = cases().into_iter().flat_map(|case| [case.bad, case.good]).collect();
    seeds.extend(corpus());
    seeds.sort();
    seeds
}

#[test]
fn damaged_files() {
    let seeds = seeds();
    let mut random = Random::new(0x6a69_7473_796d);
    let mut found = 0;
    for round in 0..20_000 {
        let mut file = seeds[round % seeds.len()].clone();
        damage(&mut file, &seeds, &mut random);
        let mut findings = Vec::new();
        check(&file, &Facts::default(), &mut findings);
        found += findings.len();
        // Each of the others every few rounds, as they take longer.
        if round % 4 == 0 {
            let (mut out, mut progress) = (Vec::new(), |_| {});
            let mut how = Dump { disassembler: None, name: None, progress: &mut progress };
            let _ = dump(&file, &Facts::default(), &mut how, &mut out);
            let look = Look { width: random.below(200), terminal: round % 8 == 0 };
            let _ = stat(&file, &Facts::default(), look, 3, &mut |_| {}, &mut out);
            out.extend(check_text(&file, Style::AllText, true));
            let text = String::from_utf8(out).expect("text");
            let escapes = text.replace("\x1b[33m", "").replace("\x1b[0m", "");
            assert!(!escapes.contains(|c: char| c.is_control() && c != '\n'), "round {round}: {text:?}");
        }
    }
    assert!(found > 20_000, "{found} findings");
}

/// The same for files of regions: of a few functions, with line and unwind tables.
#[test]
fn damaged_elf_files() {
    let dir = crate::support::scratch_dir("damaged-elf");
    let (source, library) = (dir.join("some.c"), dir.join("some.so"));
    std::fs::write(
        &source,
        "int other(int n);\nint one(int n) { return other(n) + n; }\nint two(void) { return 2; }\n",
    )
    .expect("write");
    let mut cc = std::process::Command::new("gcc");
    cc.args(["-g", "-gdwarf-4", "-O1", "-shared", "-fPIC", "-nostdlib", "-o"]);
    crate::support::run(cc.arg(&library).arg(&source));
    let seeds = [std::fs::read(&library).expect("library")];
    let (mut random, mut printed) = (Random::new(0x7265_6769_6f6e), 0);
    for round in 0..3000 {
        let mut file = seeds[0].clone();
        damage(&mut file, &seeds, &mut random);
        let (mut out, mut progress) = (Vec::new(), |_| {});
        let mut how = Dump { disassembler: None, name: None, progress: &mut progress };
        printed += dump(&file, &Facts::default(), &mut how, &mut out).unwrap_or_default();
        let look = Look { width: random.below(200), terminal: false };
        let _ = stat(&file, &Facts::default(), look, 3, &mut |_| {}, &mut out);
        out.extend(check_text(&file, Style::AllText, true));
        let text = String::from_utf8(out).expect("text");
        assert!(!text.contains(|c: char| c.is_control() && c != '\n'), "round {round}: {text:?}");
    }
    assert!(printed > 300, "{printed} functions");
}

/// Hostile tables of which each entry goes through much of the others, mappings over all of the address space, names and
/// lengths that nobody can have: the time and the memory taken are in proportion to the file.
#[test]
fn hostile_files() {
    let many = |record: &dyn Fn(u64) -> Vec<u8>, count: u64| {
        let records: Vec<Vec<u8>> = (0..count).map(record).collect();
        file_of(&records)
    };
    let everywhere = |number: u64| {
        let unwinding = Unwinding { mapped_size: u64::MAX, ..Unwinding::default() };
        [unwinding.bytes(), Load { index: number, addr: number * 8 + 8, time: number, ..Load::default() }.bytes()]
            .concat()
    };
    // A CIE with much in it, and many entries that share it.
    let shared = |augmentation: &[u8], instructions: usize| {
        let mut frame = [&[0; 8], &b"\x01zR"[..], augmentation, b"\0\x01\x78\x10\x01\x1b"].concat();
        frame.resize((frame.len() + instructions).next_multiple_of(4), 0);
        let length = frame.len() as u32 - 4;
        frame[..4].copy_from_slice(&length.to_ne_bytes());
        for _ in 0..20_000 {
            let at = frame.len() as u32 + 4;
            // Length, distance to the CIE, start, size, and no augmentation data.
            frame.extend([16u32.to_ne_bytes(), at.to_ne_bytes(), [0; 4], 8u32.to_ne_bytes(), [0; 4]].concat());
        }
        file_of(&[Unwinding { eh_frame: frame, ..Unwinding::default() }.bytes(), Load::default().bytes()])
    };
    // Long names, which are shown with every code that lies over theirs.
    let long = vec![b'n'; 2 << 20];
    let over = |number: u64| {
        let load = Load { index: number + 1, addr: ADDR + 16 * number, time: TIME + number, ..Load::default() };
        let first = Load { name: [&long[..], b"\0"].concat(), size: Some(1 << 40), ..Load::default() };
        if number == 0 {
            first.bytes()
        } else {
            load.bytes()
        }
    };
    let mut lines = [b"1000 ffffffffff ", &long[..], b"\n"].concat();
    (0..20_000u64).for_each(|number| lines.extend(format!("{:x} 8 name\n", 0x2000 + number * 16).bytes()));
    let files = [
        ("a long name in a dump", many(&over, 20_000), "load-overlap"),
        ("a long name in a map", lines, "map-overlap"),
        ("mapped everywhere", many(&everywhere, 20_000), "mapped-over-later"),
        ("instructions", shared(b"", 200_000), "unwind-cfi"),
        ("augmentation", shared(&[b'S'; 200_000], 0), "unwind-cfi"),
    ];
    for (what, file, rule) in files {
        let begin = std::time::Instant::now();
        let mut findings = Vec::new();
        check(&file, &Facts::default(), &mut findings);
        // Some hundredths of a second in an unoptimised build; hours if it went by the square.
        assert!(begin.elapsed().as_secs() < 600, "{what}: {:?}", begin.elapsed());
        let found = findings.iter().find(|found| found.rule.id == rule);
        let text = &found.unwrap_or_else(|| panic!("{what}: {findings:?}")).text;
        assert!(rule != "unwind-cfi" || text == "too many entries share too much", "{what}: {text}");
    }
}
