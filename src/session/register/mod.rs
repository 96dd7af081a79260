//! The registering side: what each call checks and lays down, and the fast way of the usual registration.

mod records;
mod thread;

use std::ops::Range;
use std::time::Duration;

use crate::api::code::{Bytes, Code, Lines, MoveTarget};
use crate::api::error::{Error, Result};
use crate::api::limits::CODE_SIZE_MAX;
use crate::api::Id;
use crate::format::jitdump::{inlines, Group, Unwinding};
use crate::format::name;
use crate::format::unwind;
use crate::format::unwind::{Cache, Source};
use crate::queue::engine::Engine;
use crate::queue::record::{flag, Event, EventKind};
use crate::queue::thread_queue::ThreadQueue;
use crate::registry::ids::Stock;
use crate::session::process::Process;
use crate::sink::region::Regions;
use crate::sys;
use records::{Bare, Load, Move, Tail};
use thread::with_local;
pub use thread::{is_attached, watch_thread};

/// How long the end of stable code waits for the writer to read its bytes.
const STABLE_TIMEOUT: Duration = Duration::from_secs(10);

/// What a registering thread keeps between calls.
pub struct Local {
    process: &'static Process,
    thread_queue: ThreadQueue,
    tid: u32,
    indices: Range<u64>,
    stock: Stock<'static>,
    unwind: Cache,
}

/// Lays down a registration. `flags`: what is known of its place.
#[inline]
pub fn register<U: Source>(
    process: &'static Process,
    engine: &'static Engine,
    code: &Code<'_, U>,
    flags: u8,
) -> Result<Id> {
    check_range(code.addr, code.size, code.free_after)?;
    check_bytes(&code.bytes, code.size)?;
    with_local(process, engine, |local| local.register(code, flags))
}

/// Lays down a move.
pub fn move_code(
    process: &'static Process,
    engine: &'static Engine,
    id: Id,
    target: &MoveTarget<'_>,
    flags: u8,
) -> Result<()> {
    let size = engine.ids.size_of(id).ok_or(Error::UnknownId)?;
    check_range(target.addr, size, target.free_after)?;
    check_bytes(&target.bytes, size)?;
    wait_until_read(engine, engine.ids.is_unread(id));
    with_local(process, engine, |local| local.move_code(id, size, target, flags))
}

/// Lays down the end of one registration.
pub fn unregister(process: &'static Process, engine: &'static Engine, id: Id) -> Result<()> {
    // Looked up first, so that a wrong id costs no record.
    engine.ids.size_of(id).ok_or(Error::UnknownId)?;
    wait_until_read(engine, engine.ids.is_unread(id));
    with_local(process, engine, |local| {
        let event = local.event(EventKind::Unregister, id.0, 0, 0, 0);
        let retired = || if engine.ids.retire(id) { Ok(event) } else { Err(Error::UnknownId) };
        if_off(local.thread_queue.append(&Bare(retired)), ())
    })
}

/// Lays down the end of all registrations in a range.
pub fn unregister_range(process: &'static Process, engine: &'static Engine, addr: u64, size: u64) -> Result<()> {
    if size == 0 {
        return Err(Error::SizeZero);
    }
    addr.checked_add(size).ok_or(Error::AddressRange)?;
    // Which code lies there only the writer knows.
    wait_until_read(engine, engine.has_unread());
    with_local(process, engine, |local| {
        let event = local.event(EventKind::UnregisterRange, 0, 0, addr, size);
        if_off(local.thread_queue.append(&Bare(|| Ok(event))), ())
    })
}

/// A call that finds out late that the sinks were disabled has as little to do as one that begins then.
fn if_off<T>(result: Result<T>, value: T) -> Result<T> {
    match result {
        Err(Error::NotRunning) => Ok(value),
        other => other,
    }
}

/// Once such a call returns, the caller may use the memory of code that it called stable for something else.
#[inline]
fn wait_until_read(engine: &Engine, unread: bool) {
    if unread {
        // A writer that hangs must not hold the host up for ever. Then it finds other bytes there, and survives none.
        let _ = sys::thread::uncancelled(|| engine.flush(STABLE_TIMEOUT));
    }
}

fn check_range(addr: u64, size: u64, free_after: u64) -> Result<()> {
    if size == 0 {
        return Err(Error::SizeZero);
    }
    if size > CODE_SIZE_MAX {
        return Err(Error::TooLarge);
    }
    // The host got no memory and continued with 0. Readers take a line or record with that address for damage.
    if addr == 0 {
        return Err(Error::AddressRange);
    }
    addr.checked_add(size).and_then(|end| end.checked_add(free_after)).map(drop).ok_or(Error::AddressRange)
}

fn check_bytes(bytes: &Bytes<'_>, size: u64) -> Result<()> {
    match bytes {
        Bytes::Here(bytes) if bytes.len() as u64 != size => Err(Error::Buffer),
        _ => Ok(()),
    }
}

impl Local {
    pub fn new(process: &'static Process, engine: &'static Engine) -> Result<Local> {
        Ok(Local {
            process,
            thread_queue: ThreadQueue::new(engine)?,
            tid: sys::thread::id(),
            indices: 0..0,
            stock: Stock::new(),
            unwind: Cache::default(),
        })
    }

    /// An event that is complete except for the fields that depend on the chunk and the time.
    fn event(&self, kind: EventKind, id: u64, index: u64, addr: u64, size: u64) -> Event {
        Event {
            timestamp: 0,
            id,
            index,
            addr,
            size,
            body_at: 0,
            body_len: 0,
            unwinding_at: 0,
            tid: self.tid,
            kind,
            flags: 0,
            name_len: 0,
            tables_len: 0,
        }
    }

    fn next_index(&mut self) -> u64 {
        self.indices.next().unwrap_or_else(|| {
            self.indices = self.thread_queue.engine.index_block();
            self.indices.next().unwrap_or_default()
        })
    }

    #[inline(always)]
    pub fn register<U: Source>(&mut self, code: &Code<'_, U>, flags: u8) -> Result<Id> {
        match self.register_at_once(code, flags)? {
            Some(id) => Ok(id),
            None => self.register_slowly(code, flags),
        }
    }

    /// The fast path of nearly every registration: a plain name, bytes that can be read here, room in the chunk. `None` if one of
    /// these is missing; then nothing has happened.
    ///
    /// Everything is put together at its place in the chunk, because runtimes pay for this time. It is a separate function, because
    /// one that includes its callers has too few registers.
    #[inline(never)]
    fn register_at_once<U: Source>(&mut self, code: &Code<'_, U>, flags: u8) -> Result<Option<Id>> {
        let Local { thread_queue, tid, indices, stock, unwind, .. } = self;
        let engine = thread_queue.engine;
        let Bytes::Here(bytes) = code.bytes else { return Ok(None) };
        let is_usual = !code.stable && code.inlines.is_empty();
        if !is_usual || !name::is_plain(code.name) || !engine.wanted().want_groups() {
            return Ok(None);
        }
        let Some(index) = indices.next() else { return Ok(None) };
        let unwind = unwinding(engine, code, unwind)?;
        let (pid, tid) = (engine.status.pid, *tid);
        let (addr, size, name, lines) = (code.addr, code.size, code.name, code.lines);
        let group = Group { pid, tid, index, addr, size, name, lines, unwind };
        let begun = thread_queue.begin_at_once();
        let written = match begun {
            Some((room, timestamp)) => match group.write(timestamp, room, bytes.len()) {
                Ok(Some(layout)) => {
                    let body_len = layout.code + bytes.len();
                    room[layout.code..body_len].copy_from_slice(bytes);
                    stock
                        .take(&engine.ids, addr, size, false)
                        .map(|id| (id, timestamp, layout.unwinding, body_len))
                        .ok_or(Error::NoMemory)
                        .map(Some)
                }
                Ok(None) => Ok(None),
                Err(error) => Err(error),
            },
            None => Ok(None),
        };
        let Ok(Some((id, timestamp, unwinding_at, body_len))) = written else {
            thread_queue.end_at_once(None);
            return written.map(|_| None);
        };
        let claim = unwind.is_some_and(|unwind| unwind.mapped_size != 0);
        thread_queue.end_at_once(Some(Event {
            timestamp,
            id: id.0,
            index,
            addr,
            size,
            body_at: 0,
            body_len: body_len as u32,
            unwinding_at: unwinding_at as u32,
            tid,
            kind: EventKind::Load,
            flags: flags
                | flag::HAS_CODE
                | if claim { flag::FREE_BEHIND } else { 0 }
                | if code.packed { flag::PACKED } else { 0 },
            name_len: name.len() as u16,
            tables_len: unwind.map_or(0, |unwind| unwind.tables.len() as u32),
        }));
        Ok(Some(id))
    }

    #[cold]
    #[inline(never)]
    fn register_slowly<U: Source>(&mut self, code: &Code<'_, U>, flags: u8) -> Result<Id> {
        if sys::reserve::is_short() {
            return Err(Error::NoMemory);
        }
        let mut name = name::clean(code.name);
        if name.is_empty() {
            name = format!("jit_{:x}", code.addr).into_bytes().into();
        }
        let index = self.next_index();
        let mut event = self.event(EventKind::Load, 0, index, code.addr, code.size);
        event.flags = flags;
        if *name != *code.name {
            event.flags |= flag::NAME_CHANGED;
        }
        if code.packed {
            event.flags |= flag::PACKED;
        }
        let name = name::lengthen(name);
        event.name_len = name.len() as u16;
        let engine = self.thread_queue.engine;
        let unwind = unwinding(engine, code, &mut self.unwind)?;
        if let Some(unwind) = &unwind {
            if unwind.mapped_size != 0 {
                event.flags |= flag::FREE_BEHIND;
            }
            event.tables_len = unwind.tables.len() as u32;
        }
        let (pid, tid) = (engine.status.pid, self.tid);
        let (addr, size, lines) = (code.addr, code.size, code.lines);
        let mut group = Group { pid, tid, index, addr, size, name: &name, lines, unwind };
        let wanted = engine.wanted();
        let tail = Tail::new(engine, wanted, &code.bytes, addr, size, code.stable);
        let inlines = inlines_of(&self.process.regions, code)?;
        if !inlines.is_empty() {
            event.flags |= flag::INLINES;
        }
        if !wanted.want_groups() {
            // Checked, but nobody reads it.
            group.size()?;
            group.lines = Lines::Rows(&[]);
            group.unwind = None;
        }
        let unread = matches!(tail, Tail::Later(_));
        let id = self.stock.take(&engine.ids, addr, size, unread).ok_or(Error::NoMemory)?;
        event.id = id.0;
        engine.add_unread(unread.into());
        if let Err(error) = self.thread_queue.append(&Load { inlines, group, tail, event }) {
            engine.add_unread(-i64::from(unread));
            self.stock.put_back(&engine.ids, id);
            return if_off(Err(error), Id(0));
        }
        Ok(id)
    }

    fn move_code(&mut self, id: Id, size: u64, target: &MoveTarget<'_>, flags: u8) -> Result<()> {
        let engine = self.thread_queue.engine;
        let index = self.next_index();
        let mut event = self.event(EventKind::Move, id.0, index, target.addr, 0);
        event.flags = flags;
        // Whether that is enough depends on the tables, which the writer has.
        event.unwinding_at = u32::try_from(target.free_after).unwrap_or(u32::MAX);
        let tail = Tail::new(engine, engine.wanted(), &target.bytes, target.addr, size, target.stable);
        let unread = matches!(tail, Tail::Later(_));
        engine.add_unread(unread.into());
        let appended = self.thread_queue.append(&Move { engine, tail, event });
        if appended.is_err() {
            engine.add_unread(-i64::from(unread));
        }
        if_off(appended, ())
    }
}

/// The record of the inlined functions of code, if anybody can read it: nobody can but the files of regions, also of those that
/// memory becomes later. What makes no sense is an error all the same.
fn inlines_of<U>(regions: &Regions, code: &Code<'_, U>) -> Result<Vec<u8>> {
    if code.inlines.is_empty() {
        return Ok(Vec::new());
    }
    let record = inlines::record(code.inlines, code.size)?;
    let is_read = regions.are_watching() && regions.may_name(code.addr, code.size);
    Ok(if is_read { record } else { Vec::new() })
}

/// The unwind tables of code, if they are wanted. A description that makes no sense is an error all the same.
#[inline(always)]
fn unwinding<'c, U: Source>(
    engine: &Engine,
    code: &Code<'_, U>,
    cache: &'c mut Cache,
) -> Result<Option<Unwinding<'c>>> {
    let tables = code.unwind.tables(cache, code.addr, code.size)?;
    Ok(tables.filter(|_| engine.unwind_records()).map(|(tables, hdr_size)| {
        let room = unwind::room(code.size, tables.len());
        let mapped_size = if code.free_after >= room { tables.len() as u64 } else { 0 };
        Unwinding { tables, hdr_size, mapped_size }
    }))
}

impl Drop for Local {
    fn drop(&mut self) {
        // In a forked child this is a copy of the parent's, whose chunk is not even mapped.
        if !self.process.is_this_one() {
            return;
        }
        self.stock.give_back(&self.thread_queue.engine.ids);
        self.thread_queue.finish();
    }
}
