//! Registers unwind tables in memory with nongnu libunwind.
//!
//! A process may have libunwind in addition to the unwinder that its exceptions use. To find unwind data, libunwind first
//! searches a list whose entries are `unw_dyn_info_t` (libunwind-dynamic.h). An entry of the format
//! `UNW_INFO_FORMAT_IP_OFFSET` has an array that is sorted by address. Each element of the array has the address of code and
//! the location of the FDE for this code.
//!
//! libunwind reads the list without a lock (src/mi/Gfind_dynamic_proc_info.c, `local_find_proc_info`). When `_U_dyn_cancel`
//! removes an entry, it clears the entry's link to the next entry. So a reader that is at the removed entry misses all later
//! entries. Therefore this library registers only two empty marker entries (`Ends`), links and unlinks its tables between the
//! marker entries itself, and frees unlinked tables later. A new table is linked after all other tables. An old table is
//! unlinked only after its replacement has been linked, so a reader of the list always finds one of the two tables.

use std::cell::UnsafeCell;
use std::ffi::c_void;
use std::ptr;
use std::sync::atomic::{AtomicPtr, Ordering};
use std::sync::{Mutex, OnceLock, PoisonError};

use super::free_later::FreeLater;
use super::sort::sort;

/// The values of `UNW_INFO_FORMAT_DYNAMIC`, the format of an entry without a table, and of `UNW_INFO_FORMAT_IP_OFFSET`.
const FORMAT_DYNAMIC: i32 = 0;
const FORMAT_IP_OFFSET: i32 = 4;

/// The addresses of libunwind's symbols. The address of a symbol is 0 if the process does not have that symbol.
#[repr(C)]
struct Functions {
    register: Option<unsafe extern "C" fn(*mut Info)>,
    cancel: Option<unsafe extern "C" fn(*mut Info)>,
    flush_cache: Option<unsafe extern "C" fn(*mut c_void, u64, u64)>,
    info_by_ip: Option<unsafe extern "C" fn(*mut c_void, u64, *mut ProcInfo, *mut c_void) -> i32>,
    /// `unw_local_addr_space`.
    local: *const *mut c_void,
}

// SAFETY: only the loader writes to the structure.
unsafe impl Sync for Functions {}

/// `unw_proc_info_t`, with additional room at the end.
type ProcInfo = [u64; 32];

/// `unw_dyn_info_t`. From libunwind 1.6 on, the fields after `format` begin one word later, because another field was added
/// before them.
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

// The symbols are weak, like the symbols in `sys/unwinder`.
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
    // SAFETY: the structure is defined above.
    unsafe { &*std::hint::black_box(&raw const jitsym_libunwind_functions) }
}

/// This library does not use libunwind on processors other than x86-64, so the returned structure contains no functions. On the
/// other processors, libunwind also reads the section `.debug_frame`, and frees its copy of this section when its cache is
/// flushed, even if another thread is still reading the copy.
#[cfg(not(target_arch = "x86_64"))]
fn functions() -> &'static Functions {
    static NONE: Functions =
        Functions { register: None, cancel: None, flush_cache: None, info_by_ip: None, local: ptr::null() };
    &NONE
}

/// Whether libunwind is in the process, and this module has determined the layout of libunwind's entries.
pub fn is_there() -> bool {
    rest_at().is_some()
}

/// The index in `Info::rest` at which the table's fields begin. The index depends on libunwind's version, and libunwind has no
/// function that returns the version. So this function registers a test entry without a table, determines which of the entry's
/// fields libunwind uses as `handler`, and removes the entry again.
fn rest_at() -> Option<usize> {
    /// The values of three fields of the entry. No other field has one of these values.
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
        // SAFETY: the entry describes bytes that are not code, and has no pointers. The entry's memory is freed only some time
        // after `cancel`.
        unsafe {
            register(memory.info.get());
            by_ip(*functions.local, NOWHERE.as_ptr() as u64, &raw mut said, ptr::null_mut());
            cancel(memory.info.get());
        }
        RETIRED.keep(memory);
        // libunwind returns the value of `handler`, the second field of `unw_dyn_proc_info_t`. So the fields of
        // `unw_dyn_proc_info_t` begin one word before the value of `handler`.
        MARKS.iter().position(|mark| said.contains(mark))?.checked_sub(1)
    })
}

/// An element of a table's array: the address of code, relative to the first code of the table, and the offset of the code's
/// FDE in `Memory::entries`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(C)]
struct Place {
    start: i32,
    fde: i32,
}

/// The memory of one table. libunwind reads this memory.
#[derive(Debug)]
struct Memory {
    info: UnsafeCell<Info>,
    places: Vec<Place>,
    entries: Vec<u8>,
}

// SAFETY: the pointers refer to the value's own memory, and to other entries of the list.
unsafe impl Send for Memory {}

/// The two empty marker entries. In the list, all tables lie between the two marker entries. Only the last marker entry is
/// stored.
struct Ends {
    last: &'static Info,
}

impl Ends {
    /// Registers the two marker entries. Returns `None` if another library has registered an entry between the registrations of
    /// the two marker entries.
    fn new() -> Option<Ends> {
        let (register, cancel) = (functions().register?, functions().cancel?);
        let [first, last] = [(); 2].map(|()| Box::into_raw(Box::<Info>::default()));
        // SAFETY: the two entries are never freed, and describe no code. libunwind puts each new entry at the head of the list,
        // so `last` is registered before `first`.
        unsafe {
            register(last);
            register(first);
            if (*first).next.load(Ordering::Acquire) == last {
                return Some(Ends { last: &*last });
            }
            cancel(first);
            cancel(last);
        }
        // Another thread may be reading the two entries, so they are not freed.
        None
    }

    /// # Safety
    /// `info` must stay at its address until it is taken out, and for some time afterwards.
    unsafe fn put(&self, info: &Info) {
        let before = self.last.prev.load(Ordering::Relaxed);
        info.prev.store(before, Ordering::Relaxed);
        info.next.store(ptr::from_ref(self.last).cast_mut(), Ordering::Relaxed);
        let info = ptr::from_ref(info).cast_mut();
        self.last.prev.store(info, Ordering::Relaxed);
        // SAFETY: `before` is the first marker entry, or a table that is still in the list.
        unsafe { (*before).next.store(info, Ordering::Release) };
    }

    /// # Safety
    /// `put` must have inserted `info` into the list, and `info` must still be in the list.
    unsafe fn take_out(&self, info: &Info) {
        let (next, prev) = (info.next.load(Ordering::Relaxed), info.prev.load(Ordering::Relaxed));
        // SAFETY: each neighbour of `info` is a marker entry, or a table between the two marker entries. The links of `info`
        // itself do not change, so a reader that has arrived at `info` finds the next entry.
        unsafe {
            (*next).prev.store(prev, Ordering::Relaxed);
            (*prev).next.store(next, Ordering::Release);
        }
    }
}

static ENDS: Mutex<Option<Ends>> = Mutex::new(None);

/// Runs `body` with the marker entries (`Ends`). If the marker entries do not exist yet, registers them. Returns `None` if this
/// registration fails.
fn between_ends(body: impl FnOnce(&Ends)) -> Option<()> {
    let mut ends = ENDS.lock().unwrap_or_else(PoisonError::into_inner);
    if ends.is_none() {
        *ends = Some(Ends::new()?);
    }
    ends.as_ref().map(body)
}

/// The memory of tables that were taken out of the list. Another thread may still be reading this memory.
static RETIRED: FreeLater<Box<Memory>> = FreeLater::new();

/// Unwind data for code from `start` to `end`. `bytes` contains a CIE, then an FDE at the offset `fde`, and four zero bytes
/// at the end. The FDE contains the absolute address of the code. `Table::new` copies the bytes.
#[derive(Clone, Copy, Debug)]
pub struct Entry<'a> {
    pub start: u64,
    pub end: u64,
    pub bytes: &'a [u8],
    pub fde: usize,
}

/// A table that is registered with libunwind until this value is dropped.
#[derive(Debug)]
pub struct Table(Option<Box<Memory>>);

impl Table {
    /// Registers a table. Returns `None` if this module cannot use libunwind, if there is not enough memory, if `entries` is
    /// empty, or if the entries are too far apart.
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
        // The fields are `name_ptr`, `segbase`, `table_len` and `table_data`. `table_len` counts words of eight bytes. Each
        // `Place` has eight bytes, so `table_len` is the number of `Place`s.
        info.rest.get_mut(at..at + 4)?.copy_from_slice(&[0, segbase as u64, len as u64, data as u64]);
        let memory = Box::new(memory);
        // SAFETY: `Table::drop` takes the table out of the list, and keeps the table's memory for a while afterwards.
        between_ends(|ends| unsafe { ends.put(&*memory.info.get()) })?;
        flush_cache();
        Some(Table(Some(memory)))
    }

    /// Removes the code that begins at an address, by setting the size in the code's FDE to zero. `size_at` is the offset of
    /// the size in an FDE. The size has four bytes.
    pub fn end(&mut self, addr: u64, size_at: usize) {
        let Some(memory) = &mut self.0 else { return };
        let start = addr.wrapping_sub(memory.info.get_mut().start);
        let found = memory.places.binary_search_by_key(&start, |place| place.start as u64);
        let Some(place) = found.ok().and_then(|found| memory.places.get(found)) else { return };
        let at = place.fde as usize + size_at;
        if let Some(size) = memory.entries.get_mut(at..at + 4) {
            // SAFETY: the slice has four bytes. A thread that reads the four bytes at the same time finds either the old size
            // or zero.
            unsafe { size.as_mut_ptr().cast::<u32>().write_volatile(0) };
        }
        flush_cache();
    }
}

impl Drop for Table {
    fn drop(&mut self) {
        let Some(memory) = self.0.take() else { return };
        // SAFETY: `Table::new` has put the table into the list.
        between_ends(|ends| unsafe { ends.take_out(&*memory.info.get()) });
        flush_cache();
        RETIRED.keep(memory);
    }
}

/// Clears the cache in which libunwind keeps unwind data for addresses.
fn flush_cache() {
    let functions = functions();
    if let Some(flush) = functions.flush_cache {
        // SAFETY: `local` is libunwind's own address space. The two zeros select all addresses in this address space. The
        // call increments a counter.
        unsafe { flush(*functions.local, 0, 0) };
    }
}
