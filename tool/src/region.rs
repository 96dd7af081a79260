//! Reads the file of a region as debuggers and profilers do: as any ELF file with symbols, line tables and unwind tables.

use std::io;

use gimli::read::{BaseAddresses, EhFrame, EndianSlice};
use gimli::{Dwarf, FileEntry, LineProgramHeader, Reader, RunTimeEndian, SectionId, Unit};
use object::read::elf::ElfFile64;
use object::{Architecture, Endianness, Object, ObjectSection, ObjectSymbol, SymbolKind};

use crate::tables::{self, Fde, Row, Target};

/// A function in the symbol table of the file.
#[derive(Clone, Debug)]
pub struct Function<'a> {
    /// The address in the file.
    pub addr: u64,
    /// The size of the code in bytes.
    pub size: u64,
    /// The name in the symbol table.
    pub name: &'a [u8],
}

impl Function<'_> {
    /// The first address after the function.
    pub fn end(&self) -> u64 {
        self.addr.saturating_add(self.size)
    }
}

/// A source line, and the address from which code belongs to it. `None` where a sequence ends.
pub type LineRow = (u64, Option<(String, u64, u64)>);

/// The parts of the file.
pub struct Region<'a> {
    file: ElfFile64<'a, Endianness>,
    /// The properties of the machine that decoding depends on.
    pub target: Target,
    /// `e_machine`
    pub machine: u32,
    /// The functions in the order of their addresses.
    pub functions: Vec<Function<'a>>,
    /// The rows in the order of their addresses.
    pub lines: Vec<LineRow>,
    /// The limit for rows of line tables: a file with more rows than bytes is damaged.
    rows_max: usize,
}

impl<'a> Region<'a> {
    /// Reads a file. Fails if it is not a complete 64-bit ELF file.
    pub fn read(bytes: &'a [u8]) -> io::Result<Self> {
        let file = ElfFile64::<Endianness>::parse(bytes)
            .map_err(|error| problem(format!("is no whole ELF file of 64 bits: {error}")))?;
        let machine = match file.architecture() {
            Architecture::X86_64 => 62,
            Architecture::Aarch64 => 183,
            Architecture::Riscv64 => 243,
            _ => 0,
        };
        let target = Target::of(machine, file.is_little_endian());
        let symbols = file.symbols().filter(|symbol| symbol.kind() == SymbolKind::Text && !symbol.is_undefined());
        let function = |symbol: object::read::elf::ElfSymbol64<'a, '_, Endianness>| {
            Some(Function { addr: symbol.address(), size: symbol.size(), name: symbol.name_bytes().ok()? })
        };
        let mut functions: Vec<Function> = symbols.filter_map(function).collect();
        functions.sort_by_key(|function| function.addr);
        let mut region = Region { file, target, machine, functions, lines: Vec::new(), rows_max: bytes.len() };
        // After an error, the rows read so far are shown.
        let _ = region.read_lines();
        region.lines.sort_by_key(|(addr, line)| (*addr, line.is_some()));
        Ok(region)
    }

    fn section(&self, name: &str) -> Option<(u64, &'a [u8])> {
        let section = self.file.section_by_name(name)?;
        Some((section.address(), section.data().ok()?))
    }

    /// The bytes of a function. If the file does not contain all of them, the result is shorter.
    pub fn code(&self, function: &Function) -> &'a [u8] {
        let Some((at, text)) = self.section(".text") else { return &[] };
        let start = usize::try_from(function.addr.saturating_sub(at)).unwrap_or(usize::MAX);
        let end = start.saturating_add(usize::try_from(function.size).unwrap_or(usize::MAX)).min(text.len());
        text.get(start..end).unwrap_or_default()
    }

    fn endian(&self) -> RunTimeEndian {
        if self.file.is_little_endian() {
            RunTimeEndian::Little
        } else {
            RunTimeEndian::Big
        }
    }

    fn read_lines(&mut self) -> gimli::Result<()> {
        let load = |id: SectionId| {
            let bytes = self.section(id.name()).map_or(&[][..], |(_, bytes)| bytes);
            Ok::<_, gimli::Error>(EndianSlice::new(bytes, self.endian()))
        };
        let dwarf = Dwarf::load(load)?;
        let mut lines = Vec::new();
        let mut units = dwarf.units();
        while let Some(header) = units.next()? {
            let unit = dwarf.unit(header)?;
            let Some(program) = unit.line_program.clone() else { continue };
            let mut rows = program.rows();
            while let Some((header, row)) = rows.next_row()? {
                // In a hostile file, many units can share one line program and each produce all of its rows.
                if lines.len() > self.rows_max {
                    break;
                }
                let line = (!row.end_sequence()).then(|| {
                    let path = row.file(header).and_then(|file| path_of(&dwarf, &unit, header, file));
                    let column = match row.column() {
                        gimli::ColumnType::Column(column) => column.get(),
                        gimli::ColumnType::LeftEdge => 0,
                    };
                    (path.unwrap_or_default(), row.line().map_or(0, std::num::NonZero::get), column)
                });
                lines.push((row.address(), line));
            }
        }
        drop(dwarf);
        self.lines = lines;
        Ok(())
    }

    /// The lines of a function.
    pub fn lines_of(&self, function: &Function) -> &[LineRow] {
        let at = |addr: u64| self.lines.partition_point(|(line, _)| *line < addr);
        self.lines.get(at(function.addr)..at(function.end())).unwrap_or_default()
    }

    /// Passes each row of the unwind tables to `each`. The error describes the part that cannot be decoded.
    pub fn each_row(&self, each: &mut dyn FnMut(&Fde, &Row)) -> Result<(), String> {
        let Some((at, bytes)) = self.section(".eh_frame") else { return Ok(()) };
        let text = self.section(".text").map_or(0, |(at, _)| at);
        let bases = BaseAddresses::default().set_eh_frame(at).set_text(text);
        let bytes = tables::readable(bytes, self.target);
        let mut section = EhFrame::new(&bytes, self.endian());
        self.target.prepare(&mut section);
        tables::each_row(&section, &bases, &mut |fde, row| {
            each(fde, row);
            Ok(())
        })
    }

    /// The name and size of each section.
    pub fn sections(&self) -> impl Iterator<Item = (String, u64)> + use<'a, '_> {
        self.file.sections().filter_map(|section| Some((section.name().ok()?.to_owned(), section.size())))
    }
}

/// The path of a file in a line table.
pub(crate) fn path_of<R: Reader>(
    dwarf: &Dwarf<R>,
    unit: &Unit<R>,
    header: &LineProgramHeader<R>,
    file: &FileEntry<R>,
) -> Option<String> {
    let text = |value| Some(dwarf.attr_string(unit, value).ok()?.to_string_lossy().ok()?.into_owned());
    let name = text(file.path_name())?;
    match file.directory(header).and_then(text).filter(|_| !name.starts_with('/')) {
        Some(dir) if !dir.is_empty() => Some(format!("{dir}/{name}")),
        _ => Some(name),
    }
}

fn problem(text: String) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, text)
}
