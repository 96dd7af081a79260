//! The dynamic loader: finds functions by name, and keeps this library's code loaded.
//!
//! A host may unload a plugin that contains this library. Without `keep_this_loaded`, threads would run unmapped code after the
//! unload. The writer's thread may run the library's code at any time. The host's threads run the library's code when they end,
//! when they fork, and when the process exits.
//!
//! `dlopen` and `dlclose` hold the loader's lock while constructors and destructors of the loaded object run. A constructor or
//! destructor may call this library, and wait for a lock of this library. So a thread that holds a lock of this library never
//! calls the loader. A thread also never calls the loader while the holder of a lock of this library waits for the thread.
//! `look_up` and `keep_this_loaded` are called before any lock is taken. This library also has no thread-local storage with a
//! destructor, because the C library takes the loader's lock to register such a destructor.

use std::ffi::{c_int, c_void, CStr};
use std::mem::MaybeUninit;
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicPtr, Ordering};

/// Symbols that some C libraries do not have.
#[derive(Clone, Copy, Debug)]
pub enum Optional {
    /// A function that receives the attributes of a thread, and returns the minimum size of the thread's stack.
    LeastStack,
    /// A byte that is not 0 if the process has only one thread.
    OneThread,
    /// A substitute for `dladdr` that takes no lock. glibc has this function from version 2.35 on.
    FindObject,
}

const NAMES: [&CStr; 3] = [c"__pthread_get_minstack", c"__libc_single_threaded", c"_dl_find_object"];
static FOUND: [AtomicPtr<c_void>; 3] = [const { AtomicPtr::new(ptr::null_mut()) }; 3];
static LOOKED_UP: AtomicBool = AtomicBool::new(false);

/// Looks up the symbols once. Must be called before any lock is taken. A constructor calls this function when the library is
/// loaded. Opening the first session also calls this function, because the linker may omit the constructor from a program that
/// contains the static library. If several threads call this function at the same time, each thread looks up the symbols,
/// because no thread may wait for another.
pub fn look_up() {
    // In a program without shared libraries, a look-up would find nothing.
    if LOOKED_UP.load(Ordering::Acquire) || own_dynamic_section().is_none() {
        return;
    }
    for (name, found) in NAMES.iter().zip(&FOUND) {
        found.store(function(name), Ordering::Relaxed);
    }
    LOOKED_UP.store(true, Ordering::Release);
}

impl Optional {
    /// The symbol's address, which `look_up` has found. NULL if the symbol does not exist, or if `look_up` has not searched for
    /// the symbol.
    pub fn get(self) -> *mut c_void {
        FOUND[self as usize].load(Ordering::Relaxed)
    }
}

/// Keeps the object that contains this code loaded until the process ends. The program itself always stays loaded. A shared
/// library that is linked with `-z nodelete`, as this project's library is, also stays loaded.
///
/// In a forked child, `fork` resets all locks that this function takes. `fork` does not reset the lock of `dl_iterate_phdr`
/// (seen with glibc 2.36), so this function does not call `dl_iterate_phdr`. If a thread is in `dl_iterate_phdr` during a fork,
/// the next call of `dl_iterate_phdr` in the child waits for ever, even if the host makes the call.
pub fn keep_this_loaded() {
    static DONE: AtomicBool = AtomicBool::new(false);
    if DONE.load(Ordering::Relaxed) || stays_loaded() {
        return;
    }
    // `dlopen` is looked up by name, because a program without shared libraries is linked without a loader. In a program
    // without a loader, `stays_loaded` returns true, and this code does not run.
    type Open = unsafe extern "C" fn(*const libc::c_char, c_int) -> *mut c_void;
    // SAFETY: the function of that name has this type, and the pointer may be NULL.
    let dlopen: Option<Open> = unsafe { std::mem::transmute(function(c"dlopen")) };
    let here = asked(keep_this_loaded as *const c_void).filter(|here| !here.dli_fname.is_null());
    if let (Some(dlopen), Some(here)) = (dlopen, here) {
        // The call only sets a flag of the object, which is already loaded. A failure of the call is ignored.
        // SAFETY: the name of a loaded object ends with a NUL, and exists as long as the object is loaded. This object is
        // loaded, because it contains the code that is running now.
        unsafe { dlopen(here.dli_fname, libc::RTLD_LAZY | libc::RTLD_NOLOAD | libc::RTLD_NODELETE) };
    }
    DONE.store(true, Ordering::Relaxed);
}

// `_DYNAMIC` is the linker's name for this object's dynamic section. A program without shared libraries has no dynamic section.
std::arch::global_asm!(
    ".pushsection .data.rel.ro.jitsym_loader,\"aw\",%progbits",
    ".weak _DYNAMIC",
    ".hidden _DYNAMIC",
    ".hidden jitsym_own_dynamic_section",
    ".globl jitsym_own_dynamic_section",
    ".type jitsym_own_dynamic_section, %object",
    ".p2align 3",
    "jitsym_own_dynamic_section:",
    concat!(pointer!(), "_DYNAMIC"),
    ".size jitsym_own_dynamic_section, {size}",
    ".popsection",
    size = const size_of::<usize>(),
);

unsafe extern "C" {
    static jitsym_own_dynamic_section: *const [usize; 2];
}

/// The dynamic section of the object that contains this code. The section consists of pairs of a tag and a value.
fn own_dynamic_section() -> Option<*const [usize; 2]> {
    // SAFETY: the variable is defined above, and only the loader writes to it.
    let section = unsafe { (&raw const jitsym_own_dynamic_section).read_volatile() };
    (!section.is_null()).then_some(section)
}

/// Whether the object that contains this code is never unloaded. Does not call the loader.
fn stays_loaded() -> bool {
    const DT_FLAGS_1: usize = 0x6fff_fffb;
    const DF_1_NODELETE: usize = 0x8;
    let Some(section) = own_dynamic_section() else { return true };
    // SAFETY: a dynamic section ends with a tag of 0.
    let mut entries = (0..).map(|number| unsafe { section.add(number).read() }).take_while(|[tag, _]| *tag != 0);
    entries.any(|[tag, value]| tag == DT_FLAGS_1 && value & DF_1_NODELETE != 0)
        || dynamic_section_of_program() == Some(section as usize)
}

#[cfg(target_pointer_width = "32")]
use libc::Elf32_Phdr as ProgramHeader;
#[cfg(not(target_pointer_width = "32"))]
use libc::Elf64_Phdr as ProgramHeader;

/// The address of the dynamic section of the program itself.
fn dynamic_section_of_program() -> Option<usize> {
    // SAFETY: getauxval only looks up a number. The values in the auxiliary vector come from the kernel, or from a loader that
    // was run as a command.
    let (first, count) = unsafe { (libc::getauxval(libc::AT_PHDR), libc::getauxval(libc::AT_PHNUM)) };
    let headers = match first {
        0 => &[][..],
        // SAFETY: these are the program's headers, which stay mapped.
        _ => unsafe { std::slice::from_raw_parts(first as *const ProgramHeader, count as usize) },
    };
    let of_kind = |kind| headers.iter().find(|header| header.p_type == kind).map(|header| header.p_vaddr as usize);
    Some(of_kind(libc::PT_DYNAMIC)?.wrapping_add(first as usize).wrapping_sub(of_kind(libc::PT_PHDR)?))
}

/// The address of the loaded function with this name. NULL if no such function is loaded.
pub fn function(name: &CStr) -> *mut c_void {
    // SAFETY: the name ends with a NUL.
    unsafe { libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr()) }
}

/// Finds the loaded object that contains the address `place`, and returns the address of the object's first byte. `None` if no
/// object contains `place`. Before glibc 2.35 this function takes the loader's lock.
pub fn object_at(place: u64) -> Option<u64> {
    match object_without_lock(place) {
        Some(found) => found.map(|(start, _)| start),
        None => asked(place as usize as *const c_void).map(|object| object.dli_fbase as u64),
    }
}

/// Like `object_at`, but takes no lock, so that signal handlers can call this function. Also returns
/// the address at which the address of the object's path is stored. The path is empty for the program itself. Another thread may
/// unload the object. The outer value is `None` if the C library cannot search without a lock.
pub fn object_without_lock(place: u64) -> Option<Option<(u64, u64)>> {
    /// `struct dl_find_object`: flags of 64 bits, begin, end, `struct link_map *`, further fields, and spare room.
    type Found = (u64, [usize; 16]);
    type Find = unsafe extern "C" fn(*const c_void, *mut Found) -> c_int;
    // SAFETY: the function of that name has this type, and the pointer may be NULL.
    let find: Option<Find> = unsafe { std::mem::transmute(Optional::FindObject.get()) };
    let mut found: Found = (0, [0; 16]);
    // SAFETY: the function takes any address, and there is room for the answer.
    if unsafe { find?(place as usize as *const c_void, &mut found) } != 0 {
        return Some(None);
    }
    let (_, [start, _, link_map, ..]) = found;
    // The path is the second field of a `struct link_map` (link.h).
    Some(Some((start as u64, link_map.wrapping_add(size_of::<usize>()) as u64)))
}

/// The loader's information about the object that contains an address.
fn asked(place: *const c_void) -> Option<libc::Dl_info> {
    let mut info = MaybeUninit::<libc::Dl_info>::uninit();
    // SAFETY: `dladdr` accepts any address, and `info` has room for the answer. If `dladdr` has found an object, `info` is
    // completely initialized.
    unsafe { (libc::dladdr(place, info.as_mut_ptr()) != 0).then(|| info.assume_init()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn objects_are_those_that_the_loader_names() {
        look_up();
        let here = objects_are_those_that_the_loader_names as *const c_void;
        let of_the_c_library = Optional::OneThread.get().cast_const();
        for place in [here, of_the_c_library].into_iter().filter(|place| !place.is_null()) {
            assert_eq!(object_at(place as u64), Some(asked(place).unwrap().dli_fbase as u64));
        }
        assert_eq!(object_at((&raw const here) as u64), None);
        assert!(stays_loaded(), "this is the program");
    }
}
