//! The fast path of registration, which nearly every call uses. The fast path requires a plain name, bytes that the host passes
//! by pointer, and room in the thread's chunk.
//!
//! Each registration delays the runtime, so each part of a record is written directly into the chunk, and each field is read
//! where it is used. The slow path handles all other registrations, and errors.

use super::thread_state::Local;
use crate::api::code::{Bytes, Code};
use crate::api::error::Error;
use crate::api::limits::CODE_SIZE_MAX;
use crate::api::Id;
use crate::format::jitdump::{
    lines_left_out, put_debug, put_load_fixed, put_time, Load, UnwindingTemplate, LOAD_FIXED_SIZE,
};
use crate::format::name;
use crate::format::unwind::Cache;
use crate::queue::record::{flag, Event, EventKind};

static NO_TABLES: UnwindingTemplate = UnwindingTemplate::empty();

/// A registration as the caller passed it: a C struct, or a value of the Rust API. The methods read the caller's memory, which
/// other threads may change meanwhile. So a size is read only once if checks rely on it.
pub trait Given: Copy {
    /// True if the code has no inlined functions, the host passes the code's bytes by pointer, and the call has to copy the
    /// bytes. The bytes of stable code are not copied.
    fn is_usual(&self) -> bool;
    fn addr(&self) -> u64;
    fn size(&self) -> u64;
    fn name(&self) -> &[u8];
    /// The address of the code's bytes. May be used only if `is_usual` returns true.
    fn bytes(&self) -> *const u8;
    /// A template of the record of the code's unwind tables. The caller writes the record for this code size with `copy_to`.
    fn template<'c>(&self, cache: &'c mut Cache, addr: u64, size: u64) -> Result<Option<&'c UnwindingTemplate>, Error>;
    /// Whether the bytes after the code contain no other code.
    fn has_gap(&self) -> bool;
    /// Number of rows of the line table.
    fn line_count(&self) -> usize;
    /// Writes as much of the record of the code's lines as fits into `out`, and returns the size of the whole record. `None` if
    /// the lines need the slow path. The caller sets the record's time stamp later.
    fn put_lines(&self, size: u64, out: &mut [u8]) -> Option<usize>;
}

impl Local {
    /// Writes the record of a registration. The caller has checked that the sinks want all parts of a record. `flags` is the
    /// result of `Regions::before_code`, if it was called already. If the registration is unusual, the chunk stays unchanged,
    /// and the call returns an error. If `Regions::before_code` was called, the error contains its result.
    ///
    /// The order of the steps keeps the number of registers in use small: steps whose values are needed only for checks come
    /// first, and the large copies come last. The link section puts all functions of a usual call into few pages.
    #[inline(never)]
    #[link_section = ".text.hot.jitsym"]
    pub fn register_at_once<G: Given>(&mut self, code: G, flags: Option<u8>) -> Result<Id, Option<u8>> {
        self.thread_queue.ask_ahead();
        self.id_pool.ask_ahead();
        let shared = self.thread_queue.shared;
        let size = code.size();
        let in_range = size.wrapping_sub(1) < CODE_SIZE_MAX && code.addr() != 0;
        if !in_range || !code.is_usual() {
            return Err(flags);
        }
        if code.addr().checked_add(size).is_none() {
            return Err(flags);
        }
        let template = match code.template(&mut self.unwind, code.addr(), size) {
            Ok(Some(template)) if shared.unwind_records() => template,
            Ok(_) => &NO_TABLES,
            Err(_) => return Err(flags),
        };

        let regions = self.regions;
        let watching = flags.is_none() && regions.are_watching();
        let known = match flags {
            Some(flags) => flags,
            None if watching => regions.before_code(&shared.status, code.addr(), size),
            None => 0,
        };

        // This code is a labeled block, because a compiler that optimizes for size would turn a closure into a function, and
        // pass the captured variables through memory.
        let mut left_out = 0;
        let registered = 'registered: {
            let Some(cursor) = self.thread_queue.begin_at_once() else { break 'registered None };
            let Some(room) = cursor.room() else { break 'registered None };
            let name = code.name();
            if name.len() > name::MAX {
                break 'registered None;
            }
            let needed = template.record_len() + LOAD_FIXED_SIZE + name.len() + 1 + size as usize;
            let Some(spare) = room.len().checked_sub(needed + UnwindingTemplate::SLACK) else { break 'registered None };
            let mut lines_len = 0;
            let rows = code.line_count();
            if rows != 0 {
                match code.put_lines(size, &mut room[..spare]) {
                    Some(len) if len <= spare => {
                        lines_len = len;
                        left_out = lines_left_out(rows, len, room);
                    }
                    _ => break 'registered None,
                }
            }
            // SAFETY: `room` is large enough for the lines, for the other records, and for the code. So this access and the
            // accesses below stay inside `room`.
            let out = unsafe { room.as_mut_ptr().add(lines_len) };
            // SAFETY: as above.
            let load = unsafe { out.add(template.record_len()) };
            // SAFETY: as above.
            unsafe { template.copy_to(out, size) };
            // SAFETY: as above.
            if unsafe { !name::copy_plain(name, load.add(LOAD_FIXED_SIZE)) } {
                break 'registered None;
            }
            let name_len = name.len();

            let timestamp = shared.clock.now_after_ends();
            let Some(index) = self.indices.next() else { break 'registered None };
            let Some(id) = self.id_pool.take(&shared.ids, code.addr(), size, false) else { break 'registered None };
            let load_record = Load { pid: self.pid, tid: self.tid, addr: code.addr(), size, index, name_len };
            // The times are written even if the record of the lines or of the unwind tables is absent. An absent record has no
            // bytes, so the next record overwrites the time.
            // SAFETY: as above.
            unsafe {
                put_time(out.sub(lines_len), timestamp);
                put_time(out, timestamp);
                put_load_fixed(load, timestamp, &load_record);
            }
            cursor.write_event(Event {
                timestamp,
                id: id.0,
                index,
                addr: code.addr(),
                size,
                body_at: 0,
                body_len: (lines_len + needed) as u32,
                tid: self.tid,
                kind: EventKind::Load,
                flags: known | flag::HAS_CODE | if code.has_gap() { flag::GAP } else { 0 },
                name_len: name_len as u16,
                unused: 0,
            });
            // SAFETY: as above.
            unsafe { load.add(LOAD_FIXED_SIZE + name_len + 1).copy_from_nonoverlapping(code.bytes(), size as usize) };
            cursor.publish(lines_len + needed);
            Some(id)
        };
        self.thread_queue.end_at_once();
        match registered {
            Some(id) => {
                if left_out != 0 {
                    shared.status.counters.lines_left_out.add(left_out);
                }
                Ok(id)
            }
            None => Err(if watching { Some(known) } else { flags }),
        }
    }
}

impl Given for &Code<'_> {
    fn is_usual(&self) -> bool {
        !self.stable
            && self.inlines.is_empty()
            && matches!(self.bytes, Bytes::Here(bytes) if bytes.len() as u64 == self.size)
    }

    fn addr(&self) -> u64 {
        self.addr
    }

    fn size(&self) -> u64 {
        self.size
    }

    fn name(&self) -> &[u8] {
        self.name
    }

    fn bytes(&self) -> *const u8 {
        match self.bytes {
            Bytes::Here(bytes) => bytes.as_ptr(),
            Bytes::AtAddress => std::ptr::null(),
        }
    }

    fn template<'c>(&self, cache: &'c mut Cache, addr: u64, size: u64) -> Result<Option<&'c UnwindingTemplate>, Error> {
        cache.template(&self.unwind, addr, size)
    }

    fn has_gap(&self) -> bool {
        self.gap
    }

    fn line_count(&self) -> usize {
        self.lines.len()
    }

    fn put_lines(&self, size: u64, out: &mut [u8]) -> Option<usize> {
        put_debug(self.lines, self.addr, size, 0, out).ok().flatten()
    }
}
