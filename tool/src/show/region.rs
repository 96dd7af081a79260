//! Prints the file of a region: its functions with their lines and tables.

use std::collections::HashSet;
use std::io::{self, Write};

use jitsym::format::file_names::{parse, FileKind};

use super::block::{self, Column, Lines};
use super::cfi::row_text;
use super::picture::{self, Block, Look};
use super::stat::{top, Sizes};
use super::{machine_name, Dump};
use crate::check::Facts;
use crate::region::Region;
use crate::text::printable;

/// A line that describes the kind of the file, and the other generations of the region's file.
fn head(region: &Region, facts: &Facts) -> String {
    let machine = machine_name(region.machine);
    let name = facts.path.as_deref().and_then(|path| path.file_name()?.to_str());
    let Some((pid, FileKind::Region { number, epoch, parent, .. })) = name.and_then(parse) else {
        return format!("ELF file, machine {} ({machine})", region.machine);
    };
    let dir = facts.path.as_deref().and_then(|path| path.parent());
    let names = dir.and_then(|dir| std::fs::read_dir(dir).ok()).into_iter().flatten().flatten();
    let is_sibling =
        |(of, kind)| of == pid && matches!(kind, FileKind::Region { number: other, .. } if other == number);
    let count = names.filter(|entry| parse(entry.file_name()).is_some_and(is_sibling)).count();
    let this = if parent > 0 { format!("f{parent}") } else { epoch.to_string() };
    let count = if count > 1 { format!(" of {count}") } else { String::new() };
    format!("region {number} of process {pid}, generation {this}{count}, machine {} ({machine})", region.machine)
}

/// Prints each function. Addresses are offsets in the file.
pub(super) fn dump(file: &[u8], facts: &Facts, how: &mut Dump, out: &mut dyn Write) -> io::Result<u64> {
    let region = Region::read(file)?;
    writeln!(out, "{}; addresses are those in the file", head(&region, facts))?;
    let mut rows = Column::new();
    let decoded = region.each_row(&mut |_, row| rows.push((row.start_address(), row_text(row, region.target))));
    rows.sort_by_key(|(addr, _)| *addr);
    let mut printed = 0;
    for (number, function) in region.functions.iter().enumerate() {
        (how.progress)((file.len() * number / region.functions.len()) as u64);
        if !how.is_wanted(function.name) {
            continue;
        }
        printed += 1;
        writeln!(out, "{}: {:#x}+{:#x}", printable(function.name), function.addr, function.size)?;
        let mut lines = Lines::default();
        for (addr, line) in region.lines_of(function) {
            if let Some((file, line, column)) = line {
                lines.add(*addr, file.as_bytes(), *line, *column);
            }
        }
        let at = |addr: u64| rows.partition_point(|(row, _)| *row < addr);
        let own = rows.get(at(function.addr)..at(function.end())).unwrap_or_default().to_vec();
        let instructions = match &mut how.disassembler {
            Some(disassembler) => disassembler.column(region.machine, function.addr, region.code(function))?,
            None => Column::new(),
        };
        block::write(function.addr, [lines.finish(), own, instructions], out)?;
    }
    if let Err(problem) = decoded {
        writeln!(out, "the unwind tables cannot be decoded: {problem}")?;
    }
    Ok(printed)
}

/// Prints counts and sizes, and a picture of the addresses of the code.
pub(super) fn stat(file: &[u8], facts: &Facts, look: Look, most: usize, out: &mut dyn Write) -> io::Result<()> {
    let region = Region::read(file)?;
    writeln!(out, "{}, {} bytes", head(&region, facts), file.len())?;
    for (name, size) in region.sections().filter(|(name, size)| !name.is_empty() && *size > 0) {
        writeln!(out, "  {:20} {size:12} bytes", printable(name.as_bytes()).to_string())?;
    }
    let names: HashSet<&[u8]> = region.functions.iter().map(|function| function.name).collect();
    let mut rows = 0u64;
    let decoded = region.each_row(&mut |_, _| rows += 1);
    let sizes = Sizes(region.functions.iter().map(|function| function.size).collect());
    writeln!(out, "code       {}", sizes.text())?;
    writeln!(out, "names      {} different", names.len())?;
    let lines = region.lines.iter().filter(|(_, line)| line.is_some()).count();
    writeln!(out, "lines      {lines} rows")?;
    match decoded {
        Ok(()) => writeln!(out, "unwinding  {rows} rows")?,
        Err(problem) => writeln!(out, "unwinding  {rows} rows, and then: {problem}")?,
    }
    top(region.functions.iter().map(|function| (function.name, function.size)), most, out)?;
    let blocks = region.functions.iter().map(|function| Block { time: 0, start: function.addr, end: function.end() });
    picture::write(blocks.collect(), None, look, out)
}
