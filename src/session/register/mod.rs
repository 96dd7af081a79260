//! The checks and records of calls that register, move or unregister code, and the choice of the fast path.

mod fast_path;
mod records;
mod thread;
mod thread_state;

use std::time::Duration;

use crate::api::code::{Bytes, Code, Line, Lines, MoveTarget};
use crate::api::error::{Error, Result};
use crate::api::limits::CODE_SIZE_MAX;
use crate::api::options::Sinks;
use crate::api::Id;
use crate::format::cfi::absolute::Frame;
use crate::format::cfi::Tables;
use crate::format::jitdump::{debug_info2, inlines, lines_left_out_of_any, Group};
use crate::format::name;
use crate::format::name_and_file::Composed;
use crate::format::unwind::Cache;
use crate::queue::record::{flag, EventKind};
use crate::queue::shared::Shared;
use crate::session::handle::Ref;
use crate::session::process::Process;
use crate::sink::region::Regions;
use crate::sink::unwinder::told_in_calls;
use crate::sys;
use crate::sys::debug;
use crate::sys::panic_guard::PerThread;
use crate::sys::valgrind::{self, Tool};
pub use fast_path::Given;
use records::{Bare, Load, Move, Tail};
use thread::with_local;
pub use thread::{unread_until, watch_thread_if_running};
pub use thread_state::Local;
use thread_state::NO_HANDLE;

/// A call that unregisters or moves stable code (`Code::stable`) waits at most this time for the writer to read the code's
/// bytes.
const STABLE_TIMEOUT: Duration = Duration::from_secs(10);

/// Writes the record of a registration. `flags` are the record flags that `Regions::before_code` has returned.
pub fn register(session: &Ref, code: &Code<'_>, flags: u8) -> Result<Id> {
    check_range(code.addr, code.size)?;
    check_bytes(&code.bytes, code.size)?;
    with_local(session.process, session.shared, |local| {
        // With `NO_HANDLE` in the thread's state, `usual_local` returns `None` in the thread's later calls. helgrind and DRD
        // would report each read of shared variables in `usual_local`. `usual_local` must also return `None` while calls are
        // checked (`Checked`), because the fast path makes no checks.
        let is_to_be_slow = valgrind::tool() == Tool::Races || debug::checks();
        (local.handle, local.place) = (if is_to_be_slow { NO_HANDLE } else { session.handle }, session.place);
        local.register(code, flags)
    })
}

/// The frames to report to the unwinder for this code. Fails if the address range or the unwind description is invalid.
pub fn frames(session: &Ref, code: &Code<'_>) -> Result<Vec<Frame>> {
    check_range(code.addr, code.size)?;
    with_local(session.process, session.shared, |local| {
        let Some(tables) = unwinding(session.shared, code, &mut local.unwind)? else { return Ok(Vec::new()) };
        let mut bytes = Vec::new();
        bytes.try_reserve_exact(tables.bytes.len()).map_err(|_| Error::NoMemory)?;
        bytes.resize(tables.bytes.len(), 0);
        tables.copy_to(&mut bytes, code.size);
        told_in_calls::frames(&bytes[..tables.eh_frame_size()], (code.addr, code.size))
    })
}

/// The calling thread's state, if the thread has used this session last, the session is open, and the sinks want complete
/// records. The result is also `None` if a call has to wait for the writer, or has to report code to the unwinder
/// (`want_groups_only`).
#[inline(always)]
#[allow(clippy::mut_from_ref, reason = "the cell has a pointer, and `in_use` says that nobody else follows it")]
pub fn usual_local(thread: &PerThread, handle: u64) -> Option<&mut Local> {
    if thread.in_use.get() {
        return None;
    }
    // SAFETY: only the cell has the pointer, and the thread uses the state nowhere else while `in_use` is false.
    let local = unsafe { thread.local.get()?.cast::<Local>().as_mut() };
    let is_same = local.handle == handle && local.fork_words.same_process();
    let is_usual = is_same && local.is_open() && local.status.wanted().want_groups_only();
    is_usual.then_some(local)
}

/// Registers code on the fast path (`Local::register_at_once`). The slow path or `not_registered` needs the result of
/// `Regions::before_code` that the error contains.
#[inline(always)]
pub fn register_as_usual(
    thread: &PerThread,
    local: &mut Local,
    code: impl Given,
) -> std::result::Result<Result<Id>, Option<u8>> {
    thread.in_use.set(true);
    let mut registered = local.register_at_once(code, None);
    if let Err(flags) = registered {
        registered = local.register_in_next_chunk(code, flags);
    }
    thread.in_use.set(false);
    // The check that the session is still open must follow the publication of the record (see `Ref::still_open`).
    registered.map(|id| if local.is_open() { Ok(id) } else { Err(Error::Closed) })
}

pub fn move_code(
    process: &'static Process,
    shared: &'static Shared,
    id: Id,
    target: &MoveTarget<'_>,
    flags: u8,
) -> Result<()> {
    let size = shared.ids.size_of(id).ok_or(Error::UnknownId)?;
    check_range(target.addr, size)?;
    check_bytes(&target.bytes, size)?;
    wait_until_read(shared, shared.ids.is_unread(id));
    with_local(process, shared, |local| local.move_code(id, size, target, flags))
}

pub fn unregister(process: &'static Process, shared: &'static Shared, id: Id) -> Result<()> {
    // For an unknown id, the call fails before it writes a record.
    shared.ids.size_of(id).ok_or(Error::UnknownId)?;
    wait_until_read(shared, shared.ids.is_unread(id));
    with_local(process, shared, |local| {
        let event = local.event(EventKind::Unregister, id.0, 0, 0, 0);
        let retired = || if shared.ids.retire(id) { Ok(event) } else { Err(Error::UnknownId) };
        if_off(local.thread_queue.append(&Bare(retired)), ())
    })
}

/// Writes the record that unregisters all code in a range.
pub fn unregister_range(process: &'static Process, shared: &'static Shared, addr: u64, size: u64) -> Result<()> {
    if size == 0 {
        return Err(Error::SizeZero);
    }
    addr.checked_add(size).ok_or(Error::AddressRange)?;
    // Only the writer can look up code by address, so this call waits until the writer has read the bytes of all stable code.
    wait_until_read(shared, shared.has_unread());
    with_local(process, shared, |local| {
        let event = local.event(EventKind::UnregisterRange, 0, 0, addr, size);
        if_off(local.thread_queue.append(&Bare(|| Ok(event))), ())
    })
}

/// Replaces the error `NotRunning` by success. If the sinks are disabled during a call, the call succeeds without effect, like
/// all later calls.
fn if_off<T>(result: Result<T>, value: T) -> Result<T> {
    match result {
        Err(Error::NotRunning) => Ok(value),
        other => other,
    }
}

/// Waits until the writer has read the bytes of stable code. The wait is necessary because the record has only the address of
/// the bytes, and the host may reuse their memory as soon as the call returns.
#[inline]
fn wait_until_read(shared: &Shared, unread: bool) {
    if unread {
        // Because of the timeout, a writer that hangs does not block the host for ever. After the timeout, the host may change
        // or unmap the code's bytes before the writer reads them, which the writer tolerates.
        let _ = sys::thread::uncancelled(|| shared.flush(STABLE_TIMEOUT));
    }
}

/// Refuses addresses and sizes that no code can have.
pub fn check_range(addr: u64, size: u64) -> Result<()> {
    match size {
        0 => return Err(Error::SizeZero.because("code.size is 0", [])),
        1..=CODE_SIZE_MAX => {}
        _ => return Err(Error::TooLarge.because("code.size is {}, at most {} are allowed", [size, CODE_SIZE_MAX])),
    }
    // An address of 0 means that the host ignored a failed allocation. Readers of the files treat a line or record with the
    // address 0 as damaged.
    let text = "addr is {x}, size {}: the address is 0, or the end beyond all addresses";
    let end = addr.checked_add(size).filter(|_| addr != 0);
    end.map(drop).ok_or_else(|| Error::AddressRange.because(text, [addr, size]))
}

fn check_bytes(bytes: &Bytes<'_>, size: u64) -> Result<()> {
    match bytes {
        Bytes::Here(bytes) if bytes.len() as u64 != size => {
            Err(Error::Buffer.because("code.bytes has {} bytes, code.size is {}", [bytes.len() as u64, size]))
        }
        _ => Ok(()),
    }
}

impl Local {
    pub fn register(&mut self, code: &Code<'_>, flags: u8) -> Result<Id> {
        if !code.file.is_empty() {
            return self.register_with_file(code, flags);
        }
        match self.wants_groups().then(|| self.register_at_once(code, Some(flags))) {
            Some(Ok(id)) => Ok(id),
            _ => self.register_slowly(code, flags),
        }
    }

    /// Appends the code's file and line to its name. If the code has no line table, the code gets a table with a single row for
    /// its file and line. The composed name is clean but may be too long.
    #[inline(never)]
    fn register_with_file(&mut self, code: &Code<'_>, flags: u8) -> Result<Id> {
        let mut name = Composed::default();
        name.compose(code.name, code.addr, code.file, code.line);
        let row = [Line { offset: 0, line: code.line, column: 0, file: name.file() }];
        let is_row = code.line != 0 && !name.file().is_empty() && code.lines.is_empty();
        let lines = if is_row { Lines::Rows(&row) } else { code.lines };
        let flags = if name.is_changed() { flags | flag::NAME_CHANGED } else { flags };
        self.register(&Code { name: name.get(), file: &[], lines, ..*code }, flags)
    }

    /// Tries the fast path again in a new chunk, if the first attempt probably failed because the chunk was full. The slow path
    /// would work too, but its instructions are rarely in a cache.
    #[cold]
    #[inline(never)]
    fn register_in_next_chunk(&mut self, code: impl Given, flags: Option<u8>) -> std::result::Result<Id, Option<u8>> {
        // The number of free bytes that a chunk needs besides the bytes of the code: for the code's name, its unwind tables,
        // and a few rows of its line table.
        const AROUND_CODE: usize = 4096;
        // The slow path is fast enough for code of this size or more.
        const LARGE: u64 = 32 * 1024;
        if code.size() >= LARGE {
            return Err(flags);
        }
        let body = code.size() as usize + AROUND_CODE;
        if self.thread_queue.has_room(body) || !self.thread_queue.change_at_once(body) || flags.is_some() {
            // If `before_code` has already returned the flags, the slow path is used, because a retry of the fast path would
            // need the flags as an argument, which would slow down every usual call.
            return Err(flags);
        }
        self.register_at_once(code, None)
    }

    #[cold]
    #[inline(never)]
    fn register_slowly(&mut self, code: &Code<'_>, flags: u8) -> Result<Id> {
        if sys::reserve::is_short() {
            return Err(Error::NoMemory);
        }
        let mut name = name::clean(code.name);
        if name.is_empty() {
            name = name::nameless(code.addr).into_bytes().into();
        }
        let index = self.next_index();
        let mut event = self.event(EventKind::Load, 0, index, code.addr, code.size);
        event.flags = flags | if code.gap { flag::GAP } else { 0 };
        if *name != *code.name {
            event.flags |= flag::NAME_CHANGED;
        }
        let name = name::lengthen(name);
        event.name_len = name.len() as u16;
        let shared = self.thread_queue.shared;
        let unwind = unwinding(shared, code, &mut self.unwind)?;
        let (pid, tid) = (self.pid, self.tid);
        let (addr, size, lines) = (code.addr, code.size, code.lines);
        let mut group = Group { pid, tid, index, addr, size, name: &name, lines, unwind };
        let wanted = shared.wanted();
        let tail = Tail::new(shared, wanted, &code.bytes, addr, size, code.stable);
        let inlines = inlines_of(shared, wanted, self.regions, code, &group)?;
        if inlines::len(&inlines) > 0 {
            event.flags |= flag::INLINES;
        }
        // `lines_left_out_of_any` also checks the lines.
        let left_out = if lines.is_empty() { 0 } else { lines_left_out_of_any(lines, size)? };
        if !wanted.want_groups() {
            // No running sink reads lines and unwind tables, so the record omits them.
            group.lines = Lines::Rows(&[]);
            group.unwind = None;
        }
        let unread = matches!(tail, Tail::Later(_));
        let id = self.id_pool.take(&shared.ids, addr, size, unread).ok_or(Error::NoMemory)?;
        event.id = id.0;
        shared.add_unread(unread.into());
        if let Err(error) = self.thread_queue.append(&Load { inlines, group, tail, event }) {
            shared.add_unread(-i64::from(unread));
            self.id_pool.put_back(&shared.ids, id);
            return if_off(Err(error), Id(0));
        }
        if left_out != 0 {
            shared.status.counters.lines_left_out.add(left_out);
        }
        Ok(id)
    }

    fn move_code(&mut self, id: Id, size: u64, target: &MoveTarget<'_>, flags: u8) -> Result<()> {
        let shared = self.thread_queue.shared;
        let index = self.next_index();
        let mut event = self.event(EventKind::Move, id.0, index, target.addr, 0);
        event.flags = flags | if target.gap { flag::GAP } else { 0 };
        let tail = Tail::new(shared, shared.wanted(), &target.bytes, target.addr, size, target.stable);
        let unread = matches!(tail, Tail::Later(_));
        shared.add_unread(unread.into());
        let appended = self.thread_queue.append(&Move { shared, tail, event });
        if appended.is_err() {
            shared.add_unread(-i64::from(unread));
        }
        if_off(appended, ())
    }
}

/// Makes the records of the code's inlined functions: the record in the project's format, and from it the record for samply.
/// The record in the project's format is left out if neither the sink for debuggers nor the region sink can use it, because no
/// other sink reads it. The region sink can use the record even if the code's memory becomes part of a region only later.
/// Invalid inlines are an error even if no sink reads them.
fn inlines_of(
    shared: &Shared,
    wanted: Sinks,
    regions: &Regions,
    code: &Code<'_>,
    group: &Group<'_>,
) -> Result<Vec<u8>> {
    if code.inlines.is_empty() {
        return Ok(Vec::new());
    }
    let is_read = wanted.overlaps(Sinks::GDB.with(Sinks::LOOKUP))
        || regions.are_watching() && regions.may_name(code.addr, code.size);
    let is_dumped = shared.inline_records() && wanted.want_groups();
    if !is_read && !is_dumped {
        return inlines::check(code.inlines, code.size).map(|()| Vec::new());
    }
    // The record repeats the file name for each inlined call, even if all inlined calls are in the same file.
    let files = code.inlines.iter().fold(0_usize, |sum, inline| sum.saturating_add(inline.call_file.len()));
    let own = match shared.pool.can_hold(files) {
        true => inlines::record(code.inlines, code.size),
        false => Err(Error::NoMemory),
    };
    let mut records = match own {
        // If the record for samply does not fit, it is left out, and the code still gets its name.
        Err(Error::NoMemory | Error::TooLarge) if !is_read => {
            return inlines::check(code.inlines, code.size).map(|()| Vec::new())
        }
        own => own?,
    };
    if !is_dumped {
        return Ok(records);
    }
    let around = group.size()?.saturating_add(code.size as usize);
    let has_room = |records: usize| shared.pool.can_hold(records.saturating_add(around));
    let dumped = if has_room(0) { debug_info2::record(group, &records).unwrap_or_default() } else { Vec::new() };
    if !is_read {
        records.clear();
    }
    if has_room(records.len() + dumped.len()) && records.try_reserve_exact(dumped.len()).is_ok() {
        records.extend_from_slice(&dumped);
    }
    Ok(records)
}

/// The unwind tables of code, if they are wanted. An invalid description is an error even if no tables are wanted.
fn unwinding<'c>(shared: &Shared, code: &Code<'_>, cache: &'c mut Cache) -> Result<Option<&'c Tables>> {
    Ok(cache.tables(&code.unwind, code.addr, code.size)?.filter(|_| shared.unwind_records()))
}
