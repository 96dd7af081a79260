//! The dynamic loader: functions by name, and how this library's code stays loaded. A plugin that it is linked into may be unloaded,
//! but the writer's thread would go on. So would the code that runs when a thread ends, and the handlers for forks and for the exit
//! of the process.

use std::ffi::{c_int, c_void, CStr};
use std::mem::MaybeUninit;
use std::sync::atomic::{AtomicBool, Ordering};

/// Has the loader leave the object that this code lies in where it is until the process ends. The program itself stays anyway,
/// and so does a shared library that is linked with `-z nodelete`, as our own is.
///
/// The locks that this takes are all put in order by `fork` in the child. That of `dl_iterate_phdr` is not (seen with glibc
/// 2.36): in a child of a process that was in it, the next call waits for ever, be it the host's.
pub fn keep_this_loaded() {
    static DONE: AtomicBool = AtomicBool::new(false);
    if DONE.swap(true, Ordering::Relaxed) {
        return;
    }
    // SAFETY: asks for a number that the kernel has handed over.
    let program = unsafe { libc::getauxval(libc::AT_PHDR) } as *const c_void;
    let Some(here) = object_of(keep_this_loaded as *const c_void) else { return };
    if object_of(program).is_some_and(|program| program.dli_fbase == here.dli_fbase) || here.dli_fname.is_null() {
        return;
    }
    // Looked up: a program without shared libraries, which never comes here, is linked without a loader.
    type Open = unsafe extern "C" fn(*const libc::c_char, c_int) -> *mut c_void;
    // SAFETY: a function of that name is this one, and there is one where objects are loaded.
    let dlopen: Option<Open> = unsafe { std::mem::transmute(function(c"dlopen")) };
    if let Some(dlopen) = dlopen {
        // By name, and not loaded again. Nothing can be done about a failure. SAFETY: names of loaded objects end with a NUL, and
        // stay as long as the objects: this code runs in that one.
        unsafe { dlopen(here.dli_fname, libc::RTLD_LAZY | libc::RTLD_NOLOAD | libc::RTLD_NODELETE) };
    }
}

/// The function of this name that is loaded; NULL if there is none.
pub fn function(name: &CStr) -> *mut c_void {
    // SAFETY: the name ends with a NUL.
    unsafe { libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr()) }
}

/// Where the object begins that an address lies in.
pub fn object_at(place: u64) -> Option<u64> {
    object_of(place as usize as *const c_void).map(|object| object.dli_fbase as u64)
}

/// Whether an address lies in an object that the loader has loaded.
pub fn has_loaded(addr: u64) -> bool {
    object_of(addr as *const c_void).is_some()
}

/// What the loader knows of the object that an address lies in.
fn object_of(place: *const c_void) -> Option<libc::Dl_info> {
    let mut info = MaybeUninit::<libc::Dl_info>::uninit();
    // SAFETY: any address may be asked for, there is room for the answer, and it is filled in if something was found.
    unsafe { (libc::dladdr(place, info.as_mut_ptr()) != 0).then(|| info.assume_init()) }
}
