//! LLVM's jitdump plugin: a mutex, a buffered stream, and a flush for every object, which is every function where functions are
//! compiled one by one. No unwind tables.

use std::fs::File;
use std::io::{BufWriter, Write};
use std::sync::Mutex;

use crate::contenders::Contender;
use crate::files::Files;
use crate::record::{file_header, first_address, monotonic_ns, Shape, NAME};
use crate::task::Task;

/// The stream's buffer is as large as a block of the file system says.
const BUFFER: usize = 4096;

/// See the module's description.
pub struct Llvm {
    state: Mutex<(BufWriter<File>, u64)>,
    pid: u32,
    shape: Shape,
    code: Vec<u8>,
    files: Files,
}

impl Contender for Llvm {
    fn open(task: &Task) -> Self {
        let path = task.file("llvm.dump");
        let mut stream = BufWriter::with_capacity(BUFFER, File::create(&path).expect("create a file"));
        stream.write_all(&file_header()).expect("write");
        Llvm {
            state: Mutex::new((stream, 0)),
            pid: std::process::id(),
            shape: task.shape(),
            code: task.shape().code(),
            files: Files { dump: Some(path), unwinding: 0, map: None },
        }
    }

    fn caller(&self, thread: usize) -> impl FnMut() {
        let mut addr = first_address(thread);
        move || {
            let mut state = self.state.lock().expect("lock");
            let (stream, index) = &mut *state;
            let time = monotonic_ns();
            // SAFETY: it only answers.
            let tid = unsafe { libc::gettid() } as u32;
            let parts: [&[u8]; 3] =
                [&self.shape.load_head(time, self.pid, tid, addr, *index), NAME.to_bytes_with_nul(), &self.code];
            for part in parts {
                stream.write_all(part).expect("write");
            }
            stream.flush().expect("flush");
            *index += 1;
            addr += self.code.len() as u64;
        }
    }

    fn close(self, _calls: usize) -> Files {
        drop(self.state);
        self.files
    }
}
