//! Runtimes that write a jitdump through C's stdio: CPython and V8.
//!
//! Both ask for a buffer of 2 MiB with `setvbuf(file, NULL, _IOFBF, 2 MiB)`. glibc ignores the size when it gets no buffer, so
//! what they really have is 4 KiB, here as there.

use std::cell::UnsafeCell;
use std::ffi::CString;
use std::mem::MaybeUninit;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::ptr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::Mutex;

use libc::FILE;

use crate::contenders::Contender;
use crate::files::Files;
use crate::record::{file_header, first_address, monotonic_ns, Shape, NAME};
use crate::task::Task;

const BUFFER: usize = 2 << 20;

/// A C stream.
pub struct Stream(*mut FILE);

// SAFETY: stdio has a lock in each stream.
unsafe impl Send for Stream {}
// SAFETY: as above.
unsafe impl Sync for Stream {}

impl Stream {
    /// Opens a new file, buffered as `mode` says.
    pub fn create(path: &Path, mode: i32, size: usize) -> Stream {
        let name = CString::new(path.as_os_str().as_bytes()).expect("a path without NUL");
        // SAFETY: both strings end in NUL.
        let file = unsafe { libc::fopen(name.as_ptr(), c"w+".as_ptr()) };
        assert!(!file.is_null(), "{}: {}", path.display(), std::io::Error::last_os_error());
        // SAFETY: the stream was just opened.
        assert_eq!(unsafe { libc::setvbuf(file, ptr::null_mut(), mode, size) }, 0);
        Stream(file)
    }

    pub fn write(&self, bytes: &[u8]) {
        // SAFETY: the stream is open, and so many bytes can be read.
        let written = unsafe { libc::fwrite(bytes.as_ptr().cast(), 1, bytes.len(), self.0) };
        assert_eq!(written, bytes.len());
    }

    pub fn as_ptr(&self) -> *mut FILE {
        self.0
    }

    pub fn flush(&self) {
        // SAFETY: the stream is open.
        assert_eq!(unsafe { libc::fflush(self.0) }, 0);
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        // SAFETY: the stream is open, and nobody uses it any more.
        let closed = unsafe { libc::fclose(self.0) };
        assert_eq!(closed, 0, "close a stream");
    }
}

/// CPython's jitdump: its records have unwind tables; they are given ready-made, which favours it. The mutex stands for the
/// interpreter's lock.
pub struct CPython {
    lock: Mutex<()>,
    stream: Stream,
    index: AtomicU64,
    shape: Shape,
    code: Vec<u8>,
    tables: Vec<u8>,
    files: Files,
}

impl Contender for CPython {
    fn open(task: &Task) -> Self {
        let path = task.file("cpython.dump");
        let stream = Stream::create(&path, libc::_IOFBF, BUFFER);
        stream.write(&file_header());
        let shape = task.shape();
        CPython {
            lock: Mutex::new(()),
            stream,
            index: AtomicU64::new(0),
            shape,
            code: shape.code(),
            tables: vec![1; shape.tables],
            files: Files { dump: Some(path), unwinding: 1, map: None },
        }
    }

    fn caller(&self, thread: usize) -> impl FnMut() {
        let mut addr = first_address(thread);
        move || {
            let _held = self.lock.lock().expect("lock");
            let (place, function) = (c"package/module.py", c"Class.method_with_a_name(int, long)");
            let print = |to: *mut libc::c_char, size: usize| {
                // SAFETY: `to` has room for `size` bytes, and both strings end in NUL.
                unsafe { libc::snprintf(to, size, c"%s:%s".as_ptr(), place.as_ptr(), function.as_ptr()) as usize }
            };
            let length = print(ptr::null_mut(), 0);
            // SAFETY: any size will do.
            let name = unsafe { libc::malloc(length + 1) };
            assert!(!name.is_null());
            print(name.cast(), length + 1);

            self.stream.write(&self.shape.unwinding_head(monotonic_ns()));
            // The frame table, the three parts of its index, and padding.
            let (table, index) = self.tables.split_at(self.tables.len() - 24);
            self.stream.write(table);
            for part in [&index[..4], &index[4..12], &index[12..20], &index[20..]] {
                self.stream.write(part);
            }
            let time = monotonic_ns();
            // SAFETY: both only answer.
            let (pid, tid) = unsafe { (libc::getpid() as u32, libc::gettid() as u32) };
            let index = self.index.fetch_add(1, Ordering::Relaxed);
            self.stream.write(&self.shape.load_head(time, pid, tid, addr, index));
            // SAFETY: `snprintf` wrote so many bytes and a NUL.
            self.stream.write(unsafe { std::slice::from_raw_parts(name.cast::<u8>(), length + 1) });
            self.stream.write(&self.code);
            // SAFETY: `name` is from malloc.
            unsafe { libc::free(name) };
            addr += self.code.len() as u64;
        }
    }

    fn close(self, _calls: usize) -> Files {
        drop(self.stream);
        self.files
    }
}

/// V8's `--perf-prof`: four writes to the stream behind a recursive mutex, no unwind tables.
pub struct V8 {
    lock: RecursiveMutex,
    stream: Stream,
    index: AtomicU64,
    shape: Shape,
    code: Vec<u8>,
    files: Files,
}

impl Contender for V8 {
    fn open(task: &Task) -> Self {
        let path = task.file("v8.dump");
        let stream = Stream::create(&path, libc::_IOFBF, BUFFER);
        stream.write(&file_header());
        let shape = task.shape();
        V8 {
            lock: RecursiveMutex::new(),
            stream,
            index: AtomicU64::new(0),
            shape,
            code: shape.code(),
            files: Files { dump: Some(path), unwinding: 0, map: None },
        }
    }

    fn caller(&self, thread: usize) -> impl FnMut() {
        let mut addr = first_address(thread);
        move || {
            self.lock.lock();
            let time = monotonic_ns();
            // SAFETY: both only answer.
            let (pid, tid) = unsafe { (libc::getpid() as u32, libc::gettid() as u32) };
            let index = self.index.fetch_add(1, Ordering::Relaxed);
            self.stream.write(&self.shape.load_head(time, pid, tid, addr, index));
            self.stream.write(NAME.to_bytes());
            self.stream.write(&[0]);
            self.stream.write(&self.code);
            self.lock.unlock();
            addr += self.code.len() as u64;
        }
    }

    fn close(self, _calls: usize) -> Files {
        drop(self.stream);
        self.files
    }
}

/// What C++ calls a recursive mutex.
struct RecursiveMutex(Box<UnsafeCell<libc::pthread_mutex_t>>);

// SAFETY: this is what a mutex is for.
unsafe impl Sync for RecursiveMutex {}

impl RecursiveMutex {
    fn new() -> RecursiveMutex {
        let mut attributes = MaybeUninit::uninit();
        // In a box, because a mutex must not move.
        let mutex = Box::new(UnsafeCell::new(libc::PTHREAD_MUTEX_INITIALIZER));
        // SAFETY: the attributes are initialised before they are used, and the mutex is used by nobody yet.
        let result = unsafe {
            libc::pthread_mutexattr_init(attributes.as_mut_ptr());
            libc::pthread_mutexattr_settype(attributes.as_mut_ptr(), libc::PTHREAD_MUTEX_RECURSIVE);
            libc::pthread_mutex_init(mutex.get(), attributes.as_ptr())
        };
        assert_eq!(result, 0);
        RecursiveMutex(mutex)
    }

    fn lock(&self) {
        // SAFETY: the mutex is initialised, and stays where it is.
        assert_eq!(unsafe { libc::pthread_mutex_lock(self.0.get()) }, 0);
    }

    fn unlock(&self) {
        // SAFETY: as above; this thread holds it.
        assert_eq!(unsafe { libc::pthread_mutex_unlock(self.0.get()) }, 0);
    }
}
