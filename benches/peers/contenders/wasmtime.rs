//! wasmtime: the crate that it writes its jitdump with, behind one lock for the process, as wasmtime has it. No unwind tables.

use std::sync::Mutex;

use wasmtime_internal_jit_debug::perf_jitdump::JitDumpFile;

use crate::contenders::Contender;
use crate::files::Files;
use crate::record::{MACHINE, NAME};
use crate::task::Task;

/// See the module's description.
pub struct Wasmtime {
    file: Mutex<JitDumpFile>,
    pid: u32,
    code: Vec<u8>,
    files: Files,
}

impl Contender for Wasmtime {
    fn open(task: &Task) -> Self {
        let path = task.file("wasmtime.dump");
        Wasmtime {
            file: Mutex::new(JitDumpFile::new(&path, MACHINE).expect("create a jitdump")),
            pid: std::process::id(),
            code: task.shape().code(),
            files: Files { dump: Some(path), unwinding: 0, map: None },
        }
    }

    fn caller(&self, _thread: usize) -> impl FnMut() {
        let name = NAME.to_str().expect("a name in UTF-8");
        move || {
            let mut file = self.file.lock().expect("lock");
            let time = file.get_time_stamp();
            // SAFETY: it only answers.
            let tid = unsafe { libc::gettid() } as u32;
            // The crate takes the place where the code can be read for the one where it runs.
            file.dump_code_load_record(name, &self.code, time, self.pid, tid).expect("write");
        }
    }

    fn close(self, _calls: usize) -> Files {
        drop(self.file);
        self.files
    }
}
