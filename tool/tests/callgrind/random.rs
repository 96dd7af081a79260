//! Files of callgrind at random, with code at random, from a seed that a failure names. And all that can be wrong with a file.

use std::fmt::Write as _;
use std::fs;
use std::io;
use std::process::Command;

use jitsym_tool::callgrind::{rewrite, Code, Summary, Texts};

use crate::build::{debug_with, dump, Load, TIME};
use crate::plain::{Profile, Spot};
use crate::rng::Random;
use crate::support::{fresh_dir, tool, try_run};

const BASE: u64 = 0x4a2_0000;
const OBJECT: &str = "/tmp/jit-1.dump";

struct Piece {
    start: u64,
    size: u64,
    name: String,
    /// Offset, file, line.
    rows: Vec<(u64, String, u64)>,
}

/// Pieces in the order of their times. In some places there are two of them in turn, and one begins before the other.
fn pieces(random: &mut Random) -> Vec<Piece> {
    let mut pieces = Vec::new();
    for place in 0..12 {
        for time in 0..1 + random.below(2) as u64 {
            let start = BASE + place * 0x100 + 0x20 * random.below(2) as u64;
            let size = 0x40 + random.below(0x80) as u64;
            let name = format!("jit {}{}", if random.one_in(3) { "same" } else { "" }, place + 100 * time);
            let mut rows = Vec::new();
            for _ in 0..random.below(4) {
                let offset = if rows.is_empty() { 0 } else { random.below(size as usize) as u64 };
                if !rows.iter().any(|row: &(u64, String, u64)| row.0 == offset) {
                    rows.push((offset, format!("/guest/{}.toy", random.below(3)), random.below(99) as u64));
                }
            }
            rows.sort();
            pieces.push(Piece { start, size, name, rows });
        }
    }
    pieces
}

fn jitdump(pieces: &[Piece]) -> Vec<u8> {
    let record = |(number, piece): (usize, &Piece)| {
        let rows: Vec<_> = piece.rows.iter().map(|row| (row.0, row.2 as u32, row.1.as_bytes())).collect();
        let debug = if rows.is_empty() { Vec::new() } else { debug_with(piece.start, rows.len() as u64, &rows) };
        let name = [piece.name.as_bytes(), b"\0"].concat();
        let code = vec![0x90; piece.size as usize];
        let (time, addr, index) = (TIME + number as u64, piece.start, number as u64);
        [debug, Load { time, addr, index, name, code, ..Load::default() }.bytes()].concat()
    };
    dump(&pieces.iter().enumerate().map(record).collect::<Vec<_>>())
}

/// What the program has to make of a place, found by looking at each piece.
fn renamed(pieces: &[Piece], columns: &[&str], spot: &Spot, is_target: bool) -> Spot {
    let at = |address: u64| -> Vec<&Piece> {
        pieces.iter().rev().filter(|piece| (piece.start..piece.start + piece.size).contains(&address)).collect()
    };
    let entered = |address: u64| {
        let all = at(address);
        let starts: Vec<&Piece> = all.iter().copied().filter(|piece| piece.start == address).collect();
        if starts.is_empty() {
            all
        } else {
            starts
        }
    };
    let address = |part: &str| u64::from_str_radix(part.strip_prefix("0x")?, 16).ok();
    let names = |found: &[&Piece]| {
        let mut names: Vec<String> = Vec::new();
        found.iter().for_each(|piece| {
            if !names.contains(&piece.name) {
                names.push(piece.name.clone())
            }
        });
        names
    };
    let ((object, file, name), place, instruction, line) = spot.clone();
    let mut parts: Vec<String> = name.split('\'').map(str::to_owned).collect();
    let entry = address(&parts[0]).filter(|_| object == "???");
    for (number, part) in parts.iter_mut().enumerate().filter(|(number, _)| *number > 0 || entry.is_some()) {
        let found = address(part).map(entered).unwrap_or_default();
        assert!(number > 0 || entry.is_some());
        if !found.is_empty() {
            *part = names(&found).join(" or ");
        }
    }
    let name = parts.join("'");
    let Some(entry) = entry else { return ((object, file, name), place, instruction, line) };
    let own = entered(entry);
    let row = |found: &[&Piece], address: u64| {
        let piece = found.iter().find(|piece| (piece.start..piece.start + piece.size).contains(&address))?;
        let row = piece.rows.iter().rev().find(|row| row.0 <= address - piece.start)?;
        (names(found).len() == 1).then(|| (row.1.clone(), row.2))
    };
    let function = match own.first() {
        None => (object, file.clone(), name),
        Some(last) => {
            let first = last.rows.first().filter(|_| names(&own).len() == 1);
            (OBJECT.to_owned(), first.map_or("???".into(), |row| row.1.clone()), name)
        }
    };
    let address = if columns.contains(&"instr") { Some(instruction) } else { is_target.then_some(entry) };
    let found = address.and_then(|address| {
        let inside = own.iter().any(|piece| (piece.start..piece.start + piece.size).contains(&address));
        row(&if inside { own.clone() } else { at(address) }, address)
    });
    match found {
        Some((file, line)) => (function, file, instruction, if columns.contains(&"line") { line } else { 0 }),
        None if own.is_empty() => (function, place, instruction, line),
        None => (function.clone(), function.1, instruction, 0),
    }
}

/// Writes names and positions in all the ways that the format has.
struct Printer<'r> {
    random: &'r mut Random,
    text: String,
    names: Vec<(char, String)>,
    last: Vec<u64>,
}

impl Printer<'_> {
    fn name(&mut self, key: &str, name: &str) {
        let kind = if key.ends_with('b') {
            'o'
        } else if key.ends_with('n') {
            'n'
        } else {
            'f'
        };
        let known = self.names.iter().position(|known| *known == (kind, name.to_owned()));
        if self.random.one_in(9) {
            writeln!(self.text, "# a comment\n").expect("text");
        }
        let text = match known {
            _ if self.random.one_in(5) => name.to_owned(),
            Some(number) if !self.random.one_in(5) => format!("({number})"),
            Some(number) => format!("({number}) {name}"),
            None => {
                self.names.push((kind, name.to_owned()));
                format!("({}) {name}", self.names.len() - 1)
            }
        };
        writeln!(self.text, "{key}={text}").expect("text");
    }

    fn position(&mut self, at: &[u64], stays: bool) -> String {
        let one = |(&at, &last): (&u64, &u64)| match at.cmp(&last) {
            _ if self.random.one_in(4) => format!("{at:#x}"),
            std::cmp::Ordering::Equal => "*".into(),
            std::cmp::Ordering::Greater => format!("+{}", at - last),
            std::cmp::Ordering::Less => format!("-{}", last - at),
        };
        let text: Vec<String> = at.iter().zip(&self.last).map(one).collect();
        if stays {
            self.last = at.to_vec();
        }
        text.join(" ")
    }
}

/// A file of one part or two, and its columns.
fn recording(random: &mut Random, pieces: &[Piece]) -> (String, &'static [&'static str]) {
    let columns: &'static [&'static str] =
        [&["line"][..], &["instr", "line"], &["instr"], &["instr", "bb", "line"], &["bb", "line"]][random.below(5)];
    let objects = ["???", "/lib/libc.so.6", "/bin/vm"];
    let mut printer = Printer { random, text: String::new(), names: Vec::new(), last: Vec::new() };
    printer.text += "# callgrind format\nversion: 1\ncreator: callgrind-3.19.0\npid: 1\ncmd:  vm -e fn=(1)\n";
    for part in 0..1 + printer.random.below(2) {
        let mut total = [0; 2];
        write!(
            printer.text,
            "part: {part}\n\npositions: {}\nevent: Ge = Ir + Dr\nevents: Ir Dr\n\n",
            columns.join(" ")
        )
        .expect("text");
        printer.last = vec![0; columns.len()];
        for _ in 0..printer.random.below(30) {
            let function = function(printer.random, &objects, pieces);
            let keys = ["ob", "fl", "fn"];
            [&function.0, &function.1, &function.2].iter().zip(keys).for_each(|(name, key)| printer.name(key, name));
            let mut place = function.1.clone();
            for _ in 0..printer.random.below(8) {
                if function.0 != "???" && printer.random.one_in(4) {
                    place = if place == function.1 { "/src/inlined.h".into() } else { function.1.clone() };
                    printer.name(if place == function.1 { "fe" } else { "fi" }, &place);
                }
                let is_unknown = function.0 == "???" && function.2.starts_with("0x");
                let at = |random: &mut Random, is_unknown: bool, name: &str| -> Vec<u64> {
                    let entry =
                        u64::from_str_radix(name.split('\'').next().unwrap_or_default().trim_start_matches("0x"), 16);
                    let base = entry.ok().filter(|_| is_unknown).unwrap_or(0x1000);
                    let within = if random.one_in(4) { 0x300 } else { 0x30 };
                    let address = base + random.below(within) as u64;
                    let line = if is_unknown { 0 } else { random.below(500) as u64 };
                    columns.iter().map(|column| if *column == "line" { line } else { address }).collect()
                };
                let here = at(printer.random, is_unknown, &function.2);
                let costs = [printer.random.below(1000) as u64, printer.random.below(3) as u64];
                let shown = if costs[1] == 0 { format!("{}", costs[0]) } else { format!("{} {}", costs[0], costs[1]) };
                match printer.random.below(3) {
                    0 => {
                        let callee = self::function(printer.random, &objects, pieces);
                        if callee.0 != function.0 || printer.random.one_in(3) {
                            printer.name("cob", &callee.0);
                        }
                        if callee.1 != place || printer.random.one_in(3) {
                            let key = if printer.random.one_in(2) { "cfi" } else { "cfl" };
                            printer.name(key, &callee.1);
                        }
                        printer.name("cfn", &callee.2);
                        let target = at(printer.random, callee.0 == "???" && callee.2.starts_with("0x"), &callee.2);
                        let (calls, target) = (printer.random.below(9), printer.position(&target, false));
                        writeln!(printer.text, "calls={calls} {target} ").expect("text");
                    }
                    1 if printer.random.one_in(2) => {
                        let target = at(printer.random, is_unknown, &function.2);
                        let target = printer.position(&target, false);
                        let how = ["jump=5", "jcnd=3/7"][printer.random.below(2)];
                        let here = printer.position(&here, true);
                        // Its target is relative to the line before.
                        writeln!(printer.text, "{how} {target} \n{here} ").expect("text");
                        continue;
                    }
                    _ => (total[0], total[1]) = (total[0] + costs[0], total[1] + costs[1]),
                }
                let here = printer.position(&here, true);
                writeln!(printer.text, "{here} {shown}").expect("text");
            }
        }
        writeln!(printer.text, "\ntotals: {} {}", total[0], total[1]).expect("text");
    }
    (printer.text, columns)
}

/// A function, known or not, sometimes with its callers.
fn function(random: &mut Random, objects: &[&str], pieces: &[Piece]) -> (String, String, String) {
    let object = objects[random.below(objects.len())];
    let unknown = |random: &mut Random| {
        let piece = &pieces[random.below(pieces.len())];
        let offset = if random.one_in(2) { 0 } else { random.below(0x100) as u64 };
        format!("0x{:016x}", piece.start + offset)
    };
    let mut name = match random.below(3) {
        _ if object == "???" => unknown(random),
        // In a stripped library: an address in its file.
        0 if random.one_in(2) => unknown(random),
        0 => format!("0x{:016x}", 0x1000 + random.below(9)),
        number => ["main", "(below main)", "f(int)"][number].to_owned(),
    };
    if random.one_in(4) {
        name += ["'2", "'main"][random.below(2)];
    }
    if random.one_in(6) {
        name = format!("{name}'{}", unknown(random));
    }
    let file = if object == "???" { "???".into() } else { format!("/src/{}.c", random.below(2)) };
    (object.into(), file, name)
}

fn named(recording: &[u8], dump: &[u8]) -> io::Result<(Summary, Vec<u8>)> {
    let (mut texts, mut code) = (Texts::default(), Code::default());
    let object = texts.add(OBJECT.as_bytes());
    assert!(code.add_jitdump(dump, object, &mut texts));
    rewrite(&mut &recording[..], &code, &mut texts, OBJECT, &mut |_| {}, Vec::new())
}

#[test]
fn random_recordings() {
    let mut names = 0;
    for seed in 0..400 {
        let mut random = Random::new(seed);
        let pieces = pieces(&mut random);
        let (text, columns) = recording(&mut random, &pieces);
        let (summary, after) =
            named(text.as_bytes(), &jitdump(&pieces)).unwrap_or_else(|error| panic!("seed {seed}: {error}"));
        let after = String::from_utf8(after).expect("UTF-8");
        let rename = |spot: &Spot, is_target: bool| renamed(&pieces, columns, spot, is_target);
        let (expected, found) = (Profile::read(&text).renamed(&rename), Profile::read(&after));
        assert!(expected == found, "seed {seed}: {}\n{text}\nbecame\n{after}", expected.difference(&found));
        names += summary.named.len();
        // Once named, it stays as it is.
        let (_, again) = named(after.as_bytes(), &jitdump(&pieces)).expect("named again");
        assert_eq!(Profile::read(&String::from_utf8(again).expect("UTF-8")), found, "seed {seed}");
    }
    assert!(names > 1000, "{names}");
}

/// Whatever is cut off or changed is noticed, or changes nothing but what it says.
#[test]
fn damaged_recordings() {
    let mut random = Random::new(1);
    let pieces = pieces(&mut random);
    let (text, _) =
        std::iter::repeat_with(|| recording(&mut random, &pieces)).find(|found| found.0.len() > 2000).expect("one");
    let dump = jitdump(&pieces);
    let last = text.trim_end().rfind('\n').expect("lines");
    for cut in 0..last {
        // Between two parts the file is whole.
        let is_whole = text[..cut].trim_end().lines().last().is_some_and(|line| line.starts_with("totals: "))
            && text[cut..].trim_start().starts_with("part:");
        let result = named(&text.as_bytes()[..cut], &dump);
        assert_eq!(result.is_err(), !is_whole || cut == 0, "cut at {cut}: {}", &text[..cut]);
        if let Err(error) = result {
            assert!(!error.to_string().contains('\n') && error.kind() == io::ErrorKind::InvalidData, "{error:?}");
        }
    }
    for round in 0..3000 {
        let mut bytes = text.clone().into_bytes();
        for _ in 0..1 + random.below(3) {
            let at = random.below(bytes.len());
            bytes[at] = random.below(256) as u8;
        }
        if let Err(error) = named(&bytes, &dump) {
            let error = error.to_string();
            assert!(error.len() < 500 && !error.contains('\n'), "round {round}: {error}");
        }
    }
}

/// The error is one line with the file's name, and no file is made or changed.
#[test]
fn refusals() {
    let dir = fresh_dir("refusals");
    let write = |name: &str, bytes: &[u8]| fs::write(dir.join(name), bytes).expect("write");
    let good = "creator: callgrind-1\npid: 999999999\nevents: Ir\nfn=0x04a20000\nob=???\n0 7\ntotals: 7\n";
    write("good", good.as_bytes());
    write("cut", &good.as_bytes()[..good.len() - 10]);
    write("wrong", good.replace("0 7", "0 8").as_bytes());
    write("late", good.replace("0 7", "0 7 7").as_bytes());
    write("much", good.replace("0 7", "0 18446744073709551615\n0 8").as_bytes());
    write("undefined", good.replace("fn=0x04a20000", "fn=(3)").as_bytes());
    write("text", b"Dear reader,\n");
    write("empty", b"");
    write("without-pid", good.replace("pid: 999999999\n", "").as_bytes());
    write("map", b"4a20000 10 jit_one\n");
    write("other-map", b"4a30000 10 jit_one\n");
    write("dump", &jitdump(&pieces(&mut Random::new(0))));
    let refused = |words: &[&str], status: i32, expected: &str| {
        let mut jitsym = Command::new(tool());
        let output = try_run(jitsym.arg("callgrind").args(words).args(["-o", "out"]).current_dir(&dir));
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(status), "{words:?}: {said}");
        assert!(said.lines().count() == 1 && said.contains(expected), "{words:?}: {said}");
        assert!(output.stdout.is_empty());
    };
    for kept in [false, true] {
        refused(&["cut", "--map", "map"], 2, "cut: is not whole: its end is missing");
        refused(&["wrong", "--map", "map"], 2, "wrong: line 7: the costs are 8 in all, and not 7");
        refused(&["late", "--map", "map"], 2, "late: line 6: more costs than events");
        refused(&["much", "--map", "map"], 2, "much: line 7: the costs do not fit in 64 bits");
        refused(&["undefined", "--map", "map"], 2, "undefined: line 4: there is no name with the number 3");
        refused(&["text", "--map", "map"], 2, "text: is no file of callgrind");
        refused(&["empty", "--map", "map"], 2, "empty: is empty");
        refused(&["absent", "--map", "map"], 2, "absent: No such file");
        refused(&[".", "--map", "map"], 2, ".: is not a file");
        refused(&["good"], 2, "good: process 999999999: there is no such file, and no process that has left one");
        refused(&["without-pid"], 2, "without-pid: has no pid: use --map or --jitdump");
        refused(&["good", "--map", "dump"], 2, "dump: is a jitdump, and no perf map");
        refused(&["good", "--jitdump", "map"], 2, "map: is a perf map, and no jitdump");
        refused(&["good", "--map", "other-map"], 1, "no function has a name in other-map, and nothing is written");
        let there: Vec<_> =
            fs::read_dir(&dir).expect("directory").map(|entry| entry.expect("entry").file_name()).collect();
        assert_eq!(there.len(), 12 + usize::from(kept), "{there:?}");
        if kept {
            assert_eq!(fs::read(dir.join("out")).expect("out"), b"kept");
        }
        write("out", b"kept");
    }
    let mut jitsym = Command::new(tool());
    let output = try_run(jitsym.args(["callgrind", "good", "--map", "map", "-o", "/dev/null"]).current_dir(&dir));
    assert!(String::from_utf8_lossy(&output.stderr).contains("/dev/null: is not a file"), "{output:?}");
}
