//! Runtimes that write perf map lines as they go, one system call for each: LuaJIT and MoarVM. A line has no code and no
//! tables, so it is an eighth of the bytes of the other records, or less.

use crate::contenders::stdio::Stream;
use crate::contenders::Contender;
use crate::files::Files;
use crate::record::{first_address, NAME};
use crate::task::Task;

/// LuaJIT with `LUAJIT_USE_PERFTOOLS`: a stream that writes at the end of each line.
pub struct LuaJit(Lines);

impl Contender for LuaJit {
    fn open(task: &Task) -> Self {
        LuaJit(Lines::open(task, libc::_IOLBF))
    }

    fn caller(&self, thread: usize) -> impl FnMut() {
        let mut addr = first_address(thread);
        move || addr = self.0.print(addr)
    }

    fn close(self, _calls: usize) -> Files {
        self.0.close()
    }
}

/// MoarVM: a stream that is flushed after each line.
pub struct MoarVm(Lines);

impl Contender for MoarVm {
    fn open(task: &Task) -> Self {
        MoarVm(Lines::open(task, libc::_IOFBF))
    }

    fn caller(&self, thread: usize) -> impl FnMut() {
        let mut addr = first_address(thread);
        move || {
            addr = self.0.print(addr);
            self.0.stream.flush();
        }
    }

    fn close(self, _calls: usize) -> Files {
        self.0.close()
    }
}

struct Lines {
    stream: Stream,
    size: u64,
    files: Files,
}

impl Lines {
    fn open(task: &Task, buffering: i32) -> Lines {
        let path = task.file("lines.map");
        let stream = Stream::create(&path, buffering, 0);
        Lines { stream, size: task.setting.size as u64, files: Files { map: Some(path), ..Files::default() } }
    }

    /// Returns the address behind the function.
    fn print(&self, addr: u64) -> u64 {
        // SAFETY: the stream is open, and the arguments are what the format says.
        let printed =
            unsafe { libc::fprintf(self.stream.as_ptr(), c"%lx %lx %s\n".as_ptr(), addr, self.size, NAME.as_ptr()) };
        assert!(printed > 0);
        addr + self.size
    }

    fn close(self) -> Files {
        drop(self.stream);
        self.files
    }
}
