//! This library as a C program has it: the shared library, loaded at run time and called through its C interface, with both
//! files and unwind tables.

use std::ffi::{c_void, CStr, CString};
use std::mem::{self, size_of};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::ptr;

use ::jitsym::capi::status::jitsym_status;
use ::jitsym::capi::types::{
    jitsym, jitsym_code, jitsym_id, jitsym_options, jitsym_sink, jitsym_stats, jitsym_unwind, jitsym_unwind_kind,
};

use crate::contenders::Contender;
use crate::files::Files;
use crate::record::{first_address, NAME};
use crate::task::Task;

type Init = unsafe extern "C" fn(*const jitsym_options, *mut *mut jitsym) -> jitsym_status;
type Register = unsafe extern "C" fn(*mut jitsym, *const jitsym_code, *mut jitsym_id) -> jitsym_status;
type Flush = unsafe extern "C" fn(*mut jitsym, u32) -> jitsym_status;
type GetStats = unsafe extern "C" fn(*mut jitsym, *mut jitsym_stats) -> jitsym_status;
type Close = unsafe extern "C" fn(*mut jitsym) -> jitsym_status;

/// A session, and the functions of the library that was loaded.
pub struct Jitsym {
    session: *mut jitsym,
    init: Init,
    register: Register,
    flush: Flush,
    stats: GetStats,
    close: Close,
    code: Vec<u8>,
    pub files: Files,
}

// SAFETY: a session is a name, not an address that anyone looks behind, and may be used in any thread.
unsafe impl Sync for Jitsym {}

impl Jitsym {
    /// Loads the library, and opens no session.
    pub fn load(task: &Task) -> Jitsym {
        let library = load(&task.library);
        let pid = std::process::id();
        let files = Files {
            dump: Some(task.file(&format!("jit-{pid}.dump"))),
            unwinding: 1,
            map: Some(task.file(&format!("perf-{pid}.map"))),
        };
        // SAFETY: the types are those of the functions in the header.
        unsafe {
            Jitsym {
                session: ptr::null_mut(),
                init: mem::transmute::<*mut c_void, Init>(symbol(library, c"jitsym_init")),
                register: mem::transmute::<*mut c_void, Register>(symbol(library, c"jitsym_register")),
                flush: mem::transmute::<*mut c_void, Flush>(symbol(library, c"jitsym_flush")),
                stats: mem::transmute::<*mut c_void, GetStats>(symbol(library, c"jitsym_get_stats")),
                close: mem::transmute::<*mut c_void, Close>(symbol(library, c"jitsym_close")),
                code: task.shape().code(),
                files,
            }
        }
    }

    /// Opens a session whose files go to `dir`.
    pub fn init(&mut self, dir: &Path, sinks: u32, max_wait_ms: u32) {
        let dir = CString::new(dir.as_os_str().as_bytes()).expect("a directory without NUL");
        let options = jitsym_options {
            struct_size: size_of::<jitsym_options>(),
            sinks,
            flags: 0,
            map_dir: dir.as_ptr(),
            jitdump_dir: dir.as_ptr(),
            map_dialect: 0,
            file_mode: 0,
            max_memory: 0,
            max_wait_ms,
            reserved: 0,
            spool_dir: ptr::null(),
            map_max: 0,
            jitdump_max: 0,
        };
        // SAFETY: the options and the directory live until the call returns, and `session` is writable.
        ok(unsafe { (self.init)(&options, &mut self.session) });
    }

    pub fn end(&self) {
        // SAFETY: the function takes any handle.
        ok(unsafe { (self.close)(self.session) });
    }

    fn stats(&self) -> jitsym_stats {
        let mut stats = jitsym_stats { struct_size: size_of::<jitsym_stats>(), ..Default::default() };
        // SAFETY: `struct_size` bytes of `stats` are writable.
        ok(unsafe { (self.stats)(self.session, &mut stats) });
        stats
    }
}

impl Contender for Jitsym {
    fn open(task: &Task) -> Self {
        let mut jitsym = Jitsym::load(task);
        let sinks = jitsym_sink::JITSYM_SINK_MAP as u32 | jitsym_sink::JITSYM_SINK_JITDUMP as u32;
        // The contenders write every record, so this one is not to drop any either.
        jitsym.init(&task.dir, sinks, 60_000);
        jitsym
    }

    fn caller(&self, thread: usize) -> impl FnMut() {
        // SAFETY: all fields are numbers and pointers, for which zero is a value.
        let mut unwind: jitsym_unwind = unsafe { mem::zeroed() };
        unwind.struct_size = size_of::<jitsym_unwind>();
        unwind.kind = jitsym_unwind_kind::JITSYM_UNWIND_FRAME_POINTER as _;
        let mut addr = first_address(thread);
        move || {
            let code = jitsym_code {
                struct_size: size_of::<jitsym_code>(),
                addr,
                size: self.code.len() as u64,
                name: NAME.as_ptr(),
                name_len: 0,
                bytes: self.code.as_ptr().cast(),
                unwind: &unwind,
                lines: ptr::null(),
                line_count: 0,
                line_size: 0,
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
            // SAFETY: the name ends in NUL, `bytes` has `size` bytes, and all of it lives until the call returns.
            ok(unsafe { (self.register)(self.session, &code, &mut id) });
            addr += code.size;
        }
    }

    fn drain(&self) {
        // SAFETY: the function takes any handle.
        ok(unsafe { (self.flush)(self.session, 60_000) });
    }

    fn memory(&self) -> u64 {
        self.stats().memory
    }

    fn close(self, calls: usize) -> Files {
        self.drain();
        let stats = self.stats();
        assert_eq!((stats.registered, stats.jitdump_records), (calls as u64, calls as u64), "records");
        assert_eq!((stats.dropped, stats.write_errors), (0, 0), "dropped records, write errors");
        self.end();
        self.files
    }
}

#[inline(always)]
fn ok(status: jitsym_status) {
    if status != jitsym_status::JITSYM_OK {
        panic!("{status:?}");
    }
}

fn load(path: &Path) -> *mut c_void {
    let name = CString::new(path.as_os_str().as_bytes()).expect("a path without NUL");
    // SAFETY: the library's initialisers are made to be run this way.
    let library = unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
    assert!(!library.is_null(), "cannot load {}", path.display());
    library
}

fn symbol(library: *mut c_void, name: &CStr) -> *mut c_void {
    // SAFETY: `library` is a handle of dlopen that was never closed.
    let address = unsafe { libc::dlsym(library, name.as_ptr()) };
    assert!(!address.is_null(), "{name:?} is not in the library");
    address
}
