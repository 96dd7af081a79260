//! What nm, objdump, addr2line, readelf, eu-elflint and gdb find in the files of `jitsym export`.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use jitsym::format::jitdump::raw::{RawDebug, RawHeader, RawRecords};
use jitsym::format::jitdump::{debug_info2, id, inlines, Group};
use jitsym::format::{arch::Arch, name};
use jitsym::{Inline, Lines, UnwindRow};

use crate::build::{debug, described, dump, Load, Unwinding, ADDR, TIME};
use crate::support::{fresh_dir, root, run, stdout, try_run};

fn jitsym(arguments: &[&OsStr]) -> Output {
    try_run(Command::new(env!("CARGO_BIN_EXE_jitsym")).args(arguments))
}

/// A file that the program wrote, and what the program printed of it.
struct File {
    path: PathBuf,
    offset: u64,
    gdb: String,
}

/// Exports a file with this name and these bytes.
fn export(file: &str, bytes: &[u8]) -> Vec<File> {
    let dir = fresh_dir("export");
    let (input, out) = (dir.join(file), dir.join("out"));
    std::fs::write(&input, bytes).expect("write the file");
    let output = jitsym(&["export".as_ref(), input.as_ref(), "-o".as_ref(), out.as_ref()]);
    let text = stdout(&output);
    assert!(output.status.success() && output.stderr.is_empty(), "{output:?}");
    let files: Vec<File> = text
        .split_inclusive(".so\n")
        .zip(text.split(".so\n").skip(1))
        .map(|(before, after)| {
            let path = before.lines().last().expect("path").trim_end();
            let hex = after.lines().next().and_then(|line| line.split("offset 0x").nth(1)).expect("offset");
            let gdb = after.lines().find_map(|line| line.trim().strip_prefix("gdb: ")).expect("a line for gdb");
            File { path: path.into(), offset: u64::from_str_radix(hex, 16).expect("hexadecimal"), gdb: gdb.into() }
        })
        .collect();
    let entries = std::fs::read_dir(&out).expect("directory").count();
    assert!(!files.is_empty() && files.len() == entries, "{text}");
    files
}

/// What a tool prints about a file, without any complaint.
fn tool(program: &str, arguments: &[&str], path: &Path) -> String {
    let output = run(Command::new(program).env("LC_ALL", "C").args(arguments).arg(path));
    assert!(output.stderr.is_empty(), "{program}: {}", String::from_utf8_lossy(&output.stderr));
    stdout(&output)
}

/// Address in the file, size and name of each symbol.
fn symbols(file: &File) -> Vec<(u64, u64, String)> {
    let hex = |word: &str| u64::from_str_radix(word, 16).expect("hexadecimal");
    let text = tool("nm", &["-S", "--no-demangle"], &file.path);
    let symbol = |line: &str| {
        let words: Vec<&str> = line.splitn(4, ' ').collect();
        (hex(words[0]), hex(words[1]), words[3].to_owned())
    };
    text.lines().map(symbol).collect()
}

/// The bytes that objdump disassembles, by address in the file.
fn disassembled(file: &File) -> BTreeMap<u64, u8> {
    let text = tool("objdump", &["-dz", "--no-addresses", "--show-raw-insn", "-w"], &file.path);
    assert!(text.contains("Disassembly of section .text"), "{text}");
    let text = tool("objdump", &["-dzw"], &file.path);
    let mut bytes = BTreeMap::new();
    for line in text.lines() {
        let mut columns = line.split('\t');
        let (Some(at), Some(code)) = (columns.next(), columns.next()) else { continue };
        let Ok(at) = u64::from_str_radix(at.trim().trim_end_matches(':'), 16) else { continue };
        let code = code.split_whitespace().map(|byte| u8::from_str_radix(byte, 16).expect("a byte"));
        bytes.extend((at..).zip(code));
    }
    bytes
}

/// The lines that addr2line prints for some addresses in the file.
fn lines(file: &File, options: &[&str], addresses: &[u64]) -> Vec<String> {
    let words: Vec<String> = addresses.iter().map(|address| format!("{address:#x}")).collect();
    let mut command = Command::new("addr2line");
    let output =
        run(command.env("LC_ALL", "C").args(options).arg("-e").arg(&file.path).args(words).stdin(Stdio::null()));
    assert!(output.stderr.is_empty(), "{output:?}");
    stdout(&output).lines().map(|line| line.split(" (discriminator").next().expect("line").to_owned()).collect()
}

/// Complaints of the tools that check ELF files. Only files with code are whole in the eyes of eu-elflint.
fn check(file: &File) {
    tool("readelf", &["-aW", "--debug-dump=info,abbrev,line,aranges,Ranges,frames"], &file.path);
    if Command::new("eu-elflint").arg("--version").output().is_ok() {
        assert_eq!(tool("eu-elflint", &["--gnu-ld"], &file.path), "No errors\n");
    }
}

/// A piece of code of a jitdump.
struct Piece<'a> {
    addr: u64,
    name: String,
    code: &'a [u8],
    /// For each offset that the table names, the line from there on.
    lines: BTreeMap<u64, String>,
}

/// The pieces of a jitdump, read in the simplest way. `bias`: how much the addresses of its lines are too high.
fn pieces(file: &[u8], bias: u64) -> Vec<Piece<'_>> {
    let header = RawHeader::read(file).expect("jitdump");
    let (mut pieces, mut debug): (Vec<Piece>, Option<RawDebug>) = (Vec::new(), None);
    for record in RawRecords::new(file, &header) {
        match record.id {
            id::DEBUG_INFO => debug = record.debug_info(),
            id::LOAD => {
                let load = record.load().expect("LOAD");
                let text = name::lengthen(name::clean(load.name().expect("name"))).into_owned();
                let rows = debug.take().into_iter().flat_map(|debug| debug.entries());
                let rows = rows.filter_map(|row| Some((row.addr.checked_sub(load.addr + bias)?, row)));
                let rows = rows.filter(|(at, row)| *at < load.size && row.line != 0);
                pieces.push(Piece {
                    addr: load.addr,
                    name: String::from_utf8(text).expect("UTF-8"),
                    code: load.code().expect("code"),
                    lines: rows
                        .map(|(at, row)| (at, format!("{}:{}", String::from_utf8_lossy(row.file), row.line)))
                        .collect(),
                });
            }
            _ => {}
        }
    }
    pieces
}

/// Files of many producers: each function has its name, its bytes and its lines, and no tool complains.
#[test]
fn producers() {
    let (mut functions, mut rows, mut cies) = (0, 0, 0);
    for entry in std::fs::read_dir(root().join("tool/tests/corpus")).expect("corpus") {
        let path = entry.expect("entry").path();
        if path.extension().is_none_or(|end| end != "dump") {
            continue;
        }
        let file = path.file_name().and_then(OsStr::to_str).expect("name");
        let bias = if file.starts_with("node") || file.starts_with("llvm") { 0x40 } else { 0 };
        let bytes = std::fs::read(&path).expect("file");
        let exported: Vec<_> =
            export(file, &bytes).into_iter().map(|file| (symbols(&file), disassembled(&file), file)).collect();
        for (_, _, file) in &exported {
            check(file);
            // Without this, perf 7 loses stacks: libdw takes rbx for lost.
            let frames = tool("readelf", &["--debug-dump=frames"], &file.path);
            let kept = frames.matches("DW_CFA_same_value: r3 (rbx)").count();
            assert_eq!(kept, frames.matches(" CIE\n").count(), "{frames}");
            cies += kept;
        }
        let mut left: usize = exported.iter().map(|(symbols, ..)| symbols.len()).sum();
        for piece in pieces(&bytes, bias) {
            let symbol = |offset: u64| (piece.addr.wrapping_sub(offset), piece.code.len() as u64, piece.name.clone());
            let is_here = |symbols: &[_], file: &File, bytes: &BTreeMap<u64, u8>| {
                let at = piece.addr.wrapping_sub(file.offset);
                let code = piece.code.iter().zip(at..);
                symbols.contains(&symbol(file.offset))
                    && code.into_iter().all(|(byte, at)| bytes.get(&at) == Some(byte))
            };
            let here = exported.iter().find(|(symbols, bytes, file)| is_here(symbols, file, bytes));
            let (_, _, here) = here.unwrap_or_else(|| panic!("{file}: {} at {:#x}", piece.name, piece.addr));
            let at = piece.addr.wrapping_sub(here.offset);
            let addresses: Vec<u64> = piece.lines.keys().map(|offset| at + offset).collect();
            if !addresses.is_empty() {
                assert_eq!(
                    lines(here, &[], &addresses),
                    Vec::from_iter(piece.lines.values().cloned()),
                    "{file}: {}",
                    piece.name
                );
            }
            (functions, rows, left) = (functions + 1, rows + addresses.len(), left - 1);
        }
        assert_eq!(left, 0, "{file}");
    }
    assert!(functions > 15 && rows > 50 && cies > 1, "{functions} functions, {rows} lines, {cies} CIEs");
}

/// Code with inlined functions, and code that replaces it: lines of both, and the inlined frames.
fn program() -> Vec<u8> {
    let inline = |begin, end, name: &'static [u8], call_line, parent| Inline {
        begin,
        end,
        name,
        call_file: b"/src/main.js",
        call_line,
        call_column: 1,
        parent,
    };
    let inlines = [inline(8, 24, b"middle", 3, None), inline(12, 16, b"inner", 21, Some(0))];
    let lines = Lines::Rows(&[]);
    let group = Group { pid: 100, tid: 1, index: 1, addr: ADDR, size: 32, name: b"outer", lines, unwind: None };
    let own = inlines::record(&inlines, 32).expect("a record");
    let mut record = debug_info2::record(&group, &own).expect("a record");
    record.extend(debug(&[
        (0, 2, b"/src/main.js"),
        (8, 20, b"/src/main.js"),
        (12, 30, b"/src/inner.js"),
        (16, 22, b"/src/main.js"),
        (24, 4, b"/src/main.js"),
        (32, 4, b"/src/main.js"),
    ]));
    let old = Load { name: b"outer\0".to_vec(), code: vec![0x90; 32], ..Load::default() };
    // A row before the code, a table that is not sorted, and names that are those of the row before.
    let lines = debug(&[(u64::MAX - 7, 1, b"/src/new.js"), (8, 9, b"\xff"), (0, 7, b"\xff"), (16, 7, b"\xff")]);
    let unwinding = Unwinding::of_size(16).bytes();
    let new = Load { name: b"replaced\0".to_vec(), code: vec![0xcc; 16], index: 2, time: TIME + 5, ..Load::default() };
    dump(&[record, old.bytes(), lines, unwinding, new.bytes()])
}

#[test]
fn inlined_functions() {
    let files = export("program.dump", &program());
    assert_eq!(files.len(), 2);
    files.iter().for_each(check);
    let [old, new] = &files[..] else { panic!("two files") };
    let at = |file: &File, offset: u64| ADDR - file.offset + offset;
    let frames = |offset| lines(old, &["-f", "-i"], &[at(old, offset)]);
    assert_eq!(frames(4), ["outer", "/src/main.js:2"]);
    assert_eq!(frames(8), ["middle", "/src/main.js:20", "outer", "/src/main.js:3"]);
    assert_eq!(frames(13), ["inner", "/src/inner.js:30", "middle", "/src/main.js:21", "outer", "/src/main.js:3"]);
    assert_eq!(frames(20), ["middle", "/src/main.js:22", "outer", "/src/main.js:3"]);
    assert_eq!(frames(31), ["outer", "/src/main.js:4"]);
    assert_eq!(lines(new, &["-f", "-i"], &[at(new, 9)]), ["replaced", "/src/new.js:9"]);
    assert_eq!(lines(new, &[], &[at(new, 7)]), ["/src/new.js:7"]);
    let info = tool("readelf", &["--debug-dump=info"], &old.path);
    for tag in ["DW_TAG_compile_unit", "DW_TAG_subprogram", "DW_TAG_inlined_subroutine"] {
        assert!(info.contains(tag), "{info}");
    }
}

/// A row without the name of a file, as a producer's abbreviation of nothing, spoils no other row.
#[test]
fn rows_without_a_file() {
    let lines = debug(&[(0, 3, b"\xff"), (4, 5, b"/a.js"), (8, 6, b""), (12, 7, b"/b.js")]);
    let load = Load { name: b"f\0".to_vec(), code: vec![0x90; 16], ..Load::default() };
    let files = export("rows.dump", &dump(&[lines, load.bytes()]));
    let at = ADDR - files[0].offset;
    assert_eq!(self::lines(&files[0], &[], &[at + 5, at + 13]), ["/a.js:5", "/b.js:7"]);
}

/// gdb finds names and lines of code by its address in the process, after the command that `jitsym export` prints.
#[test]
fn in_gdb() {
    let files = export("program.dump", &program());
    for (file, name, line) in
        [(&files[0], "outer", "Line 2 of \"/src/main.js\""), (&files[1], "replaced", "Line 7 of \"/src/new.js\"")]
    {
        let info = [format!("info symbol {ADDR:#x}"), format!("info line *{ADDR:#x}")];
        let commands = [&file.gdb, &info[0], &info[1]].into_iter().flat_map(|command| ["-ex", command]);
        let output = run(Command::new("gdb").args(["-nx", "-batch"]).args(commands).stdin(Stdio::null()));
        let text = stdout(&output);
        assert!(text.contains(&format!("{name} in section .text")) && text.contains(line), "{output:?}");
    }
}

/// The unwind tables: all rows of the dump, for the right code.
#[test]
fn unwind_rows() {
    let rows = [
        UnwindRow { offset: 0, cfa_register: 7, cfa_offset: 8, saved: &[] },
        UnwindRow { offset: 4, cfa_register: 7, cfa_offset: 48, saved: &[] },
    ];
    let files = export("rows.dump", &described(Arch::X86_64, &[0x90; 24], &rows));
    check(&files[0]);
    let text = tool("readelf", &["--debug-dump=frames-interp"], &files[0].path);
    let start = ADDR - files[0].offset;
    assert!(text.contains(&format!("pc={start:016x}..{:016x}", start + 24)), "{text}");
    let cfas: Vec<&str> = text
        .lines()
        .filter_map(|line| line.split_whitespace().nth(1))
        .filter(|word| word.starts_with("rsp+"))
        .collect();
    assert_eq!(&cfas[cfas.len() - 2..], ["rsp+8", "rsp+48"], "{text}");
}

/// A perf map gives names to addr2line, nm and gdb.
#[test]
fn from_a_map() {
    let files = export("perf-4711.map", b"0x7f0000001000 0x20 old\n7f0000001000 10 newest\n7f0000003000 8 other one\n");
    assert_eq!(files.len(), 1);
    assert!(files[0].path.to_str().expect("UTF-8").contains("/jitcode-4711-"));
    tool("readelf", &["-aW"], &files[0].path);
    let at = 0x7f00_0000_1000 - files[0].offset;
    let expected = [(at, 16, "newest"), (at + 16, 16, "old"), (at + 0x2000, 8, "other one")];
    let mut there = symbols(&files[0]);
    there.sort();
    assert_eq!(there, expected.map(|(at, size, name)| (at, size, name.to_owned())));
    assert_eq!(lines(&files[0], &["-f"], &[at + 15, at + 0x2007]), ["newest", "??:?", "other one", "??:?"]);
    let output = run(Command::new("gdb")
        .args(["-nx", "-batch", "-ex", &files[0].gdb, "-ex", "info symbol 0x7f0000003004"])
        .stdin(Stdio::null()));
    assert!(stdout(&output).contains("other one + 4 in section .text"), "{output:?}");
}

/// `--map`: a plain map of the newest names.
#[test]
fn to_a_map() {
    let dir = fresh_dir("to_a_map");
    let (input, out) = (dir.join("program.dump"), dir.join("out"));
    std::fs::write(&input, program()).expect("write the file");
    let exported =
        |input: &Path| jitsym(&["export".as_ref(), input.as_ref(), "-o".as_ref(), out.as_ref(), "--map".as_ref()]);
    let output = exported(&input);
    let map = out.join("perf-100.map");
    assert_eq!(stdout(&output), format!("{}\n", map.canonicalize().expect("path").display()), "{output:?}");
    let text = std::fs::read_to_string(&map).expect("map");
    assert_eq!(text, "7f0000001000 10 replaced\n7f0000001010 10 outer\n");
    // Another map of the same pid does not replace it: a process may be writing it.
    let input = dir.join("perf-100.map");
    std::fs::write(&input, "0X20 0x10 f\nff").expect("write the file");
    let refused = exported(&input);
    assert_eq!(refused.status.code(), Some(2), "{refused:?}");
    assert!(String::from_utf8_lossy(&refused.stderr).contains("perf-100.map is there already"), "{refused:?}");
    assert_eq!(std::fs::read_to_string(&map).expect("map"), text);
    std::fs::remove_file(&map).expect("remove the map");
    assert!(exported(&input).status.success());
    assert_eq!(std::fs::read_to_string(&map).expect("map"), "20 10 f()\n");
}

/// A process has its files under its pid: the jitdump's code, and the names that only the map has.
#[test]
fn of_a_process() {
    let mut sleep = Command::new("sleep").arg("1000").spawn().expect("sleep");
    let (pid, dir) = (sleep.id().to_string(), fresh_dir("of_a_process"));
    let paths = [format!("/tmp/jit-{pid}.dump"), format!("/tmp/perf-{pid}.map")];
    std::fs::write(&paths[0], program()).expect("write the dump");
    std::fs::write(&paths[1], "7f0000001008 8 known\n7f0000001100 10 another\n").expect("write the map");
    let export = |name: &str, option: &[&str]| {
        let out = dir.join(name);
        let words = ["export", &pid, "-o", out.to_str().expect("UTF-8")];
        let words: Vec<&OsStr> = words.iter().chain(option).map(OsStr::new).collect();
        let output = jitsym(&words);
        assert!(output.status.success(), "{output:?}");
        out
    };
    let map = std::fs::read_to_string(export("map", &["--map"]).join("perf-100.map"));
    let count = std::fs::read_dir(export("files", &[])).expect("directory").count();
    for path in paths {
        std::fs::remove_file(path).expect("remove the file");
    }
    sleep.kill().and_then(|()| sleep.wait()).expect("end of sleep");
    assert_eq!(map.expect("map"), "7f0000001000 10 replaced\n7f0000001010 10 outer\n7f0000001100 10 another\n");
    assert_eq!(count, 2);
}

/// The same code gives the same files, and files of other code are not reused.
#[test]
fn again() {
    let dir = fresh_dir("again");
    let (input, out) = (dir.join("program.dump"), dir.join("out"));
    let mut bytes = program();
    let mut names = Vec::new();
    for round in 0..3 {
        std::fs::write(&input, &bytes).expect("write the file");
        let output = jitsym(&["export".as_ref(), input.as_ref(), "-o".as_ref(), out.as_ref()]);
        assert!(output.status.success(), "{output:?}");
        let mut entries: Vec<_> =
            std::fs::read_dir(&out).expect("directory").map(|entry| entry.expect("entry").path()).collect();
        entries.sort();
        names.push(entries);
        // The last byte of the code that is newest.
        *bytes.last_mut().expect("bytes") ^= u8::from(round == 1);
    }
    assert_eq!(names[0], names[1]);
    assert_eq!((names[0].len(), names[2].len()), (2, 3));
}

#[test]
fn mistakes() {
    let dir = fresh_dir("mistakes");
    let (input, out) = (dir.join("input"), dir.join("out"));
    for (bytes, text) in [
        (&b"#!/bin/sh\n"[..], "is a script"),
        (&dump(&[])[..], "has no code"),
        (b"", "has no code"),
        (b"1000 50000000 heap\n", "larger than 1 GiB"),
    ] {
        std::fs::write(&input, bytes).expect("write the file");
        let output = jitsym(&["export".as_ref(), input.as_ref(), "-o".as_ref(), out.as_ref()]);
        assert_eq!(output.status.code(), Some(2));
        assert!(String::from_utf8_lossy(&output.stderr).contains(text), "{output:?}");
        assert!(!out.exists());
    }
    std::fs::write(&input, program()).expect("write the file");
    let output = jitsym(&["export".as_ref(), input.as_ref(), "-o".as_ref(), input.as_ref()]);
    assert_eq!(output.status.code(), Some(2), "{output:?}");
}
