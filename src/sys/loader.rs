//! The dynamic loader: functions by name, and how this library's code stays loaded. A plugin that it is linked into may be unloaded,
//! but the writer's thread would go on. So would the code that runs when a thread ends, and the handlers for forks and for the exit
//! of the process.
//!
//! The loader has a lock, which `dlopen` and `dlclose` hold while constructors and destructors of the loaded object run. Such a
//! function may call this library, and wait for one of its locks. So nobody here asks the loader while holding a lock, or while
//! somebody who holds one waits for the answer: `look_up` and `keep_this_loaded` come before. Nor does anybody use thread-local
//! storage with a destructor, which the C library notes under that lock.

use std::ffi::{c_int, c_void, CStr};
use std::mem::MaybeUninit;
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicPtr, Ordering};

/// What not every C library has.
#[derive(Clone, Copy, Debug)]
pub enum Optional {
    /// How large a thread's stack is at least, given its attributes.
    LeastStack,
    /// A byte: whether there is one thread.
    OneThread,
    /// As `dladdr`, without a lock. From glibc 2.35 on.
    FindObject,
}

const NAMES: [&CStr; 3] = [c"__pthread_get_minstack", c"__libc_single_threaded", c"_dl_find_object"];
static FOUND: [AtomicPtr<c_void>; 3] = [const { AtomicPtr::new(ptr::null_mut()) }; 3];
static LOOKED_UP: AtomicBool = AtomicBool::new(false);

/// Looks these up, once: when this library is loaded, and when the first session is opened, before any lock is taken. (Linkers may
/// leave constructors out of a static library.) Threads that come at once all look, because none of them may wait for another one.
pub fn look_up() {
    // The loader finds nothing for a program without shared libraries.
    if LOOKED_UP.load(Ordering::Acquire) || own_dynamic_section().is_none() {
        return;
    }
    for (name, found) in NAMES.iter().zip(&FOUND) {
        found.store(function(name), Ordering::Relaxed);
    }
    LOOKED_UP.store(true, Ordering::Release);
}

impl Optional {
    /// What `look_up` has found; NULL if there is none.
    pub fn get(self) -> *mut c_void {
        FOUND[self as usize].load(Ordering::Relaxed)
    }
}

/// Has the loader leave the object that this code lies in where it is until the process ends. The program itself stays anyway,
/// and so does a shared library that is linked with `-z nodelete`, as our own is.
///
/// The locks that this takes are all put in order by `fork` in the child. That of `dl_iterate_phdr` is not (seen with glibc
/// 2.36): in a child of a process that was in it, the next call waits for ever, be it the host's.
pub fn keep_this_loaded() {
    static DONE: AtomicBool = AtomicBool::new(false);
    if DONE.load(Ordering::Relaxed) || stays_loaded() {
        return;
    }
    // Looked up: a program without shared libraries, which never comes here, is linked without a loader.
    type Open = unsafe extern "C" fn(*const libc::c_char, c_int) -> *mut c_void;
    // SAFETY: a function of that name is this one, and there is one where objects are loaded.
    let dlopen: Option<Open> = unsafe { std::mem::transmute(function(c"dlopen")) };
    let here = asked(keep_this_loaded as *const c_void).filter(|here| !here.dli_fname.is_null());
    if let (Some(dlopen), Some(here)) = (dlopen, here) {
        // By name, and not loaded again. Nothing can be done about a failure. SAFETY: names of loaded objects end with a NUL, and
        // stay as long as the objects: this code runs in that one.
        unsafe { dlopen(here.dli_fname, libc::RTLD_LAZY | libc::RTLD_NOLOAD | libc::RTLD_NODELETE) };
    }
    DONE.store(true, Ordering::Relaxed);
}

// The linker's name for what it tells the loader of this object. There is none in a program without shared libraries.
std::arch::global_asm!(
    ".pushsection .data.rel.ro.jitsym_loader,\"aw\",%progbits",
    ".weak _DYNAMIC",
    ".hidden _DYNAMIC",
    ".hidden jitsym_own_dynamic_section",
    ".globl jitsym_own_dynamic_section",
    ".type jitsym_own_dynamic_section, %object",
    ".p2align 3",
    "jitsym_own_dynamic_section:",
    ".quad _DYNAMIC",
    ".size jitsym_own_dynamic_section, 8",
    ".popsection",
);

unsafe extern "C" {
    static jitsym_own_dynamic_section: *const [u64; 2];
}

/// The dynamic section of the object that this code lies in: tags and values.
fn own_dynamic_section() -> Option<*const [u64; 2]> {
    // SAFETY: it is defined above, and nobody writes to it but the loader.
    let section = unsafe { (&raw const jitsym_own_dynamic_section).read_volatile() };
    (!section.is_null()).then_some(section)
}

/// Whether the object that this code lies in is never unloaded. This asks the loader nothing.
fn stays_loaded() -> bool {
    const DT_FLAGS_1: u64 = 0x6fff_fffb;
    const DF_1_NODELETE: u64 = 0x8;
    let Some(section) = own_dynamic_section() else { return true };
    // SAFETY: a dynamic section ends with a tag of 0.
    let mut entries = (0..).map(|number| unsafe { section.add(number).read() }).take_while(|[tag, _]| *tag != 0);
    entries.any(|[tag, value]| tag == DT_FLAGS_1 && value & DF_1_NODELETE != 0)
        || dynamic_section_of_program() == Some(section as u64)
}

/// Where the program itself has its dynamic section.
fn dynamic_section_of_program() -> Option<u64> {
    // SAFETY: asks for numbers that the kernel, or a loader that is run by its name, has handed over.
    let (first, count) = unsafe { (libc::getauxval(libc::AT_PHDR), libc::getauxval(libc::AT_PHNUM)) };
    let headers = match first {
        0 => &[][..],
        // SAFETY: these are the program's headers, which stay mapped.
        _ => unsafe { std::slice::from_raw_parts(first as *const libc::Elf64_Phdr, count as usize) },
    };
    let of_kind = |kind| headers.iter().find(|header| header.p_type == kind).map(|header| header.p_vaddr);
    Some(of_kind(libc::PT_DYNAMIC)?.wrapping_add(first.wrapping_sub(of_kind(libc::PT_PHDR)?)))
}

/// The function of this name that is loaded; NULL if there is none.
pub fn function(name: &CStr) -> *mut c_void {
    // SAFETY: the name ends with a NUL.
    unsafe { libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr()) }
}

/// Where the object begins that an address lies in, if the loader has loaded it. Before glibc 2.35 this takes the loader's lock.
pub fn object_at(place: u64) -> Option<u64> {
    /// `struct dl_find_object`: flags, begin, end, and some more room.
    type Found = [u64; 16];
    type Find = unsafe extern "C" fn(*const c_void, *mut Found) -> c_int;
    // SAFETY: a function of that name is this one.
    let find: Option<Find> = unsafe { std::mem::transmute(Optional::FindObject.get()) };
    let place = place as usize as *const c_void;
    match find {
        Some(find) => {
            let mut found: Found = [0; 16];
            // SAFETY: any address may be asked for, and there is room for the answer.
            (unsafe { find(place, &mut found) } == 0).then_some(found[1])
        }
        None => asked(place).map(|object| object.dli_fbase as u64),
    }
}

/// What the loader says of the object that an address lies in.
fn asked(place: *const c_void) -> Option<libc::Dl_info> {
    let mut info = MaybeUninit::<libc::Dl_info>::uninit();
    // SAFETY: any address may be asked for, there is room for the answer, and it is filled in if something was found.
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
