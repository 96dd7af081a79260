//! The unwinder of the process: how it is told of unwind tables in memory.
//!
//! C++ exceptions, `backtrace` and the end of a thread go through one library, and a process may have one of three kinds of it.
//! Each has the names of libgcc's functions (gcc/unwind-dw2-fde.c, `__register_frame_info`; llvm libunwind,
//! UnwindLevel1-gcc-ext.c, `__register_frame`).

use std::ffi::c_void;
use std::sync::OnceLock;

/// What an unwinder does with many tables.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Dialect {
    /// libgcc before version 13: a list, which each search goes through. Tables may overlap if each has all of its code.
    List,
    /// libgcc from version 13 on: a tree. No two tables may overlap.
    Tree,
    /// LLVM libunwind: a list of FDEs, which are registered one by one.
    Each,
}

/// The functions, by addresses of which any may be 0: no library of the process may have them.
#[repr(C)]
struct Functions {
    register_info: Option<unsafe extern "C" fn(*const u8, *mut c_void)>,
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
    ".quad __deregister_frame_info",
    ".quad __register_frame",
    ".quad __deregister_frame",
    ".quad _Unwind_Find_FDE",
    ".quad __unw_add_dynamic_fde",
    ".size jitsym_unwinder_functions, 48",
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
type Object = [u64; 16];

/// What is after the last entry.
pub const END: [u8; 4] = [0; 4];

/// A table that the unwinder knows, until this is dropped.
#[derive(Debug)]
pub struct Registered {
    /// Entries, and a zero word. libgcc reads them at any time, and knows the table by its address.
    table: Vec<u8>,
    /// Where the FDEs are, if each was registered.
    fdes: Vec<usize>,
    object: Option<Box<Object>>,
}

/// Which unwinder the process has; `None` if it has none that can be told.
pub fn dialect() -> Option<Dialect> {
    static FOUND: OnceLock<Option<Dialect>> = OnceLock::new();
    *FOUND.get_or_init(|| {
        let functions = functions();
        if functions.llvm_add.is_some() {
            functions.register.and(functions.deregister).map(|_| Dialect::Each)
        } else {
            functions.register_info.and(functions.deregister_info).and_then(|_| dialect_of_libgcc())
        }
    })
}

/// libgcc has no function that tells its version. The old one links the objects of its tables, the new one leaves that field alone.
fn dialect_of_libgcc() -> Option<Dialect> {
    /// Where the link is: after `pc_begin`, `tbase`, `dbase`, `u` and `s`.
    const NEXT: usize = 5;
    const UNTOUCHED: u64 = 0x5a5a_5a5a_5a5a_5a5a;
    static NOWHERE: [u8; 16] = [0; 16];
    let mut entries = Vec::new();
    // A CIE: version 1, augmentation "zR", alignment of code 1, of data -8, a return address, absolute pointers.
    entries.extend_from_slice(&[16, 0, 0, 0, 0, 0, 0, 0, 1, b'z', b'R', 0, 1, 0x78, 16, 1, 0, 0, 0, 0]);
    // An FDE for bytes that are no code.
    entries.extend_from_slice(&[24, 0, 0, 0, 24, 0, 0, 0]);
    entries.extend_from_slice(&(NOWHERE.as_ptr() as u64).to_ne_bytes());
    entries.extend_from_slice(&(NOWHERE.len() as u64).to_ne_bytes());
    entries.extend_from_slice(&[0; 4]);
    let probe = register_with(Dialect::Tree, entries, Vec::new(), [UNTOUCHED; 16])?;
    let next = probe.object.as_ref()?[NEXT];
    drop(probe);
    Some(if next == UNTOUCHED { Dialect::Tree } else { Dialect::List })
}

/// Where the code begins that libgcc finds for an address.
pub fn find(addr: u64) -> Option<u64> {
    let (find, mut bases) = (functions().find?, [0; 3]);
    // SAFETY: it compares the address with those that it knows.
    let fde = unsafe { find(addr as *const c_void, &raw mut bases) };
    (!fde.is_null()).then_some(bases[2])
}

/// Tells the unwinder of entries, without `END`. `fdes`: where the FDEs are, for `Dialect::Each`. `None` without memory.
pub fn register(dialect: Dialect, entries: Vec<u8>, fdes: Vec<usize>) -> Option<Registered> {
    register_with(dialect, entries, fdes, [0; 16])
}

fn register_with(dialect: Dialect, mut table: Vec<u8>, fdes: Vec<usize>, object: Object) -> Option<Registered> {
    table.try_reserve_exact(END.len()).ok()?;
    table.extend_from_slice(&END);
    let mut registered = Registered { table, fdes, object: None };
    let functions = functions();
    if dialect == Dialect::Each {
        let register = functions.register?;
        for &fde in &registered.fdes {
            // SAFETY: an FDE, with its CIE before it, that stays there until it is deregistered.
            unsafe { register(registered.table.as_ptr().add(fde)) };
        }
        return Some(registered);
    }
    let mut object = Box::new(object);
    let register = functions.register_info?;
    // SAFETY: entries with a zero word after them, and room for what libgcc notes of them, both of which stay where they are until
    // they are deregistered.
    unsafe { register(registered.table.as_ptr(), (&raw mut *object).cast()) };
    registered.object = Some(object);
    Some(registered)
}

impl Registered {
    /// All entries.
    pub fn entries(&self) -> &[u8] {
        &self.table
    }

    /// Makes four bytes 0. The unwinder knows the table all the time.
    pub fn clear(&mut self, at: usize) {
        if let Some(field) = self.table.get_mut(at..at + 4) {
            // SAFETY: the four bytes. The unwinder of another thread may read them now, with the old values or the new ones.
            unsafe { field.as_mut_ptr().cast::<u32>().write_unaligned(0) };
            std::sync::atomic::fence(std::sync::atomic::Ordering::SeqCst);
        }
    }
}

impl Drop for Registered {
    fn drop(&mut self) {
        let functions = functions();
        if let (Some(deregister), Some(_)) = (functions.deregister_info, &self.object) {
            // SAFETY: it was registered, once, and this is the only end of that.
            unsafe { deregister(self.table.as_ptr()) };
        } else if let Some(deregister) = functions.deregister.filter(|_| self.object.is_none()) {
            for &fde in &self.fdes {
                // SAFETY: as above.
                unsafe { deregister(self.table.as_ptr().add(fde)) };
            }
        }
    }
}
