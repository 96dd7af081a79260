//! Finds the code in the files of regions. The memory of this code is a mapping of such a file. A process has a function from
//! the time at which the process maps the function's part of the file.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::hash::{BuildHasher, RandomState};
use std::ops::Range;
use std::path::PathBuf;
use std::rc::Rc;

use jitsym::format::code_info::Info;

use super::dumps::{Finder, Problem};
use super::family::Own;
use super::hits::Filter;
use super::mappings::{is_of_fork, Mappings};
use super::region_file::RegionFile;
use super::resolve::{Change, Mapped};
use super::survey::Identity;
use crate::objects::{name_of, Load};
use crate::spans::Spans;

/// The maximum size of the file contents that are kept, in bytes. Other files are read again when they are needed.
const CACHE_MAX: usize = 256 << 20;

/// A file of a region. Several paths can lead to it.
struct Known {
    path: PathBuf,
    pid: u32,
    identity: Identity,
}

/// The files of regions that the recording refers to.
pub struct Regions<'a> {
    pub mappings: &'a Mappings,
    /// The mappings of each process.
    pub own: Own,
    files: Vec<Known>,
    /// The file for the process and the path of a mapping.
    by_path: HashMap<(u32, usize), usize>,
    /// The reason why the files of other mappings cannot be used. This is a problem only if a sample has an address there.
    unusable: HashMap<(u32, usize), String>,
    pub problems: Vec<Problem>,
    cache: HashMap<usize, Option<Rc<RegionFile>>>,
    cached: usize,
}

impl<'a> Regions<'a> {
    /// Finds the files.
    pub fn find(finder: &Finder<'_>, mappings: &'a Mappings) -> Regions<'a> {
        let (cache, cached) = (HashMap::new(), 0);
        let (files, by_path, unusable, problems) = (Vec::new(), HashMap::new(), HashMap::new(), Vec::new());
        let mut regions = Regions { mappings, own: mappings.own(), files, by_path, unusable, problems, cache, cached };
        let mut by_identity: HashMap<Identity, usize> = HashMap::new();
        let named: BTreeSet<_> = mappings.all.iter().filter_map(|mapping| Some((mapping.pid, mapping.path?))).collect();
        for (pid, path) in named {
            let Some(name) = mappings.paths.get(path) else { continue };
            match finder.region(pid, name) {
                Ok((path_here, identity)) => {
                    let file = *by_identity.entry(identity).or_insert_with(|| {
                        regions.files.push(Known { path: path_here, pid, identity });
                        regions.files.len() - 1
                    });
                    regions.by_path.insert((pid, path), file);
                }
                Err(why) => drop(regions.unusable.insert((pid, path), why)),
            }
        }
        regions
    }

    /// The number of files that can be used.
    pub fn good(&self) -> usize {
        self.files.len()
    }

    /// The addresses at which code can be.
    pub fn ranges(&self) -> impl Iterator<Item = Range<u64>> + use<'_> {
        self.mappings.all.iter().filter(|mapping| mapping.path.is_some()).map(|mapping| mapping.range.clone())
    }

    /// The processes with regions.
    pub fn pids(&self) -> impl Iterator<Item = u32> + use<'_, 'a> {
        self.by_path.keys().chain(self.unusable.keys()).map(|&(pid, _)| pid)
    }

    /// The paths of the mappings of a process that are replaced by objects.
    pub fn replaced(&self, pid: u32) -> impl Iterator<Item = (u32, &'a str)> + use<'_, 'a> {
        let own = self.by_path.keys().chain(self.unusable.keys().filter(|&&(_, path)| self.is_inherited(path)));
        let own = own.filter(move |&&(one, _)| one == pid);
        own.filter_map(move |&(_, path)| Some((pid, self.mappings.paths.get(path)?.as_str())))
    }

    /// The file of a mapping.
    fn file_of(&self, mapping: usize) -> Option<usize> {
        let mapping = self.mappings.all.get(mapping)?;
        self.by_path.get(&(mapping.pid, mapping.path?)).copied()
    }

    /// Whether the files of a parent have the same code as the removed file with this path.
    fn is_inherited(&self, path: usize) -> bool {
        self.mappings.paths.get(path).is_some_and(|path| is_of_fork(path))
    }

    /// Notes that a sample has code of a file that cannot be used.
    fn miss(&mut self, mapping: usize) {
        let of = self.mappings.all.get(mapping).and_then(|mapping| Some((mapping.pid, mapping.path?)));
        let Some((pid, path)) = of else { return };
        if let (Some(why), Some(name)) = (self.unusable.remove(&(pid, path)), self.mappings.paths.get(path)) {
            self.problems.push(Problem { pid, path: name.clone(), why });
        }
    }

    fn read(&mut self, finder: &Finder<'_>, file: usize) -> Option<Rc<RegionFile>> {
        if let Some(read) = self.cache.get(&file) {
            return read.clone();
        }
        let known = self.files.get(file)?;
        let read = finder.reopen(known.pid, &known.path, known.identity).and_then(RegionFile::read);
        if let Err(error) = &read {
            let (pid, path, why) = (known.pid, known.path.display().to_string(), error.to_string());
            self.problems.push(Problem { pid, path, why });
        }
        let read = read.ok().map(Rc::new);
        let size = read.as_ref().map_or(0, |read| read.size());
        if self.cached.saturating_add(size) > CACHE_MAX {
            self.cache.retain(|_, read| read.is_none());
            self.cached = 0;
        }
        self.cached += size;
        self.cache.insert(file, read.clone());
        read
    }
}

/// A function with samples, as its file describes it.
pub struct Piece {
    /// The numbers of the file and of the function in it.
    pub function: (usize, usize),
    time: u64,
    addr: u64,
    size: u64,
    name: Vec<u8>,
    tables: Vec<u8>,
    /// Lines and inlined functions.
    records: Vec<u8>,
    code: Option<Vec<u8>>,
}

impl Piece {
    pub fn load(&self) -> Load<'_> {
        let parts = Info::new(&self.records).parts();
        Load {
            pid: 0,
            tid: 0,
            time: self.time,
            addr: self.addr,
            size: self.size,
            name: &self.name,
            code: self.code.as_deref(),
            lines: parts.lines.and_then(|record| record.debug_info()),
            bias: 0,
            eh_frame: &self.tables,
            inlines: parts.inlines,
        }
    }

    /// Whether the other piece is the same function in another file.
    fn is_same(&self, other: &Piece) -> bool {
        let of = |piece: &Piece| (piece.addr, piece.size);
        of(self) == of(other) && self.name == other.name && self.tables == other.tables && self.records == other.records
    }
}

/// The memory of one process, while its samples are read.
pub struct Tracker<'t, 'a> {
    regions: &'t mut Regions<'a>,
    finder: &'t Finder<'t>,
    /// The addresses of the code in jitdumps.
    filter: &'t Filter,
    /// The code in jitdumps. The indices of the pieces follow the indices of this code.
    loads: &'t [Load<'t>],
    /// The index of the mapping of each part of the memory.
    memory: Spans<usize>,
    pieces: Vec<Piece>,
    /// The pieces by the number of the file, the number of the function, and the origin of the file.
    seen: HashMap<(usize, usize, u64), usize>,
    /// The pieces by a hash.
    same: HashMap<u64, Vec<usize>>,
    state: RandomState,
    /// The machine of the code, or 0.
    machine: u32,
}

impl<'t, 'a> Tracker<'t, 'a> {
    pub fn new(
        regions: &'t mut Regions<'a>,
        finder: &'t Finder<'t>,
        filter: &'t Filter,
        loads: &'t [Load<'t>],
    ) -> Self {
        let (memory, pieces, seen, same) = (Spans::default(), Vec::new(), HashMap::new(), HashMap::new());
        Tracker { regions, finder, filter, loads, memory, pieces, seen, same, state: RandomState::new(), machine: 0 }
    }

    /// All functions that were found, and the machine of their code.
    pub fn finish(self) -> (Vec<Piece>, u32) {
        (self.pieces, self.machine)
    }

    /// The time of the mapping at an address, and the piece there.
    fn piece_at(&mut self, addr: u64) -> Option<(u64, usize)> {
        let mapping = self.memory.at(addr)?;
        let Some(number) = self.regions.file_of(mapping) else {
            self.regions.miss(mapping);
            return None;
        };
        let (origin, time) = self.regions.mappings.all.get(mapping).map(|mapping| (mapping.origin, mapping.time))?;
        let file = self.regions.read(self.finder, number)?;
        let (index, function) = file.find(addr.wrapping_sub(origin))?;
        let place = (number, index, origin);
        if let Some(&piece) = self.seen.get(&place) {
            return Some((time, piece));
        }
        let (addr, size) = (function.addr.wrapping_add(origin), function.size);
        addr.checked_add(size)?;
        if self.machine == 0 {
            self.machine = file.header.machine;
        }
        let (name, tables, records) = (file.name(&function).to_vec(), file.tables(&function), file.records(&function));
        let mut piece = Piece { function: (number, index), time, addr, size, name, tables, records, code: None };
        let hash = self.state.hash_one((addr, size, &piece.name, &piece.tables, &piece.records));
        let others = self.same.entry(hash).or_default();
        let same =
            others.iter().copied().find(|&other| self.pieces.get(other).is_some_and(|other| other.is_same(&piece)));
        let index = same.unwrap_or(self.pieces.len());
        if same.is_none() {
            piece.code = file.code(&function);
            others.push(index);
            self.pieces.push(piece);
        } else if let Some(piece) = self.pieces.get_mut(index).filter(|piece| piece.code.is_none()) {
            piece.code = file.code(&function);
        }
        self.seen.insert(place, index);
        Some((time, index))
    }
}

impl Mapped for Tracker<'_, '_> {
    fn clear(&mut self) {
        self.memory.clear();
    }

    fn map(&mut self, mapping: usize) -> Change {
        let mappings = self.regions.mappings;
        let Some(of) = mappings.all.get(mapping) else { return Change::default() };
        let is_usable = self.regions.file_of(mapping).is_some();
        if !is_usable && of.path.is_some_and(|path| self.regions.is_inherited(path)) {
            return Change::default();
        }
        let before = self.memory.cut(&of.range);
        self.memory.add(&of.range, mapping);
        let Some(file) = of.file else { return Change::default() };
        if of.path.is_some() {
            // The mapping of an unusable file stays in the recording, and hides the objects of earlier epochs.
            return Change { hides: !is_usable, taken: Vec::new() };
        }
        // Only a mapping of another file replaces code, because code can be in a file itself.
        let is_other = |mapping: usize| mappings.all.get(mapping).is_some_and(|before| before.file != Some(file));
        let taken = before.into_iter().filter(|(range, mapping)| is_other(*mapping) && self.filter.overlaps(range));
        let taken: Vec<_> = taken.map(|(range, _)| range).collect();
        Change { hides: !taken.is_empty(), taken }
    }

    fn is_region(&self, addr: u64) -> bool {
        let mapping = self.memory.at(addr).and_then(|mapping| self.regions.mappings.all.get(mapping));
        mapping.is_some_and(|mapping| mapping.path.is_some())
    }

    fn code_at(&mut self, addr: u64, dumped: Option<(u64, usize)>) -> Option<usize> {
        let first = self.loads.len();
        let Some((mapped, piece)) = self.piece_at(addr) else { return dumped.map(|(_, load)| load) };
        let Some((loaded, load)) = dumped else { return Some(first + piece) };
        // If code was registered before its memory became a region, both files contain it.
        let name_in_dump = self.loads.get(load).map(name_of);
        let name = self.pieces.get(piece).map(|piece| name_of(&piece.load()));
        Some(if loaded > mapped || name_in_dump == name { load } else { first + piece })
    }
}

/// Processes and paths whose mappings are left out of the new recording.
pub type Replaced<'a> = HashSet<(u32, &'a str)>;

#[cfg(test)]
mod tests {
    use super::super::dumps::Given;
    use super::super::mappings::Mapping;
    use super::*;

    #[test]
    fn files_that_are_gone() {
        let paths = vec!["/nowhere/jit-7-1.so".to_owned()];
        let mapping = |time, range, path, file| Mapping { pid: 7, time, range, origin: 0x1000, path, file };
        let region = mapping(1, 0x1000..0x5000, Some(0), Some(0));
        let mut mappings = Mappings::default();
        (mappings.all, mappings.paths) = (vec![region, mapping(2, 0x2000..0x3000, None, None)], paths);
        let (given, filter) = (Given::default(), Filter::default());
        let finder = Finder { given: &given, users: Vec::new() };
        let mut regions = Regions::find(&finder, &mappings);
        assert_eq!((regions.good(), regions.replaced(7).count(), regions.ranges().count()), (0, 0, 1));
        let mut tracker = Tracker::new(&mut regions, &finder, &filter, &[]);
        assert!(tracker.map(0).hides, "perf goes on with this mapping");
        assert!(!tracker.map(1).hides);
        assert_eq!([0x1fff, 0x2000, 0x3000].map(|addr| tracker.is_region(addr)), [true, false, true]);
        assert_eq!(tracker.code_at(0x2000, Some((0, 5))), Some(5));
        assert!(tracker.regions.problems.is_empty(), "no sample has code there");
        assert_eq!(tracker.code_at(0x3000, None), None);
        assert!(tracker.regions.problems.iter().all(|problem| problem.why.starts_with("is gone")));
        assert_eq!(tracker.regions.problems.len(), 1);
        tracker.clear();
        assert!(!tracker.is_region(0x3000));
    }

    /// A library replaces memory, and another library. The same file, or anonymous memory, does not replace code.
    #[test]
    fn libraries_in_the_place_of_code() {
        let files =
            [(0x1000..0x5000, None), (0x2000..0x3000, Some(1)), (0x2000..0x4000, Some(1)), (0x1000..0x9000, None)];
        let mapping = |(range, file)| Mapping { pid: 7, time: 1, range, origin: 0, path: None, file };
        let mut mappings = Mappings::default();
        mappings.all = files.into_iter().map(mapping).collect();
        let (given, filter) = (Given::default(), Filter::of(vec![0x1000..0x2800, 0x3800..0x3900]));
        let finder = Finder { given: &given, users: Vec::new() };
        let mut regions = Regions::find(&finder, &mappings);
        let mut tracker = Tracker::new(&mut regions, &finder, &filter, &[]);
        let taken: Vec<_> =
            (0..4).map(|mapping| tracker.map(mapping)).map(|change| (change.hides, change.taken)).collect();
        let took = |range: Range<u64>| (true, vec![range]);
        assert_eq!(taken, [(false, vec![]), took(0x2000..0x3000), took(0x3000..0x4000), (false, vec![])]);
    }
}
