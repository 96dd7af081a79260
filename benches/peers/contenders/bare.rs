//! The least that laying down a record takes: what the record needs is found out (the time, the length of the name), and its
//! parts are copied to their places. Nothing is checked, nobody else may do the same at the same time, and nobody is told.

use std::hint::black_box;

use crate::contenders::Contender;
use crate::files::Files;
use crate::record::{first_address, Shape, NAME};
use crate::task::Task;

/// What the library lays down besides the record itself.
const EVENT: usize = 64;

/// The parts of a record.
pub struct Parts {
    shape: Shape,
    code: Vec<u8>,
    tables: Vec<u8>,
}

impl Parts {
    pub fn new(task: &Task) -> Parts {
        let shape = task.shape();
        Parts { shape, code: shape.code(), tables: vec![1; shape.tables] }
    }

    /// How many bytes `lay_down` writes.
    pub fn size(&self) -> usize {
        self.shape.total() + EVENT
    }

    /// Lays the record of a function at `addr` down at the beginning of `room`.
    #[inline(always)]
    pub fn lay_down(&self, mut room: &mut [u8], addr: u64) {
        let name = black_box(NAME.as_ptr());
        // SAFETY: the name is a C string.
        let name = unsafe { std::ffi::CStr::from_ptr(name) }.to_bytes_with_nul();
        let time = ticks();
        let mut put = |bytes: &[u8]| {
            let (place, rest) = std::mem::take(&mut room).split_at_mut(bytes.len());
            place.copy_from_slice(bytes);
            room = rest;
        };
        put(&self.shape.unwinding_head(time));
        put(&self.tables);
        put(&self.shape.load_head(time, 1, 1, addr, addr));
        put(name);
        put(&self.code);
        put(&[1; EVENT]);
    }

    /// The address after a function at `addr`.
    pub fn next(&self, addr: u64) -> u64 {
        addr + self.code.len() as u64
    }
}

/// See the module's description.
pub struct Bare {
    parts: Parts,
    region: usize,
}

impl Contender for Bare {
    fn open(task: &Task) -> Self {
        let parts = Parts::new(task);
        Bare { region: task.region.max(parts.size()), parts }
    }

    fn caller(&self, thread: usize) -> impl FnMut() {
        let mut region = vec![1_u8; self.region];
        let mut at = 0;
        let mut addr = first_address(thread);
        let Bare { parts, .. } = self;
        move || {
            if region.len() - at < parts.size() {
                at = 0;
            }
            parts.lay_down(&mut region[at..], addr);
            addr = parts.next(addr);
            at += parts.size();
            black_box(region.as_mut_ptr());
        }
    }

    fn close(self, _calls: usize) -> Files {
        Files::default()
    }
}

/// The cheapest clock there is.
#[cfg(target_arch = "x86_64")]
fn ticks() -> u64 {
    // SAFETY: the instruction exists on every x86-64 processor.
    let ticks = unsafe { std::arch::x86_64::_rdtsc() };
    ((u128::from(ticks) * u128::from(black_box(1_u64 << 32))) >> 32) as u64
}

#[cfg(not(target_arch = "x86_64"))]
fn ticks() -> u64 {
    crate::record::monotonic_ns()
}
