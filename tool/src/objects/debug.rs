//! Makes the sections of a file that have no addresses in memory: symbols, lines, and inlined functions.

use std::borrow::Cow;

use jitsym::format::code_info::Parts;
use jitsym::format::elf::debug::{append, Function, Sections};
use jitsym::format::elf::line_program::Head;
use jitsym::format::elf::{symbol, SYMBOL_SIZE};
use jitsym::format::jitdump::raw::RawRecords;
use jitsym::format::jitdump::{id, put_debug};
use jitsym::format::name;
use jitsym::{Line, Lines};

use super::{inlined, Load};

#[derive(Debug, Default)]
pub(super) struct Debug {
    pub symtab: Vec<u8>,
    pub strtab: Vec<u8>,
    pub info: Vec<u8>,
    pub line: Vec<u8>,
    pub aranges: Vec<u8>,
    pub ranges: Vec<u8>,
}

impl Debug {
    /// Describes all pieces of a file. `origin` is the address of the file's first byte.
    pub fn new<'a>(origin: u64, pieces: impl Iterator<Item = &'a Load<'a>>) -> Debug {
        let mut debug = Debug { symtab: vec![0; SYMBOL_SIZE], strtab: vec![0], ..Debug::default() };
        let (mut head, mut record) = (Head::default(), Vec::new());
        for load in pieces {
            let name = name_of(load);
            let function = Function { name: &name, addr: load.addr.wrapping_sub(origin), size: load.size };
            // If the names of a file exceed 4 GiB, only the first pieces are described.
            let Ok(name_at) = u32::try_from(debug.strtab.len()) else { break };
            debug.symtab.extend_from_slice(&symbol(name_at, function.addr, function.size));
            debug.strtab.extend_from_slice(&name);
            debug.strtab.push(0);
            if load.lines.is_some() || load.inlines.is_some() {
                debug.add_unit(load, &function, &mut head, &mut record);
            }
        }
        debug
    }

    /// Appends a unit with the lines and inlined functions of a piece. Inlined functions that contradict each other are left
    /// out.
    fn add_unit(&mut self, load: &Load<'_>, function: &Function<'_>, head: &mut Head, record: &mut Vec<u8>) {
        let has_lines = put_lines(load, record).is_some();
        let lines = has_lines.then(|| RawRecords::from(record, 0).next()).flatten();
        let debug = load.inlines.and_then(|record| record.debug_info2());
        let own = debug.and_then(|debug| inlined::record(&debug, load.size));
        // The record of code of a region already has this form.
        let of_region = load.inlines.filter(|record| record.id == id::INLINES);
        let inlines = of_region.or_else(|| own.as_deref().and_then(|own| RawRecords::from(own, 0).next()));
        for inlines in [inlines, None] {
            let sections = Sections {
                info: (0, &mut self.info),
                line: (0, &mut self.line),
                aranges: (0, &mut self.aranges),
                ranges: (0, &mut self.ranges),
                head,
            };
            if append(&Parts { inlines, lines, tables: None }, function, 0, sections).is_some() {
                return;
            }
        }
    }
}

/// The name of a piece in a form that readers accept.
pub(crate) fn name_of<'a>(load: &Load<'a>) -> Cow<'a, [u8]> {
    match name::clean(load.name) {
        name if name.is_empty() => name::nameless(load.addr).into_bytes().into(),
        name => name::lengthen(name),
    }
}

/// Writes the line table of a piece to `record`, in the order of addresses and without the mistakes of its producer. Returns
/// `None` if there are no lines.
fn put_lines(load: &Load<'_>, record: &mut Vec<u8>) -> Option<()> {
    let lines = load.lines.as_ref()?;
    let (mut rows, mut bytes) = (Vec::new(), 0);
    // Rows that repeat a long name could need much more memory than the table.
    let bytes_max = BYTES_MORE + BYTES_TIMES * lines.entries().rest().1.len();
    for (offset, entry) in load.rows() {
        if bytes > bytes_max {
            break;
        }
        let offset = u32::try_from(offset).ok()?;
        bytes += entry.file.len() + ROW_SIZE;
        // A line without a file is useless, and is treated as no line.
        let line = if entry.file.is_empty() { 0 } else { entry.line };
        rows.push(Line { offset, line, column: entry.column, file: entry.file });
    }
    rows.sort_by_key(|row| row.offset);
    record.clear();
    // A closing row repeats the name of the last row that has a line.
    let longest = rows.iter().map(|row| row.file.len()).max().unwrap_or(0);
    record.resize(HEAD_SIZE + bytes + ROW_SIZE + longest, 0);
    let len = put_debug(Lines::Rows(&rows), 0, load.size, 0, record).ok()??;
    record.truncate(len);
    (len > 0).then_some(())
}

/// The limits for the memory of a table: `BYTES_MORE` bytes, plus `BYTES_TIMES` times the size of the table.
const BYTES_MORE: usize = 1 << 20;
const BYTES_TIMES: usize = 16;

/// Upper bounds for the sizes of a row without its name, and of a table without its rows.
const ROW_SIZE: usize = 17;
const HEAD_SIZE: usize = 32;
