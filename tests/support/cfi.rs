//! Unwind tables as an independent decoder (gimli) reads them where perf puts them, and the tables of a jitdump.

use std::collections::BTreeMap;
use std::ops::Range;

use gimli::{BaseAddresses, CfaRule, CieOrFde, EhFrame, EhFrameHdr, EndianSlice, LittleEndian, Pointer, RegisterRule};
use gimli::{UnwindContext, UnwindExpression, UnwindSection, UnwindTableRow, Vendor};
use linux_perf_data::jitdump::{JitDumpReader, JitDumpRecord};

/// How the CFA is found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Cfa {
    /// A register's value, and bytes to be added.
    From(u16, i64),
    Expression(Vec<u8>),
}

/// How the caller's value of a register is found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Rule {
    /// It is lost.
    Undefined,
    /// It is in the register, as the table says in so many words.
    Same,
    /// In memory, this far from the CFA.
    At(i64),
    /// It is the CFA and this.
    Is(i64),
    /// It is in another register.
    In(u16),
    AtExpression(Vec<u8>),
    IsExpression(Vec<u8>),
    /// Of the pseudo-register of aarch64 that says whether the return address is signed: it is.
    Signed,
}

/// All that a table says of one place. Registers that are not in the map have the caller's values.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct State {
    pub cfa: Cfa,
    pub rules: BTreeMap<u16, Rule>,
}

/// An entry for a stretch of code, in offsets from the start of the code.
#[derive(Debug)]
struct Entry {
    at: usize,
    range: Range<u64>,
    /// From where on, in order.
    rows: Vec<(u64, State)>,
}

/// Tables that were read to the end, and found sound.
#[derive(Debug)]
pub struct Decoded {
    entries: Vec<Entry>,
    hdr: Vec<u8>,
    code: u64,
    bases: BaseAddresses,
    /// Whether a CIE says that return addresses are signed with key B.
    pub b_key: bool,
}

/// Like `assert`, for functions that return what is wrong as text.
macro_rules! ensure {
    ($holds:expr, $($message:tt)+) => {
        if !$holds {
            return Err(format!($($message)+));
        }
    };
}

fn text(error: gimli::Error) -> String {
    format!("gimli: {error}")
}

type Reader<'a> = EndianSlice<'a, LittleEndian>;

impl State {
    fn read(row: &UnwindTableRow<usize>, section: &EhFrame<Reader>) -> Result<State, String> {
        let bytes = |at: &UnwindExpression<usize>| {
            at.get(section).map(|expression| expression.0.slice().to_vec()).map_err(text)
        };
        let cfa = match row.cfa() {
            CfaRule::RegisterAndOffset { register, offset } => Cfa::From(register.0, *offset),
            CfaRule::Expression(at) => Cfa::Expression(bytes(at)?),
        };
        let mut rules = BTreeMap::new();
        for (register, rule) in row.registers() {
            let rule = match rule {
                RegisterRule::Undefined => Rule::Undefined,
                RegisterRule::SameValue => Rule::Same,
                RegisterRule::Offset(offset) => Rule::At(*offset),
                RegisterRule::ValOffset(offset) => Rule::Is(*offset),
                RegisterRule::Register(other) => Rule::In(other.0),
                RegisterRule::Expression(at) => Rule::AtExpression(bytes(at)?),
                RegisterRule::ValExpression(at) => Rule::IsExpression(bytes(at)?),
                RegisterRule::Constant(0) => continue,
                RegisterRule::Constant(1) => Rule::Signed,
                other => return Err(format!("{register:?} is {other:?}")),
            };
            ensure!(rules.insert(register.0, rule).is_none(), "two rules for {register:?}");
        }
        Ok(State { cfa, rules })
    }
}

impl Decoded {
    /// Reads tables of code that lies at `code`, and checks what must hold for all: they start at the first multiple of 8 behind
    /// the code, have the form that perf's readers know, say nothing of other code, and the header lists every entry.
    pub fn read(aarch64: bool, code: Range<u64>, eh_frame: &[u8], hdr: &[u8]) -> Result<Decoded, String> {
        let at = code.start + (code.end - code.start).next_multiple_of(8);
        let hdr_at = at + eh_frame.len() as u64;
        ensure!(eh_frame.len().is_multiple_of(4), "{} bytes of .eh_frame", eh_frame.len());
        ensure!(eh_frame.ends_with(&[0; 4]), "no terminator");
        let bases = BaseAddresses::default().set_eh_frame(at).set_eh_frame_hdr(hdr_at);
        // gimli does not know the mark of key B.
        let mut readable = eh_frame.to_vec();
        let mut b_key = false;
        for at in 0..readable.len().saturating_sub(3) {
            if readable[at..].starts_with(b"zRB\0") {
                readable[at + 2] = b'S';
                b_key = true;
            }
        }
        let mut section = EhFrame::new(&readable, LittleEndian);
        section.set_address_size(8);
        if aarch64 {
            section.set_vendor(Vendor::AArch64);
        }
        let mut entries = Vec::new();
        let mut context = UnwindContext::new();
        let mut all = section.entries(&bases);
        while let Some(entry) = all.next().map_err(text)? {
            let partial = match entry {
                CieOrFde::Cie(cie) => {
                    ensure!(cie.personality().is_none(), "a personality routine");
                    ensure!(cie.fde_address_encoding().is_some_and(|it| it.0 == 0x1b), "pointers are not pcrel|sdata4");
                    continue;
                }
                CieOrFde::Fde(partial) => partial,
            };
            let fde = partial.parse(EhFrame::cie_from_offset).map_err(text)?;
            let start = fde.initial_address().wrapping_sub(code.start);
            let range = start..start.wrapping_add(fde.len());
            ensure!(fde.len() > 0 && start <= range.end, "an entry for {range:?}");
            ensure!(range.end <= code.end - code.start, "an entry for {range:?} of {code:?}");
            let mut rows: Vec<(u64, State)> = Vec::new();
            let mut table = fde.rows(&section, &bases, &mut context).map_err(text)?;
            let mut next = start;
            while let Some(row) = table.next_row().map_err(text)? {
                ensure!(row.start_address() == code.start + next, "a hole before {next}");
                next = row.end_address() - code.start;
                // A row for no byte says nothing.
                if row.start_address() < row.end_address() {
                    rows.push((row.start_address() - code.start, State::read(row, &section)?));
                }
            }
            ensure!(next == range.end, "rows end at {next} of {range:?}");
            entries.push(Entry { at: fde.offset(), range, rows });
        }
        ensure!(hdr.starts_with(&[1, 0x1b, 3, 0x3b]), "header {hdr:02x?}");
        ensure!(hdr.len() == 12 + 8 * entries.len(), "{} bytes of header for {} entries", hdr.len(), entries.len());
        let decoded = Decoded { entries, hdr: hdr.to_vec(), code: code.start, bases, b_key };
        let parsed = EhFrameHdr::new(&decoded.hdr, LittleEndian).parse(&decoded.bases, 8).map_err(text)?;
        ensure!(parsed.eh_frame_ptr() == Pointer::Direct(at), ".eh_frame at {:?}", parsed.eh_frame_ptr());
        // In order, and each with the start of its entry: a search among few rows may find the right one by wrong numbers.
        let mut starts: Vec<(u64, usize)> = decoded.entries.iter().map(|entry| (entry.range.start, entry.at)).collect();
        starts.sort_unstable();
        let table = parsed.table().ok_or("no search table")?;
        let mut rows = table.iter(&decoded.bases);
        for (start, entry) in starts {
            let row = rows.next().map_err(text)?;
            let right = (Pointer::Direct(code.start + start), Pointer::Direct(at + entry as u64));
            ensure!(row == Some(right), "a row of the header is {row:?} instead of {right:?}");
        }
        Ok(decoded)
    }

    /// What is said of the byte at an offset: the entry is looked up in the header's table, as libunwind does.
    pub fn at(&self, offset: u64) -> Result<Option<&State>, String> {
        Ok(self.index_at(offset)?.map(|(entry, row)| &self.entries[entry].rows[row].1))
    }

    /// The same as numbers that are equal for equal places in the table.
    pub fn index_at(&self, offset: u64) -> Result<Option<(usize, usize)>, String> {
        let hdr = EhFrameHdr::new(&self.hdr, LittleEndian).parse(&self.bases, 8).map_err(text)?;
        let table = hdr.table().ok_or("no search table")?;
        let found = table.lookup(self.code + offset, &self.bases).map_err(text)?;
        let found = table.pointer_to_offset(found).map_err(text)?.0;
        let index = self.entries.iter().position(|entry| entry.at == found);
        let index = index.ok_or_else(|| format!("the header's entry for {offset} is at {found:#x}, where none is"))?;
        let by_header = self.entries[index].range.contains(&offset);
        // libdw reads all entries.
        let by_reading = self.entries.iter().position(|entry| entry.range.contains(&offset));
        ensure!(by_reading == by_header.then_some(index), "at {offset} entry {index}, but read {by_reading:?}");
        Ok(by_reading.map(|index| {
            let rows = &self.entries[index].rows;
            (index, rows.partition_point(|row| row.0 <= offset) - 1)
        }))
    }

    /// Compares what is said of some bytes with `expected`, which has rows in order with the offsets that they begin at; a row
    /// without state stands for code that no entry covers.
    pub fn compare(&self, expected: &[(u64, Option<State>)], offsets: impl Iterator<Item = u64>) -> Result<(), String> {
        let mut equal = None;
        for offset in offsets {
            let found = self.index_at(offset)?;
            let row = expected.partition_point(|row| row.0 <= offset);
            ensure!(row > 0, "nothing is expected at {offset}");
            if equal != Some((found, row)) {
                let state = self.at(offset)?;
                let expected = expected[row - 1].1.as_ref();
                ensure!(state == expected, "at {offset}\n   found {state:?}\nexpected {expected:?}");
                equal = Some((found, row));
            }
        }
        Ok(())
    }
}

/// Code of a jitdump, with all that the file says of it.
pub struct Dumped {
    pub time: u64,
    pub name: String,
    pub addr: u64,
    pub code: Vec<u8>,
    /// `.eh_frame`, `.eh_frame_hdr`, and the bytes behind the code that they are mapped to.
    pub tables: Option<(Vec<u8>, Vec<u8>, u64)>,
    /// Address, line, file.
    pub lines: Vec<(u64, u32, String)>,
}

impl Dumped {
    pub fn range(&self) -> Range<u64> {
        self.addr..self.addr + self.code.len() as u64
    }

    /// Its tables, read.
    pub fn decoded(&self) -> Result<Option<Decoded>, String> {
        let read = |(eh_frame, hdr, _): &(Vec<u8>, Vec<u8>, u64)| Decoded::read(false, self.range(), eh_frame, hdr);
        self.tables.as_ref().map(read).transpose()
    }
}

/// The code in a jitdump, in the order of the file.
pub fn read_dump(file: impl std::io::Read) -> Vec<Dumped> {
    let mut reader = JitDumpReader::new(file).expect("jitdump header");
    let (mut dumped, mut tables, mut lines) = (Vec::new(), None, Vec::new());
    while let Some(raw) = reader.next_record().expect("jitdump record") {
        match raw.parse().expect("jitdump record") {
            JitDumpRecord::CodeUnwindingInfo(record) => {
                // The crate splits as the specification says, the header first. perf has it the other way round.
                let bytes = [record.eh_frame_hdr.as_slice(), record.eh_frame.as_slice()].concat();
                let (eh_frame, hdr) = bytes.split_at(bytes.len() - record.eh_frame_hdr.len());
                tables = Some((eh_frame.to_vec(), hdr.to_vec(), record.mapped_size));
            }
            JitDumpRecord::CodeDebugInfo(record) => {
                let text = |bytes: &[u8]| String::from_utf8(bytes.into()).expect("file name");
                let entries = record.entries.iter();
                lines = entries.map(|e| (e.code_addr, e.line, text(&e.file_path.as_slice()))).collect();
            }
            JitDumpRecord::CodeLoad(record) => dumped.push(Dumped {
                time: raw.timestamp,
                name: String::from_utf8_lossy(&record.function_name.as_slice()).into_owned(),
                addr: record.code_addr,
                code: record.code_bytes.as_slice().to_vec(),
                tables: tables.take(),
                lines: std::mem::take(&mut lines),
            }),
            other => panic!("record {other:?}"),
        }
    }
    dumped
}
