//! The interface by which debuggers learn of code that no file has. It is a list of objects in memory, and a function at which they
//! set a breakpoint (gdb/jit.h, "JIT Compilation Interface" in gdb's manual; lldb reads the same).
//!
//! Debuggers find both by their names. Other libraries in the process may define them too (LLVM, a second copy of this one). Where
//! the linker or the loader makes one of all, the list is shared. The protocol has no lock, so this library writes to no entry of
//! others once it has put two entries into the list. All others go between these.

use std::hint::black_box;
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicU64, Ordering};
use std::sync::{Mutex, OnceLock, TryLockError};

use super::mapping::Table;
use super::tracer::{self, Debugger};

const NOTHING: u32 = 0;
pub const REGISTER: u32 = 1;
pub const UNREGISTER: u32 = 2;

/// `struct jit_code_entry`, and what nobody else's has.
#[derive(Debug)]
#[repr(C)]
struct Entry {
    next: AtomicPtr<Entry>,
    prev: AtomicPtr<Entry>,
    object: *const u8,
    size: u64,
    /// The address by which this library knows its own entries.
    owner: u64,
}

/// What is behind an entry of this library, and behind no other: see [`Entry`].
pub fn owner() -> u64 {
    &raw const ENDS as u64
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

/// The C libraries export the two names; `scripts/seal.sh` makes those of the static one weak.
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

    #[cfg(target_arch = "x86_64")]
    macro_rules! jump {
        () => {
            "jmp {}"
        };
    }
    #[cfg(target_arch = "aarch64")]
    macro_rules! jump {
        () => {
            "b {}"
        };
    }
    #[cfg(target_arch = "riscv64")]
    macro_rules! jump {
        () => {
            "tail {}"
        };
    }

    /// Debuggers set a breakpoint here, in the place of the first instruction, which does nothing. One that finds the breakpoint of a
    /// debugger that was killed takes it for a part of the program, and has the program go on after it.
    ///
    /// Others call it too, where the linker or the loader makes one of all.
    #[no_mangle]
    #[unsafe(naked)]
    pub extern "C" fn __jit_debug_register_code() {
        std::arch::naked_asm!(".cfi_startproc", "nop", jump!(), ".cfi_endproc", sym called)
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

/// Other crates of the same program may define them (wasmtime does), so that these are weak from the start.
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
        // In the place of this a debugger may leave a breakpoint: see the other function of this name.
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
        ".quad 0, 0",
        ".size __jit_debug_descriptor, 24",
        ".popsection",
    );

    unsafe extern "C" {
        static __jit_debug_descriptor: Descriptor;
        safe fn __jit_debug_register_code();
    }

    pub fn found() -> Pair {
        // SAFETY: it is defined above or elsewhere, with the layout that debuggers expect.
        Pair { function: __jit_debug_register_code, descriptor: unsafe { &__jit_debug_descriptor } }
    }
}

/// A function for a breakpoint, and the descriptor that a debugger reads there.
#[derive(Clone, Copy)]
struct Pair {
    function: extern "C" fn(),
    descriptor: &'static Descriptor,
}

/// The pair that this library uses. A debugger reads the descriptor of the object in which its breakpoint is. The linker may bind one
/// of the names to this object and leave the other to the loader, which takes another object's (`-Bsymbolic-functions`). Then it is
/// this object's own pair.
fn pair() -> Pair {
    unsafe extern "C" {
        /// Other names of what `names` defines, which are always bound to this object.
        static jitsym_own_descriptor: Descriptor;
        safe fn jitsym_own_register_code();
    }
    // SAFETY: it is defined in `names`.
    let own = Pair { function: jitsym_own_register_code, descriptor: unsafe { &jitsym_own_descriptor } };
    // By its address, as the descriptor: the loader may bind a call by name later, and to another object. The compiler takes two names
    // for two places, so it must not see what is compared.
    let found = black_box(names::found());
    let is_own = [found.function as usize == own.function as usize, ptr::eq(found.descriptor, own.descriptor)];
    if is_own[0] == is_own[1] {
        found
    } else {
        own
    }
}

/// Called when somebody has changed the list, and calls this library's function for that. NULL: nobody wants to know.
static LISTENER: AtomicPtr<()> = AtomicPtr::new(ptr::null_mut());

/// Has this function called then, on any thread.
pub fn listen(listener: fn()) {
    LISTENER.store(listener as *mut (), Ordering::Release);
}

#[cfg_attr(not(feature = "reserve"), allow(dead_code, reason = "the function of other builds does nothing"))]
extern "C" fn called() {
    let listener = LISTENER.load(Ordering::Acquire);
    if !listener.is_null() && !super::panic_guard::is_inside() {
        // SAFETY: `listen` has put a function of this type there.
        unsafe { std::mem::transmute::<*mut (), fn()>(listener)() };
    }
}

/// Where the descriptor is that this library uses.
pub fn descriptor_addr() -> u64 {
    ptr::from_ref(pair().descriptor) as u64
}

/// The first of this library's entries in the list, and the entry after its last one.
pub fn own_entries() -> Option<(u64, u64)> {
    let ends = ENDS.get()?;
    // SAFETY: the ends are never freed.
    let after = unsafe { ends.last.as_ref() }.next.load(Ordering::Acquire);
    Some((ends.first.as_ptr() as u64, after as u64))
}

/// Whether a debugger listens.
pub fn is_watched() -> bool {
    listener_of_breakpoint().is_some()
}

/// Whether nobody else has put anything into the list so far. Two that do so at the same moment can lose an entry of one.
pub fn is_alone() -> bool {
    pair().descriptor.first.load(Ordering::Relaxed).is_null() || ENDS.get().is_some()
}

/// The debugger that meets the breakpoint if the function is called.
///
/// A debugger that was killed leaves its breakpoint in the process. That ends the process unless a debugger handles it, and other
/// tracers, such as strace, do not. Nobody may have looked here since the first debugger came. So all that is known is who traces the
/// process now. Where that is not known either, the function is not called.
fn listener_of_breakpoint() -> Option<Debugger> {
    has_breakpoint().then(tracer::debugger).flatten()
}

/// Whether two objects may speak of one address for a moment. gdb takes either. lldb forgets where the section of the new object is
/// when an old one goes whose section begins there (SectionLoadList::SetSectionUnloaded).
fn takes_both() -> bool {
    listener_of_breakpoint() != Some(Debugger::Lldb)
}

/// Whether a breakpoint is in the place of the function's first instruction.
fn has_breakpoint() -> bool {
    let at = pair().function as *const ();
    // SAFETY: code can be read on Linux.
    unsafe {
        if cfg!(target_arch = "x86_64") {
            // int3
            at.cast::<u8>().read_volatile() == 0xcc
        } else if cfg!(target_arch = "aarch64") {
            // brk #0
            at.cast::<u32>().read_volatile() == 0xd420_0000
        } else if cfg!(target_arch = "riscv64") {
            // c.ebreak, or ebreak
            let halves = [at.cast::<u16>().read_volatile(), at.cast::<u16>().add(1).read_volatile()];
            halves[0] == 0x9002 || halves == [0x0073, 0x0010]
        } else {
            false
        }
    }
}

/// The entries between which those of this library are.
struct Ends {
    first: NonNull<Entry>,
    last: NonNull<Entry>,
}

// SAFETY: they are never freed, and what changes in them is atomic.
unsafe impl Send for Ends {}
// SAFETY: as above.
unsafe impl Sync for Ends {}

/// Once they are about to be put into the list. Who only looks at it needs no lock.
static ENDS: OnceLock<Ends> = OnceLock::new();
/// The thread that has this changes what lies between them.
static CHANGE: Mutex<()> = Mutex::new(());

/// How many times a debugger was, or would have been, told of a change.
static TIMES_TOLD: AtomicU64 = AtomicU64::new(0);

pub fn times_told() -> u64 {
    TIMES_TOLD.load(Ordering::Relaxed)
}

/// A debugger's turn has come, or would have.
static IS_CALLED: AtomicBool = AtomicBool::new(false);

/// Whether a debugger has stopped a thread to look at a change, and has not let it go on.
pub fn is_called() -> bool {
    IS_CALLED.load(Ordering::Relaxed) && has_breakpoint()
}

/// An object for the list.
#[derive(Debug)]
pub struct Listed {
    /// It has neighbours while it is in the list.
    entry: NonNull<Entry>,
    image: Table<u8>,
}

// SAFETY: nobody else has the entry but who walks the list.
unsafe impl Send for Listed {}

impl Listed {
    /// One that is not in the list yet. `None` without memory.
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

/// Puts objects into the list, in the place of others that speak of the same code, and tells a debugger. One that stops the process
/// in the middle finds the old ones, the new ones or both, if it can take both. `empty`: an object that says nothing. Returns whether the
/// debugger has heard of a new one last.
///
/// Nothing happens if another thread is in here, which is so only in a child that was forked in the middle of it.
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
                    // SAFETY: both ends and what is between them belong to this library.
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
            // SAFETY: it came from a box, and nobody finds it any more.
            Some(_) => drop(unsafe { Box::from_raw(listed.entry.as_ptr()) }),
            // It is in the list still.
            None => std::mem::forget(listed.image),
        }
    }
    done.unwrap_or_default()
}

/// Takes an entry out of the list, if it is there, and tells a debugger.
fn unlink(listed: NonNull<Entry>) {
    // SAFETY: it is between two entries of this library, or in no list.
    let entry = unsafe { listed.as_ref() };
    let (next, prev) = (entry.next.load(Ordering::Relaxed), entry.prev.load(Ordering::Relaxed));
    if next.is_null() {
        return;
    }
    // SAFETY: as above.
    unsafe {
        (*prev).next.store(next, Ordering::Release);
        (*next).prev.store(prev, Ordering::Release);
    }
    tell(UNREGISTER, listed);
}

/// Takes everything out that this library has in the list: in a forked child, what its parent had. That memory is lost.
pub fn unlist_all() -> bool {
    let done = changing(|| {
        let Some(ends) = ENDS.get() else { return Some(()) };
        loop {
            // SAFETY: what is between the ends belongs to this library.
            let entry = unsafe { ends.first.as_ref() }.next.load(Ordering::Relaxed);
            let Some(entry) = NonNull::new(entry).filter(|&entry| entry != ends.last) else { return Some(()) };
            // SAFETY: as above; the last of the ends follows at the latest.
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

/// Debuggers complain of entries without an object, so the ends have one too.
fn put_ends(empty: &'static [u8]) -> Option<&'static Ends> {
    let (first, last) = (new_entry(empty)?, new_entry(empty)?);
    let head = &pair().descriptor.first;
    // SAFETY: nobody else has them yet.
    let [first_ref, last_ref] = unsafe { [first.as_ref(), last.as_ref()] };
    first_ref.next.store(last.as_ptr(), Ordering::Relaxed);
    last_ref.prev.store(first.as_ptr(), Ordering::Relaxed);
    // Before anybody finds them in the list.
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
        // SAFETY: entries of others are there until they are taken out.
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
/// All three belong to this library, and `before` is followed by `after`.
unsafe fn link(before: NonNull<Entry>, entry: NonNull<Entry>, after: *mut Entry) {
    // SAFETY: the caller's promise.
    unsafe {
        entry.as_ref().prev.store(before.as_ptr(), Ordering::Relaxed);
        entry.as_ref().next.store(after, Ordering::Relaxed);
        (*after).prev.store(entry.as_ptr(), Ordering::Release);
        before.as_ref().next.store(entry.as_ptr(), Ordering::Release);
    }
}

/// Has a debugger look at an entry.
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
