//! Lists the mappings of this process, as the kernel reports them, and finds free address space between the mappings.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Read};
use std::os::fd::AsRawFd;

use super::attributes::Attributes;
use super::code_memory::heap_end;
use super::mapping::{done, page_size};

/// The minimum size of the buffer for the text of the list. A buffer of this size never comes from the reserve
/// (`sys::reserve`), which is kept for other purposes.
const ROOM: usize = 128 << 10;

/// A line of `/proc/self/maps` (linux Documentation/filesystems/proc.rst).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mapping {
    pub start: u64,
    pub end: u64,
    /// `PROT_*` bits.
    pub protection: i32,
    pub shared: bool,
    /// Where the mapping begins in its file, in bytes.
    pub offset: u64,
    /// The inode number of the mapped file; 0 for memory without a file.
    pub inode: u64,
    /// Whether the kernel has given the mapping a name in brackets: heap, stack, vdso and the like.
    pub special: bool,
    /// The attributes that the host has given to the memory. Only `look_up_attributes` sets this field.
    pub attributes: Attributes,
}

impl Mapping {
    /// Whether this is private memory without a file, and not a heap or stack.
    pub fn is_plain(&self) -> bool {
        !self.shared && self.inode == 0 && !self.special
    }

    /// The number of bytes of the mapping in the range `[start, end)`. The mapping must overlap this range.
    pub fn len_within(&self, start: u64, end: u64) -> u64 {
        self.end.min(end) - self.start.max(start)
    }

    pub fn is_executable(&self) -> bool {
        self.protection & libc::PROT_EXEC != 0
    }
}

/// All mappings of the process, in order of address.
pub fn all() -> io::Result<Vec<Mapping>> {
    let mut text = Vec::new();
    text.try_reserve(ROOM)?;
    open()?.read_to_end(&mut text)?;
    collect(text.split(|&byte| byte == b'\n').filter_map(parse))
}

/// The mappings that overlap `[start, end)`. From Linux 6.11 on, this function asks the kernel for one mapping at a time, so
/// the time of a call does not depend on the number of other mappings.
pub fn within(start: u64, end: u64) -> io::Result<Vec<Mapping>> {
    let file = open()?;
    let mut found = Vec::new();
    let mut at = start;
    while at < end {
        match query(&file, at) {
            Ok(Some(mapping)) if mapping.start < end => {
                at = mapping.end;
                found.try_reserve(1)?;
                found.push(mapping);
            }
            Ok(_) => break,
            Err(_) => return collect(overlapping(&all()?, start, end).iter().copied()),
        }
    }
    Ok(found)
}

/// Looks up the attributes of mappings. The mappings must be in order of their addresses, and each mapping must lie in a single
/// VMA of the kernel.
///
/// The kernel has no quick way to report attributes. The kernel visits the page tables of all memory at lower addresses than
/// the mappings. The call takes 50 microseconds in a small process, plus 12 microseconds for each other mapping, plus 20
/// milliseconds for each GiB of small pages in use. So code that often replaces memory should not call this function.
pub fn look_up_attributes(mappings: &mut [Mapping]) -> io::Result<()> {
    let Some(last) = mappings.last().map(|last| last.end) else { return Ok(()) };
    mappings.iter_mut().for_each(|mapping| mapping.attributes.add_policy(mapping.start));
    let mut lines = BufReader::new(match File::open("/proc/thread-self/smaps") {
        // The kernel may have been built without `smaps`.
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        file => file?,
    });
    let (mut line, mut range) = (Vec::new(), 0..0);
    loop {
        line.clear();
        if lines.read_until(b'\n', &mut line)? == 0 {
            return Ok(());
        }
        // Only the first line about a mapping has the form of a line of `/proc/self/maps`.
        range = parse(&line).map_or(range, |mapping| mapping.start..mapping.end);
        if range.start >= last {
            return Ok(());
        }
        let inside = mappings.iter_mut().filter(|mapping| range.contains(&mapping.start));
        inside.for_each(|mapping| mapping.attributes.add(&String::from_utf8_lossy(&line)));
    }
}

fn open() -> io::Result<File> {
    // `/proc/self/maps` is empty once the process's first thread has ended.
    File::open("/proc/thread-self/maps")
}

/// `struct procmap_query` (linux include/uapi/linux/fs.h).
#[repr(C)]
#[derive(Default)]
struct Query {
    size: u64,
    flags: u64,
    addr: u64,
    start: u64,
    end: u64,
    vma_flags: u64,
    page_size: u64,
    offset: u64,
    inode: u64,
    device: [u32; 2],
    name_size: u32,
    build_id_size: u32,
    name: u64,
    build_id: u64,
}

/// `PROCMAP_QUERY`: `_IOWR('f', 17, struct procmap_query)`.
const PROCMAP_QUERY: libc::c_ulong = 3 << 30 | (size_of::<Query>() as libc::c_ulong) << 16 | 0x66 << 8 | 17;
const COVERING_OR_NEXT: u64 = 0x10;

/// The mapping that contains an address, or the next mapping above the address. `file` must come from `open`.
fn query(file: &File, addr: u64) -> io::Result<Option<Mapping>> {
    // The kernel is asked for the name only if the memory has no file. Names that the host has given have at most 80 bytes
    // (`ANON_VMA_NAME_MAX_LEN`), and names that the kernel has given are short.
    let mut name = [0_u8; 256];
    let mut ask = |with_name: bool| {
        let mut query = Query { size: size_of::<Query>() as u64, flags: COVERING_OR_NEXT, addr, ..Query::default() };
        if with_name {
            (query.name, query.name_size) = (name.as_mut_ptr() as u64, name.len() as u32);
        }
        // SAFETY: the descriptor is open. The kernel writes only to `query` and to `name`, whose sizes are in `query`.
        done(unsafe { libc::ioctl(file.as_raw_fd(), PROCMAP_QUERY as _, &raw mut query) }).map(|()| query)
    };
    let query = match ask(false) {
        Ok(query) if query.inode == 0 => ask(true)?,
        Err(error) if error.raw_os_error() == Some(libc::ENOENT) => return Ok(None),
        result => result?,
    };
    let bit = |of: u64, bit| if query.vma_flags & of != 0 { bit } else { 0 };
    Ok(Some(Mapping {
        start: query.start,
        end: query.end,
        protection: bit(1, libc::PROT_READ) | bit(2, libc::PROT_WRITE) | bit(4, libc::PROT_EXEC),
        shared: query.vma_flags & 8 != 0,
        offset: query.offset,
        inode: query.inode,
        special: query.inode == 0 && is_special(&name),
        attributes: Attributes::default(),
    }))
}

/// Whether the kernel has given this name to a mapping. Names that begin with "[anon" were given by the host (Linux 5.17).
fn is_special(name: &[u8]) -> bool {
    name.starts_with(b"[") && !name.starts_with(b"[anon")
}

/// Collects mappings into a list. A process may have tens of thousands of mappings. So this function returns an error if memory
/// for the list is lacking.
pub fn collect(mappings: impl Iterator<Item = Mapping>) -> io::Result<Vec<Mapping>> {
    let mut found = Vec::new();
    for mapping in mappings {
        found.try_reserve(1)?;
        found.push(mapping);
    }
    Ok(found)
}

/// The mappings of a sorted list that overlap `[start, end)`.
pub fn overlapping(maps: &[Mapping], start: u64, end: u64) -> &[Mapping] {
    let first = maps.partition_point(|mapping| mapping.end <= start);
    let behind = maps.partition_point(|mapping| mapping.start < end);
    &maps[first..behind.max(first)]
}

/// Reads a line of the list. A signal handler may call this function.
pub fn parse(line: &[u8]) -> Option<Mapping> {
    let mut fields = line.split(|&byte| byte == b' ').filter(|field| !field.is_empty());
    let range = std::str::from_utf8(fields.next()?).ok()?;
    let (start, end) = range.split_once('-')?;
    let flags = fields.next()?;
    let number = |field: &[u8], radix| u64::from_str_radix(std::str::from_utf8(field).ok()?, radix).ok();
    let offset = number(fields.next()?, 16)?;
    let inode = number(fields.nth(1)?, 10)?;
    let name = fields.next().unwrap_or_default();
    let bit = |at: usize, letter, bit| if flags.get(at) == Some(&letter) { bit } else { 0 };
    Some(Mapping {
        start: number(start.as_bytes(), 16)?,
        end: number(end.as_bytes(), 16)?,
        protection: bit(0, b'r', libc::PROT_READ) | bit(1, b'w', libc::PROT_WRITE) | bit(2, b'x', libc::PROT_EXEC),
        shared: flags.get(3) == Some(&b's'),
        offset,
        inode,
        special: is_special(name),
        attributes: Attributes::default(),
    })
}

/// Finds `len` free bytes in `[low, high)`, as near to `near` as possible. Returns the address of the free bytes, which is a
/// multiple of `align`. Address space into which the heap or a stack grows does not count as free.
pub fn gap(maps: &[Mapping], low: u64, high: u64, len: u64, align: u64, near: u64) -> Option<u64> {
    gap_beside(heap_end(), maps, low, high, len, align, near)
}

/// Like `gap`, for a heap that ends at the address `heap`.
fn gap_beside(heap: u64, maps: &[Mapping], low: u64, high: u64, len: u64, align: u64, near: u64) -> Option<u64> {
    /// The minimum distance between the result and a stack above it. The kernel keeps at least this distance too (linux
    /// arch/x86/mm/mmap.c, `MIN_GAP`). The heap is treated like a stack, because the kernel marks the heap and the stacks in
    /// the same way. So the same distance is kept below the heap, where it is not needed but does no harm.
    const BELOW_STACK: u64 = 128 << 20;
    /// The preferred distance between the heap and a result above it. If only the free range above the heap has room, and this
    /// range is too short for the distance, the result is as far from the heap as possible.
    const ABOVE_HEAP: u64 = 2 << 30;
    let heap = heap.next_multiple_of(page_size() as u64);
    let is_stack = |mapping: &Mapping| mapping.special && mapping.protection & libc::PROT_WRITE != 0;
    let ends = std::iter::once(low).chain(maps.iter().map(|mapping| mapping.end));
    let starts = maps
        .iter()
        .map(|mapping| if is_stack(mapping) { mapping.start.saturating_sub(BELOW_STACK) } else { mapping.start })
        .chain(std::iter::once(high));
    let fit = |(begin, end): (u64, u64)| {
        let first = begin.max(low).checked_next_multiple_of(align)?;
        let last = end.min(high).checked_sub(len)? / align * align;
        let least = if begin <= heap && heap < end { heap + ABOVE_HEAP } else { 0 };
        (first <= last).then(|| ((near.max(least) / align * align).clamp(first, last), least))
    };
    let found = ends.zip(starts).filter_map(fit).min_by_key(|&(place, least)| (place < least, place.abs_diff(near)));
    found.map(|(place, _)| place)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_the_kernel() {
        let parsed = parse(b"7f00-8f00 r-xp 00001000 fd:00 4711                       /usr/lib/a b.so").unwrap();
        let protection = libc::PROT_READ | libc::PROT_EXEC;
        let expected = Mapping {
            start: 0x7f00,
            end: 0x8f00,
            protection,
            shared: false,
            offset: 4096,
            inode: 4711,
            special: false,
            attributes: Attributes::default(),
        };
        assert_eq!(parsed, expected);
        assert!(parse(b"7f00-8f00 rw-p 00000000 00:00 0 ").unwrap().is_plain());
        assert!(parse(b"7f00-8f00 rw-p 00000000 00:00 0    [anon: code]").unwrap().is_plain());
        assert!(!parse(b"7f00-8f00 rw-p 00000000 00:00 0    [heap]").unwrap().is_plain());
        assert!(!parse(b"7f00-8f00 rw-s 00000000 00:00 0 ").unwrap().is_plain());
        assert_eq!(parse(b""), None);
    }

    #[test]
    fn this_function_is_in_a_file() {
        let here = this_function_is_in_a_file as *const () as u64;
        let found = within(here, here + 1).unwrap();
        assert!(found.len() == 1 && found[0].is_executable() && found[0].inode != 0, "{found:?}");
    }

    #[test]
    fn both_ways_find_the_same() {
        let all = all().unwrap();
        let code = both_ways_find_the_same as *const () as u64;
        // Other tests map memory at the same time, but do not change these two mappings. The second mapping is the vdso.
        let code = all.iter().find(|mapping| mapping.start <= code && code < mapping.end).unwrap();
        let special = all.iter().find(|mapping| mapping.special && mapping.is_executable()).unwrap();
        for found in [code, special] {
            assert_eq!(within(found.start, found.end).unwrap(), [*found]);
            assert_eq!(within(found.start - 1, found.start + 1).unwrap().last(), Some(found));
        }
        assert_eq!(within(0, 1).unwrap(), []);
        if let Ok(file) = open() {
            // This line shows whether the kernel supports `query`. If the kernel does not support `query`, the assertions above
            // have tested only the code that reads the whole list.
            println!("{:?}", query(&file, 0).map(|found| found.is_some()));
        }
    }

    #[test]
    fn gaps_near_an_address() {
        let maps = [mapping(0x1_0000, 0x2_0000), mapping(0x3_0000, 0x4_0000)];
        let find = |len, align, near| gap_beside(u64::MAX >> 1, &maps, 0x8000, 0x10_0000, len, align, near);
        assert_eq!(find(0x1000, 0x1000, 0x2_5000), Some(0x2_5000));
        assert_eq!(find(0x1000, 0x1000, 0x3_1000), Some(0x2_f000));
        assert_eq!(find(0x1_0000, 0x1000, 0x3_f000), Some(0x4_0000));
        assert_eq!(find(0x1_0000, 0x1000, 0x3_8000), Some(0x4_0000));
        assert_eq!(find(0x1000, 0x1_0000, 0x2_5000), Some(0x2_0000));
        assert_eq!(find(0x10_0000, 0x1000, 0), None);
    }

    /// An ordinary mapping, without a name such as `[stack]`.
    fn mapping(start: u64, end: u64) -> Mapping {
        parse(format!("{start:x}-{end:x} ---p 00000000 00:00 0 ").as_bytes()).unwrap()
    }

    #[test]
    fn the_heap_and_the_stack_can_grow() {
        const GIB: u64 = 1 << 30;
        let stack = Mapping { special: true, protection: libc::PROT_WRITE, ..mapping(20 * GIB, 21 * GIB) };
        let maps = [mapping(GIB, 2 * GIB), mapping(10 * GIB, 11 * GIB), stack];
        let find = |heap, low, near| gap_beside(heap, &maps, low, 22 * GIB, 0x1000, 0x1000, near);
        // In the first three assertions, the free address that is nearest to `near` is not far enough above the heap.
        assert_eq!(find(2 * GIB, 0x1000, 2 * GIB), Some(GIB - 0x1000));
        assert_eq!(find(3 * GIB - 1, 0x1000, 2 * GIB), Some(GIB - 0x1000));
        assert_eq!(find(2 * GIB, 3 * GIB, 2 * GIB), Some(4 * GIB));
        assert_eq!(find(2 * GIB, 2 * GIB, 7 * GIB), Some(7 * GIB));
        // The only free range is directly above the heap, and is shorter than `ABOVE_HEAP`.
        assert_eq!(gap_beside(2 * GIB, &maps, 2 * GIB, 3 * GIB, 0x1000, 0x1000, 0), Some(3 * GIB - 0x1000));
        assert_eq!(find(2 * GIB, 2 * GIB, 20 * GIB - 1), Some(20 * GIB - (128 << 20) - 0x1000));
    }
}
