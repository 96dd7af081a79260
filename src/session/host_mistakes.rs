//! Finds certain mistakes in the host's calls (`JITSYM_DEBUG=check`).
//!
//! The mistakes are: new code overwrites code that is still registered, registered bytes differ from the bytes in memory, and
//! memory is unmapped before its code is unregistered.
//!
//! Code may be registered before its bytes are written to memory. So the bytes are compared only once: when the code is
//! unregistered, when the process exits, or when the thread that registered the code flushes and the memory is executable and
//! not writable.

use std::time::{Duration, Instant};

use crate::api::code::{Bytes, Code, MoveTarget};
use crate::api::Id;
use crate::queue::shared::Shared;
use crate::session::lifecycle;
use crate::sys::timed_lock::TimedLock;
use crate::sys::{debug, maps, process_memory, reserve, thread};

/// The maximum number of findings of each kind that are printed one by one. At exit, the number of further findings is printed.
const SAID_MOST: u32 = 20;
/// The maximum time that a call waits for the lock of the table. If the lock is not free by then, the call is not checked.
const PATIENCE: Duration = Duration::from_millis(100);
/// At most this many flushes examine the memory mappings of a piece of code.
const LOOKS_MOST: u8 = 2;
/// The maximum size of code whose bytes are kept for the comparison.
const BYTES_MOST: usize = 1 << 20;

/// The code that the host has registered through checked calls. A forked child begins with an empty table, because another
/// thread may have been changing the table during the fork.
#[derive(Default)]
struct Table {
    /// Sorted by address. No two entries overlap.
    codes: Vec<Known>,
    /// The number of findings of each kind.
    found: [u32; 3],
    /// The value of `lifecycle::ends` when the table was last used. Once `lifecycle::ends` returns another value, all ids are
    /// invalid, and the table is emptied.
    ends: u32,
}

/// A piece of registered code.
struct Known {
    id: Id,
    addr: u64,
    size: u64,
    by: u32,
    name: Vec<u8>,
    /// The bytes that the host gave. `None` if the bytes were not kept, or were already compared.
    bytes: Option<Vec<u8>>,
    /// The number of flushes that have examined the memory mappings of the code.
    looks: u8,
}

/// See the module's description.
#[derive(Debug, Default)]
pub struct Checked(TimedLock<Table>);

impl Checked {
    /// Runs `body` with the table, if calls are checked.
    #[inline]
    fn with(&self, body: impl FnOnce(&mut Table)) {
        if debug::checks() {
            let locked = self.0.lock_until(Instant::now() + PATIENCE);
            _ = locked.map(|mut table| {
                let ends = lifecycle::ends();
                if std::mem::replace(&mut table.ends, ends) != ends {
                    table.codes = Vec::new();
                }
                body(&mut table)
            });
        }
    }

    /// Records that code was registered. An overlap with code whose id is still in use is a finding.
    #[inline]
    pub fn registered(&self, shared: &Shared, id: Id, code: &Code<'_>) {
        self.with(|table| table.add(shared, id, (code.addr, code.size), code.name, &code.bytes));
    }

    /// Records that code was moved. Does not compare the bytes at the old address, because the host may already have reused
    /// that memory.
    #[inline]
    pub fn moved(&self, shared: &Shared, id: Id, target: &MoveTarget<'_>) {
        self.with(|table| {
            if let Some(index) = table.codes.iter().position(|known| known.id == id) {
                let known = table.codes.remove(index);
                table.add(shared, id, (target.addr, known.size), &known.name, &target.bytes);
            }
        });
    }

    /// Checks code that the host unregisters by its id.
    #[inline]
    pub fn ends(&self, shared: &Shared, id: Id) {
        if debug::checks() {
            _ = shared.ids.place_of(id).map(|(addr, size)| self.ends_in(addr, size));
        }
    }

    /// Checks all code in a range that the host unregisters.
    #[inline]
    pub fn ends_in(&self, addr: u64, size: u64) {
        self.with(|table| {
            for mut known in table.take(addr, size) {
                table.compare(&mut known, true);
            }
        });
    }

    /// Compares bytes when the calling thread flushes, or the process exits (`is_exit`).
    #[inline]
    pub fn look(&self, is_exit: bool) {
        self.with(|table| {
            let mut codes = std::mem::take(&mut table.codes);
            for known in codes.iter_mut().filter(|known| known.bytes.is_some()) {
                if is_exit || known.by == thread::id() && known.is_in_place() {
                    table.compare(known, false);
                }
            }
            table.codes = codes;
            if is_exit {
                let more = table.found.map(|found| found.saturating_sub(SAID_MOST));
                if more != [0; 3] {
                    let [ends, differ, gone] = more;
                    debug::say(format_args!(
                        "check: more of each kind: {ends} that end other code, {differ} with other bytes, {gone} without memory"
                    ));
                }
            }
        });
    }
}

impl Table {
    fn add(&mut self, shared: &Shared, id: Id, (addr, size): (u64, u64), name: &[u8], bytes: &Bytes<'_>) {
        if id == Id(0) {
            return;
        }
        for old in self.take(addr, size) {
            // The old id may be invalid, because all ids become invalid when the sinks are disabled.
            if shared.ids.size_of(old.id).is_some() && self.is_to_be_said(0) {
                debug::say(format_args!(
                    "check: `{}` at {addr:#x} ends `{}` at {:#x} ({} bytes), which is registered; unregister code before its memory \
                     has other code",
                    name.escape_ascii(),
                    old.name.escape_ascii(),
                    old.addr,
                    old.size,
                ));
            }
        }
        let bytes = match bytes {
            Bytes::Here(bytes) if bytes.len() <= BYTES_MOST => reserve::copy_of(bytes).ok(),
            _ => None,
        };
        let Ok(name) = reserve::copy_of(name) else { return };
        if self.codes.try_reserve(1).is_ok() {
            let index = self.codes.partition_point(|known| known.addr < addr);
            self.codes.insert(index, Known { id, addr, size, by: thread::id(), name, bytes, looks: 0 });
        }
    }

    /// Removes the entries that overlap a range.
    fn take(&mut self, addr: u64, size: u64) -> Vec<Known> {
        let from = self.codes.partition_point(|known| known.addr + known.size <= addr);
        let to = self.codes.partition_point(|known| known.addr < addr.saturating_add(size));
        let (mut taken, found) = (Vec::new(), from..to.max(from));
        // If there is no memory for the list, the removed entries are not checked.
        let has_room = taken.try_reserve_exact(found.len()).is_ok();
        let found = self.codes.drain(found);
        if has_room {
            taken.extend(found);
        }
        taken
    }

    fn is_to_be_said(&mut self, kind: usize) -> bool {
        self.found[kind] += 1;
        self.found[kind] <= SAID_MOST
    }

    /// Compares the registered bytes with the bytes in memory. `ends` is true if the host is unregistering the code, whose
    /// memory must then still be mapped.
    fn compare(&mut self, known: &mut Known, ends: bool) {
        let Known { addr, size, ref name, .. } = *known;
        let looked_at = size.min(BYTES_MOST as u64);
        let Ok((there, is_whole)) = process_memory::copy(std::process::id(), addr, looked_at) else { return };
        let name = name.escape_ascii();
        if !is_whole {
            if ends && self.is_to_be_said(2) {
                debug::say(format_args!(
                    "check: the memory of `{name}` at {addr:#x} ({size} bytes) cannot be read when the code ends; unregister code before \
                     its memory goes"
                ));
            }
            return;
        }
        let Some(given) = known.bytes.take() else { return };
        let differ = || (0..there.len()).filter(|&at| there[at] != given[at]);
        if let Some(at) = differ().next().filter(|_| self.is_to_be_said(1)) {
            let some = |bytes: &[u8]| bytes[at..].iter().take(8).fold(0, |all: u64, &byte| all << 8 | u64::from(byte));
            debug::say(format_args!(
                "check: `{name}` at {addr:#x} ({size} bytes): {} bytes differ from jitsym_code.bytes, the first at +{at}: given {:0width$x}, in \
                 memory {:0width$x}; register the bytes that run",
                differ().count(),
                some(&given),
                some(&there),
                width = 2 * (there.len() - at).min(8),
            ));
        }
    }
}

impl Known {
    /// Whether the code's memory is executable and not writable. Always false once `LOOKS_MOST` flushes have examined the
    /// code.
    fn is_in_place(&mut self) -> bool {
        if self.looks == LOOKS_MOST {
            return false;
        }
        self.looks += 1;
        let mappings = maps::within(self.addr, self.addr + self.size).unwrap_or_default();
        !mappings.is_empty() && mappings.iter().all(|it| it.is_executable() && it.protection & libc::PROT_WRITE == 0)
    }
}
