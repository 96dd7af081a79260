//! The floor: the bytes of the record are copied once, and nobody is told.

use std::hint::black_box;

use crate::contenders::Contender;
use crate::files::Files;
use crate::record::NAME;
use crate::task::Task;

/// Copies into a region of each thread's own, over and over, as far apart as records would be.
pub struct Memcpy {
    record: Vec<u8>,
    region: usize,
}

impl Contender for Memcpy {
    fn open(task: &Task) -> Self {
        let shape = task.shape();
        let mut record = vec![0; shape.total() - shape.code];
        record[..NAME.to_bytes().len()].copy_from_slice(NAME.to_bytes());
        record.extend(shape.code());
        Memcpy { record, region: task.region.max(shape.total()) }
    }

    fn caller(&self, _thread: usize) -> impl FnMut() {
        let mut region = vec![1_u8; self.region];
        let mut at = 0;
        move || {
            let record: &[u8] = black_box(&self.record);
            if region.len() - at < record.len() {
                at = 0;
            }
            region[at..at + record.len()].copy_from_slice(record);
            at += record.len();
            black_box(region.as_mut_ptr());
        }
    }

    fn close(self, _calls: usize) -> Files {
        Files::default()
    }
}
