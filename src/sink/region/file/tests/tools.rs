//! Reads a region's file with the tools of binutils, elfutils and LLVM.

use std::collections::BTreeSet;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::*;
use crate::format::code_info::Info;

/// A file with a name, so that tools can read the file. Dropping this value removes the file.
struct Named(PathBuf);

impl Named {
    fn new(name: &str) -> Named {
        Named(std::env::temp_dir().join(format!("jitsym-region-{name}-{}.so", std::process::id())))
    }

    fn create(&self) -> File {
        let mut options = File::options();
        // The library creates its files with these flags.
        options.read(true).append(true).create_new(true).mode(0o600).open(&self.0).unwrap()
    }
}

impl Drop for Named {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

/// Runs a tool, and returns its output. The tool must print nothing to stderr. Every tool except eu-elflint must exit with
/// success.
fn tool(program: &str, arguments: &[&str], path: &Path) -> String {
    let output = Command::new(program).env("LC_ALL", "C").args(arguments).arg(path).output().expect(program);
    let (said, complaint) = (String::from_utf8(output.stdout).unwrap(), String::from_utf8_lossy(&output.stderr));
    let is_ok = output.status.success() || program == "eu-elflint";
    assert!(is_ok && complaint.is_empty(), "{program} {arguments:?}: {complaint} {said}");
    said
}

#[test]
#[ignore = "long: scripts/test.sh runs it"]
fn tools_read_it() {
    for functions in [0u64, 1, 1000] {
        let name = Named::new(&functions.to_string());
        let mut region = Region::with_file(name.create(), 1 << 20);
        region.file.set_begin(if functions == 1 { 4096 } else { 0 });
        region.file.reset();
        let mut random = Random(3);
        for number in 0..functions {
            let size = 20 + random.below(300);
            region.add(random.below((1 << 20) - size), Truth::new(number + 1, size));
            if number % 10 == 0 {
                region.file.write(number % 20 == 0).unwrap();
            }
        }
        region.file.write(true).unwrap();
        region.check();
        let copy = Named::new(&format!("copy-{functions}"));
        region.file.snapshot(copy.create(), |_| true, Some(ID)).unwrap();
        for name in [name, copy] {
            check_with_tools(&name.0, &region);
        }
    }
}

/// The begin and the end of the code that each FDE of a dump describes. An FDE of dead code describes nothing.
fn described_ranges(frames: &str) -> BTreeSet<(u64, u64)> {
    let hex_after = |line: &str, mark: &str| {
        let digits = line.split_once(mark)?.1.split([' ', ')']).next()?;
        u64::from_str_radix(digits, 16).ok()
    };
    let begins = frames.lines().filter(|line| line.contains("initial_location:"));
    let sizes = frames.lines().filter(|line| line.contains("address_range:"));
    let ranges = begins.zip(sizes).filter(|(_, size)| !size.contains(" 0 ("));
    ranges
        .map(|(begin, end)| (hex_after(begin, "(offset: 0x").unwrap(), hex_after(end, "(end offset: 0x").unwrap()))
        .collect()
}

fn check_with_tools(path: &Path, region: &Region) {
    let all = tool("readelf", &["-aW", "--debug-dump=info,decodedline,aranges,abbrev,frames-interp"], path);
    assert!(!all.to_lowercase().contains("warning"), "{all}");
    assert_eq!(all.matches(" FUNC ").count(), region.truth.len());
    let debug = ["-a", "-N", "--debug-dump=info", "--debug-dump=decodedline", "--debug-dump=aranges"];
    let has_lines = region.truth.values().any(|truth| !truth.lines.is_empty());
    tool("eu-readelf", &debug[..if has_lines { debug.len() } else { 2 }], path);
    // eu-elflint reports that the tables lie outside of the loaded segments. This is intended, because loaded tables could
    // overlap other objects.
    let is_known = |line: &str| line.is_empty() || line == "No errors" || line.ends_with("not in any loaded segment");
    let lint = tool("eu-elflint", &["--gnu-ld"], path);
    assert!(lint.lines().all(is_known), "{lint}");
    let frames = tool("eu-readelf", &["--debug-dump=frames"], path);
    let described = described_ranges(&frames);
    let has_no_overlap = described.iter().zip(described.iter().skip(1)).all(|(before, after)| before.1 <= after.0);
    assert!(has_no_overlap, "{described:x?}");
    for (&offset, truth) in &region.truth {
        let begin = region.file.layout.text + offset;
        let end = begin + truth.size;
        let is_described = described.range((begin, 0)..(end, 0)).next() == Some(&(begin, end));
        assert_eq!(is_described, truth.cfa.is_some(), "{begin:#x}: {frames}");
    }
    let verified = tool("llvm-dwarfdump", &["--verify"], path);
    assert!(verified.contains("No errors."), "{verified}");
    let frames = tool("llvm-dwarfdump", &["--eh-frame"], path);
    assert!(!frames.contains("rror"), "{frames}");

    for (&offset, truth) in region.truth.iter().take(40) {
        let addr = region.file.layout.text + offset;
        let range = format!("pc={addr:08x}...{:08x}", addr + truth.size);
        assert_eq!(frames.contains(&range), truth.cfa.is_some(), "{range}");
        for &(at, line, file) in &truth.lines {
            let frames = frames_at(truth, at, &format!("{file}:{line}"));
            let inlined = truth.inlines.iter().rev().find(|inline| inline.begin <= at && at < inline.end);
            let name = inlined.map_or(truth.name.clone(), |inline| text(inline.name));
            let expected = format!("{name}\n{file}:{line}");
            let place = format!("{:#x}", addr + u64::from(at));
            for (program, arguments) in [("addr2line", ["-f", "-e"]), ("eu-addr2line", ["-f", "-e"])] {
                let output = Command::new(program).args(arguments).arg(path).arg(&place).output().unwrap();
                let found = String::from_utf8(output.stdout).unwrap();
                assert!(plain(&found).starts_with(&expected), "{program} {place}: {found} and not {expected}");
                let output = Command::new(program).arg("-i").args(arguments).arg(path).arg(&place).output().unwrap();
                let found = String::from_utf8(output.stdout).unwrap();
                assert_eq!(plain(&found), frames, "{program} {place}: {found}");
            }
        }
    }
}

/// The dead code is so long that its lines would cover all code if they began at address 0.
#[test]
fn dead_code_has_no_line_at_live_code() {
    let (name, copy) = (Named::new("dead"), Named::new("dead-copy"));
    let mut region = Region::with_file(name.create(), 1 << 20);
    let dead = Truth::new(5, 0x8_0000);
    let addr = region.file.layout.text + 0x1000;
    assert!(!dead.lines.is_empty() && !dead.inlines.is_empty() && dead.size > region.file.layout.text + 0x3000);
    let (without_lines, with_lines) = (Truth::new(3, 0x100), Truth::new(11, 0x100));
    for code in [&dead, &without_lines] {
        region.add(0x1000, code.clone());
        region.add(0x1000 + code.size, with_lines.clone());
        region.file.write(true).unwrap();
    }
    region.check();
    region.file.snapshot(copy.create(), |_| true, Some(ID)).unwrap();
    for path in [&name.0, &copy.0] {
        let found = |program: &str, addr: u64| {
            let place = format!("{addr:#x}");
            let output = Command::new(program).args(["-f", "-i", "-e"]).arg(path).arg(place).output().expect(program);
            plain(&String::from_utf8(output.stdout).unwrap()).trim_end().to_owned()
        };
        for program in ["addr2line", "eu-addr2line", "llvm-symbolizer"] {
            for addr in [addr, addr + without_lines.size - 1] {
                let found = found(program, addr);
                assert!(found.starts_with("function 3\n??:"), "{program} {addr:#x}: {found}");
            }
            let &(at, line, file) = with_lines.lines.last().unwrap();
            let frames = frames_at(&with_lines, at, &format!("{file}:{line}"));
            assert_eq!(found(program, addr + without_lines.size + u64::from(at)), frames.trim_end(), "{program}");
        }
    }
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

/// Returns the names and source lines of the functions at an offset, innermost first, as `addr2line -f -i` prints them.
fn frames_at(truth: &Truth, at: u32, place: &str) -> String {
    let (mut frames, mut place) = (String::new(), place.to_owned());
    for inline in truth.inlines.iter().rev().filter(|inline| inline.begin <= at && at < inline.end) {
        frames += &format!("{}\n{place}\n", text(inline.name));
        place = format!("{}:{}", text(inline.call_file), inline.call_line);
    }
    frames + &format!("{}\n{place}\n", truth.name)
}

/// Removes the text that only elfutils prints: the columns, and after the name of a function ` inlined at ` with a source line.
fn plain(frames: &str) -> String {
    let cut = |line: &str| match line.splitn(3, ':').collect::<Vec<_>>()[..] {
        _ if line.contains(" inlined at ") => line.split_once(" inlined at ").unwrap().0.to_owned(),
        [file, line, _] => format!("{file}:{line}"),
        _ => line.to_owned(),
    };
    frames.lines().map(|line| cut(line) + "\n").collect()
}

/// The header may take the place of the first code in the file, which then begins at address 0. Some readers skip symbols with
/// address 0, so the file has a second symbol of another type for this code. perf 6 passes address 0 to addr2line after each
/// address, to find the end of the answer. So addr2line must find no name for address 0.
#[test]
fn code_below_the_header_page() {
    let (live, copy) = (Named::new("below"), Named::new("below-copy"));
    let (text_len, text_room, tables, tables_len) = (0x4000, 0x4000, 0x40000, RegionFile::tables_room(0x4000));
    let (is_private, has_object_above) = (true, false);
    let layout = Layout { text: 0, text_len, text_room, tables, tables_len, is_private, has_object_above };
    let mut file = RegionFile::create(Arc::new(Held::new(live.create()).unwrap()), layout).unwrap();
    let named = |path| {
        let symbols = tool("readelf", &["-sW"], path);
        let words = symbols.lines().map(|line| line.split_whitespace().collect::<Vec<_>>());
        let named = words.filter(|words| words.len() == 8 && words[0] != "Num:");
        named.map(|words| format!("{} {} {} {}", &words[1][14..], words[2], words[3], words[7])).collect::<Vec<_>>()
    };
    // The lines of the new code differ from the lines of the old code. One of the new functions has inlined functions.
    for (name, kinds) in [("old", [5, 4]), ("new", [1, 2])] {
        for (number, offset) in [(1, 0), (2, 0x20)] {
            let truth = Truth::new(kinds[number - 1], 0x10);
            let info = truth.info(BASE + offset);
            let name = format!("{name}{number}");
            file.add(&Code { offset, size: truth.size, name: name.as_bytes(), info: Info::new(&info) });
        }
        file.write(true).unwrap();
        let [first, second] = [1, 2].map(|number| format!("{name}{number}"));
        let expected = [format!("01 15 COMMON {first}"), format!("00 16 FUNC {first}"), format!("20 16 FUNC {second}")];
        assert_eq!(named(&live.0), expected);
    }
    file.snapshot(copy.create(), |_| true, Some(ID)).unwrap();
    assert_eq!(named(&copy.0), named(&live.0));
    for path in [&live.0, &copy.0] {
        for place in ["0", ","] {
            let output = Command::new("addr2line").args(["-f", "-e"]).arg(path).arg(place).output().unwrap();
            assert_eq!(String::from_utf8(output.stdout).unwrap(), "??\n??:0\n", "{place}");
        }
        // These lines belong to the new code, and not to the replaced code.
        for (place, line) in [("1", "/src/one.js:2"), ("2f", "/src/one.js:7")] {
            for program in ["addr2line", "eu-addr2line"] {
                let output = Command::new(program).args(["-i", "-e"]).arg(path).arg(place).output().unwrap();
                assert_eq!(plain(&String::from_utf8(output.stdout).unwrap()), format!("{line}\n"), "{program} {place}");
            }
        }
    }
    file.add(&Code { offset: 0, size: 4, name: b"short", info: Info::NOTHING });
    file.write(true).unwrap();
    assert_eq!(named(&live.0), ["01 3 COMMON short", "20 16 FUNC new2", "00 4 FUNC short"]);
    file.add(&Code { offset: 0, size: 1, name: b"byte", info: Info::NOTHING });
    file.write(true).unwrap();
    assert_eq!(named(&live.0), ["20 16 FUNC new2", "00 1 FUNC byte"]);
    // If code at address 0 is replaced several times before a write, the file describes the last code.
    for last in [4, 1] {
        for size in (5..300).chain([last]) {
            file.add(&Code { offset: 0, size: size % 30 + 1, name: b"many", info: Info::NOTHING });
        }
        file.write(true).unwrap();
        let symbols = named(&live.0);
        assert_eq!(symbols.last(), Some(&format!("00 {} FUNC many", last % 30 + 1)));
        assert_eq!(symbols[0], format!("01 {} COMMON many", last % 30));
    }
    file.add(&Code { offset: 0, size: 8, name: b"long", info: Info::NOTHING });
    file.add(&Code { offset: 0, size: 1, name: b"byte", info: Info::NOTHING });
    file.write(true).unwrap();
    assert_eq!(named(&live.0), ["20 16 FUNC new2", "00 1 FUNC byte"]);
}
