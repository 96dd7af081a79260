//! Reads single functions from the file of a region. Most of the file is not read, because the file can have large holes.

use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt;

use jitsym::format::arch::Arch;
use jitsym::format::elf::eh_frame_hdr::{HEAD_SIZE, ROW_SIZE};
use jitsym::format::elf::header::{ET_DYN, HEADER_SIZE, SECTION_HEADER, SHF_EXECINSTR, SHT_NOBITS};
use jitsym::format::elf::read::{text_at, Image};
use jitsym::format::elf::SYMBOL_SIZE;

use super::region_debug::Debug;
use crate::open;
use crate::perf_data::{u16_at, u32_at, u64_at};

/// The first bytes of a 64-bit ELF file in the byte order of this machine.
const START: &[u8] = if cfg!(target_endian = "little") { b"\x7fELF\x02\x01" } else { b"\x7fELF\x02\x02" };
const STT_FUNC: u8 = 2;
/// The maximum length of a name that is read.
const NAME_MAX: usize = 1 << 16;
/// The maximum number of unwind tables of a function, and of entries that these tables refer to.
const ENTRIES_MOST: usize = 4096;
const CIES_MOST: usize = 16;
/// Offsets in an FDE: the CIE, the address of the code, and the size of the code.
const FDE_CIE: usize = 4;
const FDE_ADDR: usize = 8;
const FDE_SIZE: usize = 12;

#[derive(Clone, Debug)]
struct Section {
    name: Vec<u8>,
    kind: u32,
    flags: u64,
    addr: u64,
    /// The range of the section in the file.
    at: Range<u64>,
}

/// A function in the symbol table. The function's address is relative to the file's first byte.
#[derive(Clone, Copy, Debug)]
pub struct Function {
    pub addr: u64,
    pub size: u64,
    /// Offset of its name.
    name: u32,
}

impl Function {
    pub fn end(&self) -> u64 {
        self.addr.saturating_add(self.size)
    }
}

/// The first page of a file, which contains the offsets of its parts.
pub struct Header {
    pub machine: u32,
    sections: Vec<Section>,
}

impl Header {
    /// Reads the header. Fails if the library does not write files of this form.
    pub fn read(file: &File) -> io::Result<Header> {
        let refused = |why: &str| io::Error::new(io::ErrorKind::InvalidData, why.to_owned());
        let (len, mut page) = (file.metadata()?.len(), vec![0; HEADER_SIZE]);
        if len < HEADER_SIZE as u64 {
            return Err(refused("is no file of a region: it has no whole header"));
        }
        file.read_exact_at(&mut page, 0)?;
        let parsed = || {
            let is_elf = page.starts_with(START) && u16_at(&page, 16) == ET_DYN;
            let headers = Image::header_range(&page).filter(|_| is_elf)?;
            // The library writes all headers into the first page.
            let range = |start, end| Some(usize::try_from(start).ok()?..usize::try_from(end).ok()?);
            let headers = page.get(range(headers.start, headers.end)?)?.chunks_exact(SECTION_HEADER.into());
            let place = |header: &[u8]| {
                let (start, size) = (u64_at(header, 24), u64_at(header, 32));
                Some(start..start.checked_add(size)?)
            };
            let names = place(headers.clone().nth(u16_at(&page, 62).into())?)?;
            let names = page.get(range(names.start, names.end)?)?;
            let mut sections = Vec::new();
            for header in headers {
                sections.push(Section {
                    name: text_at(names, u32_at(header, 0) as usize, HEADER_SIZE).to_vec(),
                    kind: u32_at(header, 4),
                    flags: u64_at(header, 8),
                    addr: u64_at(header, 16),
                    at: place(header)?,
                });
            }
            sections.iter().any(|section| section.name == b".text").then_some(sections)
        };
        let sections = parsed().ok_or_else(|| refused("is no file of a region"))?;
        Ok(Header { machine: u16_at(&page, 18).into(), sections })
    }

    /// The range of a section. The range is empty if the file has no such section.
    fn place(&self, name: &[u8]) -> Range<u64> {
        let found = self.sections.iter().find(|section| section.name == name && section.kind != SHT_NOBITS);
        found.map_or(0..0, |section| section.at.clone())
    }

    /// The bytes of a section that the file contains.
    fn read_section(&self, file: &File, name: &[u8]) -> io::Result<Vec<u8>> {
        let place = self.place(name);
        let len = (place.end - place.start).min(file.metadata()?.len().saturating_sub(place.start));
        open::read_at(file, place.start, len)
    }
}

/// The parts of a file that describe functions.
pub struct RegionFile {
    file: File,
    pub header: Header,
    names: Vec<u8>,
    /// Ascending by address.
    functions: Vec<Function>,
    eh_frame: Vec<u8>,
    eh_frame_at: u64,
    /// The addresses of functions with unwind tables, and the offsets of the tables in `eh_frame`, in ascending order.
    rows: Vec<(u64, usize)>,
    debug: Debug,
    arch: Option<&'static Arch>,
}

impl RegionFile {
    pub fn read(file: File) -> io::Result<RegionFile> {
        let header = Header::read(&file)?;
        let read = |name: &str| header.read_section(&file, name.as_bytes());
        let (names, symbols) = (read(".strtab")?, read(".symtab")?);
        let mut functions = Vec::new();
        for symbol in symbols.chunks_exact(SYMBOL_SIZE) {
            let function = Function { name: u32_at(symbol, 0), addr: u64_at(symbol, 8), size: u64_at(symbol, 16) };
            let is_possible = function.size > 0 && function.addr.checked_add(function.size).is_some();
            if symbol[4] & 15 == STT_FUNC && u16_at(symbol, 6) != 0 && is_possible {
                functions.push(function);
            }
        }
        functions.sort_by_key(|function| function.addr);
        let (eh_frame, hdr) = (read(".eh_frame")?, read(".eh_frame_hdr")?);
        let (eh_frame_at, hdr_at) = (header.place(b".eh_frame").start, header.place(b".eh_frame_hdr").start);
        let mut rows = Vec::new();
        // The search table has only functions: entries outside of it are for code that does not exist yet.
        for row in hdr.get(HEAD_SIZE..).unwrap_or_default().chunks_exact(ROW_SIZE) {
            let at = |place: usize| hdr_at.wrapping_add_signed(i64::from(u32_at(row, place) as i32));
            if let Ok(fde) = usize::try_from(at(4).wrapping_sub(eh_frame_at)) {
                rows.push((at(0), fde));
            }
        }
        rows.sort_unstable();
        let [info, abbrev, line] = [read(".debug_info")?, read(".debug_abbrev")?, read(".debug_line")?];
        let debug = Debug::new([info, abbrev, line, read(".debug_ranges")?, read(".debug_aranges")?]);
        let arch = Arch::ALL.iter().find(|arch| arch.abi().elf_machine == header.machine);
        Ok(RegionFile { file, header, names, functions, eh_frame, eh_frame_at, rows, debug, arch })
    }

    /// The size of the memory that this value uses, in bytes.
    pub fn size(&self) -> usize {
        self.names.len() + 24 * (self.functions.len() + self.rows.len()) + self.eh_frame.len() + self.debug.size()
    }

    /// The function at an address, and its number.
    pub fn find(&self, addr: u64) -> Option<(usize, Function)> {
        let number = self.functions.partition_point(|function| function.addr <= addr).checked_sub(1)?;
        let function = *self.functions.get(number)?;
        (addr < function.end()).then_some((number, function))
    }

    pub fn name(&self, function: &Function) -> &[u8] {
        text_at(&self.names, function.name as usize, NAME_MAX)
    }

    /// Records of the function's lines and inlined functions.
    pub fn records(&self, function: &Function) -> Vec<u8> {
        self.debug.records(function.addr, function.size)
    }

    /// The bytes of a function, if the file has them.
    pub fn code(&self, function: &Function) -> Option<Vec<u8>> {
        let has_it = |section: &&Section| {
            let end = section.addr.saturating_add(section.at.end - section.at.start);
            section.flags & SHF_EXECINSTR != 0 && section.addr <= function.addr && function.end() <= end
        };
        let section = self.header.sections.iter().find(has_it)?;
        let at = section.at.start.checked_add(function.addr - section.addr)?;
        // The header page can overlap code.
        let bytes = open::read_at(&self.file, at, function.size).ok().filter(|_| at >= HEADER_SIZE as u64)?;
        // The files of private memory have breakpoints in place of code until the process ends.
        let breakpoints = self.arch.map_or([0; 4], |arch| arch.abi().breakpoints);
        let is_code = |(byte, at): (&u8, u64)| *byte != 0 && *byte != breakpoints[(at % 4) as usize];
        bytes.iter().zip(at..).any(is_code).then_some(bytes)
    }

    /// The unwind tables of a function, for the address right after its code.
    pub fn tables(&self, function: &Function) -> Vec<u8> {
        let mut section = Vec::new();
        let mut cies: Vec<(usize, usize)> = Vec::new();
        let first = self.rows.partition_point(|row| row.0 < function.addr);
        for (count, &(_, at)) in self.rows[first..].iter().take_while(|row| row.0 < function.end()).enumerate() {
            let is_too_much = count > ENTRIES_MOST || cies.len() > CIES_MOST;
            if is_too_much || self.append(at, function, &mut section, &mut cies).is_none() {
                return Vec::new();
            }
        }
        section
    }

    /// A complete entry of the unwind tables.
    fn entry(&self, at: usize) -> Option<&[u8]> {
        let rest = self.eh_frame.get(at..)?;
        let len = u32_at(rest, 0) as usize;
        // All entries have a number after the length.
        rest.get(..len.checked_add(4)?).filter(|_| len > 4)
    }

    /// Appends an entry to the tables of a function. `cies` are the CIEs so far, with their offsets in the file's section and
    /// in the new tables.
    fn append(&self, at: usize, function: &Function, to: &mut Vec<u8>, cies: &mut Vec<(usize, usize)>) -> Option<()> {
        let fde = self.entry(at).filter(|fde| fde.len() >= FDE_SIZE + 4)?;
        let field = self.eh_frame_at.checked_add((at + FDE_ADDR) as u64)?;
        let start = field.checked_add_signed(i64::from(u32_at(fde, FDE_ADDR) as i32))?;
        let size = u64::from(u32_at(fde, FDE_SIZE));
        if size == 0 || start < function.addr || start.checked_add(size)? > function.end() {
            return Some(());
        }
        let cie_at = (at + FDE_CIE).checked_sub(u32_at(fde, FDE_CIE) as usize)?;
        let cie = match cies.iter().find(|(known, _)| *known == cie_at) {
            Some(&(_, place)) => place,
            None => {
                let bytes = self.entry(cie_at).filter(|cie| u32_at(cie, FDE_CIE) == 0)?;
                cies.push((cie_at, to.len()));
                to.extend_from_slice(bytes);
                to.len() - bytes.len()
            }
        };
        let copy = to.len();
        to.extend_from_slice(fde);
        // The distance from the field to the code, which ends before the section.
        let field = function.size.checked_next_multiple_of(8)?.checked_add((copy + FDE_ADDR) as u64)?;
        let distance = i32::try_from((start - function.addr) as i64 - field as i64).ok()?;
        to.get_mut(copy + FDE_CIE..)?
            .first_chunk_mut::<4>()?
            .copy_from_slice(&u32::try_from(copy + FDE_CIE - cie).ok()?.to_ne_bytes());
        to.get_mut(copy + FDE_ADDR..)?.first_chunk_mut::<4>()?.copy_from_slice(&distance.to_ne_bytes());
        Some(())
    }
}
