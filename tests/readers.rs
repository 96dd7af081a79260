//! The bytes of a jitdump as other people's readers see them: the crates `linux-perf-data` and `gimli` on the dump that the
//! truth program wrote, `readelf` and `llvm-dwarfdump` on the objects that `perf inject` makes of it.

use std::collections::HashSet;
use std::path::Path;

use crate::perf::{self, Function, Place, Recording, Truth};
use crate::support::{run, scratch_dir, stdout, TmpFiles};
use gimli::{BaseAddresses, CfaRule, CieOrFde, EhFrame, EhFrameHdr, LittleEndian, Pointer, Register, RegisterRule};
use gimli::{UnwindContext, UnwindSection};
use linux_perf_data::jitdump::{JitDumpReader, JitDumpRecord, JitDumpRecordType};
use linux_perf_data::Endianness;

/// The record of inlined functions that samply's branch `support-inlines` reads.
const DEBUG_INFO2: JitDumpRecordType = JitDumpRecordType(827_346_260);

/// One piece of code with what belongs to it, in the order of the file.
struct Group {
    timestamp: u64,
    addr: u64,
    index: u64,
    name: String,
    code: Vec<u8>,
    /// Address, line, column, file.
    lines: Vec<(u64, u32, u32, String)>,
    unwind: Option<UnwindInfo>,
    inlines: Option<Inlines>,
}

/// A record of inlined functions.
struct Inlines {
    addr: u64,
    /// Code offset, source position.
    offsets: Vec<[u32; 2]>,
    /// Caller, function, file, start line, start column, line, column.
    positions: Vec<[u32; 7]>,
    strings: Vec<String>,
}

impl Inlines {
    /// Takes the body of a record apart as samply does.
    fn new(body: &[u8]) -> Self {
        let wide = |at: usize| u64::from_le_bytes(body[at..at + 8].try_into().expect("8 bytes"));
        let word = |at: usize| u32::from_le_bytes(body[at..at + 4].try_into().expect("4 bytes"));
        let [offsets, positions, strings] = [8, 16, 24].map(|at| wide(at) as usize);
        let [positions_at, strings_at] = [32 + 8 * offsets, 32 + 8 * offsets + 28 * positions];
        let (last, text) = body[strings_at..].split_last().expect("strings");
        assert_eq!(*last, 0);
        let text = std::str::from_utf8(text).expect("UTF-8");
        let inlines = Inlines {
            addr: wide(0),
            offsets: (0..offsets).map(|at| [0, 4].map(|field| word(32 + 8 * at + field))).collect(),
            positions: (0..positions)
                .map(|at| [0, 4, 8, 12, 16, 20, 24].map(|field| word(positions_at + 28 * at + field)))
                .collect(),
            strings: text.split('\0').map(str::to_owned).collect(),
        };
        assert_eq!(inlines.strings.len(), strings);
        inlines
    }

    /// The functions at an offset, the innermost first, with file, line and column.
    fn frames(&self, offset: u64) -> Vec<(&str, &str, u32, u32)> {
        let behind = self.offsets.partition_point(|entry| u64::from(entry[0]) <= offset);
        let mut next = self.offsets[behind - 1][1];
        let mut frames = Vec::new();
        while next != u32::MAX {
            let [caller, function, file, _, _, line, column] = self.positions[next as usize];
            frames.push((&*self.strings[function as usize], &*self.strings[file as usize], line, column));
            next = caller;
        }
        frames
    }
}

/// An unwinding record.
struct UnwindInfo {
    eh_frame: Vec<u8>,
    eh_frame_hdr: Vec<u8>,
    mapped_size: u64,
}

/// Reads a dump with `linux-perf-data`, and checks all that holds for any dump.
fn read_dump(truth: &Truth) -> Vec<Group> {
    let path = &truth.paths["jitdump"];
    let mut reader = JitDumpReader::new(std::fs::File::open(path).expect("jitdump")).expect("jitdump header");
    assert!(matches!(reader.endian(), Endianness::LittleEndian));
    let header = reader.header();
    let fields = (header.version, header.total_size, header.elf_machine_arch, header.pid, header.flags);
    assert_eq!(fields, (1, 40, 62, truth.pid, 0));
    let mut last = header.timestamp;
    assert!(last > 0 && last <= truth.places[0].done, "time of the header");

    let mut groups: Vec<Group> = Vec::new();
    let mut lines: Option<(u64, Vec<_>)> = None;
    let mut unwind: Option<(u64, UnwindInfo)> = None;
    let mut inlines: Option<(u64, Inlines)> = None;
    while let Some(raw) = reader.next_record().expect("jitdump record") {
        assert!(raw.timestamp >= last, "time goes back to {} from {last}", raw.timestamp);
        last = raw.timestamp;
        match raw.parse().expect("jitdump record") {
            JitDumpRecord::Other(record) if record.record_type == DEBUG_INFO2 => {
                assert!(inlines.is_none() && lines.is_none() && unwind.is_none(), "inlined functions come first");
                inlines = Some((last, Inlines::new(&record.body.as_slice())));
            }
            JitDumpRecord::CodeDebugInfo(record) => {
                assert!(lines.is_none() && unwind.is_none(), "lines come first in their group");
                let line = |entry: &linux_perf_data::jitdump::JitCodeDebugInfoEntry| {
                    let file = String::from_utf8(entry.file_path.as_slice().into()).expect("file name");
                    (entry.code_addr, entry.line, entry.column, file)
                };
                lines = Some((record.code_addr, record.entries.iter().map(line).collect()));
            }
            JitDumpRecord::CodeUnwindingInfo(record) => {
                assert!(unwind.is_none(), "two unwinding records in a group");
                // The crate splits as the specification says, the header first. perf has it the other way round.
                let bytes = [record.eh_frame_hdr.as_slice(), record.eh_frame.as_slice()].concat();
                let (eh_frame, eh_frame_hdr) = bytes.split_at(bytes.len() - record.eh_frame_hdr.len());
                assert!(!eh_frame_hdr.is_empty(), "perf gives a table without header to all that follow, too");
                let (eh_frame, eh_frame_hdr) = (eh_frame.to_vec(), eh_frame_hdr.to_vec());
                unwind = Some((last, UnwindInfo { eh_frame, eh_frame_hdr, mapped_size: record.mapped_size }));
            }
            JitDumpRecord::CodeLoad(record) => {
                assert_eq!((record.pid, record.tid), (truth.pid, truth.pid));
                assert_eq!(record.vma, record.code_addr);
                let tail = raw.record_size as usize - record.code_bytes_offset_from_record_header_start();
                assert_eq!(tail, record.code_bytes.len(), "perf finds the code by the end of the record");
                let lines = lines.take().map(|(addr, lines)| {
                    assert_eq!(addr, record.code_addr);
                    lines
                });
                let unwind = unwind.take().map(|(timestamp, unwind)| {
                    assert_eq!(timestamp, raw.timestamp, "a group is of one time");
                    unwind
                });
                let inlines = inlines.take().map(|(timestamp, inlines)| {
                    assert_eq!((timestamp, inlines.addr), (raw.timestamp, record.code_addr));
                    inlines
                });
                groups.push(Group {
                    timestamp: raw.timestamp,
                    addr: record.code_addr,
                    index: record.code_index,
                    name: String::from_utf8(record.function_name.as_slice().into()).expect("name"),
                    code: record.code_bytes.as_slice().into(),
                    lines: lines.unwrap_or_default(),
                    unwind,
                    inlines,
                });
            }
            // perf 7.2 crashes on MOVE, and a CLOSE that is not the last record hides the rest.
            other => panic!("record {other:?}"),
        }
    }
    assert_eq!(reader.next_record_type().expect("end of the file"), None::<JitDumpRecordType>);
    assert_eq!(
        reader.next_record_offset(),
        std::fs::metadata(path).expect("jitdump").len(),
        "bytes behind the records"
    );
    assert!(inlines.is_none() && lines.is_none() && unwind.is_none(), "a group without code");
    let indices: HashSet<u64> = groups.iter().map(|group| group.index).collect();
    assert_eq!(indices.len(), groups.len(), "indices are unique");
    groups
}

/// Runs the program without burning, and reads its dump.
fn dump(arguments: &[&str]) -> (Truth, Vec<Group>, TmpFiles) {
    let name = arguments.concat().replace(['=', '/'], "-");
    let mut program = perf::command(perf::program());
    program.arg(format!("dir={}", scratch_dir(name).display())).args(["seconds=0", "sinks=jitdump"]).args(arguments);
    let (truth, files) = perf::read_truth(&stdout(&run(&mut program)));
    let groups = read_dump(&truth);
    assert_eq!(groups.len(), truth.places.len(), "as many pieces of code in the dump as announced");
    assert_eq!(groups.len() as u64, truth.stats["jitdump_records"]);
    (truth, groups, files)
}

/// What was announced, with what is in the dump for it, and the compiled function.
fn pairs<'a>(truth: &'a Truth, groups: &'a [Group]) -> impl Iterator<Item = (&'a Place, &'a Group, &'a Function)> {
    truth
        .places
        .iter()
        .zip(groups)
        .map(|(place, group)| (place, group, &truth.functions[place.function.expect("a function of the guest")]))
}

/// Every scenario in both layouts: each announcement is there, in order, of its own time, with its bytes as executed, its
/// name and its whole line table.
#[test]
fn dump_holds_what_was_announced() {
    for scenario in ["stacks", "move", "reuse", "free"] {
        for layout in ["gap", "packed"] {
            let (truth, groups, _files) = dump(&[&format!("scenario={scenario}"), &format!("layout={layout}")]);
            for (place, group, function) in pairs(&truth, &groups) {
                assert_eq!((&group.name, group.addr), (&place.name, place.addr));
                assert_eq!(group.code, function.code, "code of {}", place.name);
                assert!(
                    (place.from..=place.done).contains(&group.timestamp),
                    "{} was announced from {} to {}, not {}",
                    place.name,
                    place.from,
                    place.done,
                    group.timestamp
                );
                check_lines(&truth, place, group, function);
            }
            assert_eq!(truth.places.iter().any(|place| place.moved), scenario == "move");
        }
    }
}

/// Absolute addresses, the file's full name in every entry, and a closing entry at the end of the code.
fn check_lines(truth: &Truth, place: &Place, group: &Group, function: &Function) {
    let source = truth.source.to_str().expect("source name");
    let mut expected: Vec<_> = function.rows.iter().map(|row| (place.addr + row.0, row.1, row.2, source)).collect();
    let end = expected.last().expect("every function has lines");
    expected.push((place.addr + place.size, end.1, end.2, source));
    let found: Vec<_> = group.lines.iter().map(|line| (line.0, line.1, line.2, &*line.3)).collect();
    // The closing entry's own line is no business of a reader.
    let (last, closing) = (found.len() - 1, expected.len() - 1);
    assert_eq!((&found[..last], found[last].0), (&expected[..closing], expected[closing].0), "lines of {}", place.name);
    assert_eq!(found[last].3, source, "file of the closing entry of {}", place.name);
}

/// The records of inlined functions that samply's branch `support-inlines` reads: at each byte of each function the frames are
/// those that were announced, also after a move and where code was replaced. Without the variable there is no such record.
#[test]
fn inlined_functions_on_request() {
    for scenario in ["stacks", "move", "reuse"] {
        let arguments = [&*format!("scenario={scenario}"), "layout=gap", "inlined=1"];
        let (truth, groups, _files) = dump(&arguments);
        let source = truth.source.to_str().expect("source name");
        let mut with = 0;
        for (place, group, function) in pairs(&truth, &groups) {
            check_lines(&truth, place, group, function);
            let Some(inlines) = &group.inlines else {
                assert!(function.rows.len() <= 2, "{} has inlined functions", place.name);
                continue;
            };
            with += 1;
            let (outer, inner) = (&function.rows[1], &function.rows[function.rows.len() - 1]);
            for offset in 0..place.size {
                let mut expected = vec![(&*place.name, source, function.rows[0].1, 0)];
                if offset >= outer.0 {
                    expected.insert(0, ("outer", source, function.rows[function.rows.len() - 2].1, 0));
                }
                if offset >= inner.0 {
                    expected.insert(0, ("inner", source, 0, 0));
                }
                let row = function.rows.iter().rev().find(|row| row.0 <= offset).expect("a row");
                (expected[0].2, expected[0].3) = (row.1, row.2);
                assert_eq!(inlines.frames(offset), expected, "{} at {offset:#x}", place.name);
            }
        }
        assert!(with > 3, "{with} of {} pieces of code have inlined functions", groups.len());
        let (_, groups, _files) = dump(&arguments[..2]);
        assert!(groups.iter().all(|group| group.inlines.is_none()));
    }
}

/// The unwinding records, held against the instructions: at every byte of every function, the caller's frame and registers
/// are found where they really are.
#[test]
fn tables_describe_the_frames_as_they_are() {
    for (scenario, layout) in [("stacks", "gap"), ("stacks", "packed"), ("move", "gap"), ("move", "packed")] {
        let (truth, groups, _files) = dump(&[&format!("scenario={scenario}"), &format!("layout={layout}")]);
        for (place, group, function) in pairs(&truth, &groups) {
            let unwind = group.unwind.as_ref().unwrap_or_else(|| panic!("no unwinding record for {}", place.name));
            check_tables(layout == "gap", place, function, unwind);
        }
    }
}

fn check_tables(has_gap: bool, place: &Place, function: &Function, unwind: &UnwindInfo) {
    let name = &place.name;
    // perf appends the tables to the code, aligned to 8, and the pointers in them are counted from there.
    let at = place.addr + place.size.next_multiple_of(8);
    let hdr_at = at + unwind.eh_frame.len() as u64;
    let bases = BaseAddresses::default().set_text(place.addr).set_eh_frame(at).set_eh_frame_hdr(hdr_at);
    let eh_frame = EhFrame::new(&unwind.eh_frame, LittleEndian);

    // Tables are mapped in the gap that was declared.
    let size = (unwind.eh_frame.len() + unwind.eh_frame_hdr.len()) as u64;
    assert_eq!(unwind.mapped_size, if has_gap { size } else { 0 }, "{name}");
    assert!(!has_gap || at + size <= place.addr + place.size + 256, "{name}: the tables reach beyond the gap");
    assert!(unwind.eh_frame.len().is_multiple_of(4) && unwind.eh_frame.ends_with(&[0; 4]), "{name}: terminator");

    let mut fdes = Vec::new();
    let mut entries = eh_frame.entries(&bases);
    while let Some(entry) = entries.next().expect("entry of .eh_frame") {
        match entry {
            CieOrFde::Cie(cie) => assert_eq!(cie.personality(), None, "{name}: a routine that only the process has"),
            CieOrFde::Fde(partial) => fdes.push(partial.parse(EhFrame::cie_from_offset).expect("FDE")),
        }
    }
    assert_eq!(fdes.len(), 1, "{name}: entries for this code alone");
    assert_eq!((fdes[0].initial_address(), fdes[0].len()), (place.addr, place.size), "{name}: range");

    let hdr = EhFrameHdr::new(&unwind.eh_frame_hdr, LittleEndian).parse(&bases, 8).expect(".eh_frame_hdr");
    assert_eq!(hdr.eh_frame_ptr(), Pointer::Direct(at), "{name}: .eh_frame_hdr");
    let found = hdr.table().expect("search table").lookup(place.addr + place.size - 1, &bases).expect("entry");
    assert_eq!(found, Pointer::Direct(at + fdes[0].offset() as u64), "{name}: search table");

    let mut context = UnwindContext::new();
    for offset in 0..place.size {
        let row = fdes[0].unwind_info_for_address(&eh_frame, &bases, &mut context, place.addr + offset).expect("row");
        let frame = function.frame_at(offset);
        let right = match *row.cfa() {
            CfaRule::RegisterAndOffset { register: Register(7), offset } => frame.depth != 0 && offset == frame.depth,
            CfaRule::RegisterAndOffset { register: Register(6), offset } => frame.rbp != 0 && offset == frame.rbp,
            CfaRule::RegisterAndOffset { register: Register(3), offset } => frame.rbx != 0 && offset == frame.rbx,
            _ => false,
        };
        assert!(right, "{name}+{offset}: CFA is {:?}, but {frame:?}", row.cfa());
        let rule = row.register(Register(16));
        assert_eq!(rule, Some(RegisterRule::Offset(-8)), "{name}+{offset}: return address");
        for register in [3, 6, 12, 13, 14, 15] {
            let (_, lost) = frame.saved.get(&register).copied().unwrap_or((0, false));
            // A value stays where it was pushed when it has been popped again.
            let pushed = function.frames.iter().filter(|other| other.offset <= offset);
            let mut places = pushed.filter_map(|other| other.saved.get(&register)).map(|&(at, _)| at);
            let right = match row.register(Register(register)) {
                Some(RegisterRule::Offset(offset)) => places.any(|at| at != 0 && at == -offset),
                None | Some(RegisterRule::SameValue | RegisterRule::Undefined) => !lost,
                _ => false,
            };
            let rule = row.register(Register(register));
            assert!(right, "{name}+{offset}: register {register} is {rule:?}, but {frame:?}");
        }
    }
}

/// The objects that `perf inject` makes of the dump: one for each piece of code, with its symbol, its frames and its lines.
#[test]
fn injected_objects() {
    let recording = Recording::with_stacks("objects", perf::program(), &["scenario=move", "layout=gap", "seconds=0.1"]);
    let truth = &recording.truth;
    recording.inject();
    let groups = read_dump(truth);
    assert_eq!(groups.len(), truth.places.len());
    for (place, group, function) in pairs(truth, &groups) {
        let object = format!("/tmp/jitted-{}-{}.so", truth.pid, group.index);
        check_object(truth, place, function, Path::new(&object));
    }
}

fn check_object(truth: &Truth, place: &Place, function: &Function, object: &Path) {
    let (start, end) = (perf::TEXT_OFFSET, perf::TEXT_OFFSET + place.size);
    let print = |tool: &str, options: &[&str]| stdout(&run(perf::command(tool).args(options).arg(object)));

    let symbols = print("readelf", &["--wide", "--symbols"]);
    let symbol: Vec<&str> = symbols.lines().filter(|line| line.contains(" FUNC ")).collect();
    // Number, value, size, FUNC, LOCAL, DEFAULT, section, and the name with its blanks.
    let fields: Vec<&str> =
        symbol.first().unwrap_or_else(|| panic!("no symbol: {symbols}")).split_whitespace().collect();
    assert_eq!(symbol.len(), 1, "{symbols}");
    assert_eq!((u64::from_str_radix(fields[1], 16), fields[2].parse()), (Ok(start), Ok(place.size)), "{symbols}");
    assert_eq!(fields[7..].join(" "), place.name, "{symbols}");

    let frames = print("readelf", &["--wide", "--debug-dump=frames"]);
    assert!(frames.contains(&format!(" pc={start:016x}..{end:016x}\n")), "{}: {frames}", place.name);
    let frames = print("llvm-dwarfdump", &["--eh-frame"]);
    assert!(frames.contains(&format!(" pc={start:08x}...{end:08x}\n")), "{}: {frames}", place.name);
    assert!(frames.contains("ZERO terminator") && !frames.contains("error"), "{}: {frames}", place.name);

    let table = print("llvm-dwarfdump", &["--debug-line"]);
    let rows: Vec<Vec<&str>> =
        table.lines().filter(|line| line.starts_with("0x")).map(|line| line.split_whitespace().collect()).collect();
    let parsed: Vec<(u64, u32)> = rows
        .iter()
        .map(|row| (u64::from_str_radix(&row[0][2..], 16).expect("address"), row[1].parse().expect("line")))
        .collect();
    // perf defines the file by an opcode within the table, which llvm-dwarfdump does not show.
    let decoded = print("readelf", &["--wide", "--debug-dump=decodedline"]);
    let decoded: Vec<Vec<&str>> = decoded.lines().map(|line| line.split_whitespace().collect()).collect();
    for (offset, line, _) in &function.rows {
        assert!(parsed.contains(&(start + offset, *line)), "{} line {line}: {table}", place.name);
        let row = format!("{} {line} {:#x} ", truth.source.display(), start + offset);
        assert!(decoded.iter().any(|fields| (fields.join(" ") + " ").starts_with(&row)), "{row:?} in {decoded:?}");
    }
    let sequences: Vec<&Vec<&str>> = rows.iter().filter(|row| row.last() == Some(&"end_sequence")).collect();
    let last = format!("{end:#018x}");
    assert!(sequences.len() == 1 && sequences[0][0] == last, "{}: the table must end at {end:x}: {table}", place.name);
}
