//! `jitsym dump`: prints a block for each piece of code, and a line for each other record.

use std::io::{self, Write};

use jitsym::format::jitdump::id;
use jitsym::format::jitdump::raw::{End, RawHeader, RawLoad, RawRecord, RawRecords};
use jitsym::format::perf_map::raw_lines;

use super::block::{self, Column, Lines};
use super::{cfi, inlined, machine_name, not_a_dump, region, Disassembler};
use crate::check::Facts;
use crate::kind::Kind;
use crate::tables::Target;
use crate::text::printable;

/// Options: what to print, and where to report the progress.
pub struct Dump<'a> {
    /// If present, instructions are printed too.
    pub disassembler: Option<Disassembler>,
    /// If present, only code whose name contains this text is printed.
    pub name: Option<Vec<u8>>,
    /// Called with the number of bytes done.
    pub progress: &'a mut dyn FnMut(u64),
}

impl Dump<'_> {
    pub(super) fn is_wanted(&self, name: &[u8]) -> bool {
        self.name.as_deref().is_none_or(|part| part.is_empty() || name.windows(part.len()).any(|window| window == part))
    }
}

/// Prints a jitdump, a perf map or the file of a region. Returns the number of printed pieces of code.
pub fn dump(file: &[u8], facts: &Facts, how: &mut Dump, out: &mut dyn Write) -> io::Result<u64> {
    match Kind::of(file, facts) {
        Kind::Jitdump => jitdump(file, how, out),
        Kind::PerfMap => perf_map(file, how, out),
        Kind::Region => region::dump(file, facts, how, out),
    }
}

fn jitdump(file: &[u8], how: &mut Dump, out: &mut dyn Write) -> io::Result<u64> {
    let header = RawHeader::read(file).ok_or_else(not_a_dump)?;
    let clock = if header.arch_timestamp() { "counter" } else { "CLOCK_MONOTONIC" };
    let (machine, name) = (header.machine, machine_name(header.machine));
    writeln!(out, "jitdump of process {}, machine {machine} ({name}), time by {clock}", header.pid)?;
    if header.version != 1 || header.unknown_flags() != 0 || header.swapped {
        let order = if header.swapped { ", of the other byte order" } else { "" };
        writeln!(out, "version {}, flags {:#x}{order}", header.version, header.flags)?;
    }
    let target = Target::new(&header);
    let mut printed = 0;
    // Records that belong to the next LOAD.
    let [mut inlines, mut debug, mut unwinding]: [Option<RawRecord>; 3] = [None; 3];
    let mut records = RawRecords::new(file, &header);
    for record in records.by_ref() {
        (how.progress)(record.offset as u64);
        let replaced = match record.id {
            id::DEBUG_INFO2 => vec![inlines.replace(record)],
            id::DEBUG_INFO => vec![debug.replace(record)],
            id::UNWINDING_INFO => vec![unwinding.replace(record)],
            id::LOAD => {
                let tables = [inlines.take(), debug.take(), unwinding.take()];
                if let Some(load) = record.load() {
                    if how.is_wanted(load.name().unwrap_or_default()) {
                        printed += 1;
                        block(&record, &load, tables, target, machine, how, out)?;
                    }
                    continue;
                }
                vec![tables[0], tables[1], tables[2], Some(record)]
            }
            _ => vec![inlines.take(), debug.take(), unwinding.take(), Some(record)],
        };
        for record in replaced.into_iter().flatten().filter(|_| how.name.is_none()) {
            lone(&record, out)?;
        }
    }
    for record in [inlines, debug, unwinding].into_iter().flatten().filter(|_| how.name.is_none()) {
        lone(&record, out)?;
    }
    let (at, left) = (records.offset(), records.rest().len());
    match records.end() {
        End::Clean => {}
        End::Zeros => writeln!(out, "{at:#x} {left} bytes at the end are zero")?,
        _ => writeln!(out, "{at:#x} {left} bytes at the end are no whole record")?,
    }
    Ok(printed)
}

/// Prints a piece of code with its tables.
fn block<'a>(
    record: &RawRecord,
    load: &RawLoad,
    [inlines, debug, unwinding]: [Option<RawRecord<'a>>; 3],
    target: Target,
    machine: u32,
    how: &mut Dump,
    out: &mut dyn Write,
) -> io::Result<()> {
    let RawLoad { addr, size, index, tid, pid, vma, tail: _ } = load;
    match load.name() {
        Some(name) => write!(out, "{}", printable(name))?,
        None => write!(out, "without a name")?,
    }
    write!(out, ": {addr:#x}+{size:#x} index {index} process {pid} thread {tid}")?;
    if vma != addr {
        write!(out, " vma {vma:#x}")?;
    }
    writeln!(out, ", at {:#x}, time {}", record.offset, record.timestamp)?;
    let (mut lines, mut rows, mut frames) = (Lines::default(), Column::new(), Column::new());
    if let Some(record) = inlines {
        match record.debug_info2() {
            Some(inlines) => frames = inlined::frames(&inlines, *addr),
            None => writeln!(out, "    DEBUG_INFO2, too short: {} bytes", record.size())?,
        }
    }
    if let Some(record) = debug {
        match record.debug_info() {
            Some(debug) => {
                if debug.addr != *addr {
                    writeln!(out, "    lines for {:#x}", debug.addr)?;
                }
                let mut entries = debug.entries();
                for entry in entries.by_ref() {
                    lines.add(entry.addr, entry.file, entry.line.into(), entry.column.into());
                }
                if entries.rest().0 != 0 {
                    writeln!(out, "    {} rows of the line table are missing", entries.rest().0)?;
                }
            }
            None => writeln!(out, "    DEBUG_INFO, too short: {} bytes", record.size())?,
        }
    }
    if let Some(record) = unwinding {
        match record.unwinding_info().map(|unwinding| (unwinding.tables(), unwinding)) {
            Some((Some((eh_frame, hdr)), unwinding)) => {
                let (tables, header, mapped) = (eh_frame.len(), hdr.len(), unwinding.mapped_size);
                writeln!(out, "    .eh_frame {tables} bytes, .eh_frame_hdr {header}, mapped {mapped}")?;
                rows = cfi::rows(eh_frame, *addr, *size, target);
            }
            Some((None, unwinding)) => {
                let (size, hdr_size, mapped) = (unwinding.size, unwinding.hdr_size, unwinding.mapped_size);
                writeln!(out, "    unwind tables of impossible size {size}, header {hdr_size}, mapped {mapped}")?;
            }
            None => writeln!(out, "    UNWINDING_INFO, too short: {} bytes", record.size())?,
        }
    }
    let instructions = match &mut how.disassembler {
        Some(disassembler) => disassembler.column(machine, *addr, load.code().unwrap_or_default())?,
        None => Column::new(),
    };
    block::write(*addr, [lines.finish(), frames, rows, instructions], out)
}

/// Prints a record that belongs to no code.
fn lone(record: &RawRecord, out: &mut dyn Write) -> io::Result<()> {
    write!(out, "{:#x} {} ", record.offset, record.timestamp)?;
    match (record.id, record.code_move()) {
        (id::MOVE, Some(moved)) => {
            let (old, new, size, index) = (moved.old_addr, moved.new_addr, moved.size, moved.index);
            writeln!(out, "MOVE {old:#x} to {new:#x}+{size:#x} index {index}")
        }
        (id::MOVE, None) => writeln!(out, "MOVE, too short: {} bytes", record.size()),
        (id::LOAD, _) => writeln!(out, "LOAD, too short: {} bytes", record.size()),
        (id::DEBUG_INFO2, _) => writeln!(out, "DEBUG_INFO2 of no code, {} bytes", record.size()),
        (id::DEBUG_INFO, _) => writeln!(out, "DEBUG_INFO of no code, {} bytes", record.size()),
        (id::UNWINDING_INFO, _) => writeln!(out, "UNWINDING_INFO of no code, {} bytes", record.size()),
        (id::CLOSE, _) => writeln!(out, "CLOSE"),
        (id, _) => writeln!(out, "record of kind {id}, {} bytes", record.size()),
    }
}

fn perf_map(file: &[u8], how: &mut Dump, out: &mut dyn Write) -> io::Result<u64> {
    let (mut done, mut printed) = (0, 0);
    for line in raw_lines(file) {
        done += line.bytes.len() as u64 + 1;
        (how.progress)(done);
        let torn = if line.ended { "" } else { " (no newline)" };
        match line.fields() {
            Some(fields) if how.is_wanted(fields.name) => {
                printed += 1;
                let end = fields.start.saturating_add(fields.size);
                let (start, size, name) = (fields.start, fields.size, printable(fields.name));
                writeln!(out, "{start:#018x}..{end:#018x} {size:8} {name}{torn}")?;
            }
            None if how.name.is_none() => writeln!(out, "not a line of a map: {}{torn}", printable(line.bytes))?,
            _ => {}
        }
    }
    Ok(printed)
}
