//! `jitsym dump`: one line a record, and one more for each row of its tables.

use std::io::{self, Write};

use jitsym::format::jitdump::id;
use jitsym::format::jitdump::raw::{End, RawHeader, RawLoad, RawRecord, RawRecords};
use jitsym::format::perf_map::raw_lines;

use super::cfi::write_rows;
use super::{machine_name, not_a_dump, Disassembler};
use crate::check::{Facts, Kind};
use crate::tables::Target;
use crate::text::printable;

/// What to print, and who is told how far it is.
pub struct Dump<'a> {
    /// Prints the instructions too.
    pub disassembler: Option<Disassembler>,
    /// Only code whose name contains this.
    pub name: Option<Vec<u8>>,
    /// Told how many bytes are done.
    pub progress: &'a mut dyn FnMut(u64),
}

/// Prints a jitdump or a perf map.
pub fn dump(file: &[u8], facts: &Facts, how: &mut Dump, out: &mut dyn Write) -> io::Result<()> {
    match Kind::of(file, facts) {
        Kind::Jitdump => jitdump(file, how, out),
        Kind::PerfMap => perf_map(file, how, out),
    }
}

fn is_wanted(how: &Dump, name: &[u8]) -> bool {
    how.name.as_deref().is_none_or(|part| part.is_empty() || name.windows(part.len()).any(|window| window == part))
}

fn jitdump(file: &[u8], how: &mut Dump, out: &mut dyn Write) -> io::Result<()> {
    let header = RawHeader::read(file).ok_or_else(not_a_dump)?;
    let clock = if header.arch_timestamp() { "counter" } else { "CLOCK_MONOTONIC" };
    let (machine, name) = (header.machine, machine_name(header.machine));
    writeln!(out, "jitdump of process {}, machine {machine} ({name}), time by {clock}", header.pid)?;
    if header.version != 1 || header.unknown_flags() != 0 || header.swapped {
        let order = if header.swapped { ", of the other byte order" } else { "" };
        writeln!(out, "version {}, flags {:#x}{order}", header.version, header.flags)?;
    }
    let target = Target::new(&header);
    let mut records = RawRecords::new(file, &header);
    while let Some(record) = records.next() {
        (how.progress)(record.offset as u64);
        // What stands before a LOAD is printed if that is.
        let load = following_load(&record, &records);
        let name = load.and_then(|load| load.name()).unwrap_or_default();
        if is_wanted(how, name) {
            write!(out, "{:#x} {} ", record.offset, record.timestamp)?;
            write_record(&record, load.as_ref(), target, out)?;
            if let (id::LOAD, Some(load), Some(disassembler)) = (record.id, &load, &mut how.disassembler) {
                disassembler.write(machine, load.addr, load.code().unwrap_or_default(), out)?;
            }
        }
    }
    let (at, left) = (records.offset(), records.rest().len());
    match records.end() {
        End::Clean => Ok(()),
        End::Zeros => writeln!(out, "{at:#x} {left} bytes at the end are zero"),
        _ => writeln!(out, "{at:#x} {left} bytes at the end are no whole record"),
    }
}

/// The LOAD that a record is, or is for.
fn following_load<'a>(record: &RawRecord<'a>, behind: &RawRecords<'a>) -> Option<RawLoad<'a>> {
    let is_prelude = |record: &RawRecord| matches!(record.id, id::DEBUG_INFO | id::UNWINDING_INFO);
    let mut record = *record;
    let mut behind = behind.clone();
    // One of each kind.
    for _ in 0..2 {
        if is_prelude(&record) {
            record = behind.next()?;
        }
    }
    record.load().filter(|_| record.id == id::LOAD)
}

fn write_record(record: &RawRecord, load: Option<&RawLoad>, target: Target, out: &mut dyn Write) -> io::Result<()> {
    let too_short = |out: &mut dyn Write, what: &str| writeln!(out, "{what}, too short: {} bytes", record.size());
    match record.id {
        id::LOAD => {
            let Some(load) = record.load() else { return too_short(out, "LOAD") };
            let RawLoad { addr, size, index, tid, pid, vma, tail: _ } = load;
            write!(out, "LOAD {addr:#x}+{size:#x} index {index} process {pid} thread {tid}")?;
            if vma != addr {
                write!(out, " vma {vma:#x}")?;
            }
            match load.name() {
                Some(name) => writeln!(out, " {}", printable(name)),
                None => writeln!(out, " without a name"),
            }
        }
        id::MOVE => {
            let Some(moved) = record.code_move() else { return too_short(out, "MOVE") };
            let (old, new, size, index) = (moved.old_addr, moved.new_addr, moved.size, moved.index);
            writeln!(out, "MOVE {old:#x} to {new:#x}+{size:#x} index {index}")
        }
        id::DEBUG_INFO => {
            let Some(debug) = record.debug_info() else { return too_short(out, "DEBUG_INFO") };
            writeln!(out, "DEBUG_INFO {:#x}, {} rows", debug.addr, debug.count)?;
            let mut entries = debug.entries();
            for entry in entries.by_ref() {
                let (offset, file) = (entry.addr.wrapping_sub(debug.addr) as i64, printable(entry.file));
                let (sign, offset) = (if offset < 0 { '-' } else { '+' }, offset.unsigned_abs());
                writeln!(out, "    {:#x} {sign}{offset:#x} {file}:{}:{}", entry.addr, entry.line, entry.column)?;
            }
            match entries.rest().0 {
                0 => Ok(()),
                missing => writeln!(out, "    {missing} rows are missing"),
            }
        }
        id::UNWINDING_INFO => {
            let Some(unwinding) = record.unwinding_info() else { return too_short(out, "UNWINDING_INFO") };
            let mapped = unwinding.mapped_size;
            match unwinding.tables() {
                Some((eh_frame, hdr)) => {
                    let (tables, header) = (eh_frame.len(), hdr.len());
                    writeln!(out, "UNWINDING_INFO .eh_frame {tables} .eh_frame_hdr {header} mapped {mapped}")?;
                    load.map_or(Ok(()), |load| write_rows(eh_frame, load.size, target, out))
                }
                None => {
                    let (size, hdr_size) = (unwinding.size, unwinding.hdr_size);
                    writeln!(out, "UNWINDING_INFO of impossible size {size}, header {hdr_size}, mapped {mapped}")
                }
            }
        }
        id::CLOSE => writeln!(out, "CLOSE"),
        id => writeln!(out, "record of kind {id}, {} bytes", record.size()),
    }
}

fn perf_map(file: &[u8], how: &mut Dump, out: &mut dyn Write) -> io::Result<()> {
    let mut done = 0;
    for line in raw_lines(file) {
        done += line.bytes.len() as u64 + 1;
        (how.progress)(done);
        let torn = if line.ended { "" } else { " (no newline)" };
        match line.fields() {
            Some(fields) if is_wanted(how, fields.name) => {
                let end = fields.start.saturating_add(fields.size);
                let (start, size, name) = (fields.start, fields.size, printable(fields.name));
                writeln!(out, "{start:#018x}..{end:#018x} {size:8} {name}{torn}")?;
            }
            None if how.name.is_none() => writeln!(out, "not a line of a map: {}{torn}", printable(line.bytes))?,
            _ => {}
        }
    }
    Ok(())
}
