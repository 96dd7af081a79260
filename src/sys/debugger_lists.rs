//! The lists of objects that libraries in this process have made for debuggers, read as debuggers read them. Others change them at any
//! time, and free what is in them. So all is read through the kernel, which answers instead of faulting, and read again afterwards.

use std::collections::{HashSet, TryReserveError};
use std::ffi::{c_int, c_void, CStr, OsStr};
use std::fs::File;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use super::sort::sort;
use super::{debugger, process_memory};

/// The symbol of a list.
const NAME: &[u8] = b"__jit_debug_descriptor";

/// Longer lists are cut.
const ENTRIES_MAX: usize = 1 << 20;

/// The most that is read of a part of a file.
const PART_MAX: u64 = 1 << 30;

/// An entry of a list: where it is, and the object.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Listed {
    pub entry: u64,
    pub object: u64,
    pub size: u64,
}

/// What a library tells debuggers of.
#[derive(Clone, Copy, Debug)]
pub struct Change {
    pub listed: Listed,
    /// It has come. Else it goes.
    pub is_there: bool,
}

/// The lists of the libraries that are loaded.
#[derive(Debug, Default)]
pub struct Lists {
    /// Of the loader: how many objects were loaded and unloaded.
    changes: Option<(u64, u64)>,
    /// The libraries, each with the address of its descriptor.
    modules: Vec<(u64, Option<u64>)>,
}

impl Lists {
    /// How many objects the loader had loaded and unloaded when it was asked last.
    pub fn changes(&self) -> Option<(u64, u64)> {
        self.changes
    }

    /// Of these libraries, those that are not known yet.
    pub fn new_of(&self, mut modules: NewModules) -> NewModules {
        let known: HashSet<u64> = self.modules.iter().map(|(addr, _)| *addr).collect();
        modules.paths.retain(|(addr, _)| !known.contains(addr));
        modules
    }

    /// Notes what was found of libraries.
    pub fn add(&mut self, found: FoundModules) {
        self.changes = found.changes;
        self.modules.retain(|(addr, _)| found.loaded.contains(addr));
        let known: HashSet<u64> = self.modules.iter().map(|(addr, _)| *addr).collect();
        // Another thread may have looked at the same ones.
        self.modules.extend(found.descriptors.into_iter().filter(|(addr, _)| !known.contains(addr)));
    }

    fn descriptors(&self) -> Vec<u64> {
        let mut all: Vec<u64> = self.modules.iter().filter_map(|(_, found)| *found).collect();
        all.push(debugger::descriptor_addr());
        sort(&mut all);
        all.dedup();
        all
    }

    /// All entries that are not this library's. `None` if a list changed while it was read.
    pub fn read(&self, pid: u32) -> Result<Option<Vec<Listed>>, TryReserveError> {
        let mut found = Vec::new();
        let mut seen = HashSet::new();
        let own = debugger::own_entries();
        for descriptor in self.descriptors() {
            let Some(before): Option<[u64; 3]> = words(pid, descriptor) else { return Ok(None) };
            let mut at = before[2];
            while at != 0 {
                if let Some((_, after)) = own.filter(|(first, _)| *first == at) {
                    at = after;
                    continue;
                }
                seen.try_reserve(1)?;
                if !seen.insert(at) || found.len() == ENTRIES_MAX {
                    break;
                }
                let Some((next, listed)) = entry_at(pid, at) else { return Ok(None) };
                found.try_reserve(1)?;
                found.extend(listed);
                at = next;
            }
            if words(pid, descriptor) != Some(before) {
                return Ok(None);
            }
        }
        Ok(Some(found))
    }

    /// The changes that the libraries tell of at this moment, those that take an entry out first. Whoever tells of one has put the entry
    /// into the list, or has not freed it yet. One that a library has told of before may stay here until it tells of another.
    pub fn told_of(&self, pid: u32) -> Vec<Change> {
        let change = |descriptor: u64| {
            let [start, relevant, _]: [u64; 3] = words(pid, descriptor)?;
            let is_own = words(pid, relevant).is_some_and(|[_, _, _, _, owner]: [u64; 5]| owner == debugger::owner());
            let (_, listed) = entry_at(pid, relevant).filter(|_| !is_own)?;
            // After the version, in a word of this machine.
            match u32::from_ne_bytes(*start.to_ne_bytes().last_chunk()?) {
                debugger::REGISTER => Some(Change { listed: listed?, is_there: true }),
                debugger::UNREGISTER => Some(Change { listed: listed?, is_there: false }),
                _ => None,
            }
        };
        let changes = self.descriptors().into_iter().filter_map(change);
        let (there, mut gone): (Vec<Change>, Vec<Change>) = changes.partition(|change| change.is_there);
        gone.extend(there);
        gone
    }

    /// Whether an entry is as it was.
    pub fn is_still(pid: u32, listed: &Listed) -> bool {
        words(pid, listed.entry)
            .is_some_and(|[_, _, object, size]: [u64; 4]| (object, size) == (listed.object, listed.size))
    }
}

/// Libraries that were loaded.
#[derive(Debug)]
pub struct NewModules {
    changes: Option<(u64, u64)>,
    /// All that are loaded, known ones too.
    loaded: HashSet<u64>,
    paths: Vec<(u64, PathBuf)>,
}

/// The same, with the addresses of the descriptors.
#[derive(Debug, Default)]
pub struct FoundModules {
    changes: Option<(u64, u64)>,
    loaded: HashSet<u64>,
    descriptors: Vec<(u64, Option<u64>)>,
}

impl NewModules {
    /// All libraries, if any were loaded or unloaded since the loader said this. It keeps a lock meanwhile that `fork` does not put in
    /// order in a child, so nobody may fork. A host's function may have called this library under that lock, so nobody may hold one.
    pub fn since(changes: Option<(u64, u64)>) -> Option<NewModules> {
        let mut search = Search { known: changes, changes: None, modules: Vec::new() };
        // SAFETY: the function is called before this one returns, with `search`.
        unsafe { libc::dl_iterate_phdr(Some(visit), (&raw mut search).cast()) };
        if search.changes == changes {
            return None;
        }
        let loaded = search.modules.iter().map(|(addr, _)| *addr).collect();
        Some(NewModules { changes: search.changes, loaded, paths: search.modules })
    }

    /// Looks for the descriptors in the files of the libraries. `value_of` finds the value of a symbol by way of a function that reads
    /// a number of bytes at an offset.
    pub fn find(self, value_of: ValueOf) -> FoundModules {
        let find = |(addr, path): (u64, PathBuf)| (addr, descriptor_in(addr, &path, value_of));
        let descriptors = self.paths.into_iter().map(find).collect();
        FoundModules { changes: self.changes, loaded: self.loaded, descriptors }
    }
}

/// The entry after one, and the one itself if it has an object.
fn entry_at(pid: u32, entry: u64) -> Option<(u64, Option<Listed>)> {
    let [next, _, object, size]: [u64; 4] = words(pid, entry)?;
    Some((next, (object != 0 && size != 0).then_some(Listed { entry, object, size })))
}

fn words<const N: usize>(pid: u32, addr: u64) -> Option<[u64; N]> {
    let mut bytes = [0_u8; 40];
    let out = &mut bytes[..8 * N];
    if process_memory::read(pid, addr, out) < out.len() {
        return None;
    }
    let mut found = [0; N];
    for (word, bytes) in found.iter_mut().zip(out.chunks_exact(8)) {
        *word = bytes.try_into().map(u64::from_ne_bytes).ok()?;
    }
    Some(found)
}

struct Search {
    known: Option<(u64, u64)>,
    changes: Option<(u64, u64)>,
    /// What the addresses in their symbols count from, and their files.
    modules: Vec<(u64, PathBuf)>,
}

unsafe extern "C" fn visit(info: *mut libc::dl_phdr_info, _: usize, search: *mut c_void) -> c_int {
    // SAFETY: `since` has handed it over, and the loader the other one.
    let (search, info) = unsafe { (&mut *search.cast::<Search>(), &*info) };
    if search.changes.is_none() {
        search.changes = Some((info.dlpi_adds, info.dlpi_subs));
        if search.changes == search.known {
            return 1;
        }
    }
    let path = match info.dlpi_name.is_null() {
        true => &[][..],
        // SAFETY: the loader's names end with a NUL.
        false => unsafe { CStr::from_ptr(info.dlpi_name) }.to_bytes(),
    };
    let path = if path.is_empty() { b"/proc/self/exe" } else { path };
    search.modules.push((info.dlpi_addr, PathBuf::from(OsStr::from_bytes(path))));
    0
}

fn descriptor_in(addr: u64, path: &Path, value_of: ValueOf) -> Option<u64> {
    let file = File::open(path).ok()?;
    let mut read = |offset: u64, len: u64| {
        let mut bytes = Vec::new();
        let len = usize::try_from(len.min(PART_MAX)).ok()?;
        bytes.try_reserve_exact(len).ok()?;
        bytes.resize(len, 0);
        file.read_exact_at(&mut bytes, offset).ok()?;
        Some(bytes)
    };
    value_of(NAME, &mut read).map(|value| addr.wrapping_add(value))
}

/// See [`NewModules::find`].
pub type ValueOf = fn(&[u8], &mut dyn FnMut(u64, u64) -> Option<Vec<u8>>) -> Option<u64>;
