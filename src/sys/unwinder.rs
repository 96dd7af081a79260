//! Registers unwind tables in memory with the unwinder of the process.
//!
//! The unwinder is the library that C++ exceptions, `backtrace` and `pthread_exit` use. The unwinder is libgcc before version
//! 13, a later libgcc, or LLVM libunwind. Each of these unwinders has functions with the names of libgcc's functions. The
//! sources are gcc/unwind-dw2-fde.c (`__register_frame_info`) and UnwindLevel1-gcc-ext.c of LLVM libunwind
//! (`__register_frame`).

use std::ffi::c_void;
use std::ptr;
use std::sync::atomic::{fence, Ordering};
use std::sync::OnceLock;

use super::free_later::FreeLater;
use super::libunwind;

/// The kinds of unwinders, which differ in how they store tables.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Dialect {
    /// libgcc before version 13 keeps the tables in a list, and each search reads the list from its beginning. For an address,
    /// libgcc searches only the table that begins closest below the address. So tables may overlap, but each table must
    /// describe all code from its own beginning to the beginning of the next table.
    List,
    /// libgcc from version 13 on keeps the tables in a tree. No two tables may overlap.
    Tree,
    /// LLVM libunwind keeps a list of FDEs. The FDEs are registered one by one.
    Each,
    /// nongnu libunwind (`sys/libunwind`) keeps the tables in a list. No two tables should overlap. A process may have nongnu
    /// libunwind in addition to libgcc or LLVM libunwind.
    Offsets,
}

/// The addresses of the unwinder's functions. The address of a function is 0 if no library of the process has that function.
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

/// The data that `_Unwind_Find_FDE` returns in addition to the FDE: two base addresses, and the address at which the code
/// begins (gcc/unwind-dw2-fde.h, `struct dwarf_eh_bases`).
type Bases = [usize; 3];

// The addresses are collected in assembly, because Rust cannot refer to weak symbols. In a static program, `dlsym` would not
// find these functions.
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
    concat!(pointer!(), "__register_frame_info"),
    concat!(pointer!(), "__register_frame_info_table"),
    concat!(pointer!(), "__deregister_frame_info"),
    concat!(pointer!(), "__register_frame"),
    concat!(pointer!(), "__deregister_frame"),
    concat!(pointer!(), "_Unwind_Find_FDE"),
    concat!(pointer!(), "__unw_add_dynamic_fde"),
    ".size jitsym_unwinder_functions, {size}",
    ".popsection",
    size = const size_of::<Functions>(),
);

unsafe extern "C" {
    static jitsym_unwinder_functions: Functions;
}

fn functions() -> &'static Functions {
    // SAFETY: the table is defined above, and only the loader writes to it.
    unsafe { &*std::hint::black_box(&raw const jitsym_unwinder_functions) }
}

/// Memory in which libgcc keeps its data about a table. `Object` is larger than libgcc's `struct object`.
type Object = [usize; 8];

/// A value that no unwinder writes into an object.
const UNTOUCHED: usize = usize::MAX / 3;

/// The unwinders of the process that accept tables.
pub fn dialects() -> impl Iterator<Item = Dialect> {
    dialect().into_iter().chain(libunwind::is_there().then_some(Dialect::Offsets))
}

/// The unwinder of C++ exceptions.
pub fn dialect() -> Option<Dialect> {
    static FOUND: OnceLock<Option<Dialect>> = OnceLock::new();
    *FOUND.get_or_init(|| {
        let functions = functions();
        let each = functions.llvm_add.and(functions.register).and(functions.deregister).map(|_| Dialect::Each);
        // The process may have both libraries. libgcc is the unwinder if `_Unwind_Find_FDE` finds tables that are registered
        // with libgcc.
        dialect_of_libgcc().or(each)
    })
}

/// Returns which version of libgcc unwinds in this process, or `None` if another library unwinds. libgcc has no function that
/// returns its version. But the object of a registered table shows the version: libgcc before version 13 links the object into
/// a list, and a later libgcc leaves the link untouched.
///
/// A process that unwinds with LLVM libunwind may also have functions with the names of libgcc's functions. Older versions of
/// LLVM libunwind define these functions, but the functions do nothing. If the process has a later version of LLVM libunwind,
/// libgcc may be in the process too.
fn dialect_of_libgcc() -> Option<Dialect> {
    /// Index of the link in the object: after `pc_begin`, `tbase`, `dbase`, `u` and `s`.
    const NEXT: usize = 5;
    static NOWHERE: [u8; 16] = [0; 16];
    let mut entries = Vec::new();
    // This CIE has version 1, augmentation "zR", code alignment 1, data alignment -8, the return address in column 16, and
    // absolute pointers.
    entries.extend_from_slice(&[16_u32, 0].map(u32::to_ne_bytes).concat());
    entries.extend_from_slice(&[1, b'z', b'R', 0, 1, 0x78, 16, 1, 0, 0, 0, 0]);
    // This FDE describes `NOWHERE`, which is not code.
    entries.extend_from_slice(&[8 + size_of::<Code>() as u32, 24].map(u32::to_ne_bytes).concat());
    entries.extend_from_slice(&[NOWHERE.as_ptr() as usize, NOWHERE.len()].map(usize::to_ne_bytes).concat());
    // The FDE has no augmentation data and no instructions. The zero word ends the table.
    entries.extend_from_slice(&[0; 8]);
    let functions = functions();
    let (register, deregister) = (functions.register_info?, functions.deregister_info?);
    let mut object: Box<Object> = Box::new([UNTOUCHED; 8]);
    // SAFETY: the entries end with a zero word, and the object has room for libgcc's data. The entries and the object stay
    // until they are deregistered.
    unsafe { register(entries.as_ptr(), (&raw mut *object).cast()) };
    let is_asked = functions.find.is_none() || find(NOWHERE.as_ptr() as u64).is_some();
    // SAFETY: the entries were registered above. If `register` has done nothing, `deregister` does nothing either.
    unsafe { deregister(entries.as_ptr()) };
    match (object[0], object[NEXT]) {
        _ if !is_asked => None,
        (UNTOUCHED, _) => None,
        (_, UNTOUCHED) => Some(Dialect::Tree),
        _ => Some(Dialect::List),
    }
}

/// A table without entries. An array of tables consists of the addresses of the tables. If the first four bytes of the array
/// are zero, because the address of the first table is a multiple of 4 GiB, libgcc treats the array as an empty table, and does
/// not remove the array when it is deregistered. So the first element of each array is the address of the second word of
/// `Empty`. The address of the second word is not a multiple of 8, so its lower four bytes are not zero.
#[repr(align(8))]
struct Empty([u32; 2]);

static EMPTY: Empty = Empty([0; 2]);

/// A table that is registered with the unwinder until this value is dropped. `Registered` does not contain the table's bytes.
#[derive(Debug)]
pub struct Registered {
    /// The address under which the table is registered. If `object` is `None`, the table is registered with LLVM libunwind,
    /// and otherwise with libgcc.
    begin: *const u8,
    object: Option<Box<Object>>,
    /// The array of tables that is registered with libgcc. The array ends with NULL. The array is empty if a single table is
    /// registered.
    array: Vec<*const u8>,
    /// Used only by `Registered::part`. The pointer refers to the code's address and size in the FDE. The second element has
    /// the address and size that the FDE had when the table was registered.
    part: Option<(*mut Code, Code)>,
}

/// The address and size of code, in the format of an FDE.
type Code = [usize; 2];

// SAFETY: while other threads use the pointers, only libgcc reads through them, and libgcc may be called from any thread.
unsafe impl Send for Registered {}

impl Registered {
    /// Registers an FDE with `Dialect::Each`. Returns `None` if the table ends before the offset `fde`, or if no library of the
    /// process has `__register_frame`.
    ///
    /// # Safety
    /// The FDE, the CIE before the FDE, and a zero word after the FDE stay at their addresses until the returned value is
    /// dropped.
    pub unsafe fn fde(table: &[u8], fde: usize) -> Option<Registered> {
        let begin = table.get(fde..)?.as_ptr();
        // SAFETY: the caller's promise.
        unsafe { functions().register?(begin) };
        Some(Registered { begin, object: None, array: Vec::new(), part: None })
    }

    /// Registers a table with `Dialect::Tree`. The table has one FDE, and is registered only for a part of the code that the
    /// FDE describes. Returns `None` if `addr_at` is not in the table, or if no library of the process has
    /// `__register_frame_info`.
    ///
    /// libgcc reads the code's address and size when the table is registered, and again when the table is deregistered. While
    /// libgcc registers or deregisters the table, the FDE has the address and size of `part`. At all other times, the FDE has
    /// the address and size of the whole code.
    ///
    /// # Safety
    /// The table ends with a zero word, has the code's address and size at `addr_at`, and stays at its address until the
    /// returned value is dropped. Nobody else writes to the table. No thread searches for the code during this call, or while
    /// the returned value is dropped.
    pub unsafe fn part(table: &mut [u8], addr_at: usize, part: (u64, u64)) -> Option<Registered> {
        let register = functions().register_info?;
        let part = [part.0 as usize, part.1 as usize];
        let mut object: Box<Object> = Box::new([0; 8]);
        let whole = table.get_mut(addr_at..addr_at + size_of::<Code>())?.as_mut_ptr().cast::<Code>();
        let begin = table.as_ptr();
        // SAFETY: `whole` points to an address and a size in the table, and the object has room for libgcc's data. The caller promises the
        // conditions in the section `# Safety`.
        unsafe {
            let code = whole.read_unaligned();
            whole.write_unaligned(part);
            register(begin, (&raw mut *object).cast());
            whole.write_unaligned(code);
        }
        Some(Registered { begin, object: Some(object), array: Vec::new(), part: Some((whole, part)) })
    }

    /// Registers all tables together, as one table, with `Dialect::List`. Returns `None` if there is not enough memory, if
    /// `tables` is empty, or if no library of the process has `__register_frame_info_table`.
    ///
    /// # Safety
    /// Each table ends with a zero word, and stays at its address until the returned value is dropped.
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
        // SAFETY: the caller promises that the tables stay. The array and the object stay until this value is dropped.
        unsafe { functions().register_array?(begin, (&raw mut *object).cast()) };
        Some(Registered { begin, object: Some(object), array, part: None })
    }
}

/// libgcc has an `Object` for each registered array. `RETIRED` keeps the `Object`s of deregistered arrays for a while. When a
/// search has succeeded, libgcc up to version 12 releases its lock, and then reads the array's `Object` once more. After libgcc
/// has released its lock, and before it reads the `Object`, another thread may deregister the array. Even an array of live code
/// may be deregistered, because this library can move live code to another array.
static RETIRED: FreeLater<Box<Object>> = FreeLater::new();

impl Drop for Registered {
    fn drop(&mut self) {
        let functions = functions();
        if let Some((whole, part)) = self.part {
            // SAFETY: the caller of `Registered::part` has promised that the table stays, and that nobody else writes to it.
            unsafe { whole.write_unaligned(part) };
        }
        if self.object.is_none() {
            // SAFETY: the FDE was registered once, and is deregistered only here.
            functions.deregister.into_iter().for_each(|deregister| unsafe { deregister(self.begin) });
        } else if let Some(deregister) = functions.deregister_info {
            // SAFETY: the table was registered once, and is deregistered only here.
            unsafe { deregister(self.begin) };
        }
        if !self.array.is_empty() {
            self.object.take().into_iter().for_each(|object| RETIRED.keep(object));
        }
    }
}

/// Waits until no other thread changes the tables of `Dialect::Each`. The function makes the unwinder take the lock of the
/// tables, which another thread holds while it changes the tables. In a forked child the function may never return, because a
/// thread that exists only in the parent may hold the lock.
pub fn await_changes() {
    static NO_TABLE: u8 = 0;
    // SAFETY: the function searches for this address among the registered addresses, and does not find it.
    functions().deregister.into_iter().for_each(|deregister| unsafe { deregister(&raw const NO_TABLE) });
}

/// Sets four bytes of a registered table to 0.
pub fn clear(table: &mut [u8], at: usize) {
    if let Some(field) = table.get_mut(at..at + 4) {
        // SAFETY: the field has four bytes. If the unwinder reads these bytes on another thread at the same time, it reads
        // the old values or the new values.
        unsafe { field.as_mut_ptr().cast::<u32>().write_unaligned(0) };
        fence(Ordering::SeqCst);
    }
}

/// Searches with libgcc for the code that contains an address, and returns the address at which the code begins.
pub fn find(addr: u64) -> Option<u64> {
    let (find, mut bases) = (functions().find?, [0; 3]);
    // SAFETY: libgcc only compares the address with registered addresses.
    let fde = unsafe { find(addr as *const c_void, &raw mut bases) };
    (!fde.is_null()).then_some(bases[2] as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn table_at_a_multiple_of_4_gib() {
        const ROOM: usize = 8 << 30;
        // The CIE is the same as in `dialect_of_libgcc`. The FDE describes code at `CODE`.
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
        // SAFETY: the memory is new. The test uses one page of this memory, and the page stays mapped while the table is
        // registered.
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
