//! The bridge from debuggers' lists: objects that other libraries in the process have made for gdb become code of a session, so that
//! perf is given what gdb was given.
//!
//! A thread looks at the lists every few milliseconds. Libraries call a function after each change, for a breakpoint. Where that call
//! comes to this library's function, the bridge looks at once, before the code runs.

mod objects;
#[cfg(test)]
mod tests;

use std::collections::HashMap;
use std::hash::{DefaultHasher, Hasher};
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use once_cell::race::OnceBox;

use crate::api::code::{Bytes, Code, FramePointer, Lines, Unwind};
use crate::api::error::{Error, Result};
use crate::api::options::{Options, Sinks};
use crate::api::Id;
use crate::format::arch;
use crate::format::elf::read::{find_symbol, Image};
use crate::queue::apart;
use crate::session::call::Ref;
use crate::session::process::{current_engine, current_or_inherited, guarded};
use crate::session::{find, fork, Session};
use crate::sink::region::Changing;
use crate::sys::debugger_lists::{Listed, Lists};
use crate::sys::last_thread::{first_has_ended, LastThread};
use crate::sys::sync::outside::{Mutex, PoisonError};
use crate::sys::{debugger, guard, process_memory, thread};
use objects::{LineTables, UnwindTables};

/// How often the thread looks: more often just after it has found something.
const OFTEN: Duration = Duration::from_millis(1);
const SELDOM: Duration = Duration::from_millis(10);

/// Looking takes at most this part of the time, if one look takes no longer than the second.
const SHARE: u32 = 20;
const COST_MOST: Duration = Duration::from_millis(50);

/// How long it waits after a failure.
const RETRY: Duration = Duration::from_secs(1);

/// Larger objects are passed over.
const OBJECT_MAX: u64 = 1 << 30;
/// How many times a list is read that changes meanwhile.
const READS: u32 = 16;

/// Nobody looks while the process forks.
static CHANGING: Changing = Changing::new();
static STATE: Mutex<Option<State>> = Mutex::new(None);
static IS_ON: AtomicBool = AtomicBool::new(false);
/// The session that the first object has opened. 0: none yet.
static SESSION: AtomicU64 = AtomicU64::new(0);
/// Those of the first session that has asked for the bridge.
static OPTIONS: OnceBox<Options> = OnceBox::new();
/// All registrations have ended with the sinks.
static ALL_ENDED: AtomicBool = AtomicBool::new(false);

#[derive(Default)]
struct State {
    lists: Lists,
    /// The objects that are in the lists, each with the sum of its headers and its functions.
    known: HashMap<Listed, (u64, Vec<Id>)>,
}

/// Begins to look, once in a process. `options`: those of a session that asks for it.
pub fn start(options: Option<&Options>) {
    if let Some(options) = options {
        OPTIONS.get_or_init(|| Box::new(options.clone()));
    }
    if !IS_ON.swap(true, Ordering::AcqRel) {
        guard::silence_panics();
        fork::watch();
        debugger::listen(called);
        spawn();
    }
}

fn spawn() {
    // Without a thread, only calls that come here are followed.
    drop(thread::spawn_quiet(thread::BRIDGE, thread::STACK, run));
}

/// All registrations have ended. Sinks that start later are told of the objects again.
pub fn all_ended() {
    ALL_ENDED.store(true, Ordering::Release);
}

/// Whether nothing is wanted at present: the program has turned the sinks off, or not on yet. A child that has taken nothing over yet
/// does not for this.
fn is_off() -> bool {
    let shares = SESSION.load(Ordering::Acquire) != 0 || OPTIONS.get().is_some();
    let process = current_or_inherited().filter(|process| shares && fork::has_open_sessions(process));
    process.and_then(|process| process.engine()).is_some_and(|engine| engine.is_off())
}

/// Nobody is waited for any longer than for regions.
pub fn before_fork() {
    CHANGING.before_fork();
}

pub fn after_fork() {
    CHANGING.after_fork();
}

/// The child has a copy of the state, and not the thread.
pub fn in_child() {
    CHANGING.after_fork();
    if IS_ON.load(Ordering::Acquire) {
        spawn();
    }
}

/// The thread.
fn run() {
    guard::enter_for_good();
    let (mut last_change, mut last_thread) = (Instant::now(), LastThread::default());
    let mut cost = Duration::ZERO;
    for turn in 1_u32.. {
        let wait = (last_change.elapsed() / 32).clamp(OFTEN, SELDOM).max(cost * SHARE);
        thread::sleep_micros(wait.as_micros() as u64);
        if current_engine().is_some_and(|engine| engine.signal_flush.exits_elsewhere(thread::id())) {
            return;
        }
        // Without a writer, which looks for that, the process would not end with the host's last thread.
        if turn % 128 == 0
            && SESSION.load(Ordering::Acquire) == 0
            && first_has_ended()
            && last_thread.is_this_one(|| false)
        {
            return thread::end_process();
        }
        let before = thread::cpu_time();
        let looked = look_beside_host();
        cost = Duration::from_nanos(thread::cpu_time().saturating_sub(before)).min(COST_MOST);
        match looked {
            Ok(true) => last_change = Instant::now(),
            Ok(false) => {}
            Err(Error::Internal) => return,
            // No sink can be opened, or there is no memory: not for long, perhaps.
            Err(_) => thread::sleep_micros(RETRY.as_micros() as u64),
        }
    }
}

/// A library has told of a change, on the thread that has made it.
fn called() {
    let _ = thread::quietly(look_beside_host);
}

/// A list may have code of any thread, in the call of a library too.
fn look_beside_host() -> Result<bool> {
    guard::beside_host(|| guarded(look))
}

/// Runs `body` with the state, unless the process forks.
fn with_state<T>(body: impl FnOnce(&mut State) -> Result<T>) -> Result<Option<T>> {
    let Some(_changing) = CHANGING.begin_unless_forking() else { return Ok(None) };
    let mut state = STATE.lock().unwrap_or_else(PoisonError::into_inner);
    body(state.get_or_insert_default()).map(Some)
}

/// Compares the lists with what is known. Whether anything has changed.
fn look() -> Result<bool> {
    // Files are read while others may fork, and are opened where the host does not see their descriptors.
    if let Some(modules) = with_state(|state| Ok(state.lists.new_modules()))?.flatten() {
        let found = apart::run(move || modules.find(find_symbol));
        with_state(|state| {
            state.lists.add(found);
            Ok(())
        })?;
    }
    Ok(with_state(compare)?.unwrap_or(false))
}

fn compare(state: &mut State) -> Result<bool> {
    let pid = std::process::id();
    if ALL_ENDED.swap(false, Ordering::AcqRel) {
        state.known.clear();
    }
    if is_off() {
        return Ok(false);
    }
    // A list changes while it is read by what this library tells debuggers too.
    let Some(listed) = (0..READS).find_map(|_| state.lists.read(pid)) else { return Ok(true) };
    let mut now = HashMap::new();
    let mut fresh = Vec::new();
    for listed in listed {
        let Some(sum) = fingerprint(pid, &listed) else { continue };
        match state.known.remove_entry(&listed) {
            Some((listed, (known, ids))) if known == sum => drop(now.insert(listed, (known, ids))),
            Some((listed, gone)) => {
                // Another object has got the same place.
                state.known.insert(Listed { entry: !listed.entry, ..listed }, gone);
                fresh.push((listed, sum));
            }
            None => fresh.push((listed, sum)),
        }
    }
    // Ends come first: that memory may be used again.
    let gone = std::mem::replace(&mut state.known, now);
    let mut changed = !gone.is_empty();
    for id in gone.into_values().flat_map(|(_, ids)| ids) {
        // Other code may have taken its place.
        let _ = session()?.unregister(id);
    }
    for (listed, sum) in fresh {
        changed = true;
        let Some(object) = read(pid, &listed) else { continue };
        if let Some(ids) = register(&object)? {
            state.known.insert(listed, (sum, ids));
        }
    }
    Ok(changed)
}

/// What distinguishes an object from a later one at the same place: its headers, which have the addresses of its code, and the names.
fn fingerprint(pid: u32, listed: &Listed) -> Option<u64> {
    let mut start = [0; Image::START_LEN];
    if listed.size < start.len() as u64 || listed.size > OBJECT_MAX {
        return None;
    }
    process_memory::read(pid, listed.object, &mut start);
    let part = |range: Range<u64>| {
        let range = Some(range).filter(|range| range.end <= listed.size)?;
        let mut bytes = vec![0; (range.end - range.start) as usize];
        process_memory::read(pid, listed.object.checked_add(range.start)?, &mut bytes);
        Some(bytes)
    };
    let headers = part(Image::header_range(&start)?)?;
    let mut hasher = DefaultHasher::new();
    hasher.write(&start);
    hasher.write(&headers);
    Image::name_ranges(&headers).into_iter().filter_map(part).for_each(|names| hasher.write(&names));
    Some(hasher.finish())
}

/// A copy of an object, if it is in the list still after it was made.
fn read(pid: u32, listed: &Listed) -> Option<Vec<u8>> {
    let (object, is_whole) = process_memory::copy(pid, listed.object, listed.size).ok()?;
    (is_whole && Lists::is_still(pid, listed)).then_some(object)
}

/// The session of the bridge. A process whose lists are empty has none.
fn session() -> Result<Ref> {
    let known = SESSION.load(Ordering::Acquire);
    if known != 0 {
        return find(known);
    }
    let options = OPTIONS.get().cloned().unwrap_or_default();
    let opened = match Session::open(&options) {
        // The host's own session writes less, or elsewhere. What asks for no sinks joins any.
        Err(Error::Conflict) => Session::open(&Options { sinks: Some(Sinks::NONE), env_wins: false, ..options }),
        opened => opened,
    };
    let handle = opened?.into_handle();
    SESSION.store(handle, Ordering::Release);
    find(handle)
}

/// Registers the functions of an object. `None`: nothing is wanted, and a sink that starts later has to be told of it.
fn register(object: &[u8]) -> Result<Option<Vec<Id>>> {
    let image = Image::parse(object);
    let functions = image.as_ref().map_or_else(Vec::new, Image::functions);
    let Some(image) = image.filter(|_| !functions.is_empty()) else { return Ok(Some(Vec::new())) };
    let session = session()?;
    if session.is_idle() {
        return Ok(None);
    }
    let lines = LineTables::of(&image);
    // The process's unwinder has been told by whoever made the object.
    let is_told = session.engine.wanted().has(Sinks::UNWINDER);
    let tables = if is_told { UnwindTables::default() } else { UnwindTables::of(&image) };
    let mut ids = Vec::new();
    ids.try_reserve_exact(functions.len()).map_err(|_| Error::NoMemory)?;
    for function in &functions {
        let rows = lines.of_function(function.addr, function.size);
        let table = tables.of_function(function.addr);
        let mut start = [0; 16];
        let start_len = start.len().min(function.size as usize);
        process_memory::read(session.engine.status.pid, function.addr, &mut start[..start_len]);
        let unwind = match &table {
            Some((bytes, addr)) => Unwind::EhFrame { bytes, addr: *addr },
            None if !is_told && arch::makes_frame_pointer(&start[..start_len]) => {
                Unwind::FramePointer(FramePointer::default())
            }
            None => Unwind::None,
        };
        let code = Code {
            addr: function.addr,
            size: function.size,
            bytes: Bytes::AtAddress,
            name: function.name,
            file: &[],
            line: 0,
            unwind,
            lines: Lines::Rows(&rows),
            inlines: &[],
            free_after: 0,
            stable: false,
            packed: true,
            more: false,
        };
        // Tables that nobody understands, or lines in no order, do not cost the name.
        let plain = Code { unwind: Unwind::None, lines: Lines::Rows(&[]), ..code };
        let registered = session.register(&code, None).or_else(|_| session.register(&plain, None));
        ids.extend(registered.ok());
    }
    // Nobody who could be told waits for the bridge.
    let _ = session.known();
    Ok(Some(ids))
}
