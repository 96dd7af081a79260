//! The unwinder of the process: how it is told of unwind tables in memory.
//!
//! C++ exceptions, `backtrace` and the end of a thread go through one library, and a process may have one of three kinds of it.
//! Each has the names of libgcc's functions (gcc/unwind-dw2-fde.c, `__register_frame_info`; llvm libunwind,
//! UnwindLevel1-gcc-ext.c, `__register_frame`).

use std::ffi::c_void;
use std::ptr;
use std::sync::atomic::{fence, Ordering};
use std::sync::OnceLock;

use super::free_later::FreeLater;
use super::libunwind;

/// What an unwinder does with many tables.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Dialect {
    /// libgcc before version 13: a list, which each search goes through. Tables may overlap if each has all of its code.
    List,
    /// libgcc from version 13 on: a tree. No two tables may overlap.
    Tree,
    /// LLVM libunwind: a list of FDEs, which are registered one by one.
    Each,
    /// nongnu libunwind (`sys/libunwind`), beside one of the others: a list. No two tables should overlap.
    Offsets,
}

/// The functions, by addresses of which any may be 0: no library of the process may have them.
#[repr(C)]
struct Functions {
    register_info: Option<unsafe extern "C" fn(*const u8, *mut c_void)>,
    register_array: Option<unsafe extern "C" fn(*const u8, *mut c_void)>,
    deregister_info: Option<unsafe extern "C" fn(*const u8) -> *mut c_void>,
    register: Option<unsafe extern "C" fn(*const u8)>,
    deregister: Option<unsafe extern "C" fn(*const u8)>,
    find: Option<unsafe extern "C" fn(*const c_void, *mut Bases) -> *const u8>,
    llvm_add: Option<unsafe extern "C" fn(u64)>,
}

/// What `_Unwind_Find_FDE` says beside the FDE: two bases, and where the code begins (gcc/unwind-dw2-fde.h, `struct dwarf_eh_bases`).
type Bases = [u64; 3];

// Rust has no weak symbols. `dlsym` would find none in a static program.
std::arch::global_asm!(
    ".pushsection .data.rel.ro.jitsym_unwinder,\"aw\",%progbits",
    ".weak __register_frame_info",
    ".weak __register_frame_info_table",
    ".weak __deregister_frame_info",
    ".weak __register_frame",
    ".weak __deregister_frame",
    ".weak _Unwind_Find_FDE",
    ".weak __unw_add_dynamic_fde",
    ".hidden jitsym_unwinder_functions",
    ".globl jitsym_unwinder_functions",
    ".type jitsym_unwinder_functions, %object",
    ".p2align 3",
    "jitsym_unwinder_functions:",
    ".quad __register_frame_info",
    ".quad __register_frame_info_table",
    ".quad __deregister_frame_info",
    ".quad __register_frame",
    ".quad __deregister_frame",
    ".quad _Unwind_Find_FDE",
    ".quad __unw_add_dynamic_fde",
    ".size jitsym_unwinder_functions, 56",
    ".popsection",
);

unsafe extern "C" {
    static jitsym_unwinder_functions: Functions;
}

fn functions() -> &'static Functions {
    // SAFETY: it is defined above, and nobody writes to it but the loader.
    unsafe { &*std::hint::black_box(&raw const jitsym_unwinder_functions) }
}

/// libgcc's `struct object`, and some more room. It says what libgcc knows of a table.
type Object = [u64; 8];

/// What no unwinder writes there.
const UNTOUCHED: u64 = 0x5a5a_5a5a_5a5a_5a5a;

/// Which unwinders the process has that can be told.
pub fn dialects() -> impl Iterator<Item = Dialect> {
    dialect().into_iter().chain(libunwind::is_there().then_some(Dialect::Offsets))
}

/// The unwinder of C++ exceptions.
pub fn dialect() -> Option<Dialect> {
    static FOUND: OnceLock<Option<Dialect>> = OnceLock::new();
    *FOUND.get_or_init(|| {
        let functions = functions();
        let each = functions.llvm_add.and(functions.register).and(functions.deregister).map(|_| Dialect::Each);
        // Of two unwinders the first one counts.
        dialect_of_libgcc().or(each)
    })
}

/// libgcc has no function that tells its version. The old one links the objects of its tables, the new one leaves that field alone.
/// LLVM libunwind has functions of these names that do nothing, and later none. Then the process may have libgcc's as well, which
/// nobody asks.
fn dialect_of_libgcc() -> Option<Dialect> {
    /// Where the link is: after `pc_begin`, `tbase`, `dbase`, `u` and `s`.
    const NEXT: usize = 5;
    static NOWHERE: [u8; 16] = [0; 16];
    let mut entries = Vec::new();
    // A CIE: version 1, augmentation "zR", alignment of code 1, of data -8, a return address, absolute pointers.
    entries.extend_from_slice(&[16, 0, 0, 0, 0, 0, 0, 0, 1, b'z', b'R', 0, 1, 0x78, 16, 1, 0, 0, 0, 0]);
    // An FDE for bytes that are no code.
    entries.extend_from_slice(&[24, 0, 0, 0, 24, 0, 0, 0]);
    entries.extend_from_slice(&(NOWHERE.as_ptr() as u64).to_ne_bytes());
    entries.extend_from_slice(&(NOWHERE.len() as u64).to_ne_bytes());
    // No augmentation data, no instructions, and the end.
    entries.extend_from_slice(&[0; 8]);
    let functions = functions();
    let (register, deregister) = (functions.register_info?, functions.deregister_info?);
    let mut object: Box<Object> = Box::new([UNTOUCHED; 8]);
    // SAFETY: entries with a zero word after them, and room for what libgcc notes of them, until it has forgotten both.
    unsafe { register(entries.as_ptr(), (&raw mut *object).cast()) };
    let is_asked = functions.find.is_none() || find(NOWHERE.as_ptr() as u64).is_some();
    // SAFETY: as above. Functions that did nothing do nothing.
    unsafe { deregister(entries.as_ptr()) };
    match (object[0], object[NEXT]) {
        _ if !is_asked => None,
        (UNTOUCHED, _) => None,
        (_, UNTOUCHED) => Some(Dialect::Tree),
        _ => Some(Dialect::List),
    }
}

/// A table without entries, first in each array. libgcc takes an array that begins with four zero bytes for an empty table when it is
/// to forget it, and keeps what it knows. A pointer to this begins with another one, and one to a table at a multiple of 4 GiB does
/// not.
#[repr(align(8))]
struct Empty([u32; 2]);

static EMPTY: Empty = Empty([0; 2]);

/// A table that the unwinder knows, until this is dropped. Its bytes are elsewhere.
#[derive(Debug)]
pub struct Registered {
    /// By this libgcc knows it, or LLVM libunwind if there is no object.
    begin: *const u8,
    object: Option<Box<Object>>,
    /// Where libgcc finds tables, and a NULL.
    array: Vec<*const u8>,
    /// Where an FDE has its code's address and size, and those that libgcc knows the table by.
    part: Option<(*mut Code, Code)>,
}

/// Address and size, as an FDE has them.
type Code = [u64; 2];

// SAFETY: nobody but libgcc reads through the pointers while others may, and it takes calls of all threads.
unsafe impl Send for Registered {}

impl Registered {
    /// Tells `Dialect::Each` of an FDE. `None` if there is none.
    ///
    /// # Safety
    /// The FDE, the CIE before it, and a zero word after it stay where they are until this is dropped.
    pub unsafe fn fde(table: &[u8], fde: usize) -> Option<Registered> {
        let begin = table.get(fde..)?.as_ptr();
        // SAFETY: the caller's promise.
        unsafe { functions().register?(begin) };
        Some(Registered { begin, object: None, array: Vec::new(), part: None })
    }

    /// Tells `Dialect::Tree` of a table with one FDE, and has it look there for a part of the code. `None` without memory.
    ///
    /// libgcc notes for which addresses a table is when the table is registered, and reads this again at the end.
    ///
    /// # Safety
    /// The table, which ends with a zero word and has the code's address and its size at `addr_at`, stays where it is until this is
    /// dropped. Nobody else writes to it, and nobody looks for the code now or when this is dropped.
    pub unsafe fn part(table: &mut [u8], addr_at: usize, part: (u64, u64)) -> Option<Registered> {
        let register = functions().register_info?;
        let mut object: Box<Object> = Box::new([0; 8]);
        let whole = table.get_mut(addr_at..addr_at + size_of::<Code>())?.as_mut_ptr().cast::<Code>();
        let begin = table.as_ptr();
        // SAFETY: 16 bytes of the table, and room for what libgcc notes. The rest is the caller's promise.
        unsafe {
            let code = whole.read_unaligned();
            whole.write_unaligned(part.into());
            register(begin, (&raw mut *object).cast());
            whole.write_unaligned(code);
        }
        Some(Registered { begin, object: Some(object), array: Vec::new(), part: Some((whole, part.into())) })
    }

    /// Tells `Dialect::List` of tables as if they were one. `None` without memory, or without a table.
    ///
    /// # Safety
    /// The tables, each of which ends with a zero word, stay where they are until this is dropped.
    pub unsafe fn all<'a>(tables: impl Iterator<Item = &'a [u8]> + Clone) -> Option<Registered> {
        let mut array = Vec::new();
        array.try_reserve_exact(tables.clone().count() + 2).ok()?;
        array.push((&raw const EMPTY.0[1]).cast());
        array.extend(tables.map(<[u8]>::as_ptr));
        if array.len() == 1 {
            return None;
        }
        array.push(ptr::null());
        let mut object: Box<Object> = Box::new([0; 8]);
        let begin = array.as_ptr().cast();
        // SAFETY: as above.
        unsafe { functions().register_array?(begin, (&raw mut *object).cast()) };
        Some(Registered { begin, object: Some(object), array, part: None })
    }
}

/// Objects of tables that libgcc has forgotten. Up to version 12 it looks at the object of a table once more after it has
/// found code by it and released its lock. That code may live, because another table has it now.
static RETIRED: FreeLater<Box<Object>> = FreeLater::new();

impl Drop for Registered {
    fn drop(&mut self) {
        let functions = functions();
        if let Some((whole, part)) = self.part {
            // SAFETY: the promise that `Registered::part` was called with.
            unsafe { whole.write_unaligned(part) };
        }
        if self.object.is_none() {
            // SAFETY: it was registered, once, and this is the only end of that.
            functions.deregister.into_iter().for_each(|deregister| unsafe { deregister(self.begin) });
        } else if let Some(deregister) = functions.deregister_info {
            // SAFETY: as above.
            unsafe { deregister(self.begin) };
        }
        if !self.array.is_empty() {
            self.object.take().into_iter().for_each(|object| RETIRED.keep(object));
        }
    }
}

/// Takes the lock for changes of `Dialect::Each`, and changes nothing. In a forked child nobody may be there who would give it back.
pub fn await_changes() {
    static NO_TABLE: u8 = 0;
    // SAFETY: it looks for this address among those that it was told of.
    functions().deregister.into_iter().for_each(|deregister| unsafe { deregister(&raw const NO_TABLE) });
}

/// Makes four bytes of a table 0, which the unwinder knows all the time.
pub fn clear(table: &mut [u8], at: usize) {
    if let Some(field) = table.get_mut(at..at + 4) {
        // SAFETY: the four bytes. The unwinder of another thread may read them now, with the old values or the new ones.
        unsafe { field.as_mut_ptr().cast::<u32>().write_unaligned(0) };
        fence(Ordering::SeqCst);
    }
}

/// Where the code begins that libgcc finds for an address.
pub fn find(addr: u64) -> Option<u64> {
    let (find, mut bases) = (functions().find?, [0; 3]);
    // SAFETY: it compares the address with those that it knows.
    let fde = unsafe { find(addr as *const c_void, &raw mut bases) };
    (!fde.is_null()).then_some(bases[2])
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What the list forgets does not depend on where a table lies.
    #[test]
    fn table_at_a_multiple_of_4_gib() {
        const ROOM: usize = 8 << 30;
        // An entry as in `dialect_of_libgcc`, for code at an address.
        const ENTRIES: [u8; 64] = {
            let mut entries = [0; 64];
            let cie = [16, 0, 0, 0, 0, 0, 0, 0, 1, b'z', b'R', 0, 1, 0x78, 16, 1, 0, 0, 0, 0];
            let fde = [24, 0, 0, 0, 24, 0, 0, 0, 0, 0, 0, 0, 0, 0x70, 0, 0, 16];
            let mut i = 0;
            while i < cie.len() + fde.len() {
                entries[i] = if i < cie.len() { cie[i] } else { fde[i - cie.len()] };
                i += 1;
            }
            entries
        };
        const CODE: u64 = 0x7000_0000_0000;
        if dialect() != Some(Dialect::List) {
            return;
        }
        // SAFETY: new memory, of which one page is used, as long as the table is registered.
        unsafe {
            let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
            let memory = libc::mmap(ptr::null_mut(), ROOM, libc::PROT_NONE, flags, -1, 0);
            assert_ne!(memory, libc::MAP_FAILED);
            let page = (memory as usize).next_multiple_of(4 << 30) as *mut u8;
            assert_eq!(libc::mprotect(page.cast(), 4096, libc::PROT_READ | libc::PROT_WRITE), 0);
            page.copy_from_nonoverlapping(ENTRIES.as_ptr(), ENTRIES.len());
            let table = std::slice::from_raw_parts(page, ENTRIES.len());
            let registered = Registered::all(std::iter::once(table));
            assert_eq!(find(CODE + 15), Some(CODE));
            drop(registered);
            assert_eq!(find(CODE + 15), None);
            libc::munmap(memory, ROOM);
        }
    }
}
