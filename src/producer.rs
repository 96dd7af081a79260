//! The registering side: what a thread does, on its own memory, to lay down one record.

use std::cell::RefCell;
use std::ops::Range;
use std::sync::atomic::Ordering;
use std::sync::Arc;

use crate::chunk::{flag, Cursor, Event, Kind, CHUNK_SIZE};
use crate::code::{Bytes, Code, MoveTarget};
use crate::config::Sinks;
use crate::engine::{Engine, Message, Slot};
use crate::error::{Error, Result};
use crate::format::jitdump::{Group, Unwinding};
use crate::format::name;
use crate::ids::Stock;
use crate::process::Process;
use crate::sys::{mem, thread};
use crate::unwind::Cache;
use crate::{unwind, Id};

/// The largest code: perf holds the size in an `int`.
const CODE_SIZE_MAX: u64 = crate::capi::types::jitsym_limit::JITSYM_CODE_SIZE_MAX as u64;

/// Bytes of a chunk that are not for bodies, generously.
const CHUNK_OVERHEAD: usize = 256;

thread_local! {
    static LOCAL: RefCell<Option<Local>> = const { RefCell::new(None) };
}

/// What a registering thread keeps between calls.
struct Local {
    process: &'static Process,
    lane: Lane,
    tid: u32,
    indices: Range<u64>,
    stock: Stock,
    unwind: Cache,
}

/// The thread's way to the writer.
struct Lane {
    engine: &'static Engine,
    slot: Arc<Slot>,
    cursor: Option<Cursor>,
}

/// Runs `body`, which lays down one record, with the calling thread's state and the time.
fn with_local<T>(
    process: &'static Process,
    engine: &'static Engine,
    body: impl FnOnce(&mut Local, u64) -> Result<T>,
) -> Result<T> {
    let mut body = Some(body);
    let inside = LOCAL.try_with(|cell| {
        let mut local = cell.try_borrow_mut().map_err(|_| Error::Busy)?;
        // What a forked child finds here is its parent's.
        if !local.as_ref().is_some_and(|local| std::ptr::eq(local.process, process)) {
            *local = Some(Local::new(process, engine)?);
        }
        match (local.as_mut(), body.take()) {
            (Some(local), Some(body)) => local.record(body),
            _ => Err(Error::Internal),
        }
    });
    match (inside, body) {
        (Ok(result), _) => result,
        // The thread is ending and its state is gone already: make one for this call.
        (Err(_), Some(body)) => Local::new(process, engine)?.record(body),
        (Err(_), None) => Err(Error::Internal),
    }
}

/// Lays down a registration.
pub fn register(process: &'static Process, engine: &'static Engine, code: &Code<'_>) -> Result<Id> {
    check_range(code.addr, code.size, code.free_after)?;
    check_bytes(&code.bytes, code.size)?;
    with_local(process, engine, |local, timestamp| local.register(timestamp, code))
}

/// Lays down a move.
pub fn move_code(process: &'static Process, engine: &'static Engine, id: Id, target: &MoveTarget<'_>) -> Result<()> {
    let size = engine.ids.size_of(id).ok_or(Error::UnknownId)?;
    check_range(target.addr, size, target.free_after)?;
    check_bytes(&target.bytes, size)?;
    with_local(process, engine, |local, timestamp| local.move_code(timestamp, id, size, target))
}

/// Lays down the end of one registration.
pub fn unregister(process: &'static Process, engine: &'static Engine, id: Id) -> Result<()> {
    // Looked up first, so that a wrong id costs no record.
    engine.ids.size_of(id).ok_or(Error::UnknownId)?;
    with_local(process, engine, |local, timestamp| {
        let event = local.event(Kind::Unregister, timestamp, id.0, 0, 0, 0);
        local.lane.append(0, |_| if engine.ids.retire(id) { Ok(event) } else { Err(Error::UnknownId) })
    })
}

/// Lays down the end of all registrations in a range.
pub fn unregister_range(process: &'static Process, engine: &'static Engine, addr: u64, size: u64) -> Result<()> {
    if size == 0 {
        return Err(Error::SizeZero);
    }
    addr.checked_add(size).ok_or(Error::AddressRange)?;
    with_local(process, engine, |local, timestamp| {
        let event = local.event(Kind::UnregisterRange, timestamp, 0, 0, addr, size);
        local.lane.append(0, |_| Ok(event))
    })
}

fn check_range(addr: u64, size: u64, free_after: u64) -> Result<()> {
    if size == 0 {
        return Err(Error::SizeZero);
    }
    if size > CODE_SIZE_MAX {
        return Err(Error::TooLarge);
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
    fn new(process: &'static Process, engine: &'static Engine) -> Result<Local> {
        Ok(Local {
            process,
            lane: Lane { engine, slot: engine.attach()?, cursor: None },
            tid: thread::id(),
            indices: 0..0,
            stock: Stock::new(),
            unwind: Cache::default(),
        })
    }

    /// Runs `body` with the time, between the marks by which the writer knows that a record stamped so early is still coming.
    fn record<T>(&mut self, body: impl FnOnce(&mut Local, u64) -> Result<T>) -> Result<T> {
        self.lane.slot.begin();
        let timestamp = self.lane.engine.clock.now();
        let result = body(self, timestamp);
        self.lane.slot.end();
        result
    }

    fn event(&self, kind: Kind, timestamp: u64, id: u64, index: u64, addr: u64, size: u64) -> Event {
        Event {
            timestamp,
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
            self.indices = self.lane.engine.index_block();
            self.indices.next().unwrap_or_default()
        })
    }

    fn register(&mut self, timestamp: u64, code: &Code<'_>) -> Result<Id> {
        let engine = self.lane.engine;
        let cleaned = name::clean(code.name);
        let fallback;
        let name: &[u8] = if cleaned.is_empty() {
            fallback = format!("jit_{:x}", code.addr);
            fallback.as_bytes()
        } else {
            &cleaned
        };

        let index = self.next_index();
        let mut event = self.event(Kind::Load, timestamp, 0, index, code.addr, code.size);
        if name.as_ptr() != code.name.as_ptr() {
            event.flags |= flag::NAME_CHANGED;
        }
        let tables = self.unwind.tables(&code.unwind, code.addr, code.size)?;
        let unwind = tables.filter(|_| engine.unwind_records()).map(|(tables, hdr_size)| {
            let room = unwind::room(code.size, tables.len());
            let mapped_size = if code.free_after >= room { tables.len() as u64 } else { 0 };
            Unwinding { tables, hdr_size, mapped_size }
        });
        if let Some(unwind) = &unwind {
            if unwind.mapped_size != 0 {
                event.flags |= flag::FREE_BEHIND;
            }
            event.tables_len = unwind.tables.len() as u32;
        }
        let group = Group {
            timestamp,
            pid: engine.pid,
            tid: self.tid,
            index,
            addr: code.addr,
            size: code.size,
            name,
            lines: code.lines,
            unwind,
        };
        let layout = group.layout()?;
        let with_code = engine.sinks().has(Sinks::JITDUMP);
        let body_len = layout.code + if with_code { code.size as usize } else { 0 };
        event.unwinding_at = layout.unwinding as u32;
        event.name_len = name.len() as u16;

        let id = self.stock.take(&engine.ids, code.size).ok_or(Error::NoMemory)?;
        event.id = id.0;
        let appended = self.lane.append(body_len, |body| {
            let (head, bytes) = body.split_at_mut(layout.code);
            group.write(&layout, head);
            if with_code {
                event.flags |= flag::HAS_CODE | copy_code(engine.pid, &code.bytes, code.addr, bytes);
            }
            Ok(event)
        });
        if let Err(error) = appended {
            self.stock.put_back(&engine.ids, id);
            return Err(error);
        }
        Ok(id)
    }

    fn move_code(&mut self, timestamp: u64, id: Id, size: u64, target: &MoveTarget<'_>) -> Result<()> {
        let engine = self.lane.engine;
        let index = self.next_index();
        let mut event = self.event(Kind::Move, timestamp, id.0, index, target.addr, size);
        let with_code = engine.sinks().has(Sinks::JITDUMP);
        // Whether that is enough depends on the tables, which the writer has.
        event.unwinding_at = u32::try_from(target.free_after).unwrap_or(u32::MAX);
        self.lane.append(if with_code { size as usize } else { 0 }, |body| {
            if with_code {
                event.flags |= flag::HAS_CODE | copy_code(engine.pid, &target.bytes, target.addr, body);
            }
            // Looked at last: the code may have been unregistered meanwhile.
            engine.ids.size_of(id).map(|_| event).ok_or(Error::UnknownId)
        })
    }
}

/// Copies the code to `out`; a flag if not all of it could be read.
fn copy_code(pid: u32, bytes: &Bytes<'_>, addr: u64, out: &mut [u8]) -> u8 {
    let read = match bytes {
        Bytes::Here(bytes) => {
            out.copy_from_slice(bytes);
            out.len()
        }
        Bytes::AtAddress => mem::read_self(pid, addr, out),
    };
    if read < out.len() {
        flag::UNREADABLE
    } else {
        0
    }
}

impl Lane {
    /// Lays down one record: `fill` writes its body and says what it is. An error of `fill` leaves no trace.
    fn append(&mut self, body_len: usize, fill: impl FnOnce(&mut [u8]) -> Result<Event>) -> Result<()> {
        if body_len > CHUNK_SIZE - CHUNK_OVERHEAD {
            return self.append_large(body_len, fill);
        }
        if self.cursor.as_mut().is_none_or(|cursor| cursor.room(body_len).is_none()) {
            self.change_chunk()?;
        }
        let cursor = self.cursor.as_mut().ok_or(Error::Internal)?;
        fill_and_commit(cursor, body_len, fill)?;
        self.engine.wake_if_asleep();
        Ok(())
    }

    /// A record that no chunk can hold gets one of its own.
    #[cold]
    fn append_large(&mut self, body_len: usize, fill: impl FnOnce(&mut [u8]) -> Result<Event>) -> Result<()> {
        let body_fits = u32::try_from(body_len + CHUNK_OVERHEAD).is_ok();
        let chunk = if body_fits { self.engine.pool.take_large(body_len) } else { None };
        let Some(chunk) = chunk else {
            self.engine.counters.dropped.add(1);
            return Err(Error::NoMemory);
        };
        let mut cursor = Cursor::new(chunk);
        let sent = fill_and_commit(&mut cursor, body_len, fill)
            // What this thread laid down before has to be written before.
            .and_then(|()| self.hand_over())
            .and_then(|()| self.engine.send(Message::Full { slot: self.slot.number, chunk }));
        if sent.is_err() {
            self.engine.pool.put_back(cursor);
        }
        self.engine.wake_if_asleep();
        sent
    }

    #[cold]
    fn change_chunk(&mut self) -> Result<()> {
        // The new one first: without it the old one is kept, for records that are small enough.
        let Some(chunk) = self.engine.take_chunk() else {
            self.engine.counters.dropped.add(1);
            return Err(Error::Dropped);
        };
        let cursor = Cursor::new(chunk);
        if let Err(error) = self.hand_over() {
            self.engine.pool.put_back(cursor);
            return Err(error);
        }
        self.cursor = Some(cursor);
        self.slot.current.store(chunk.as_ptr(), Ordering::Release);
        Ok(())
    }

    /// Gives the current chunk to the writer.
    fn hand_over(&mut self) -> Result<()> {
        let Some(cursor) = self.cursor.take() else { return Ok(()) };
        // Taken out of the slot before it is sent: once sent it may be recycled, and must not be found here any more.
        self.slot.current.store(std::ptr::null_mut(), Ordering::Release);
        let sent = self.engine.send(Message::Full { slot: self.slot.number, chunk: cursor.chunk() });
        if sent.is_err() {
            self.slot.current.store(cursor.chunk().as_ptr(), Ordering::Release);
            self.cursor = Some(cursor);
        }
        sent
    }
}

fn fill_and_commit(cursor: &mut Cursor, body_len: usize, fill: impl FnOnce(&mut [u8]) -> Result<Event>) -> Result<()> {
    let body = cursor.room(body_len).ok_or(Error::Internal)?;
    let event = fill(body)?;
    cursor.commit(Event { body_len: body_len as u32, ..event });
    Ok(())
}

impl Drop for Local {
    fn drop(&mut self) {
        // In a forked child this is a copy of the parent's, whose chunk is not even mapped.
        if !self.process.is_this_one() {
            return;
        }
        self.stock.give_back(&self.lane.engine.ids);
        // If it cannot be sent it stays in the slot, where the writer finds it too.
        if self.lane.hand_over().is_ok() {
            self.lane.slot.detached.store(true, Ordering::Release);
        }
    }
}
