//! The file of a region, as `object`, `gimli` and the programs of binutils and LLVM read it.

use std::collections::BTreeMap;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use gimli::{BaseAddresses, EhFrame, EhFrameHdr, EndianSlice, NativeEndian, UnwindSection};
use object::{Object, ObjectSection, ObjectSegment, ObjectSymbol, SymbolKind};

use super::recorded::tool;
use crate::script;
use crate::truth::Truth;

/// The file, and where its address 0 is in the process.
pub struct File {
    pub path: PathBuf,
    pub base: u64,
    /// Its mappings are private, so that it has no bytes of code as long as the process lives.
    is_private: bool,
    pub bytes: Vec<u8>,
}

pub struct Symbol {
    pub name: String,
    pub addr: u64,
    pub size: u64,
}

/// The files of regions that are mapped in a process, executable.
pub fn files_of(pid: u32) -> Vec<File> {
    let maps = std::fs::read_to_string(format!("/proc/{pid}/maps")).expect("mappings of the program");
    let mut files: BTreeMap<&str, File> = BTreeMap::new();
    for line in maps.lines() {
        let fields: Vec<&str> = line.split_whitespace().collect();
        let [range, protection, offset, _, _, path] = fields[..] else { continue };
        if script::is_region(path) && protection.contains('x') {
            let hex = |digits: &str| u64::from_str_radix(digits, 16).expect("hexadecimal number");
            let (start, offset) = (hex(range.split('-').next().unwrap_or_default()), hex(offset));
            let file = files.entry(path).or_insert_with(|| File::read(Path::new(path)));
            // The header page is not in the segment.
            let Some(base) = file.base_of(start, offset) else { continue };
            assert!(file.base == 0 || file.base == base, "the distances in memory are those in the file:\n{maps}");
            (file.base, file.is_private) = (base, protection.contains('p'));
        }
    }
    files.into_values().collect()
}

impl File {
    pub fn read(path: &Path) -> Self {
        let bytes = std::fs::read(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        File { path: path.into(), base: 0, is_private: false, bytes }
    }

    /// Where address 0 is if a part of the file is mapped there.
    fn base_of(&self, start: u64, offset: u64) -> Option<u64> {
        let object = self.object();
        let segment = object.segments().find(|segment| {
            let (from, size) = segment.file_range();
            (from..from + size).contains(&offset)
        })?;
        Some(start - (segment.address() + (offset - segment.file_range().0)))
    }

    fn object(&self) -> object::File<'_> {
        object::File::parse(&*self.bytes).unwrap_or_else(|error| panic!("{}: {error}", self.path.display()))
    }

    /// Where it is, and what. Addresses are offsets; but the section header of the search table says another one, so that builds of
    /// perf with libunwind count from where the mapping begins. Where the header lies over code, its page is a second `.text`, before the
    /// first one.
    fn section(&self, name: &str) -> (u64, EndianSlice<'_, NativeEndian>) {
        let object = self.object();
        let parts = object.sections().filter(|section| section.name() == Ok(name));
        let ranges = parts.map(|part| part.file_range().expect("section in the file"));
        let range = ranges.map(|(from, size)| from..from + size).reduce(|one, other| {
            assert!(one.start == other.end || one.end == other.start, "{}: a gap in {name}", self.path.display());
            one.start.min(other.start)..one.end.max(other.end)
        });
        let range = range.unwrap_or_else(|| panic!("{} has no {name}", self.path.display()));
        (range.start, EndianSlice::new(&self.bytes[range.start as usize..range.end as usize], NativeEndian))
    }

    pub fn symbols(&self) -> Vec<Symbol> {
        let object = self.object();
        let text = object.symbols().filter(|symbol| symbol.kind() == SymbolKind::Text);
        let symbol = text.map(|symbol| Symbol {
            name: symbol.name().expect("name of a symbol").into(),
            addr: symbol.address(),
            size: symbol.size(),
        });
        symbol.collect()
    }

    /// What the programs of others find fault with.
    pub fn check_tables(&self) {
        tool(Command::new("readelf").args(["-W", "-a", "--debug-dump=frames,decodedline,info"]).arg(&self.path));
        tool(Command::new("objdump").args(["-t", "-h"]).arg(&self.path));
        tool(Command::new("llvm-dwarfdump").arg("--verify").arg(&self.path));
        tool(Command::new("llvm-readobj").args(["--unwind", "--symbols"]).arg(&self.path));
    }

    /// Each piece of code that lives in this region has its name, its bytes (or zeros) and its entry in the search table; and no symbol is
    /// there twice. Returns how many there are.
    pub fn check(&self, truth: &Truth, pid: u32) -> usize {
        self.check_tables();
        let mut by_addr: BTreeMap<u64, Vec<Symbol>> = BTreeMap::new();
        for symbol in self.symbols() {
            by_addr.entry(symbol.addr).or_default().push(symbol);
        }
        let (text, code) = self.section(".text");
        let (hdr_at, hdr) = self.section(".eh_frame_hdr");
        let (eh_frame_at, eh_frame) = self.section(".eh_frame");
        let bases = BaseAddresses::default().set_eh_frame_hdr(hdr_at).set_eh_frame(eh_frame_at).set_text(text);
        let hdr = EhFrameHdr::from(hdr).parse(&bases, 8).expect("header of the search table");
        let table = hdr.table().expect("search table");
        let eh_frame = EhFrame::from(eh_frame);
        let memory = std::fs::File::open(format!("/proc/{pid}/mem")).expect("memory of the program");
        let mut found = 0;
        for living in truth.codes.iter().filter(|code| code.to == u64::MAX) {
            let Some(at) =
                living.addr.checked_sub(self.base).filter(|at| (text..text + code.len() as u64).contains(at))
            else {
                continue;
            };
            found += 1;
            let symbols = by_addr.get(&at).map(Vec::as_slice).unwrap_or_default();
            let is_it = |symbol: &&Symbol| symbol.size == living.size && living.is_named(&symbol.name);
            assert_eq!(symbols.iter().filter(is_it).count(), 1, "symbols of {living:?} at {at:x}");
            assert_eq!(symbols.len(), 1, "symbols at {at:x}, where {living:?} is");

            let mut bytes = vec![0; living.size as usize];
            memory.read_exact_at(&mut bytes, living.addr).expect("read the code");
            let from = (at - text) as usize;
            if self.is_private {
                // int3, so that the kernel refuses probes.
                bytes.fill(0xcc);
            }
            let is_under_header = at < 4096;
            assert!(
                is_under_header || code.slice()[from..][..bytes.len()] == bytes,
                "the bytes of {living:?} are others in the file"
            );

            let fde = table.fde_for_address(&eh_frame, &bases, at, EhFrame::cie_from_offset);
            let fde = fde.unwrap_or_else(|error| panic!("no entry for {living:?}: {error}"));
            assert_eq!((fde.initial_address(), fde.len()), (at, living.size), "entry of {living:?}");
        }
        found
    }
}
