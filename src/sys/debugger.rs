//! Shows code to debuggers by the JIT interface of gdb: a list of objects in memory, and a function on which debuggers set a
//! breakpoint.
//!
//! The interface is described in gdb/jit.h, and under "JIT Compilation Interface" in gdb's manual. lldb reads the same list.
//!
//! Debuggers find the list and the function by their symbol names. Other libraries in the process (LLVM, a second copy of this
//! library) may define the same names. If the linker or the loader binds the names in all these libraries to one definition,
//! the libraries share one list, for which the protocol has no lock. So this library first puts two marker entries into the
//! list (`Ends`), and then all its other entries between them. Once the marker entries are in the list, this library never
//! writes to an entry of another library.

use std::hint::black_box;
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicU64, Ordering};
use std::sync::{Mutex, OnceLock, TryLockError};

use super::mapping::Table;
use super::process_memory;
use super::tracer::{self, Debugger};

const NOTHING: u32 = 0;
pub const REGISTER: u32 = 1;
pub const UNREGISTER: u32 = 2;

/// `struct jit_code_entry`, with an additional field at its end.
#[derive(Debug)]
#[repr(C)]
struct Entry {
    next: AtomicPtr<Entry>,
    prev: AtomicPtr<Entry>,
    object: *const u8,
    size: u64,
    /// The value of [`owner`], by which this library recognises its own entries.
    owner: u64,
}

/// The value in the additional field of this library's entries: an address in this copy of the library, so no other library
/// uses the same value.
fn owner() -> u64 {
    &raw const ENDS as u64
}

/// Whether the entry at an address belongs to this copy of the library. The entry may be gone.
pub fn is_own(pid: u32, entry: u64) -> bool {
    let mut found = [0; size_of::<u64>()];
    let at = entry.wrapping_add(std::mem::offset_of!(Entry, owner) as u64);
    process_memory::read(pid, at, &mut found) == found.len() && found == owner().to_ne_bytes()
}

/// `struct jit_descriptor`.
#[derive(Debug)]
#[repr(C)]
pub struct Descriptor {
    version: u32,
    action: AtomicU32,
    relevant: AtomicPtr<Entry>,
    first: AtomicPtr<Entry>,
}

/// Defines the function and the descriptor that this project's libraries for C programs export. In the static library,
/// `scripts/seal.sh` makes the two symbols weak.
#[cfg(feature = "reserve")]
mod names {
    use super::*;

    #[no_mangle]
    pub static __jit_debug_descriptor: Descriptor = Descriptor {
        version: 1,
        action: AtomicU32::new(NOTHING),
        relevant: AtomicPtr::new(ptr::null_mut()),
        first: AtomicPtr::new(ptr::null_mut()),
    };

    /// The first instruction, which does nothing, and a jump.
    macro_rules! body {
        ($($jump:literal,)+) => {
            std::arch::naked_asm!(".cfi_startproc", $($jump,)+ ".cfi_endproc", sym called)
        };
    }

    /// Debuggers set a breakpoint on the first instruction, which does nothing. A killed debugger leaves its breakpoint in
    /// the place of this instruction. The next debugger assumes that this breakpoint is part of the program, and continues
    /// with the next instruction.
    ///
    /// Other libraries may also call a function of this name. The linker or the loader may bind their calls to this definition.
    #[no_mangle]
    #[unsafe(naked)]
    pub extern "C" fn __jit_debug_register_code() {
        #[cfg(any(target_arch = "x86_64", target_arch = "x86"))]
        body!("nop", "jmp {}",);
        #[cfg(any(target_arch = "aarch64", target_arch = "arm"))]
        body!("nop", "b {}",);
        #[cfg(target_arch = "riscv64")]
        body!("nop", "tail {}",);
        // Instructions have two, four or six bytes. `nop` has four bytes, and a breakpoint two.
        #[cfg(target_arch = "s390x")]
        body!("nopr", "jg {}",);
        // A caller in another library has its own table of contents in r2, and this library's code expects the address of this
        // library's table. A caller in this library jumps behind these two instructions.
        #[cfg(target_arch = "powerpc64")]
        body!(
            "addis 2, 12, .TOC.-__jit_debug_register_code@ha",
            "addi 2, 2, .TOC.-__jit_debug_register_code@l",
            ".localentry __jit_debug_register_code, .-__jit_debug_register_code",
            "nop",
            "b {}",
        );
    }

    std::arch::global_asm!(
        ".weak jitsym_own_register_code",
        ".hidden jitsym_own_register_code",
        ".set jitsym_own_register_code, {function}",
        ".weak jitsym_own_descriptor",
        ".hidden jitsym_own_descriptor",
        ".set jitsym_own_descriptor, {descriptor}",
        function = sym __jit_debug_register_code,
        descriptor = sym __jit_debug_descriptor,
    );

    pub fn found() -> Pair {
        Pair { function: __jit_debug_register_code, descriptor: &__jit_debug_descriptor }
    }
}

/// Defines the function and the descriptor in a Rust program. Both symbols are weak, because other crates of the program may
/// define the same names, as wasmtime does.
#[cfg(not(feature = "reserve"))]
mod names {
    use super::{Descriptor, Pair};

    std::arch::global_asm!(
        ".pushsection .text.jitsym_debugger,\"ax\",%progbits",
        ".weak __jit_debug_register_code",
        ".type __jit_debug_register_code, %function",
        ".weak jitsym_own_register_code",
        ".hidden jitsym_own_register_code",
        ".p2align 4",
        "__jit_debug_register_code:",
        "jitsym_own_register_code:",
        // A killed debugger may leave its breakpoint in the place of the first instruction. So this definition of the function,
        // like the definition for C programs, begins with an instruction that does nothing.
        "nop",
        "ret",
        ".size __jit_debug_register_code, . - __jit_debug_register_code",
        ".popsection",
        ".pushsection .data.jitsym_debugger,\"aw\",%progbits",
        ".weak __jit_debug_descriptor",
        ".type __jit_debug_descriptor, %object",
        ".weak jitsym_own_descriptor",
        ".hidden jitsym_own_descriptor",
        ".p2align 3",
        "__jit_debug_descriptor:",
        "jitsym_own_descriptor:",
        ".long 1, 0",
        ".zero {pointers}",
        ".size __jit_debug_descriptor, 8 + {pointers}",
        ".popsection",
        pointers = const 2 * size_of::<usize>(),
    );

    unsafe extern "C" {
        static __jit_debug_descriptor: Descriptor;
        safe fn __jit_debug_register_code();
    }

    pub fn found() -> Pair {
        // SAFETY: the descriptor may be the definition above or the definition of another library. Each definition has the
        // layout that debuggers expect.
        Pair { function: __jit_debug_register_code, descriptor: unsafe { &__jit_debug_descriptor } }
    }
}

/// A function on which debuggers set a breakpoint, and the descriptor that a debugger reads when it stops at this breakpoint.
#[derive(Clone, Copy)]
struct Pair {
    function: extern "C" fn(),
    descriptor: &'static Descriptor,
}

/// The function and the descriptor that this library uses. The function and the descriptor must be in the same loaded object,
/// because a debugger reads the descriptor of the object that contains its breakpoint. With `-Bsymbolic-functions`, the linker
/// may bind the function's name to this object, while the loader binds the descriptor's name to another object. If the two
/// names are bound to different objects, this library uses its own definitions of the function and the descriptor.
fn pair() -> Pair {
    unsafe extern "C" {
        /// The names that begin with `jitsym_own` are aliases of the function and the descriptor that the module `names`
        /// defines. The linker always binds these aliases to this object.
        static jitsym_own_descriptor: Descriptor;
        safe fn jitsym_own_register_code();
    }
    // SAFETY: the descriptor is defined in `names`.
    let own = Pair { function: jitsym_own_register_code, descriptor: unsafe { &jitsym_own_descriptor } };
    // If this library called the function by name, the loader could bind the call at a later time, and to another object. So
    // this library calls the function by its address. `black_box` hides the addresses from the compiler, which would otherwise
    // assume that two names never have the same address.
    let found = black_box(names::found());
    let is_own = [found.function as usize == own.function as usize, ptr::eq(found.descriptor, own.descriptor)];
    if is_own[0] == is_own[1] {
        found
    } else {
        own
    }
}

/// The function that is called when another library reports a change of the list, by calling `__jit_debug_register_code`.
/// NULL if no function is set.
static LISTENER: AtomicPtr<()> = AtomicPtr::new(ptr::null_mut());

/// Sets the function that is called, on any thread, when another library reports a change of the list.
pub fn listen(listener: fn()) {
    LISTENER.store(listener as *mut (), Ordering::Release);
}

#[cfg_attr(not(feature = "reserve"), allow(dead_code, reason = "the function of other builds does nothing"))]
extern "C" fn called() {
    let listener = LISTENER.load(Ordering::Acquire);
    if !listener.is_null() && !super::panic_guard::is_inside() {
        // SAFETY: `listen` has stored a function of this type.
        unsafe { std::mem::transmute::<*mut (), fn()>(listener)() };
    }
}

/// The address of the descriptor that this library uses.
pub fn descriptor_addr() -> u64 {
    ptr::from_ref(pair().descriptor) as u64
}

/// The address of this library's first entry in the list, and the address of the entry that follows this library's last entry.
/// The second address is 0 if no entry follows.
pub fn own_entries() -> Option<(u64, u64)> {
    let ends = ENDS.get()?;
    // SAFETY: the marker entries are never freed.
    let after = unsafe { ends.last.as_ref() }.next.load(Ordering::Acquire);
    Some((ends.first.as_ptr() as u64, after as u64))
}

/// Whether a debugger traces the process and has set its breakpoint on the function.
pub fn is_watched() -> bool {
    listener_of_breakpoint().is_some()
}

/// Returns true if the list is empty, or if the list contains this library's entries. If the result is false, only other
/// libraries use the list. In this case this library should not put its marker entries at the head of the list, because an
/// entry may be lost if two libraries insert entries at the head at the same time.
pub fn is_alone() -> bool {
    pair().descriptor.first.load(Ordering::Relaxed).is_null() || ENDS.get().is_some()
}

/// Returns the debugger that will handle the breakpoint in the function, if there is such a debugger.
///
/// A killed debugger leaves its breakpoint in the process. If a thread reaches a breakpoint that no debugger handles, the
/// kernel ends the process. Tracers such as strace do not handle breakpoints. So this function determines which program traces
/// the process now. If `__jit_debug_register_code` has a breakpoint, this library calls the function only while a known
/// debugger traces the process.
fn listener_of_breakpoint() -> Option<Debugger> {
    has_breakpoint().then(tracer::debugger).flatten()
}

/// Whether the list may contain an old and a new object for the same address during an exchange. gdb accepts both objects at
/// the same time, but lldb does not. If the sections of both objects begin at the same address, the removal of the old object
/// also removes lldb's data about the section of the new object (SectionLoadList::SetSectionUnloaded).
fn takes_both() -> bool {
    listener_of_breakpoint() != Some(Debugger::Lldb)
}

/// Whether the function's first instruction is a breakpoint now.
fn has_breakpoint() -> bool {
    let at = pair().function as *const ();
    // SAFETY: code can be read on Linux.
    unsafe {
        if cfg!(any(target_arch = "x86_64", target_arch = "x86")) {
            // int3
            at.cast::<u8>().read_volatile() == 0xcc
        } else if cfg!(target_arch = "aarch64") {
            // brk #0
            at.cast::<u32>().read_volatile() == 0xd420_0000
        } else if cfg!(target_arch = "riscv64") {
            // c.ebreak, or ebreak
            let halves = [at.cast::<u16>().read_volatile(), at.cast::<u16>().add(1).read_volatile()];
            halves[0] == 0x9002 || halves == [0x0073, 0x0010]
        } else if cfg!(target_arch = "s390x") {
            // An illegal instruction.
            at.cast::<u16>().read_volatile() == 0x0001
        } else if cfg!(target_arch = "arm") {
            // udf #16
            at.cast::<u32>().read_volatile() == 0xe7f0_01f0
        } else if cfg!(target_arch = "powerpc64") {
            // tw 12, r2, r2, or trap. gdb may set its breakpoint on the entry point for callers in this library.
            let is_breakpoint = |word: u32| matches!(word, 0x7d82_1008 | 0x7fe0_0008);
            [0, 2].iter().any(|&word| is_breakpoint(at.cast::<u32>().add(word).read_volatile()))
        } else {
            false
        }
    }
}

/// The two marker entries of this library. In the list, all other entries of this library lie between the two marker entries.
struct Ends {
    first: NonNull<Entry>,
    last: NonNull<Entry>,
}

// SAFETY: the two entries are never freed, and the fields that change are atomic.
unsafe impl Send for Ends {}
// SAFETY: the two entries are never freed, and the fields that change are atomic.
unsafe impl Sync for Ends {}

/// The marker entries. `ENDS` is set just before the marker entries are put into the list, and is read without a lock.
static ENDS: OnceLock<Ends> = OnceLock::new();
/// The lock for changes of the entries between the marker entries.
static CHANGE: Mutex<()> = Mutex::new(());

/// How many changes this library has reported, whether or not a debugger was attached.
static TIMES_TOLD: AtomicU64 = AtomicU64::new(0);

pub fn times_told() -> u64 {
    TIMES_TOLD.load(Ordering::Relaxed)
}

/// Whether this library is now calling the function on which debuggers set a breakpoint. The value is also true if the function
/// has no breakpoint.
static IS_CALLED: AtomicBool = AtomicBool::new(false);

/// Whether a thread that reports a change is now stopped by a debugger.
pub fn is_called() -> bool {
    IS_CALLED.load(Ordering::Relaxed) && has_breakpoint()
}

/// An object for debuggers: its bytes, and its entry for the list.
#[derive(Debug)]
pub struct Listed {
    /// The entry for the object. While the entry is in the list, its `next` and `prev` are not NULL.
    entry: NonNull<Entry>,
    image: Table<u8>,
}

// SAFETY: only this value and readers of the list have the address of the entry.
unsafe impl Send for Listed {}

impl Listed {
    /// Makes an object that is not in the list yet. Returns `None` if there is no memory.
    pub fn new(bytes: &[u8]) -> Option<Listed> {
        let mut image = Table::default();
        image.try_reserve(bytes.len()).ok()?;
        image.extend_from_slice(bytes);
        Some(Listed { entry: new_entry(&image)?, image })
    }

    #[cfg(test)]
    pub fn image(&self) -> &[u8] {
        &self.image
    }
}

/// Replaces the objects `old` in the list with the objects `new`, which describe the same code. Reports the changes to a
/// debugger. `empty` makes an object that describes no code, for the marker entries (`Ends`). For gdb the new objects are added
/// first, so the list always contains all old objects or all new objects. For lldb the old objects are removed first. Until the
/// exchange is complete, lldb may find only a part of the objects, or no object. Returns false if the last reported change is
/// the removal of an object.
///
/// In a child that was forked while its parent changed the list, this function does nothing and returns false.
pub fn exchange<'l>(old: Vec<Listed>, new: impl Iterator<Item = &'l Listed> + Clone, empty: fn() -> Vec<u8>) -> bool {
    let done = changing(|| {
        let ends = match ENDS.get() {
            Some(ends) => ends,
            None => put_ends(empty().leak())?,
        };
        let is_new_first = old.is_empty() || takes_both();
        for puts_new in [is_new_first, !is_new_first] {
            if puts_new {
                for listed in new.clone() {
                    // SAFETY: both marker entries and all entries between them belong to this library.
                    unsafe { link(ends.first, listed.entry, ends.first.as_ref().next.load(Ordering::Relaxed)) };
                    tell(REGISTER, listed.entry);
                }
            } else {
                old.iter().for_each(|listed| unlink(listed.entry));
            }
        }
        Some(old.is_empty() || !is_new_first && new.clone().next().is_some())
    });
    for listed in old {
        match done {
            // SAFETY: the entry came from a box, and is no longer in a list.
            Some(_) => drop(unsafe { Box::from_raw(listed.entry.as_ptr()) }),
            // The entry is still in the list, so its image must stay.
            None => std::mem::forget(listed.image),
        }
    }
    done.unwrap_or_default()
}

/// Takes the entry out of the list if the list contains the entry, and reports the change to a debugger.
fn unlink(listed: NonNull<Entry>) {
    // SAFETY: the entry is between two entries of this library, or in no list.
    let entry = unsafe { listed.as_ref() };
    let (next, prev) = (entry.next.load(Ordering::Relaxed), entry.prev.load(Ordering::Relaxed));
    if next.is_null() {
        return;
    }
    // SAFETY: the entry and its neighbours in the list belong to this library.
    unsafe {
        (*prev).next.store(next, Ordering::Release);
        (*next).prev.store(prev, Ordering::Release);
    }
    tell(UNREGISTER, listed);
}

/// In a forked child: takes all objects of the parent out of the list. The memory of the objects is not freed. Returns false if
/// the parent was changing the list when the child was forked.
pub fn unlist_all() -> bool {
    let done = changing(|| {
        let Some(ends) = ENDS.get() else { return Some(()) };
        loop {
            // SAFETY: all entries between the marker entries belong to this library.
            let entry = unsafe { ends.first.as_ref() }.next.load(Ordering::Relaxed);
            let Some(entry) = NonNull::new(entry).filter(|&entry| entry != ends.last) else { return Some(()) };
            // SAFETY: both marker entries and all entries between them belong to this library. `next` is the last marker entry,
            // or an entry between the two marker entries.
            unsafe {
                let next = entry.as_ref().next.load(Ordering::Relaxed);
                ends.first.as_ref().next.store(next, Ordering::Release);
                (*next).prev.store(ends.first.as_ptr(), Ordering::Release);
            }
            tell(UNREGISTER, entry);
        }
    });
    done.is_some()
}

fn changing<T>(body: impl FnOnce() -> Option<T>) -> Option<T> {
    let _change = match CHANGE.try_lock() {
        Ok(change) => change,
        Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
        Err(TryLockError::WouldBlock) => return None,
    };
    body()
}

/// Puts the two marker entries at the head of the list. Debuggers complain about an entry without an object, so both marker
/// entries have the object `empty`.
fn put_ends(empty: &'static [u8]) -> Option<&'static Ends> {
    let (first, last) = (new_entry(empty)?, new_entry(empty)?);
    let head = &pair().descriptor.first;
    // SAFETY: nobody else has the two new entries yet.
    let [first_ref, last_ref] = unsafe { [first.as_ref(), last.as_ref()] };
    first_ref.next.store(last.as_ptr(), Ordering::Relaxed);
    last_ref.prev.store(first.as_ptr(), Ordering::Relaxed);
    // `ENDS` is set before anybody can find the marker entries in the list.
    let ends = ENDS.get_or_init(|| Ends { first, last });
    let mut before = head.load(Ordering::Acquire);
    loop {
        last_ref.next.store(before, Ordering::Relaxed);
        match head.compare_exchange(before, first.as_ptr(), Ordering::AcqRel, Ordering::Acquire) {
            Ok(_) => break,
            Err(now) => before = now,
        }
    }
    if let Some(before) = NonNull::new(before) {
        // SAFETY: an entry of another library exists until that library takes it out of the list.
        unsafe { before.as_ref() }.prev.store(last.as_ptr(), Ordering::Release);
    }
    tell(REGISTER, first);
    tell(REGISTER, last);
    Some(ends)
}

fn new_entry(image: &[u8]) -> Option<NonNull<Entry>> {
    let entry = Entry {
        next: AtomicPtr::default(),
        prev: AtomicPtr::default(),
        object: image.as_ptr(),
        size: image.len() as u64,
        owner: owner(),
    };
    NonNull::new(Box::into_raw(Box::new(entry)))
}

/// # Safety
/// `before`, `entry` and `after` are entries of this library. In the list, `after` directly follows `before`.
unsafe fn link(before: NonNull<Entry>, entry: NonNull<Entry>, after: *mut Entry) {
    // SAFETY: the caller's promise.
    unsafe {
        entry.as_ref().prev.store(before.as_ptr(), Ordering::Relaxed);
        entry.as_ref().next.store(after, Ordering::Relaxed);
        (*after).prev.store(entry.as_ptr(), Ordering::Release);
        before.as_ref().next.store(entry.as_ptr(), Ordering::Release);
    }
}

/// Reports a change of the list to a debugger.
fn tell(action: u32, entry: NonNull<Entry>) {
    let Pair { function, descriptor } = pair();
    TIMES_TOLD.fetch_add(1, Ordering::Relaxed);
    descriptor.relevant.store(entry.as_ptr(), Ordering::Release);
    descriptor.action.store(action, Ordering::Release);
    if !has_breakpoint() || is_watched() {
        IS_CALLED.store(true, Ordering::Relaxed);
        function();
        IS_CALLED.store(false, Ordering::Relaxed);
    }
    descriptor.action.store(NOTHING, Ordering::Release);
}
