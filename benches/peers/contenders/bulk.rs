//! The floor of what getting the bytes into a file costs: each thread copies records to a large buffer and writes it when it is
//! full. No background thread, no time stamps, no durability; a thread that writes stands still meanwhile.

use std::fs::{File, OpenOptions};
use std::io::Write;

use crate::contenders::Contender;
use crate::files::Files;
use crate::record::{file_header, Shape, NAME};
use crate::task::Task;

/// Larger writes are no cheaper.
const BUFFER: usize = 256 << 10;

/// See the module's description.
pub struct Bulk {
    file: File,
    record: Vec<u8>,
    files: Files,
}

impl Contender for Bulk {
    fn open(task: &Task) -> Self {
        let path = task.file("bulk.dump");
        let mut file = OpenOptions::new().create_new(true).append(true).open(&path).expect("create a file");
        file.write_all(&file_header()).expect("write");
        Bulk { file, record: record(&task.shape()), files: Files { dump: Some(path), unwinding: 1, map: None } }
    }

    fn caller(&self, _thread: usize) -> impl FnMut() {
        let mut buffer = Buffer { file: &self.file, bytes: Vec::with_capacity(BUFFER + self.record.len()) };
        move || {
            buffer.bytes.extend_from_slice(&self.record);
            if buffer.bytes.len() >= BUFFER {
                buffer.flush();
            }
        }
    }

    fn close(self, _calls: usize) -> Files {
        self.files
    }
}

fn record(shape: &Shape) -> Vec<u8> {
    let mut record = shape.unwinding_head(1).to_vec();
    record.resize(shape.unwinding_size(), 1);
    record.extend(shape.load_head(1, 1, 1, 1, 1));
    record.extend(NAME.to_bytes_with_nul());
    record.extend(shape.code());
    record
}

struct Buffer<'a> {
    file: &'a File,
    bytes: Vec<u8>,
}

impl Buffer<'_> {
    fn flush(&mut self) {
        self.file.write_all(&self.bytes).expect("write");
        self.bytes.clear();
    }
}

impl Drop for Buffer<'_> {
    fn drop(&mut self) {
        self.flush();
    }
}
