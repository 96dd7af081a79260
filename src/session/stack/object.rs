//! Finds the program or library that contains an address, its unwind table, and the names of its functions. Signal handlers can
//! call this module. Some functions are not inlined, so that their large frames are not on the stack at the same time.

use std::ffi::CStr;

use super::entry::{Entry, Memory};
use crate::format::elf::loaded::{function_in, Header, Section, Segment, HEADER_SIZE, SECTION_SIZE, SEGMENT_SIZE};
use crate::sys::handler_file::{read_link, File, Lines};
use crate::sys::mapping::page_size;
use crate::sys::{dynamic_symbols, maps, process_memory};

/// The maximum length of the path of an object. In an object with a longer path, no function has a name.
const PATH_ROOM: usize = 512;
/// Further segments of an object are ignored.
const SEGMENTS_MAX: usize = 24;
/// The path of the program itself, even if its file was removed.
const PROGRAM: &CStr = c"/proc/self/exe";

/// A program or library in memory.
pub struct Object {
    memory: Memory,
    /// The address of the ELF header.
    start: u64,
    path: [u8; PATH_ROOM],
}

impl Object {
    /// The object that contains the address.
    pub fn at(memory: Memory, addr: u64) -> Option<Object> {
        let Some(found) = dynamic_symbols::object_without_lock(addr) else { return Object::listed_at(memory, addr) };
        let (start, path_at) = found?;
        let mut path = [0; PATH_ROOM];
        process_memory::read(memory.pid, memory.pointer(path_at)?, &mut path);
        let path = CStr::from_bytes_until_nul(&path).unwrap_or_default();
        Some(Object::new(memory, start, if path.is_empty() { PROGRAM } else { path }.to_bytes()))
    }

    fn new(memory: Memory, start: u64, path: &[u8]) -> Object {
        let mut object = Object { memory, start, path: [0; PATH_ROOM] };
        if let Some(place) = object.path[..PATH_ROOM - 1].get_mut(..path.len()) {
            place.copy_from_slice(path);
        }
        object
    }

    /// Finds the object in the list of mappings.
    #[inline(never)]
    fn listed_at(memory: Memory, addr: u64) -> Option<Object> {
        // The mapping of a file's first byte precedes the other mappings of the file.
        let mut first = (0, 0);
        let mut lines = Lines::<{ 2 * PATH_ROOM }>::of(File::open(c"/proc/thread-self/maps")?);
        while let Some(line) = lines.next_line() {
            let Some(mapping) = maps::parse(line) else { continue };
            if mapping.offset == 0 {
                first = (mapping.inode, mapping.start);
            }
            if mapping.start <= addr && addr < mapping.end {
                let path = line.iter().position(|&byte| byte == b'/').and_then(|at| line.get(at..));
                // SAFETY: the call only looks up a number.
                let own_headers = unsafe { libc::getauxval(libc::AT_PHDR) } as u64;
                let is_program = own_headers.wrapping_sub(first.1) < page_size() as u64;
                let path = if is_program { PROGRAM.to_bytes() } else { path.unwrap_or_default() };
                let is_object = mapping.inode != 0 && mapping.inode == first.0;
                return is_object.then(|| Object::new(memory, first.1, path));
            }
        }
        None
    }

    /// The path of the object's file. The path is empty if it is too long.
    fn path(&self) -> &CStr {
        CStr::from_bytes_until_nul(&self.path).unwrap_or_default()
    }

    /// Calls `body` with the path of the object, for people to read.
    #[inline(never)]
    pub fn with_path(&self, body: impl FnOnce(&[u8])) {
        let mut room = [0; PATH_ROOM];
        let path = self.path();
        let linked = if path == PROGRAM { read_link(path, &mut room) } else { None };
        body(linked.unwrap_or(path.to_bytes()));
    }

    #[inline(never)]
    fn segments(&self) -> Option<Segments> {
        let mut header = [0; HEADER_SIZE];
        process_memory::read(self.memory.pid, self.start, &mut header);
        let header = Header::read(&header)?;
        let mut segments = Segments { table: [0; SEGMENTS_MAX * SEGMENT_SIZE], bias: 0 };
        let len = header.segment_count.min(SEGMENTS_MAX) * SEGMENT_SIZE;
        let at = self.start.checked_add(header.segments_at)?;
        process_memory::read(self.memory.pid, at, segments.table.get_mut(..len)?);
        let first = segments.all().find(|segment| segment.is_loaded)?.addr;
        segments.bias = self.start.wrapping_sub(first - first % page_size() as u64);
        Some(segments)
    }

    /// The unwind entry of an address in the object.
    pub fn entry_of(&self, addr: u64) -> Option<Entry> {
        let segments = self.segments()?;
        let header = segments.all().find(|segment| segment.is_eh_frame_hdr);
        match header {
            Some(header) => Entry::by_search(self.memory, header.addr, addr),
            None => {
                let (section, size) = self.eh_frame_section()?;
                Entry::by_scan(self.memory, (section.wrapping_add(segments.bias), size), addr)
            }
        }
    }

    /// The address and the size of `.eh_frame`, from the object's file. Compilers link no `.eh_frame_hdr` into programs for
    /// which they call the linker with `-static`.
    #[inline(never)]
    fn eh_frame_section(&self) -> Option<(u64, u64)> {
        const NAME: &[u8] = b".eh_frame\0";
        let sections = Sections::of(self)?;
        let names = sections.get(sections.header.names)?;
        let mut name = [0; NAME.len()];
        let is_it = |section: &Section| {
            sections.file.read_at(names.offset.wrapping_add(section.name.into()), &mut name) == Some(NAME)
        };
        let found = sections.all().find(is_it)?;
        Some((found.addr, found.size))
    }

    /// The address without the bias that the loader has chosen, for tools such as addr2line.
    pub fn offset_of(&self, addr: u64) -> u64 {
        addr.wrapping_sub(self.segments().map_or(self.start, |segments| segments.bias))
    }

    /// Finds the function at an address in the object's file, and reads its name into `name`. Returns the length of the name,
    /// which is cut if `name` is too short, and the distance of the address from the function's beginning.
    #[inline(never)]
    pub fn function_at(&self, addr: u64, name: &mut [u8]) -> Option<(usize, u64)> {
        let offset = self.offset_of(addr);
        let sections = Sections::of(self)?;
        // The table of all symbols has more functions, but may be missing.
        let all = sections.all().filter(|section| section.has_all_symbols);
        let exported = sections.all().filter(|section| section.has_exported_symbols);
        let mut tables = all.chain(exported);
        tables.find_map(|symbols| {
            let names = sections.get(symbols.link as usize)?;
            let (name_at, distance) = find_function(&sections.file, &symbols, offset)?;
            let read = sections.file.read_at(names.offset.checked_add(name_at.into())?, name)?;
            let len = read.iter().position(|&byte| byte == 0).unwrap_or(read.len());
            (len > 0).then_some((len, distance))
        })
    }
}

fn find_function(file: &File, symbols: &Section, offset: u64) -> Option<(u32, u64)> {
    /// A multiple of the size of a symbol.
    const AT_ONCE: usize = 24 * 40;
    let mut buffer = [0; AT_ONCE];
    let mut done = 0;
    while done < symbols.size {
        let len = AT_ONCE.min(usize::try_from(symbols.size - done).unwrap_or(AT_ONCE));
        let read = file.read_at(symbols.offset.checked_add(done)?, buffer.get_mut(..len)?)?;
        let found = function_in(read, offset);
        // If the file ends here, the size of the table is wrong.
        if found.is_some() || read.len() < len {
            return found;
        }
        done += len as u64;
    }
    None
}

/// The segments of an object.
struct Segments {
    table: [u8; SEGMENTS_MAX * SEGMENT_SIZE],
    /// The distance of the addresses in memory from those in the file.
    bias: u64,
}

impl Segments {
    /// The segments, with their addresses in memory.
    fn all(&self) -> impl Iterator<Item = Segment> + '_ {
        let segments = (0..SEGMENTS_MAX).map_while(|number| Segment::read(&self.table, number));
        segments.map(|segment| Segment { addr: segment.addr.wrapping_add(self.bias), ..segment })
    }
}

/// The sections of a file.
struct Sections {
    file: File,
    header: Header,
}

impl Sections {
    /// Opens the file of an object. `None` if the path is not absolute, or if the file is not the one that is in memory.
    fn of(object: &Object) -> Option<Sections> {
        let path = object.path();
        let file = path.to_bytes().starts_with(b"/").then(|| File::open(path)).flatten()?;
        let (mut in_file, mut in_memory) = ([0; HEADER_SIZE], [0; HEADER_SIZE]);
        let in_file = file.read_at(0, &mut in_file)?;
        process_memory::read(object.memory.pid, object.start, &mut in_memory);
        (in_file == in_memory).then(|| Header::read(in_file)).flatten().map(|header| Sections { file, header })
    }

    fn get(&self, number: usize) -> Option<Section> {
        let mut bytes = [0; SECTION_SIZE];
        let at = self.header.sections_at.checked_add((number * SECTION_SIZE) as u64)?;
        Section::read(self.file.read_at(at, &mut bytes)?)
    }

    fn all(&self) -> impl Iterator<Item = Section> + '_ {
        (0..self.header.section_count).map_while(|number| self.get(number))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_ways_find_the_same() {
        dynamic_symbols::look_up();
        let memory = Memory { pid: std::process::id() };
        let own = both_ways_find_the_same as *const () as u64;
        let of_the_c_library = dynamic_symbols::function(c"qsort") as u64;
        for (addr, expected) in [(own, "both_ways_find_the_same"), (of_the_c_library, "qsort")] {
            let (found, listed) = (Object::at(memory, addr).unwrap(), Object::listed_at(memory, addr).unwrap());
            assert_eq!(found.start, listed.start);
            for object in [found, listed] {
                let mut name = [0; 512];
                let (len, distance) = object.function_at(addr + 1, &mut name).unwrap();
                assert!(String::from_utf8_lossy(&name[..len]).contains(expected));
                assert_eq!(distance, 1);
                assert!(object.entry_of(addr).is_some());
            }
        }
    }

    #[test]
    fn a_symbol_table_that_ends_too_early() {
        let path = std::env::temp_dir().join(format!("jitsym-symbols-{}", std::process::id()));
        std::fs::write(&path, [0; 1000]).unwrap();
        let file = File::open(&std::ffi::CString::new(path.to_str().unwrap()).unwrap()).unwrap();
        std::fs::remove_file(&path).unwrap();
        let mut header = [0; SECTION_SIZE];
        header[32..40].copy_from_slice(&u64::MAX.to_ne_bytes());
        assert_eq!(find_function(&file, &Section::read(&header).unwrap(), 1), None);
    }

    #[test]
    fn memory_without_a_file_is_no_object() {
        dynamic_symbols::look_up();
        let local = 0;
        let addr = (&raw const local) as u64;
        let memory = Memory { pid: std::process::id() };
        assert!(Object::at(memory, addr).is_none() && Object::listed_at(memory, addr).is_none());
    }
}
