//! The call chains that perf finds by unwinding, as addresses, and the symbols in them.
//!
//! `perf script` prints each frame with its file. perf 6.1 prints the offset in the file, and newer versions print the
//! address in memory. So the addresses are computed with the mappings of the process.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::ops::Range;
use std::path::Path;

use jitsym::format::file_names::FileKind;

use super::names::Names;
use super::sample::ADDRESS_MAX;
use super::space::{Change, Spaces};
use crate::record::contents::with_output;
use crate::record::perf::Perf;
use crate::record::script::{self, Kind, Sample};

/// The fields that perf is asked to print.
const FIELDS: &str = "pid,tid,time,ip,sym,symoff,dso";

/// Process, thread and time of a sample.
pub type Key = (u32, u32, u64);

/// A frame as perf prints it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Frame {
    address: u64,
    object: u32,
    /// The symbol, and the offset of the frame from its start.
    symbol: Option<(u32, u64)>,
    is_kernel: bool,
}

/// The output of `perf script`.
#[derive(Debug, Default)]
pub struct Printed {
    pub names: Names,
    frames: Vec<Frame>,
    ids: HashMap<Frame, u32>,
    /// The frames of all samples.
    all: Vec<u32>,
    samples: Vec<(Key, Range<usize>)>,
}

impl Printed {
    pub fn read(perf: &Perf, arguments: &[std::ffi::OsString]) -> Result<Printed, String> {
        let mut command = perf.command("script");
        command.args(arguments).args(["--no-inline", "--ns", "-F", FIELDS]);
        let mut printed = Printed::default();
        with_output(perf, &mut command, |output| script::samples(output, &mut |sample| printed.add(sample)))?;
        printed.ids = HashMap::new();
        Ok(printed)
    }

    fn add(&mut self, sample: &Sample) {
        let from = self.all.len();
        for printed in &sample.frames {
            // `NAME+0xOFFSET`
            let symbol = printed.symbol.as_deref().and_then(|text| {
                let (name, offset) = text.rsplit_once("+0x")?;
                Some((self.names.id(name), u64::from_str_radix(offset, 16).ok()?))
            });
            let frame = Frame {
                address: printed.address,
                object: self.names.id(&printed.object),
                symbol,
                is_kernel: printed.kind() == Kind::Kernel || printed.address >= 1 << 63,
            };
            let id = *self.ids.entry(frame).or_insert_with(|| {
                self.frames.push(frame);
                self.frames.len() as u32 - 1
            });
            self.all.push(id);
        }
        self.samples.push(((sample.pid, sample.tid, sample.time), from..self.all.len()));
    }

    fn frames(&self, range: &Range<usize>) -> impl Iterator<Item = &Frame> {
        let ids = self.all.get(range.clone()).unwrap_or_default();
        ids.iter().filter_map(|&id| self.frames.get(id as usize))
    }
}

/// Symbols of a file. Each has its first address, the address after the last address that is used, and the name.
pub type Symbols = BTreeMap<u64, (u64, u32)>;

/// The addresses and symbols that were found.
#[derive(Debug, Default)]
pub struct Chains {
    addresses: Vec<u64>,
    /// The chains in user mode. Several samples can have the same time.
    samples: HashMap<Key, VecDeque<Range<usize>>>,
    /// The symbols of each file, by offset in the file.
    pub symbols: HashMap<u32, Symbols>,
    /// The kernel's symbols by address: name and module.
    pub kernel: BTreeMap<u64, (u32, u32)>,
    /// The number in the name of the perf map that perf has used for the memory of a process.
    pub maps: HashMap<u32, u32>,
}

/// The error that perf has printed offsets in files.
struct Places;

impl Chains {
    /// Finds the addresses. `changes` are ascending by time.
    pub fn new(printed: &Printed, changes: &[(u64, Change)]) -> Chains {
        let are_addresses = Chains::resolve(printed, changes, true);
        are_addresses.or_else(|Places| Chains::resolve(printed, changes, false)).unwrap_or_default()
    }

    fn resolve(printed: &Printed, changes: &[(u64, Change)], are_addresses: bool) -> Result<Chains, Places> {
        let (mut chains, mut spaces, mut changes) = (Chains::default(), Spaces::default(), changes.iter().peekable());
        for (key, range) in &printed.samples {
            let &(pid, _, time) = key;
            while let Some((_, change)) = changes.next_if(|(at, _)| *at <= time) {
                spaces.apply(change);
            }
            let from = chains.addresses.len();
            let mut is_kernel = true;
            for frame in printed.frames(range) {
                is_kernel &= frame.is_kernel;
                if is_kernel {
                    if let Some((name, offset)) = frame.symbol {
                        chains.kernel.insert(frame.address.wrapping_sub(offset), (name, frame.object));
                    }
                    continue;
                }
                let (address, place) = find(&spaces, pid, frame, are_addresses)?;
                // Higher addresses are marks in a chain. libunwind returns such an address where it has lost the stack.
                chains.addresses.push(address.min(ADDRESS_MAX));
                let maker = spaces.at(pid, address).map_or(pid, |area| area.maker);
                chains.add_symbol(printed, maker, frame, place.unwrap_or(address), place.is_some());
            }
            chains.samples.entry(*key).or_default().push_back(from..chains.addresses.len());
        }
        Ok(chains)
    }

    /// Notes the symbol of a frame, whose offset in its file is `place`. `maker` is the process that has made the mapping.
    fn add_symbol(&mut self, printed: &Printed, maker: u32, frame: &Frame, place: u64, is_file: bool) {
        let Some((name, offset)) = frame.symbol else { return };
        if !is_file {
            let Some(number) = perf_map(printed.names.name(frame.object)) else { return };
            self.maps.insert(maker, number);
        }
        let symbols = self.symbols.entry(frame.object).or_default();
        let (end, _) = symbols.entry(place.wrapping_sub(offset)).or_insert((0, name));
        *end = (*end).max(place.saturating_add(1));
    }

    /// The addresses of the next sample of this key.
    pub fn next(&mut self, key: Key) -> &[u64] {
        let range = self.samples.get_mut(&key).and_then(VecDeque::pop_front);
        range.and_then(|range| self.addresses.get(range)).unwrap_or_default()
    }
}

/// The address of a frame, and its offset in its file. Memory without a file has no offsets.
fn find(spaces: &Spaces, pid: u32, frame: &Frame, are_addresses: bool) -> Result<(u64, Option<u64>), Places> {
    let number = frame.address;
    let address_of_place = || spaces.address(pid, frame.object, number);
    if are_addresses {
        match spaces.at(pid, number).filter(|area| area.name == frame.object) {
            Some(area) => Ok((number, Some(number.wrapping_sub(area.origin)))),
            None if address_of_place().is_some() => Err(Places),
            None => Ok((number, None)),
        }
    } else {
        Ok(address_of_place().map_or((number, None), |address| (address, Some(number))))
    }
}

/// The number in the name of a perf map. perf uses this name for the memory that the map describes.
pub fn perf_map(object: &str) -> Option<u32> {
    match script::of_path(object) {
        Some((number, FileKind::PerfMap)) if Path::new(object).is_absolute() => Some(number),
        _ => object.strip_prefix("[JIT] tid ")?.parse().ok(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn printed(text: &str) -> Printed {
        let mut printed = Printed::default();
        script::samples(text.as_bytes(), &mut |sample| printed.add(sample)).unwrap();
        printed
    }

    /// Both forms of the output have the same result.
    #[test]
    fn places_and_addresses() {
        let kernel = "\tffffffff81000010 entry+0x10 ([kernel.kallsyms])\n";
        let lost = "\tffffffffffffffff [unknown] ([unknown])\n";
        let map = "\t 7f00 f+0x1 (/tmp/perf-7.map)\n";
        let head = "7/8 1.000000005: \n";
        // A child has the memory of its parent, with the parent's map.
        let child = format!("9/9 1.000000006: \n{map}\n");
        let of = |place: &str| format!("{head}{kernel}\t {place} a+b+0x4 (/vm)\n{map}{lost}\n{head}{kernel}\n{child}");
        let mut found = Vec::new();
        for text in [of("2014"), of("402014")] {
            let mut printed = printed(&text);
            let (vm, memory) = (printed.names.id("/vm"), printed.names.id("//anon"));
            let map = |range, origin, name| (0, Change::Map { pid: 7, range, origin, name });
            let fork = (0, Change::Begin { pid: 9, parent: Some(7) });
            let changes = [map(0x40_0000..0x41_0000, 0x40_0000, vm), map(0x7000..0x8000, 0, memory), fork];
            let mut chains = Chains::new(&printed, &changes);
            let key = (7, 8, 1_000_000_005);
            assert_eq!(chains.next(key), [0x40_2014, 0x7f00, ADDRESS_MAX]);
            assert!(chains.next(key).is_empty() && chains.next(key).is_empty());
            let name = |id: &u32| printed.names.name(*id).to_owned();
            let symbols = |object: &str| {
                let id = printed.frames.iter().map(|frame| frame.object).find(|id| name(id) == object);
                let symbols = chains.symbols[&id.unwrap()].iter();
                symbols.map(|(start, (end, id))| (*start..*end, name(id))).collect::<Vec<_>>()
            };
            let kernel: Vec<_> = chains.kernel.iter().map(|(at, (id, object))| (*at, name(id), name(object))).collect();
            found.push((symbols("/vm"), symbols("/tmp/perf-7.map"), kernel, chains.maps.clone()));
        }
        let entry = (0xffff_ffff_8100_0000, "entry".to_owned(), "[kernel.kallsyms]".to_owned());
        let (vm, map) = (vec![(0x2010..0x2015, "a+b".to_owned())], vec![(0x7eff..0x7f01, "f".to_owned())]);
        let expected = (vm, map, vec![entry], HashMap::from([(7, 7)]));
        assert_eq!(found, [expected.clone(), expected]);
    }

    #[test]
    fn names_of_perf_maps() {
        assert_eq!((perf_map("/tmp/perf-12.map"), perf_map("[JIT] tid 13")), (Some(12), Some(13)));
        assert_eq!((perf_map("perf-12.map"), perf_map("/vm"), perf_map("[JIT] x")), (None, None, None));
    }
}
