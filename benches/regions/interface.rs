//! The shared library as a C program has it.

use std::ffi::{c_void, CStr, CString};
use std::mem::{self, size_of};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::ptr;

use ::jitsym::capi::status::jitsym_status;
use ::jitsym::capi::types::{
    jitsym, jitsym_code, jitsym_id, jitsym_line, jitsym_options, jitsym_region, jitsym_region_options, jitsym_stats,
    jitsym_unwind, jitsym_unwind_kind,
};

type Register = unsafe extern "C" fn(*mut jitsym, *const jitsym_code, *mut jitsym_id) -> jitsym_status;
type Unregister = unsafe extern "C" fn(*mut jitsym, jitsym_id) -> jitsym_status;
type Alloc = unsafe extern "C" fn(*mut jitsym, u64, u64, u64, *mut jitsym_region) -> jitsym_status;
type Free = unsafe extern "C" fn(*mut jitsym, *mut c_void) -> jitsym_status;
type Create = unsafe extern "C" fn(*mut jitsym, *const jitsym_region_options, *mut jitsym_region) -> jitsym_status;

/// A session in the library.
pub struct Session {
    library: *mut c_void,
    session: *mut jitsym,
    register: Register,
    unregister: Unregister,
    alloc: Alloc,
    free: Free,
}

/// Two views of a region, or one and the same.
#[derive(Clone, Copy)]
pub struct Memory {
    pub exec: u64,
    pub write: u64,
}

/// Memory of the program's own, readable and writable.
pub fn anonymous(size: u64) -> u64 {
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
    let access = libc::PROT_READ | libc::PROT_WRITE;
    // SAFETY: a new mapping touches nothing that exists.
    let memory = unsafe { libc::mmap(ptr::null_mut(), size as usize, access, flags, -1, 0) };
    assert_ne!(memory, libc::MAP_FAILED);
    memory as u64
}

/// Gives memory back.
pub fn unmap(addr: u64, size: u64) {
    // SAFETY: the memory is the program's, which uses it no more.
    assert_eq!(unsafe { libc::munmap(addr as *mut c_void, size as usize) }, 0);
}

/// Lets memory be executed, and not written.
pub fn make_executable(addr: u64, size: u64) {
    // SAFETY: the memory is the program's, which does not write to it any more.
    assert_eq!(unsafe { libc::mprotect(addr as *mut c_void, size as usize, libc::PROT_READ | libc::PROT_EXEC) }, 0);
}

impl Session {
    pub fn open(library: &Path, dir: &Path) -> Session {
        let name = CString::new(library.as_os_str().as_bytes()).expect("a path without NUL");
        // SAFETY: the library's initialisers are made to be run this way.
        let library = unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
        assert!(!library.is_null(), "cannot load {name:?}");
        let dir = CString::new(dir.as_os_str().as_bytes()).expect("a path without NUL");
        // SAFETY: all fields are numbers and pointers, for which zero is a value.
        let mut options: jitsym_options = unsafe { mem::zeroed() };
        options.struct_size = size_of::<jitsym_options>();
        // Every record is to be written.
        (options.map_dir, options.jitdump_dir, options.max_wait_ms) = (dir.as_ptr(), dir.as_ptr(), 60_000);
        let mut session = ptr::null_mut();
        // SAFETY: the types are those of the header; options and directory live until the call returns.
        unsafe {
            let init: unsafe extern "C" fn(*const jitsym_options, *mut *mut jitsym) -> jitsym_status =
                mem::transmute(symbol(library, c"jitsym_init"));
            ok(init(&options, &mut session));
            Session {
                library,
                session,
                register: mem::transmute::<*mut c_void, Register>(symbol(library, c"jitsym_register")),
                unregister: mem::transmute::<*mut c_void, Unregister>(symbol(library, c"jitsym_unregister")),
                alloc: mem::transmute::<*mut c_void, Alloc>(symbol(library, c"jitsym_alloc")),
                free: mem::transmute::<*mut c_void, Free>(symbol(library, c"jitsym_free")),
            }
        }
    }

    /// A region with two views.
    pub fn create(&self, size: u64) -> Memory {
        let options = jitsym_region_options {
            struct_size: size_of::<jitsym_region_options>(),
            size,
            max_size: 0,
            alignment: 0,
            near_addr: 0,
            flags: 0,
            reserved: 0,
        };
        let mut region = empty();
        // SAFETY: the types are those of the header, and both structs live until the call returns.
        ok(unsafe {
            mem::transmute::<*mut c_void, Create>(symbol(self.library, c"jitsym_region_create"))(
                self.session,
                &options,
                &mut region,
            )
        });
        Memory { exec: region.exec as u64, write: region.write as u64 }
    }

    /// Memory for one function.
    pub fn alloc(&self, size: u64) -> Memory {
        let mut piece = empty();
        // SAFETY: the types are those of the header, and the struct lives until the call returns.
        ok(unsafe { (self.alloc)(self.session, size, 0, 0, &mut piece) });
        Memory { exec: piece.exec as u64, write: piece.write as u64 }
    }

    /// Ends it, and the registration of the function.
    pub fn free(&self, exec: u64) {
        // SAFETY: the types are those of the header; nobody uses the memory any more.
        ok(unsafe { (self.free)(self.session, exec as *mut c_void) });
    }

    /// Makes the program's memory a region.
    pub fn adopt(&self, addr: u64, size: u64) {
        // SAFETY: the types are those of the header; nobody writes to the memory.
        ok(unsafe {
            let adopt: unsafe extern "C" fn(*mut jitsym, *mut c_void, u64) -> jitsym_status =
                mem::transmute(symbol(self.library, c"jitsym_region_adopt"));
            adopt(self.session, addr as *mut c_void, size)
        });
    }

    /// Registers code with a frame pointer.
    #[inline(always)]
    pub fn register(&self, addr: u64, bytes: &[u8], name: &CStr, lines: &[jitsym_line]) -> jitsym_id {
        // SAFETY: all fields are numbers and pointers, for which zero is a value.
        let mut unwind: jitsym_unwind = unsafe { mem::zeroed() };
        unwind.struct_size = size_of::<jitsym_unwind>();
        unwind.kind = jitsym_unwind_kind::JITSYM_UNWIND_FRAME_POINTER as _;
        let code = jitsym_code {
            struct_size: size_of::<jitsym_code>(),
            addr,
            size: bytes.len() as u64,
            name: name.as_ptr(),
            name_len: 0,
            bytes: bytes.as_ptr().cast(),
            unwind: &unwind,
            lines: if lines.is_empty() { ptr::null() } else { lines.as_ptr() },
            line_count: lines.len(),
            line_size: if lines.is_empty() { 0 } else { size_of::<jitsym_line>() },
            flags: 0,
            reserved: 0,
            inlines: ptr::null(),
            inline_count: 0,
            inline_size: 0,
            file: ptr::null(),
            line: 0,
            reserved2: 0,
        };
        let mut id = 0;
        // SAFETY: the name ends in NUL, the bytes and rows are as many, and all of it lives until the call returns.
        ok(unsafe { (self.register)(self.session, &code, &mut id) });
        id
    }

    pub fn unregister(&self, id: jitsym_id) {
        // SAFETY: the types are those of the header.
        ok(unsafe { (self.unregister)(self.session, id) });
    }

    pub fn flush(&self) {
        // SAFETY: the types are those of the header.
        ok(unsafe {
            let flush: unsafe extern "C" fn(*mut jitsym, u32) -> jitsym_status =
                mem::transmute(symbol(self.library, c"jitsym_flush"));
            flush(self.session, 60_000)
        });
    }

    /// Brings the files to their end.
    pub fn close(&self) {
        // SAFETY: the types are those of the header.
        ok(unsafe {
            let close: unsafe extern "C" fn(*mut jitsym) -> jitsym_status =
                mem::transmute(symbol(self.library, c"jitsym_close"));
            close(self.session)
        });
    }

    pub fn stats(&self) -> jitsym_stats {
        let mut stats = jitsym_stats { struct_size: size_of::<jitsym_stats>(), ..Default::default() };
        // SAFETY: the types are those of the header, and `struct_size` bytes are writable.
        ok(unsafe {
            let get: unsafe extern "C" fn(*mut jitsym, *mut jitsym_stats) -> jitsym_status =
                mem::transmute(symbol(self.library, c"jitsym_get_stats"));
            get(self.session, &mut stats)
        });
        stats
    }
}

/// For a call to fill in.
fn empty() -> jitsym_region {
    let (exec, write) = (ptr::null_mut(), ptr::null_mut());
    jitsym_region { struct_size: size_of::<jitsym_region>(), exec, write, size: 0 }
}

#[inline(always)]
fn ok(status: jitsym_status) {
    if status != jitsym_status::JITSYM_OK {
        panic!("{status:?}");
    }
}

fn symbol(library: *mut c_void, name: &CStr) -> *mut c_void {
    // SAFETY: `library` is a handle of dlopen that was never closed.
    let address = unsafe { libc::dlsym(library, name.as_ptr()) };
    assert!(!address.is_null(), "{name:?} is not in the library");
    address
}
