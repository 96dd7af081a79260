//! For each rule the smallest file that breaks it, and one that is as near as can be and does not.

use jitsym_tool::check::Facts;

use crate::build::*;
use crate::frames;

/// A rule with its two files.
pub struct Case {
    pub rule: &'static str,
    /// Errors and warnings that come with it.
    pub also: &'static [&'static str],
    pub bad: Vec<u8>,
    pub good: Vec<u8>,
    /// Where the two files lie.
    pub at: [Facts; 2],
}

pub fn case(rule: &'static str, bad: Vec<u8>, good: Vec<u8>) -> Case {
    Case { rule, also: &[], bad, good, at: [at("/tmp/jit-100.dump"), at("/tmp/jit-100.dump")] }
}

fn with_also(rule: &'static str, also: &'static [&'static str], bad: Vec<u8>, good: Vec<u8>) -> Case {
    Case { also, ..case(rule, bad, good) }
}

fn places(rule: &'static str, file: Vec<u8>, bad: &str, good: &str) -> Case {
    Case { at: [at(bad), at(good)], ..case(rule, file.clone(), file) }
}

fn map(rule: &'static str, bad: &[u8], good: &[u8]) -> Case {
    map_also(rule, &[], bad, good)
}

fn map_also(rule: &'static str, also: &'static [&'static str], bad: &[u8], good: &[u8]) -> Case {
    let at = [at("/tmp/perf-100.map"), at("/tmp/perf-100.map")];
    Case { at, ..with_also(rule, also, bad.into(), good.into()) }
}

/// A header with this field changed, before the usual code.
fn header(rule: &'static str, header: Header) -> Case {
    case(rule, file(header, &[Load::default().bytes()]), plain())
}

/// The usual code changed.
fn load(rule: &'static str, load: Load) -> Case {
    case(rule, dump(&[load.bytes()]), plain())
}

fn close() -> Vec<u8> {
    record(3, TIME, &[])
}

/// The code behind the usual code.
fn second() -> Load {
    Load { addr: ADDR + 0x100, index: 2, ..Load::default() }
}

pub fn cases() -> Vec<Case> {
    [
        files(),
        headers(),
        records(),
        loads(),
        overlaps(),
        line_tables(),
        inlined(),
        unwind_tables(),
        frames::cases(),
        mapped(),
        maps(),
    ]
    .into_iter()
    .flatten()
    .collect()
}

fn files() -> Vec<Case> {
    let unreadable = Facts { mode: Some(0o100_600), ..at("/tmp/jit-100.dump") };
    let line = b"1000 8 name\n".to_vec();
    vec![
        places("dump-name", plain(), "/tmp/jit-100-1.dump", "/tmp/jit-100.dump"),
        places("dump-name-pid", plain(), "/tmp/jit-101.dump", "/tmp/jit-00100.dump"),
        places("dump-dir", plain(), "/tmp/jit/jit-100.dump", "/tmp/jit-100.dump"),
        places("map-name", line.clone(), "/tmp/perf-x.map", "/tmp/perf-1.map"),
        places("map-dir", line, "/var/tmp/perf-1.map", "/tmp/perf-1.map"),
        Case { at: [unreadable, at("/tmp/jit-100.dump")], ..case("file-mode", plain(), plain()) },
    ]
}

fn headers() -> Vec<Case> {
    let of = Header::default();
    let long = [Header { size: 64, ..of }.bytes(), vec![0; 24], Load::default().bytes()].concat();
    let swapped: Vec<u8> = {
        let mut bytes = plain();
        let wide = [24, 32, 48, 64, 72, 80, 88];
        (0..24).step_by(4).chain([40, 44, 56, 60]).for_each(|at| bytes[at..at + 4].reverse());
        wide.into_iter().for_each(|at| bytes[at..at + 8].reverse());
        bytes
    };
    let today = 1_795_256_106_579_398;
    vec![
        case("bad-magic", file(Header { magic: 0x4a69_5445, ..of }, &[Load::default().bytes()]), plain()),
        case("header-torn", plain()[..39].into(), plain()),
        case("byte-order", swapped, plain()),
        case("header-size", long, plain()),
        header("header-version", Header { version: 2, ..of }),
        header("header-version-zero", Header { version: 0, ..of }),
        header("header-flags", Header { flags: 2, ..of }),
        header("arch-timestamp", Header { flags: 1, ..of }),
        header("machine-zero", Header { machine: 0, ..of }),
        header("machine-unknown", Header { machine: 9999, ..of }),
        with_also(
            "header-pid-zero",
            &["dump-name-pid"],
            file(Header { pid: 0, ..of }, &[Load { pid: 0, ..Load::default() }.bytes()]),
            plain(),
        ),
        header("header-time-zero", Header { time: 0, ..of }),
        header("header-wall-clock", Header { time: today, ..of }),
        // A machine that has been up for three weeks.
        case(
            "header-wall-clock",
            file(Header { time: today * 1000, ..of }, &[Load::default().bytes()]),
            file(Header { time: today, ..of }, &[Load { time: today, ..Load::default() }.bytes()]),
        ),
        case("no-code", dump(&[]), plain()),
    ]
}

fn records() -> Vec<Case> {
    let load = Load::default().bytes();
    let unknown = |body: &[u8]| record(77, TIME, body);
    let late = |time| dump(&[load.clone(), Load { time, ..second() }.bytes()]);
    let wall = 1_795_256_106_579_398_000;
    let moved = [&PID.to_ne_bytes()[..], &PID.to_ne_bytes(), &words(&[ADDR, ADDR, ADDR + 64, SIZE, 1])].concat();
    vec![
        with_also(
            "record-16-bytes",
            &["record-unknown"],
            dump(&[unknown(&[]), load.clone()]),
            dump(&[load.clone(), unknown(&[])]),
        ),
        case("record-too-small", dump(&[load.clone(), resized(close(), 15)]), plain()),
        case("record-short", dump(&[load.clone(), record(1, TIME, &[0; 40])]), plain()),
        case("record-short", dump(&[load.clone(), record(0, TIME, &[0; 40])]), plain()),
        case("truncated", dump(&[load.clone(), load[..load.len() - 1].into()]), plain()),
        case("truncated", dump(&[load.clone(), load[..15].into()]), plain()),
        case("truncated", dump(&[Unwinding::default().bytes(), load[..60].into()]), plain()),
        case("zero-tail", dump(&[load.clone(), vec![0; 24]]), plain()),
        case("record-unaligned", dump(&[Load { code: vec![0x90; 7], ..Load::default() }.bytes()]), plain()),
        case("record-unknown", dump(&[load.clone(), unknown(&[1; 8])]), plain()),
        case("close-not-last", dump(&[close(), load.clone()]), dump(&[load.clone(), close()])),
        // A longer one does not stop perf.
        case("close-not-last", dump(&[record(3, TIME, &[0; 8]), load.clone()]), dump(&[load.clone(), close()])),
        case("close-last", dump(&[load.clone(), close()]), plain()),
        case("code-move", dump(&[load.clone(), record(1, TIME, &moved)]), plain()),
        case("time-backwards", late(TIME - 1), late(TIME)),
        case(
            "time-wall-clock",
            file(Header { time: wall, ..Header::default() }, &[Load { time: wall, ..Load::default() }.bytes()]),
            plain(),
        ),
        case("time-before-header", dump(&[Load { time: TIME - 1, ..Load::default() }.bytes()]), plain()),
    ]
}

fn loads() -> Vec<Case> {
    let of = Load::default;
    let named = |rule, bad: &[u8], good: &[u8]| {
        case(rule, dump(&[Load::named(bad).bytes()]), dump(&[Load::named(good).bytes()]))
    };
    let index = |index| dump(&[of().bytes(), Load { index, ..second() }.bytes()]);
    let padded = |name: &[u8], code: &[u8]| {
        dump(&[Load { name: name.into(), code: code.into(), size: Some(SIZE), ..of() }.bytes()])
    };
    let huge = |number: u64, size| Load { index: number, addr: number << 32, size: Some(size), ..of() }.bytes();
    let behind_code = [[0x90; 8], [0; 8]].concat();
    let long = |len| vec![b'x'; len];
    vec![
        // The code has no NUL either.
        case("name-unterminated", dump(&[Load { name: b"fib_int!".to_vec(), ..of() }.bytes()]), plain()),
        load("code-size-too-large", Load { size: Some(SIZE + 1), ..of() }),
        with_also(
            "code-size-limit",
            &["code-size-too-large"],
            dump(&[Load { size: Some(1 << 31), ..of() }.bytes()]),
            dump(&[Load { size: Some((1 << 31) - 1), ..of() }.bytes()]),
        ),
        with_also(
            "code-sum",
            &["code-size-too-large"],
            dump(&[(1..=3).flat_map(|number| huge(number, (1 << 31) - 1)).collect()]),
            dump(&[(1..=3).flat_map(|number| huge(number, (1 << 30) - 1)).collect()]),
        ),
        load("code-size-zero", Load { code: vec![], ..of() }),
        case("padding-after-code", padded(b"fib_int\0", &behind_code), plain()),
        case("padding-after-name", padded(b"fib_int\0\0\0\0\0\0\0\0\0", &[0x90; 8]), plain()),
        load("vma-differs", Load { vma: Some(0), ..of() }),
        load("load-pid", Load { pid: PID + 1, ..of() }),
        load("load-tid-zero", Load { tid: 0, ..of() }),
        case("index-reused", index(1), index(2)),
        load("address-range", Load { addr: 0, ..of() }),
        case(
            "address-range",
            dump(&[Load { addr: u64::MAX - 6, ..of() }.bytes()]),
            dump(&[Load { addr: u64::MAX - 8, ..of() }.bytes()]),
        ),
        named("name-empty", b"", b"fib"),
        named("name-not-utf8", b"caf\xe9", "café".as_bytes()),
        named("name-control", b"a\nb", b"a b"),
        named("name-control", "a\u{85}b".as_bytes(), b"a b"),
        named("name-demangled", b"_ZN3foo3barEv", b"_zN3foo3barEv"),
        named("name-demangled", b"_RNvC4main3fib", b"_R"),
        named("name-demangled", b"camlStdlib__map_1", b"camlib"),
        named("name-demangled", b"Ljava/lang/Object;<init>()V", b"Left; (x)"[..4].into()),
        named("name-type-code", b"f", b"f()"),
        named("name-type-code", b"PKc", b"PKC"),
        named("name-type-code", b"Ss", b"St"),
        named("name-type-code", b"Dn", b"D"),
        named("name-long", &long(1001), &long(1000)),
    ]
}

fn overlaps() -> Vec<Case> {
    let after = |addr, time| dump(&[Load::default().bytes(), Load { addr, time, ..second() }.bytes()]);
    // Newer code that has the code of an older one in its own, or but for this in one byte.
    let around = |change: u8| {
        let code = [0x55, 0x48, 0x89, 0xe5, 0x90, 0x90, 0x5d, 0xc3].to_vec();
        let mut more = [code.clone(), code.clone(), code.clone()].concat();
        more[10] += change;
        let small = Load { addr: ADDR + 8, code, name: b"small\0".to_vec(), ..Load::default() };
        dump(&[small.bytes(), Load { addr: ADDR, code: more, time: TIME + 1, ..second() }.bytes()])
    };
    vec![
        case("load-overlap", after(ADDR + SIZE - 1, TIME + 1), after(ADDR + SIZE, TIME + 1)),
        // The order of time counts, not that of the file.
        with_also("load-overlap", &["time-backwards"], after(ADDR - 1, TIME - 1), after(ADDR - SIZE, TIME - 1)),
        case("load-overlap-same-time", after(ADDR + 1, TIME), after(ADDR + 1, TIME + 1)),
        case("load-swallows", around(0), around(1)),
    ]
}

fn line_tables() -> Vec<Case> {
    let file = b"/a.c".as_slice();
    let entries: &[(u64, u32, &[u8])] = &[(0, 1, file), (4, 2, file), (SIZE, 2, file)];
    let good = || before_load(&[debug(entries)]);
    let bad = |rule, entries: &[(u64, u32, &[u8])]| case(rule, before_load(&[debug(entries)]), good());
    let unwinding = Unwinding::default().bytes();
    let biased: Vec<_> = entries.iter().map(|&(offset, line, file)| (offset + 0x40, line, file)).collect();
    // Longer code, in which an entry 0x40 behind its start may be meant.
    let long = |number: u64, entries: &[(u64, u32, &[u8])]| {
        let addr = ADDR + 0x1000 * number;
        let load = Load { addr, index: number, code: vec![0x90; 0x80], ..Load::default() };
        [debug_with(addr, entries.len() as u64, entries), load.bytes()].concat()
    };
    let late: &[(u64, u32, &[u8])] = &[(0x40, 1, file), (0x80, 1, file)];
    let early: &[(u64, u32, &[u8])] = &[(0, 1, file), (0x80, 1, file)];
    vec![
        case("debug-dangling", dump(&[Load::default().bytes(), debug(entries)]), good()),
        case("debug-dangling", before_load(&[debug(entries), debug(entries)]), good()),
        with_also(
            "debug-dangling",
            &["record-unknown"],
            before_load(&[debug(entries), record(77, TIME, &[1; 8])]),
            before_load(&[record(77, TIME, &[1; 8]), debug(entries), unwinding]),
        ),
        with_also(
            "debug-address",
            &["debug-no-end", "debug-outside"],
            before_load(&[debug_with(ADDR - 0x1000, 3, entries)]),
            good(),
        ),
        case("debug-torn", before_load(&[debug_with(ADDR, 4, entries)]), good()),
        bad("debug-empty", &[]),
        with_also("debug-bias", &[], before_load(&[debug(&biased)]), good()),
        with_also(
            "debug-bias",
            &["debug-no-end"],
            dump(&[long(1, late), long(2, late)]),
            dump(&[long(1, early), long(2, late)]),
        ),
        bad("debug-outside", &[(0, 1, file), (SIZE + 1, 1, file), (SIZE, 1, file)]).and("debug-unsorted"),
        bad("debug-unsorted", &[(4, 1, file), (0, 1, file), (SIZE, 1, file)]),
        bad("debug-no-end", &[(0, 1, file), (SIZE - 1, 2, file)]),
        bad("debug-line-zero", &[(0, 0, file), (SIZE, 1, file)]),
        bad("debug-same-file", &[(0, 1, file), (SIZE, 1, b"\xff")]),
        bad("debug-file-empty", &[(0, 1, b""), (SIZE, 1, file)]),
        bad("debug-file-not-utf8", &[(0, 1, b"caf\xe9"), (SIZE, 1, file)]),
        bad("debug-file-relative", &[(0, 1, b"a.c"), (SIZE, 1, file)]),
        bad("debug-file-control", &[(0, 1, b"a\tb"), (SIZE, 1, file)]),
    ]
}

impl Case {
    fn and(self, rule: &'static str) -> Case {
        Case { also: Box::leak(Box::new([rule])), ..self }
    }
}

fn inlined() -> Vec<Case> {
    let usual = Inlines::default;
    let good = || before_load(&[usual().bytes()]);
    let bad = |rule, inlines: Inlines| case(rule, before_load(&[inlines.bytes()]), good());
    let counted = |counts| bad("inlines-torn", Inlines { counts, ..usual() });
    let offsets = |rule, offsets: &[[u32; 2]]| bad(rule, Inlines { offsets: offsets.into(), ..usual() });
    let position = |rule, position: [i32; 7]| {
        let positions = vec![usual().positions[0], position];
        bad(rule, Inlines { positions, ..usual() })
    };
    let [caller, function, file] = [[2, 1, 2, 0, 0, 7, 3], [0, 3, 2, 0, 0, 7, 3], [0, 1, 3, 0, 0, 7, 3]];
    let unended = vec![&b"fib_int\0"[..], b"inner\0", b"/a.c"];
    let unwinding = Unwinding::default().bytes();
    vec![
        case("inlines-present", good(), plain()),
        case("inlines-dangling", dump(&[Load::default().bytes(), usual().bytes()]), good()),
        case("inlines-dangling", before_load(&[usual().bytes(), usual().bytes()]), good()),
        with_also(
            "inlines-dangling",
            &["record-unknown"],
            before_load(&[usual().bytes(), record(77, TIME, &[1; 8])]),
            before_load(&[record(77, TIME, &[1; 8]), usual().bytes(), unwinding]),
        ),
        bad("inlines-address", Inlines { addr: ADDR + 8, ..usual() }),
        bad("inlines-torn", Inlines { strings: unended, ..usual() }),
        counted([None, None, Some(4)]),
        counted([None, Some(4), None]),
        counted([None, Some(u64::MAX), None]),
        counted([Some(12), None, None]),
        counted([Some(u64::MAX / 8), None, None]),
        offsets("inlines-empty", &[]),
        offsets("inlines-start", &[[1, 0], [4, 1]]),
        offsets("inlines-outside", &[[0, 0], [SIZE as u32, 1]]),
        offsets("inlines-unsorted", &[[0, 0], [4, 1], [4, 0]]),
        offsets("inlines-unsorted", &[[0, 0], [5, 1], [4, 0]]),
        offsets("inlines-index", &[[0, 0], [4, 2]]),
        position("inlines-index", caller),
        position("inlines-index", function),
        position("inlines-index", [-2, 1, 2, 0, 0, 7, 3]),
        position("inlines-index", file),
        position("inlines-circle", [1, 1, 2, 0, 0, 7, 3]),
        bad(
            "inlines-circle",
            Inlines {
                positions: vec![[1, 0, -1, 0, 0, 0, 0], [2, 1, 2, 0, 0, 7, 3], [1, 1, 2, 0, 0, 7, 3]],
                ..usual()
            },
        ),
    ]
}

fn unwind_tables() -> Vec<Case> {
    let of = Unwinding::default;
    let file = |unwinding: Unwinding| before_load(&[unwinding.bytes()]);
    let good = || file(of());
    let bad = |rule, unwinding: Unwinding| case(rule, file(unwinding), good());
    let spare = |rule, also, unwinding: Unwinding| with_also(rule, also, file(unwinding), good());
    let frame = of().eh_frame;
    let (fde, end) = (24, frame.len());
    let changed = |at: usize, new: &[u8]| Unwinding { eh_frame: with(of().eh_frame, at, new), ..of() };
    // What V8 writes: a CIE with the augmentation zLR, whose first encoding is "none", and entries without the pointer.
    let v8 = {
        let cie = b"\x14\0\0\0\0\0\0\0\x01zLR\0\x01\x78\x10\x02\xff\x1b\x0c\x07\x08\0\0";
        let distance = |from: usize| (-(SIZE as i32) - from as i32).to_ne_bytes();
        let fde = [&b"\x10\0\0\0\x1c\0\0\0"[..], &distance(32), b"\x08\0\0\0\0\0\0\0", &[0; 4]].concat();
        let eh_frame = [&cie[..], &fde].concat();
        let to_frame = (-(eh_frame.len() as i32) - 4).to_ne_bytes();
        let row = [distance(eh_frame.len()), (24 - eh_frame.len() as i32).to_ne_bytes()].concat();
        let hdr = [&b"\x01\x1b\x03\x3b"[..], &to_frame, b"\x01\0\0\0", &row].concat();
        Unwinding { eh_frame, hdr, ..of() }
    };
    let hdr_first = Unwinding { eh_frame: of().hdr, hdr: of().eh_frame, ..of() };
    vec![
        case("unwind-present", good(), plain()),
        case("unwind-missing", plain(), good()),
        case("unwind-dangling", dump(&[Load::default().bytes(), of().bytes()]), good()),
        case("unwind-dangling", before_load(&[of().bytes(), of().bytes()]), good()),
        case("unwind-dangling", dump(&[Load::default().bytes(), of().bytes(), close()]), good()),
        bad("unwind-size", Unwinding { size: Some(1000), ..of() }),
        bad("unwind-size", Unwinding { hdr_size: Some(1000), ..of() }),
        bad("unwind-padding", Unwinding { padding: vec![0; 4], ..of() }),
        bad("unwind-hdr-zero", Unwinding { hdr: vec![], ..of() }),
        bad("unwind-order", hdr_first),
        bad("unwind-empty", Unwinding { eh_frame: vec![], ..of() }),
        bad("unwind-empty", Unwinding { eh_frame: vec![0; 4], ..of() }),
        // Version, encoding of the rows, the address of .eh_frame.
        bad("unwind-hdr-form", Unwinding { hdr: with(of().hdr, 0, &[2]), ..of() }),
        bad("unwind-hdr-form", Unwinding { hdr: with(of().hdr, 3, &[0x1b]), ..of() }),
        bad("unwind-hdr-form", Unwinding { hdr: with(of().hdr, 4, &[0; 4]), ..of() }),
        // Encodings of the fields, the number of rows, a row's address, a row's entry, half a row.
        bad("unwind-hdr", Unwinding { hdr: with(of().hdr, 1, &[0x1c]), ..of() }),
        bad("unwind-hdr", Unwinding { hdr: of().hdr[..16].into(), ..of() }),
        bad("unwind-hdr", Unwinding { hdr: with(of().hdr, 8, &[0]), ..of() }),
        bad("unwind-hdr", Unwinding { hdr: with(of().hdr, 12, &[0; 4]), ..of() }),
        bad("unwind-hdr", Unwinding { hdr: with(of().hdr, 16, &[0; 4]), ..of() }),
        // The CIE's version, and an instruction that there is not.
        bad("unwind-cfi", changed(8, &[9])),
        bad("unwind-cfi", changed(fde + 17, &[0x3f])),
        case("unwind-lsda", file(v8), good()),
        spare("unwind-fde-base", &["unwind-hdr"], changed(fde + 8, &[0; 4])),
        // Tables for code of another size lie elsewhere.
        spare("unwind-fde-base", &["unwind-hdr"], Unwinding::of_size(SIZE + 64)).without("unwind-hdr"),
        bad("unwind-fde-range", changed(fde + 12, &[SIZE as u8 - 1])),
        bad("unwind-fde-range", changed(fde + 12, &[SIZE as u8 + 1])),
        case(
            "unwind-no-terminator",
            // The header moves with the end of the tables.
            file(Unwinding { eh_frame: frame[..end - 4].into(), hdr: nearer(of().hdr), ..of() }),
            good(),
        ),
        case(
            "unwind-behind-terminator",
            file(Unwinding { eh_frame: [&frame[..], &[0; 4]].concat(), hdr: farther(of().hdr), ..of() }),
            good(),
        ),
        spare(
            "unwind-length",
            &["unwind-behind-terminator"],
            Unwinding { eh_frame: [&frame[..], &[0; 2]].concat(), hdr: farther(of().hdr), ..of() },
        ),
        bad("unwind-not-mapped", Unwinding { mapped_size: 0, ..of() }),
        bad("unwind-mapped-short", Unwinding { mapped_size: (end + 19) as u64, ..of() })
            .but(file(Unwinding { mapped_size: (end + 20) as u64, ..of() })),
    ]
}

impl Case {
    fn but(self, good: Vec<u8>) -> Case {
        Case { good, ..self }
    }

    fn without(self, rule: &str) -> Case {
        assert!(self.also.contains(&rule));
        Case { also: &[], ..self }
    }
}

/// An `.eh_frame_hdr` that lies 4 bytes nearer to the code.
fn nearer(hdr: Vec<u8>) -> Vec<u8> {
    shifted(hdr, 4)
}

/// One that lies 4 bytes farther behind it.
fn farther(hdr: Vec<u8>) -> Vec<u8> {
    shifted(hdr, -4)
}

fn shifted(mut hdr: Vec<u8>, by: i32) -> Vec<u8> {
    for at in [4, 12, 16] {
        let value = i32::from_ne_bytes(hdr[at..at + 4].try_into().expect("four bytes"));
        hdr[at..at + 4].copy_from_slice(&(value + by).to_ne_bytes());
    }
    hdr
}

fn mapped() -> Vec<Case> {
    let tables = Unwinding::default();
    let size = (tables.eh_frame.len() + tables.hdr.len()) as u64;
    let mapped = Unwinding { mapped_size: size, ..tables };
    let end = ADDR + SIZE + size;
    // Code of its own that is there before, or comes later.
    let before = |addr| {
        dump(&[Load { addr, ..second() }.bytes(), mapped.bytes(), Load { time: TIME + 1, ..Load::default() }.bytes()])
    };
    let later =
        |addr| dump(&[mapped.bytes(), Load::default().bytes(), Load { addr, time: TIME + 1, ..second() }.bytes()]);
    // The same in another order in the file: that of time counts.
    let unordered = |addr| {
        let late = Load { time: TIME + 1, ..Load::default() };
        dump(&[mapped.bytes(), late.bytes(), Load { addr, ..second() }.bytes()])
    };
    vec![
        case("mapped-over-earlier", before(end - 1), before(end)),
        with_also("mapped-over-earlier", &["time-backwards"], unordered(end - 1), unordered(end)),
        case("mapped-over-later", later(end - 1), later(end)),
    ]
}

fn maps() -> Vec<Case> {
    let good = b"1000 8 name\n".as_slice();
    let long = |len: usize| [b"1000 8 ".as_slice(), &vec![b'x'; len], b"\n"].concat();
    vec![
        map("map-empty", b"", good),
        map("map-line", b"junk\n", good),
        map("map-line", b"1000 g name\n", good),
        map("map-name-missing", b"1000 8\n", good),
        map("map-name-missing", b"1000 8 \n", good),
        map("map-0x", b"0x1000 0x8 name\n", good),
        map("map-upper-case", b"ABC0 8 name\n", b"abc0 8 NAME\n"),
        map("map-address-digits", b"00000000000001000 8 name\n", b"0000000000001000 8 name\n"),
        map("map-size-digits", b"1000 000000008 name\n", b"1000 00000008 name\n"),
        map("map-separator", b"1000\t8 name\n", b"1000 8 na me\n"),
        map("map-separator", b"1000 8  name\n", good),
        map("map-separator", b" 1000 8 name\n", good),
        map("map-size-zero", b"1000 0 name\n", good),
        map("map-address-zero", b"0 8 name\n", b"1 8 name\n"),
        map("map-address-range", b"ffffffffffffffff 8 name\n", b"fffffffffffffff7 8 name\n"),
        map("map-name-short", b"1000 8 fo\n", b"1000 8 foo\n"),
        map("map-name-stub", b"1000 8 stub<1>\n", b"1000 8 stub(1)\n"),
        map("map-name-cut", &long(301), &long(300)),
        map_also("map-name-cut", &["map-control"], b"1000 8 na\tme\n", good),
        map("map-line-long", &long(4096 - 7), &long(4095 - 7)),
        map("map-not-utf8", b"1000 8 caf\xe9\n", "1000 8 café\n".as_bytes()),
        map("map-cr", b"1000 8 name\r\n", good),
        map("map-cr", b"1000 8 na\rme\n", good),
        map("map-nul", b"1000 8 na\0me\n", good),
        map("map-control", b"1000 8 na\x1bme\n", good),
        map("map-torn", b"1000 8 name", good),
        map("map-torn", b"1000 8 name\n20", good),
        map("map-blank-line", b"1000 8 name\n\n", good),
        map("map-overlap", b"1000 8 name\n1007 8 other\n", b"1008 8 other\n1000 8 name\n"),
        map("map-overlap", b"1000 8 name\n1000 8 other\n", good),
        map("map-duplicate", b"1000 8 name\n1000 8 name\n", b"1000 8 name\n1008 8 name\n"),
    ]
}
