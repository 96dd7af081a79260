//! What one would write first: each record is a `Vec` sent through a channel, and a thread that waits in `recv` writes them
//! to a buffered file.

use std::fs::File;
use std::io::{BufWriter, Write};
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::JoinHandle;

use crossbeam_channel::Sender;

use crate::contenders::Contender;
use crate::files::Files;
use crate::record::{file_header, first_address, monotonic_ns, Shape, NAME};
use crate::task::Task;

/// Records that may wait.
const CAPACITY: usize = 4096;

/// See the module's description.
pub struct Channel {
    sender: Sender<Vec<u8>>,
    receiver: JoinHandle<()>,
    index: AtomicU64,
    pid: u32,
    shape: Shape,
    code: Vec<u8>,
    tables: Vec<u8>,
    files: Files,
}

impl Contender for Channel {
    fn open(task: &Task) -> Self {
        let path = task.file("channel.dump");
        let mut file = BufWriter::new(File::create(&path).expect("create a file"));
        file.write_all(&file_header()).expect("write");
        let (sender, records) = crossbeam_channel::bounded::<Vec<u8>>(CAPACITY);
        let receiver = std::thread::Builder::new().name("channel-writer".into()).spawn(move || {
            for record in records {
                file.write_all(&record).expect("write");
            }
            file.flush().expect("flush");
        });
        let shape = task.shape();
        Channel {
            sender,
            receiver: receiver.expect("start a thread"),
            index: AtomicU64::new(0),
            pid: std::process::id(),
            shape,
            code: shape.code(),
            tables: vec![1; shape.tables],
            files: Files { dump: Some(path), unwinding: 1, map: None },
        }
    }

    fn caller(&self, thread: usize) -> impl FnMut() {
        let mut addr = first_address(thread);
        // SAFETY: it only answers.
        let tid = unsafe { libc::gettid() } as u32;
        move || {
            let time = monotonic_ns();
            let index = self.index.fetch_add(1, Ordering::Relaxed);
            let mut record = Vec::with_capacity(self.shape.total());
            record.extend_from_slice(&self.shape.unwinding_head(time));
            record.extend_from_slice(&self.tables);
            record.extend_from_slice(&self.shape.load_head(time, self.pid, tid, addr, index));
            record.extend_from_slice(NAME.to_bytes_with_nul());
            record.extend_from_slice(&self.code);
            self.sender.send(record).expect("a receiver");
            addr += self.code.len() as u64;
        }
    }

    fn drain(&self) {
        while !self.sender.is_empty() {
            std::thread::yield_now();
        }
    }

    fn close(self, _calls: usize) -> Files {
        drop(self.sender);
        self.receiver.join().expect("the receiver");
        self.files
    }
}
