//! Finds code of other JIT compilers in this process, by reading the lists of objects that other libraries have made for
//! debuggers.
//!
//! Other libraries may change their lists, and may free entries, at any time. So this module reads the lists by system calls,
//! which return an error where a plain access would fault. When a list has been read, its descriptor is read again. If the
//! descriptor has changed, the result is discarded.

use std::collections::{HashMap, HashSet, TryReserveError};
use std::ffi::{c_int, c_void, CStr, OsStr};
use std::fs::File;
use std::mem::MaybeUninit;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use super::sort::sort;
use super::{debugger, process_memory};

/// The symbol name of the descriptor of a library's list.
const NAME: &[u8] = b"__jit_debug_descriptor";

/// The maximum number of entries that are read. Further entries are ignored.
const ENTRIES_MAX: usize = 1 << 20;

/// The maximum number of bytes that are read from one part of a file.
const PART_MAX: u64 = 1 << 30;

/// An entry of a list: the address of the entry, and the address and size of its object.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Listed {
    pub entry: u64,
    pub object: u64,
    pub size: u64,
}

/// A change of a list, as a library reports it to debuggers.
#[derive(Clone, Copy, Debug)]
pub struct Change {
    pub listed: Listed,
    /// True if the entry was added. False if the entry is being removed.
    pub is_there: bool,
}

/// The lists of the libraries that are loaded.
#[derive(Clone, Debug, Default)]
pub struct Lists {
    /// How many objects the loader had loaded, and how many it had unloaded, when `modules` was made.
    changes: Option<(u64, u64)>,
    /// The load address of each library, and the address of the library's descriptor. `None` if the library has no descriptor.
    modules: Vec<(u64, Option<u64>)>,
}

impl Lists {
    /// The counts of loaded and unloaded objects when the libraries were last listed.
    pub fn changes(&self) -> Option<(u64, u64)> {
        self.changes
    }

    /// Returns the debugger lists that the libraries in `loaded` define. Searches only the files of libraries that are not in `self`.
    /// `value_of` returns the value of a symbol in a file. The first argument of `value_of` is the symbol's name. The second
    /// argument is a function that reads a part of the file, given the offset and the length of the part.
    pub fn updated(&self, loaded: Loaded, value_of: ValueOf) -> Lists {
        let known: HashMap<u64, Option<u64>> = self.modules.iter().copied().collect();
        let find = |(addr, path): (u64, PathBuf)| {
            (addr, known.get(&addr).copied().unwrap_or_else(|| descriptor_in(addr, &path, value_of)))
        };
        Lists { changes: loaded.changes, modules: loaded.modules.into_iter().map(find).collect() }
    }

    fn descriptors(&self) -> Vec<u64> {
        let mut all: Vec<u64> = self.modules.iter().filter_map(|(_, found)| *found).collect();
        all.push(debugger::descriptor_addr());
        sort(&mut all);
        all.dedup();
        all
    }

    /// Reads all entries of other libraries. Returns `None` if a list changed during reading, or could not be read.
    pub fn read(&self, pid: u32) -> Result<Option<Vec<Listed>>, TryReserveError> {
        let mut found = Vec::new();
        let mut seen = HashSet::new();
        let own = debugger::own_entries();
        for descriptor in self.descriptors() {
            let Some(before) = descriptor_at(pid, descriptor) else { return Ok(None) };
            let mut at = before.first as u64;
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
            if descriptor_at(pid, descriptor) != Some(before) {
                return Ok(None);
            }
        }
        Ok(Some(found))
    }

    /// Returns the changes that the descriptors show now. Removals come first. While a library reports a change, an added entry
    /// is already in the list, and a removed entry is not freed yet. If a library has left an earlier change in its descriptor,
    /// the result also contains the earlier change.
    pub fn told_of(&self, pid: u32) -> Vec<Change> {
        let change = |descriptor: u64| {
            let RawDescriptor { action, relevant, .. } = descriptor_at(pid, descriptor)?;
            let relevant = relevant as u64;
            let (_, listed) = entry_at(pid, relevant).filter(|_| !debugger::is_own(pid, relevant))?;
            match action {
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

    /// Whether an entry still has the same object as when the entry was read.
    pub fn is_still(pid: u32, listed: &Listed) -> bool {
        entry_at(pid, listed.entry).is_some_and(|(_, found)| found == Some(*listed))
    }
}

/// The libraries that are loaded.
#[derive(Debug)]
pub struct Loaded {
    /// The value of the argument `known` of `Loaded::since`.
    known: Option<(u64, u64)>,
    changes: Option<(u64, u64)>,
    /// The load address of each library, and the path of its file. The address of a symbol is the load address plus the
    /// symbol's value.
    modules: Vec<(u64, PathBuf)>,
}

impl Loaded {
    /// Lists all loaded libraries. `known` contains the loader's counts of loaded and unloaded objects from an earlier time. If
    /// the loader's counts have not changed since then, the same libraries are loaded, and the function returns `None`.
    ///
    /// The caller must keep the process from forking, because this call takes a lock of the loader that `fork` does not reset
    /// in a child. The caller must not hold a lock of this library, because a thread of the host may hold the loader's lock
    /// while it waits for a lock of this library.
    pub fn since(known: Option<(u64, u64)>) -> Option<Loaded> {
        let mut loaded = Loaded { known, changes: None, modules: Vec::new() };
        // SAFETY: the loader calls `visit` with `loaded`, and only before this call returns.
        unsafe { libc::dl_iterate_phdr(Some(visit), (&raw mut loaded).cast()) };
        (loaded.changes != known).then_some(loaded)
    }
}

/// `struct jit_descriptor`, as bytes that another thread may be changing.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq)]
struct RawDescriptor {
    version: u32,
    action: u32,
    relevant: usize,
    first: usize,
}

/// `struct jit_code_entry`.
#[repr(C)]
#[derive(Clone, Copy)]
struct RawEntry {
    next: usize,
    prev: usize,
    object: usize,
    size: u64,
}

fn descriptor_at(pid: u32, addr: u64) -> Option<RawDescriptor> {
    // SAFETY: each field is an integer.
    unsafe { read(pid, addr) }
}

/// Reads an entry. Returns the address of the next entry and the entry itself, or `None` in place of the entry if it has no
/// object.
fn entry_at(pid: u32, entry: u64) -> Option<(u64, Option<Listed>)> {
    // SAFETY: each field is an integer.
    let RawEntry { next, object, size, .. } = unsafe { read(pid, entry)? };
    let listed = Listed { entry, object: object as u64, size };
    Some((next as u64, (object != 0 && size != 0).then_some(listed)))
}

/// # Safety
/// All bytes are a valid `T`.
unsafe fn read<T>(pid: u32, addr: u64) -> Option<T> {
    let mut value = MaybeUninit::<T>::zeroed();
    // SAFETY: the bytes of the value are initialized, and nobody else uses them.
    let out = unsafe { std::slice::from_raw_parts_mut(value.as_mut_ptr().cast::<u8>(), size_of::<T>()) };
    // SAFETY: the caller's promise.
    (process_memory::read(pid, addr, out) == out.len()).then(|| unsafe { value.assume_init() })
}

unsafe extern "C" fn visit(info: *mut libc::dl_phdr_info, _: usize, loaded: *mut c_void) -> c_int {
    // SAFETY: the loader passes the pointer `loaded` that `since` has given to it, and a valid pointer `info`.
    let (loaded, info) = unsafe { (&mut *loaded.cast::<Loaded>(), &*info) };
    if loaded.changes.is_none() {
        loaded.changes = Some((info.dlpi_adds, info.dlpi_subs));
        if loaded.changes == loaded.known {
            return 1;
        }
    }
    let path = match info.dlpi_name.is_null() {
        true => &[][..],
        // SAFETY: the loader's names end with a NUL.
        false => unsafe { CStr::from_ptr(info.dlpi_name) }.to_bytes(),
    };
    let path = if path.is_empty() { b"/proc/self/exe" } else { path };
    #[allow(clippy::unnecessary_cast, reason = "the type has 32 bits where addresses have")]
    let addr = info.dlpi_addr as u64;
    loaded.modules.push((addr, PathBuf::from(OsStr::from_bytes(path))));
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

/// Finds the value of a symbol in a file; see [`Lists::updated`].
pub type ValueOf = fn(&[u8], &mut dyn FnMut(u64, u64) -> Option<Vec<u8>>) -> Option<u64>;
