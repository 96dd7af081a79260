//! Reads the jitdumps and region files of a process, and follows them while they grow.

use std::collections::{HashMap, HashSet};
use std::fs::File;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};

use jitsym::format::file_names::{parse, FileKind};
use jitsym::format::jitdump::id;
use jitsym::format::jitdump::raw::{RawHeader, RawRecords, RawUnwinding};
use jitsym_step::{Mapping, Tid};

use super::code::{Book, Piece};
use super::pattern::Patterns;
use crate::check::frames::{code_of, Rows};
use crate::open::read_sparse;
use crate::region::Region;
use crate::tables::{readable, TableReader, Target};
use crate::text::printable;

/// A jitdump that is read as it grows.
struct Dump {
    file: File,
    path: String,
    bytes: Vec<u8>,
    /// The offset of the next record.
    at: usize,
    /// The pid in the header.
    pid: Option<u32>,
    /// The tables for the next LOAD.
    unwinding: Option<(usize, usize)>,
    /// Pieces by code index.
    indices: HashMap<u64, usize>,
}

/// The files that one process has mapped.
#[derive(Default)]
pub struct Sources {
    dumps: HashMap<(u64, u64), Dump>,
    /// The size and time of each region's file when the file was read.
    regions: HashMap<PathBuf, (u64, u64, i64, i64)>,
    /// The time at which the process was forked. Later records in its copy of the parent's jitdump do not belong to the
    /// child.
    pub forked_at: Option<u64>,
}

/// Opens the file of a mapping at its path here, below the root of the process, or through its mapping.
fn open(pid: Tid, mapping: &Mapping) -> Option<File> {
    let Mapping { range, path, .. } = mapping;
    let text = path.to_str()?;
    let is_it = |file: &File| file.metadata().is_ok_and(|data| data.ino() == mapping.inode);
    let through_root = || crate::open::named(Path::new(&format!("/proc/{pid}/root{text}"))).ok().filter(is_it);
    let through_map =
        || crate::open::named(Path::new(&format!("/proc/{pid}/map_files/{:x}-{:x}", range.start, range.end))).ok();
    crate::open::named(path).ok().filter(is_it).or_else(through_root).or_else(through_map)
}

fn file_name(path: &Path) -> &str {
    let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
    name.trim_end_matches(" (deleted)")
}

/// Whether a mapping is the marker of a jitdump.
fn is_dump(mapping: &Mapping) -> bool {
    matches!(parse(file_name(&mapping.path)), Some((_, FileKind::Jitdump { .. })))
}

/// Whether a mapping is code in the file of a region.
pub fn is_region(mapping: &Mapping) -> bool {
    matches!(parse(file_name(&mapping.path)), Some((_, FileKind::Region { .. })))
}

impl Sources {
    /// Finds new files among the mappings of a process.
    pub fn discover(&mut self, pid: Tid, maps: &[Mapping], book: &mut Book, wanted: &Patterns) -> Vec<usize> {
        for mapping in maps.iter().filter(|mapping| is_dump(mapping)) {
            let Some(file) = open(pid, mapping) else { continue };
            let Ok(data) = file.metadata() else { continue };
            let path = mapping.path.display().to_string();
            self.dumps.entry((data.dev(), data.ino())).or_insert_with(|| Dump {
                file,
                path,
                bytes: Vec::new(),
                at: 0,
                pid: None,
                unwinding: None,
                indices: HashMap::new(),
            });
        }
        self.regions(pid, maps, book, wanted)
    }

    pub fn has_regions(&self) -> bool {
        !self.regions.is_empty()
    }

    /// Reads the files of regions that have changed.
    pub fn regions(&mut self, pid: Tid, maps: &[Mapping], book: &mut Book, wanted: &Patterns) -> Vec<usize> {
        let mut added = Vec::new();
        for mapping in maps.iter().filter(|mapping| is_region(mapping) && mapping.executable) {
            added.extend(self.region(pid, mapping, book, wanted));
        }
        added
    }

    /// Reads new records of the jitdumps. Returns the new pieces of code.
    pub fn read(&mut self, pid: Tid, book: &mut Book, wanted: &Patterns) -> Vec<usize> {
        let mut added = Vec::new();
        for dump in self.dumps.values_mut() {
            // A file without readable metadata counts as unchanged.
            let len = dump.file.metadata().map_or(0, |data| data.len() as usize);
            if len <= dump.bytes.len() {
                continue;
            }
            let before = dump.bytes.len();
            dump.bytes.resize(len, 0);
            if dump.file.read_exact_at(&mut dump.bytes[before..], before as u64).is_err() {
                dump.bytes.truncate(before);
                continue;
            }
            let is_inherited = |dump: &Dump| dump.pid.is_some_and(|of| of != pid as u32);
            let until = self.forked_at.filter(|_| is_inherited(dump)).unwrap_or(u64::MAX);
            dump.parse(until, book, wanted, &mut added);
        }
        added
    }

    /// Whether the process has no jitdump and no region file.
    pub fn is_empty(&self) -> bool {
        self.dumps.is_empty() && self.regions.is_empty()
    }

    fn region(&mut self, pid: Tid, mapping: &Mapping, book: &mut Book, wanted: &Patterns) -> Vec<usize> {
        let mut added = Vec::new();
        let Some(file) = open(pid, mapping) else { return added };
        let Ok(data) = file.metadata() else { return added };
        let state = (data.ino(), data.len(), data.mtime(), data.mtime_nsec());
        if self.regions.insert(mapping.path.clone(), state) == Some(state) {
            return added;
        }
        let Ok(bytes) = read_sparse(&file, data.len()) else { return added };
        let Ok(region) = Region::read(&bytes) else { return added };
        // Addresses in the file are file offsets.
        let base = mapping.range.start.wrapping_sub(mapping.offset);
        for function in &region.functions {
            let addr = base.wrapping_add(function.addr);
            let name = printable(function.name).to_string();
            let is_known = |&index: &usize| book.pieces[index].name == name && book.pieces[index].size == function.size;
            if book.at(addr).filter(|index| book.pieces[*index].addr == addr).is_some_and(|index| is_known(&index)) {
                continue;
            }
            let mut rows = Rows::new(function.size);
            let decoded = region.each_row(&mut |fde, row| rows.push(function.addr, fde, row));
            // The bytes of adopted memory are written later than its names and tables. Until then the bytes are 0, or
            // breakpoints (int3).
            let is_written = |code: &&[u8]| code.iter().any(|&byte| !matches!(byte, 0 | 0xcc));
            let code = Some(region.code(function)).filter(is_written).unwrap_or_default();
            let wanted = wanted.has(&name);
            added.push(book.add(Piece {
                name,
                addr,
                size: function.size,
                bytes: code.to_vec(),
                rows: rows.complete(),
                problem: decoded.err(),
                time: 0,
                file: mapping.path.display().to_string(),
                shift: 0,
                calls: 0,
                wanted,
            }));
        }
        added
    }
}

impl Dump {
    fn parse(&mut self, until: u64, book: &mut Book, wanted: &Patterns, added: &mut Vec<usize>) {
        let bytes = std::mem::take(&mut self.bytes);
        if let Some(header) = RawHeader::read(&bytes) {
            self.pid = Some(header.pid);
            self.at = self.at.max(header.records_at(bytes.len()));
            self.records(&bytes, &header, until, book, wanted, added);
        }
        self.bytes = bytes;
    }

    fn records(
        &mut self,
        bytes: &[u8],
        header: &RawHeader,
        until: u64,
        book: &mut Book,
        wanted: &Patterns,
        added: &mut Vec<usize>,
    ) {
        let target = Target::new(header);
        let mut records = RawRecords::at(bytes, self.at, header);
        for record in records.by_ref() {
            let time = if header.arch_timestamp() { 0 } else { record.timestamp };
            match record.id {
                _ if time > until => {}
                id::UNWINDING_INFO => self.unwinding = Some((record.offset, record.size())),
                id::MOVE => {
                    let moved = record.code_move();
                    let piece = moved.as_ref().and_then(|moved| Some((self.indices.get(&moved.index)?, moved)));
                    if let Some((&index, moved)) = piece {
                        let new = book.moved(index, moved.new_addr, time);
                        self.indices.insert(moved.index, new);
                        added.push(new);
                    }
                }
                id::LOAD => {
                    let unwinding = self.unwinding.take();
                    let unwinding = unwinding.and_then(|(at, _)| RawRecords::at(bytes, at, header).next());
                    let unwinding = unwinding.and_then(|record| record.unwinding_info());
                    let Some(load) = record.load() else { continue };
                    let (rows, problem) = match unwinding.map(|unwinding| rows(&unwinding, load.size, target)) {
                        Some(Ok(rows)) => (rows, None),
                        Some(Err(problem)) => (None, Some(problem)),
                        None => (None, None),
                    };
                    let name = printable(load.name().unwrap_or_default()).to_string();
                    let is_wanted = wanted.has(&name);
                    let index = book.add(Piece {
                        name,
                        addr: load.addr,
                        size: load.size,
                        bytes: code_of(&load).unwrap_or_default().to_vec(),
                        rows,
                        problem,
                        time,
                        file: self.path.clone(),
                        shift: 0,
                        calls: 0,
                        wanted: is_wanted,
                    });
                    self.indices.insert(load.index, index);
                    added.push(index);
                }
                _ => {}
            }
        }
        self.at = records.offset();
    }
}

/// The rows of the tables of one piece of code.
fn rows(unwinding: &RawUnwinding, size: u64, target: Target) -> Result<Option<Rows>, String> {
    let (eh_frame, _) = unwinding.tables().ok_or("the sizes of the tables are not those of the record")?;
    if size > i32::MAX as u64 {
        return Err("the code is too large for tables".into());
    }
    let bytes = readable(eh_frame, target);
    let mut rows = Rows::new(size);
    TableReader::new(target, &bytes, size).each_row(&mut |fde, row| {
        rows.push(crate::tables::CODE, fde, row);
        Ok(())
    })?;
    Ok(rows.complete())
}

/// The addresses of a symbol in the ELF files of a process that were not searched before.
pub fn symbol(pid: Tid, maps: &[Mapping], name: &str, seen: &mut HashSet<(String, u64)>) -> Vec<u64> {
    use object::{Object, ObjectSymbol, ReadCache};
    let mut found = Vec::new();
    let first = |mapping: &&Mapping| mapping.offset == 0 && mapping.inode != 0 && !is_region(mapping);
    for mapping in maps.iter().filter(first) {
        if !seen.insert((mapping.device.clone(), mapping.inode)) {
            continue;
        }
        let Some(file) = open(pid, mapping) else { continue };
        if !file.metadata().is_ok_and(|data| data.is_file()) {
            continue;
        }
        let cache = ReadCache::new(file);
        let Ok(elf) = object::File::parse(&cache) else { continue };
        let base = elf.relative_address_base();
        let is_fixed = elf.kind() == object::ObjectKind::Executable;
        let start = if is_fixed { 0 } else { mapping.range.start.wrapping_sub(base) };
        let symbol = elf.dynamic_symbols().chain(elf.symbols());
        let symbol = { symbol }.find(|symbol| symbol.name() == Ok(name) && symbol.is_definition());
        found.extend(symbol.map(|symbol| start.wrapping_add(symbol.address())));
    }
    found
}

/// Whether a mapping belongs to an ordinary program or library, whose code is not registered. Runtimes write code only to
/// shared files.
pub fn is_native(mapping: &Mapping) -> bool {
    let path = mapping.path.as_os_str().as_encoded_bytes();
    let is_file = path.starts_with(b"/") && !path.starts_with(b"/memfd:") && !path.starts_with(b"/dev/zero");
    path == b"[vdso]" || path == b"[vsyscall]" || is_file && !mapping.shared && !is_region(mapping)
}
