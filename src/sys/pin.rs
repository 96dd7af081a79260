//! Keeping this library's code where it is: a plugin that it is linked into may be unloaded, but the writer's thread, what runs
//! when a thread ends, and the handlers for forks and for the exit of the process would go on.

use std::ffi::{c_int, c_void, CStr};

/// What is looked for, and what is found: the name of the object that holds it; empty for the program itself.
struct Search {
    place: usize,
    object: Option<*const libc::c_char>,
}

/// Has the loader leave the object that this code lies in where it is until the process ends. The program itself stays anyway,
/// and so does a shared library that is linked with `-z nodelete`, as our own is.
pub fn pin() {
    let mut search = Search { place: pin as *const () as usize, object: None };
    // SAFETY: the function is called with valid descriptions and the pointer, before this returns.
    unsafe { libc::dl_iterate_phdr(Some(look), (&raw mut search).cast()) };
    let Some(object) = search.object.filter(|name| !name.is_null()) else { return };
    // SAFETY: names of loaded objects end with a NUL, and stay as long as the objects: this code runs in that one.
    if unsafe { CStr::from_ptr(object) }.is_empty() {
        return;
    }
    // Looked up: a program without shared libraries, which never comes here, is linked without a loader.
    // SAFETY: the name ends with a NUL.
    let dlopen = unsafe { libc::dlsym(libc::RTLD_DEFAULT, c"dlopen".as_ptr()) };
    type Open = unsafe extern "C" fn(*const libc::c_char, c_int) -> *mut c_void;
    // SAFETY: a function of that name is this one, and there is one where objects are loaded.
    let dlopen: Option<Open> = unsafe { std::mem::transmute(dlopen) };
    if let Some(dlopen) = dlopen {
        // By name, and not loaded anew. Nothing can be done about a failure.
        // SAFETY: the name is valid, as above.
        unsafe { dlopen(object, libc::RTLD_LAZY | libc::RTLD_NOLOAD | libc::RTLD_NODELETE) };
    }
}

unsafe extern "C" fn look(info: *mut libc::dl_phdr_info, _size: libc::size_t, search: *mut c_void) -> c_int {
    // SAFETY: the loader hands over a valid description, and back the pointer of `pin`.
    let (info, search) = unsafe { (&*info, &mut *search.cast::<Search>()) };
    // SAFETY: the headers are as many as it says.
    let headers = unsafe { std::slice::from_raw_parts(info.dlpi_phdr, info.dlpi_phnum.into()) };
    let holds = |header: &libc::Elf64_Phdr| {
        let start = (info.dlpi_addr as usize).wrapping_add(header.p_vaddr as usize);
        header.p_type == libc::PT_LOAD && search.place.wrapping_sub(start) < header.p_memsz as usize
    };
    if !headers.iter().any(holds) {
        return 0;
    }
    search.object = Some(info.dlpi_name);
    1
}
