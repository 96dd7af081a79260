//! nongnu libunwind: how it is told of unwind tables in memory. A process may have it beside the unwinder of its exceptions.
//!
//! It has a list of `unw_dyn_info_t` (libunwind-dynamic.h), and searches that before anything else. An entry of the format
//! `UNW_INFO_FORMAT_IP_OFFSET` has an array of code and FDEs in the order of addresses.
//!
//! The list is read without a lock (src/mi/Gfind_dynamic_proc_info.c, `local_find_proc_info`), and `_U_dyn_cancel` clears the link of
//! what it takes out, so that who stands there misses all others. So this library registers two entries that say nothing. It puts
//! its tables between these and takes them out again by itself, and the memory of these stays for a while. A new one comes last: it
//! may take the place of an old one, and whoever is on the way to that finds one of the two.

use std::cell::UnsafeCell;
use std::ffi::c_void;
use std::ptr;
use std::sync::atomic::{AtomicPtr, Ordering};
use std::sync::{Mutex, OnceLock, PoisonError};

use super::free_later::FreeLater;
use super::sort::sort;

/// `UNW_INFO_FORMAT_DYNAMIC`, which only says a few words of the code, and `UNW_INFO_FORMAT_IP_OFFSET`.
const FORMAT_DYNAMIC: i32 = 0;
const FORMAT_IP_OFFSET: i32 = 4;

/// The functions, by addresses of which any may be 0.
#[repr(C)]
struct Functions {
    register: Option<unsafe extern "C" fn(*mut Info)>,
    cancel: Option<unsafe extern "C" fn(*mut Info)>,
    flush_cache: Option<unsafe extern "C" fn(*mut c_void, u64, u64)>,
    info_by_ip: Option<unsafe extern "C" fn(*mut c_void, u64, *mut ProcInfo, *mut c_void) -> i32>,
    /// `unw_local_addr_space`.
    local: *const *mut c_void,
}

// SAFETY: nobody writes to it but the loader.
unsafe impl Sync for Functions {}

/// `unw_proc_info_t`, and some more room.
type ProcInfo = [u64; 32];

/// `unw_dyn_info_t`. The fields after `format` have moved in version 1.6, which has one more before them.
#[derive(Debug, Default)]
#[repr(C)]
struct Info {
    next: AtomicPtr<Info>,
    prev: AtomicPtr<Info>,
    start: u64,
    end: u64,
    gp: u64,
    format: i32,
    pad: i32,
    rest: [u64; 6],
}

// As in `sys/unwinder`.
#[cfg(target_arch = "x86_64")]
std::arch::global_asm!(
    ".pushsection .data.rel.ro.jitsym_libunwind,\"aw\",%progbits",
    ".weak _U_dyn_register",
    ".weak _U_dyn_cancel",
    ".weak _Ux86_64_flush_cache",
    ".weak _ULx86_64_get_proc_info_by_ip",
    ".weak _ULx86_64_local_addr_space",
    ".hidden jitsym_libunwind_functions",
    ".globl jitsym_libunwind_functions",
    ".type jitsym_libunwind_functions, %object",
    ".p2align 3",
    "jitsym_libunwind_functions:",
    ".quad _U_dyn_register",
    ".quad _U_dyn_cancel",
    ".quad _Ux86_64_flush_cache",
    ".quad _ULx86_64_get_proc_info_by_ip",
    ".quad _ULx86_64_local_addr_space",
    ".size jitsym_libunwind_functions, 40",
    ".popsection",
);

#[cfg(target_arch = "x86_64")]
unsafe extern "C" {
    static jitsym_libunwind_functions: Functions;
}

#[cfg(target_arch = "x86_64")]
fn functions() -> &'static Functions {
    // SAFETY: it is defined above.
    unsafe { &*std::hint::black_box(&raw const jitsym_libunwind_functions) }
}

/// On other processors nothing is found. There it reads `.debug_frame` too, and frees what it has read when its cache is flushed,
/// while another thread may use it.
#[cfg(not(target_arch = "x86_64"))]
fn functions() -> &'static Functions {
    static NONE: Functions =
        Functions { register: None, cancel: None, flush_cache: None, info_by_ip: None, local: ptr::null() };
    &NONE
}

/// Whether the process has it, in a version whose entries are known.
pub fn is_there() -> bool {
    rest_at().is_some()
}

/// Where in `Info::rest` the table's fields begin. The library has no function that tells its version, but it repeats one field of an
/// entry that has no table.
fn rest_at() -> Option<usize> {
    /// What no other field is.
    const MARKS: [u64; 3] = [0x6a69_7473_796d_0001, 0x6a69_7473_796d_0002, 0x6a69_7473_796d_0003];
    static NOWHERE: [u8; 16] = [0; 16];
    static FOUND: OnceLock<Option<usize>> = OnceLock::new();
    *FOUND.get_or_init(|| {
        let functions = functions();
        let (register, cancel, by_ip) = (functions.register?, functions.cancel?, functions.info_by_ip?);
        if functions.local.is_null() {
            return None;
        }
        let mut probe = Info { format: FORMAT_DYNAMIC, ..Info::default() };
        (probe.start, probe.end) = (NOWHERE.as_ptr() as u64, NOWHERE.as_ptr() as u64 + 16);
        probe.rest[..3].copy_from_slice(&MARKS);
        let memory = Box::new(Memory { info: UnsafeCell::new(probe), places: Vec::new(), entries: Vec::new() });
        let mut said: ProcInfo = [0; 32];
        // SAFETY: an entry for bytes that are no code, until it is cancelled, and then for a while. It has no pointers.
        unsafe {
            register(memory.info.get());
            by_ip(*functions.local, NOWHERE.as_ptr() as u64, &raw mut said, ptr::null_mut());
            cancel(memory.info.get());
        }
        RETIRED.keep(memory);
        // `handler`, the second field of `unw_dyn_proc_info_t`.
        MARKS.iter().position(|mark| said.contains(mark))?.checked_sub(1)
    })
}

/// An entry of the array: code from `start`, as a distance from where the table's code begins, and its FDE, as a distance from where
/// the entries begin.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(C)]
struct Place {
    start: i32,
    fde: i32,
}

/// What the library reads of one table.
#[derive(Debug)]
struct Memory {
    info: UnsafeCell<Info>,
    places: Vec<Place>,
    entries: Vec<u8>,
}

// SAFETY: the pointers in it are to its own memory and to that of others like it.
unsafe impl Send for Memory {}

/// The entries between which the tables are.
struct Ends {
    last: &'static Info,
}

impl Ends {
    /// `None` if others have registered something at the same moment, or without memory.
    fn new() -> Option<Ends> {
        let (register, cancel) = (functions().register?, functions().cancel?);
        let [first, last] = [(); 2].map(|()| Box::into_raw(Box::<Info>::default()));
        // SAFETY: two entries for no code. New ones come to the head of the list.
        unsafe {
            register(last);
            register(first);
            if (*first).next.load(Ordering::Acquire) == last {
                return Some(Ends { last: &*last });
            }
            cancel(first);
            cancel(last);
        }
        // Somebody may read them: they stay.
        None
    }

    /// # Safety
    /// It stays where it is until it is taken out, and then for a while.
    unsafe fn put(&self, info: &Info) {
        let before = self.last.prev.load(Ordering::Relaxed);
        info.prev.store(before, Ordering::Relaxed);
        info.next.store(ptr::from_ref(self.last).cast_mut(), Ordering::Relaxed);
        let info = ptr::from_ref(info).cast_mut();
        self.last.prev.store(info, Ordering::Relaxed);
        // SAFETY: the first of the ends, or one that was put between them, and is there still.
        unsafe { (*before).next.store(info, Ordering::Release) };
    }

    /// # Safety
    /// It was put there.
    unsafe fn take_out(&self, info: &Info) {
        let (next, prev) = (info.next.load(Ordering::Relaxed), info.prev.load(Ordering::Relaxed));
        // SAFETY: both are between the ends, or are these. A walk that stands at the entry goes on from there.
        unsafe {
            (*next).prev.store(prev, Ordering::Relaxed);
            (*prev).next.store(next, Ordering::Release);
        }
    }
}

static ENDS: Mutex<Option<Ends>> = Mutex::new(None);

/// Runs something between the ends, which are made for that.
fn between_ends(body: impl FnOnce(&Ends)) -> Option<()> {
    let mut ends = ENDS.lock().unwrap_or_else(PoisonError::into_inner);
    if ends.is_none() {
        *ends = Some(Ends::new()?);
    }
    ends.as_ref().map(body)
}

/// Memory of tables that were taken out of the list, which another thread may be walking through.
static RETIRED: FreeLater<Box<Memory>> = FreeLater::new();

/// An entry of unwind tables, which is copied: a CIE, an FDE with the address of its code, and four zero bytes.
#[derive(Clone, Copy, Debug)]
pub struct Entry<'a> {
    pub start: u64,
    pub end: u64,
    pub bytes: &'a [u8],
    pub fde: usize,
}

/// A table that the library knows, until this is dropped.
#[derive(Debug)]
pub struct Table(Option<Box<Memory>>);

impl Table {
    /// Tells the library of a table. `None` without memory or entries, or if they are too far from each other.
    pub fn new<'a>(entries: impl Iterator<Item = Entry<'a>> + Clone) -> Option<Table> {
        let at = rest_at()?;
        let (start, end) =
            (entries.clone().map(|entry| entry.start).min()?, entries.clone().map(|entry| entry.end).max()?);
        let mut memory = Memory { info: UnsafeCell::default(), places: Vec::new(), entries: Vec::new() };
        memory.places.try_reserve_exact(entries.clone().count()).ok()?;
        memory.entries.try_reserve_exact(entries.clone().map(|entry| entry.bytes.len()).sum()).ok()?;
        for Entry { start: addr, bytes, fde, .. } in entries {
            let place = Place {
                start: i32::try_from(addr.checked_sub(start)?).ok()?,
                fde: i32::try_from(memory.entries.len() + fde).ok()?,
            };
            memory.places.push(place);
            memory.entries.extend_from_slice(bytes);
        }
        sort(&mut memory.places);
        let (segbase, len, data) = (memory.entries.as_ptr(), memory.places.len(), memory.places.as_ptr());
        let info = memory.info.get_mut();
        (info.start, info.end, info.format) = (start, end, FORMAT_IP_OFFSET);
        // `name_ptr`, `segbase`, `table_len` in words, `table_data`.
        info.rest.get_mut(at..at + 4)?.copy_from_slice(&[0, segbase as u64, len as u64, data as u64]);
        let memory = Box::new(memory);
        // SAFETY: `drop` takes it out, and retires it.
        between_ends(|ends| unsafe { ends.put(&*memory.info.get()) })?;
        flush_cache();
        Some(Table(Some(memory)))
    }

    /// The code that begins at an address has ended. `size_at`: where in an FDE the four bytes are that are zero if it speaks of no
    /// code.
    pub fn end(&mut self, addr: u64, size_at: usize) {
        let Some(memory) = &mut self.0 else { return };
        let start = addr.wrapping_sub(memory.info.get_mut().start);
        let found = memory.places.binary_search_by_key(&start, |place| place.start as u64);
        let Some(place) = found.ok().and_then(|found| memory.places.get(found)) else { return };
        let at = place.fde as usize + size_at;
        if let Some(size) = memory.entries.get_mut(at..at + 4) {
            // SAFETY: the four bytes. Another thread may read them now, with the old values or the new ones.
            unsafe { size.as_mut_ptr().cast::<u32>().write_volatile(0) };
        }
        flush_cache();
    }
}

impl Drop for Table {
    fn drop(&mut self) {
        let Some(memory) = self.0.take() else { return };
        // SAFETY: it was put there when this was made.
        between_ends(|ends| unsafe { ends.take_out(&*memory.info.get()) });
        flush_cache();
        RETIRED.keep(memory);
    }
}

/// The library remembers what it has found for an address.
fn flush_cache() {
    let functions = functions();
    if let Some(flush) = functions.flush_cache {
        // SAFETY: its own address space, and all addresses. It counts one up.
        unsafe { flush(*functions.local, 0, 0) };
    }
}
