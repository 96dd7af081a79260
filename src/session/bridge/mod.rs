//! The bridge reads the objects that other libraries have put into the lists of gdb's JIT interface, and registers the code of
//! these objects in a session. So perf knows all functions that gdb knows.
//!
//! A thread reads the lists every few milliseconds. After each change, a library calls `__jit_debug_register_code`, in which a
//! debugger has a breakpoint. This library also defines a `__jit_debug_register_code`. If another library calls this library's
//! function, the bridge reads the list during the call, before the new code runs.

mod objects;
#[cfg(test)]
mod tests;

use std::collections::HashMap;
use std::hash::{DefaultHasher, Hasher};
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use once_cell::race::OnceBox;

use crate::api::code::{Code, FramePointer, Lines, Unwind};
use crate::api::error::{Error, Result};
use crate::api::options::{Options, Sinks};
use crate::api::Id;
use crate::format::arch;
use crate::format::elf::read::{find_symbol, Image};
use crate::queue::file_thread;
use crate::session::calls::find;
use crate::session::handle::Ref;
use crate::session::opening::open;
use crate::session::process::{current_or_inherited, current_shared, guarded};
use crate::session::{fork, lifecycle};
use crate::sys::debugger_lists::{Change, Listed, Lists, Loaded};
use crate::sys::last_thread;
use crate::sys::sync::outside::{Mutex, PoisonError};
use crate::sys::{debugger, fork_lock, panic_guard, process_memory, thread};
use objects::{LineTables, UnwindTables};

/// How long the thread waits before it reads the lists again. Just after a change, the wait is short (`OFTEN`). If no further
/// change follows, the wait grows to `SELDOM`.
const OFTEN: Duration = Duration::from_millis(1);
const SELDOM: Duration = Duration::from_millis(10);

/// The thread spends at most 1 / `SHARE` of its time reading the lists. A reading that takes longer than `COST_MOST` counts as
/// `COST_MOST`.
const SHARE: u32 = 20;
const COST_MOST: Duration = Duration::from_millis(50);

/// How long the thread waits after a failure.
const RETRY: Duration = Duration::from_secs(1);

/// Objects larger than this are ignored.
const OBJECT_MAX: u64 = 1 << 30;
/// The maximum number of attempts to read the lists, if each attempt finds that the lists have changed meanwhile.
const READS: u32 = 16;

static STATE: Mutex<Option<State>> = Mutex::new(None);
static IS_ON: AtomicBool = AtomicBool::new(false);
/// The handle of the session that was opened for the first object, or 0.
static SESSION: AtomicU64 = AtomicU64::new(0);
/// The options of the first session that requested the bridge.
static OPTIONS: OnceBox<Options> = OnceBox::new();

#[derive(Default)]
struct State {
    lists: Lists,
    /// The objects in the lists, each with its fingerprint and the ids of its registered functions.
    known: HashMap<Listed, (u64, Vec<Id>)>,
    /// The value of `lifecycle::ends` when whole lists were last compared with `known`. Once `lifecycle::ends` returns another
    /// value, all registrations have ended, and the objects are registered again.
    ends: u32,
}

/// Starts the bridge, unless it was started before. `options` are the options of a session that requests the bridge.
pub fn start(options: Option<&Options>) {
    if let Some(options) = options {
        OPTIONS.get_or_init(|| Box::new(options.clone()));
    }
    if !IS_ON.swap(true, Ordering::AcqRel) {
        panic_guard::silence_panics();
        fork::call_in_children(spawn);
        debugger::listen(called);
        spawn();
    }
}

/// Starts the bridge's thread. A forked child calls this function again, because the child has a copy of the state, but no copy
/// of the thread.
fn spawn() {
    // If the thread cannot start, the bridge sees only the changes that libraries report to `called`.
    drop(thread::spawn_quiet(thread::BRIDGE, thread::STACK, run));
}

/// Whether all sinks are off, either because the program has stopped the sinks, or because the program has not started any sink
/// yet. A call of this function does not make a forked child take over its parent's state.
fn is_off() -> bool {
    let shares = SESSION.load(Ordering::Acquire) != 0 || OPTIONS.get().is_some();
    let process = current_or_inherited().filter(|process| shares && fork::has_open_sessions(process));
    process.and_then(|process| process.shared()).is_some_and(|shared| shared.is_off())
}

/// Whether a writer runs or is about to run in this process. A forked child has no writer until the child has taken over its
/// parent's state.
fn has_writer() -> bool {
    current_shared().is_some_and(|shared| !shared.status.has_ended())
}

fn run() {
    panic_guard::enter_for_good();
    let mut last_change = Instant::now();
    let mut cost = Duration::ZERO;
    for turn in 1_u32.. {
        let wait = (last_change.elapsed() / 32).clamp(OFTEN, SELDOM).max(cost * SHARE);
        thread::sleep_micros(wait.as_micros() as u64);
        if current_shared().is_some_and(|shared| shared.signal_flush.exits_elsewhere(thread::id())) {
            return;
        }
        // When the host's last thread ends, a writer ends the process. If no writer runs, the bridge's thread ends the process.
        if turn % 128 == 0 && !has_writer() && last_thread::first_has_ended() && last_thread::is_this_one() {
            return thread::end_process(|| ());
        }
        let before = thread::cpu_time();
        let looked = look_beside_host(compare);
        cost = Duration::from_nanos(thread::cpu_time().saturating_sub(before)).min(COST_MOST);
        match looked {
            Ok(true) => last_change = Instant::now(),
            Ok(false) => {}
            Err(Error::Internal) => return,
            // No sink can be opened, or memory is short, so a later attempt may succeed.
            Err(_) => thread::sleep_micros(RETRY.as_micros() as u64),
        }
    }
}

/// Handles another library's call of `__jit_debug_register_code`, on the thread that has changed a list. Only the changed entry
/// is examined, because a comparison of whole lists in each call would take time proportional to their length.
fn called() {
    let _ = thread::quietly(|| look_beside_host(follow));
}

/// Runs `look` inside `panic_guard::beside_host`. A list contains the code of all threads, so other threads may change listed
/// code meanwhile, even while one thread runs `called`.
fn look_beside_host(compare: fn(&mut State) -> Result<bool>) -> Result<bool> {
    panic_guard::beside_host(|| guarded(|| look(compare)))
}

/// Runs `body` with the bridge's state. Returns `None` while the process forks.
fn with_state<T>(body: impl FnOnce(&mut State) -> Result<T>) -> Result<Option<T>> {
    let Some(_inside) = fork_lock::try_enter() else { return Ok(None) };
    let mut state = STATE.lock().unwrap_or_else(PoisonError::into_inner);
    body(state.get_or_insert_default()).map(Some)
}

/// Compares the lists with the known objects by means of `compare`. Returns whether anything has changed.
fn look(compare: fn(&mut State) -> Result<bool>) -> Result<bool> {
    // Files are read outside the fork lock, so that other threads may fork. `file_thread` opens the files in a descriptor table
    // that the host does not use.
    if let Some((lists, loaded)) = newly_loaded()? {
        let lists = file_thread::run(move || lists.updated(loaded, find_symbol));
        with_state(|state| {
            state.lists = lists;
            Ok(())
        })?;
    }
    Ok(with_state(compare)?.unwrap_or(false))
}

/// The known lists and the loaded libraries. `None` if the libraries have not changed since the last call, or while the process
/// forks.
fn newly_loaded() -> Result<Option<(Lists, Loaded)>> {
    let Some(known) = with_state(|state| Ok(state.lists.changes()))? else { return Ok(None) };
    let Some(inside) = fork_lock::try_enter() else { return Ok(None) };
    let found = Loaded::since(known);
    drop(inside);
    let Some(loaded) = found else { return Ok(None) };
    with_state(|state| Ok((state.lists.clone(), loaded)))
}

fn no_memory<E>(_: E) -> Error {
    Error::NoMemory
}

fn compare(state: &mut State) -> Result<bool> {
    let pid = std::process::id();
    let ends = lifecycle::ends();
    if std::mem::replace(&mut state.ends, ends) != ends {
        state.known.clear();
    }
    if is_off() {
        return Ok(false);
    }
    // The list may change during reading, because this library reports code to debuggers in the same list.
    let mut listed = None;
    for _ in 0..READS {
        listed = state.lists.read(pid).map_err(no_memory)?;
        if listed.is_some() {
            break;
        }
    }
    let Some(listed) = listed else { return Ok(true) };
    let (mut found, mut fresh, mut now) = (Vec::new(), Vec::new(), HashMap::new());
    found.try_reserve_exact(listed.len()).map_err(no_memory)?;
    fresh.try_reserve_exact(listed.len()).map_err(no_memory)?;
    now.try_reserve(listed.len()).map_err(no_memory)?;
    for listed in listed {
        found.extend(fingerprint(pid, &listed)?.map(|print| (listed, print)));
    }
    for (listed, print) in found {
        match state.known.get_mut(&listed).filter(|(known, _)| *known == print.sum) {
            Some((known, ids)) => drop(now.insert(listed, (*known, std::mem::take(ids)))),
            // Another object may be at the address of a known object.
            None => fresh.push((listed, print)),
        }
    }
    // The code of objects that are no longer listed is unregistered first, because new code may be in the same memory.
    let gone = std::mem::replace(&mut state.known, now);
    let mut changed = gone.len() > state.known.len();
    for id in gone.into_values().flat_map(|(_, ids)| ids) {
        changed = true;
        // If other code was registered over this code, the call fails harmlessly.
        let _ = session()?.unregister(id);
    }
    for (listed, print) in fresh {
        changed = true;
        begin(state, pid, listed, print)?;
    }
    Ok(changed)
}

/// Handles the changes that the libraries' descriptors show now.
fn follow(state: &mut State) -> Result<bool> {
    let pid = std::process::id();
    let changes = state.lists.told_of(pid);
    if changes.is_empty() || state.ends != lifecycle::ends() {
        // Whole lists are compared in two cases: no library reports which entry has changed, or all entries have to be
        // registered again.
        return compare(state);
    }
    if is_off() {
        return Ok(false);
    }
    for Change { listed, is_there } in changes {
        let print = if is_there { fingerprint(pid, &listed)? } else { None };
        let sum = print.as_ref().map(|print| print.sum);
        if sum.is_some() && state.known.get(&listed).map(|(known, _)| *known) == sum {
            continue;
        }
        for id in state.known.remove(&listed).into_iter().flat_map(|(_, ids)| ids) {
            let _ = session()?.unregister(id);
        }
        if let Some(print) = print {
            begin(state, pid, listed, print)?;
        }
    }
    Ok(true)
}

/// Registers the functions of an entry that is not in `State::known` yet.
fn begin(state: &mut State, pid: u32, listed: Listed, print: Fingerprint) -> Result<()> {
    state.known.try_reserve(1).map_err(no_memory)?;
    let ids = match process_memory::copy_whole(pid, listed.object, print.len) {
        // The object was removed or changed, and will be examined again.
        _ if !Lists::is_still(pid, &listed) => return Ok(()),
        Ok(Some(object)) => register(&object)?,
        // The object cannot be read, and a later attempt would fail too.
        Ok(None) | Err(_) => Some(Vec::new()),
    };
    if let Some(ids) = ids {
        state.known.insert(listed, (print.sum, ids));
    }
    Ok(())
}

/// Distinguishes an object from a later object at the same address, by a hash of the headers and the names. The headers contain
/// the addresses of the object's code.
struct Fingerprint {
    sum: u64,
    /// The length of the object in bytes, which may be less than the length in the entry.
    len: u64,
}

/// The fingerprint of the entry's object; `None` if the object cannot be read.
fn fingerprint(pid: u32, listed: &Listed) -> Result<Option<Fingerprint>> {
    let mut start = [0; Image::START_LEN];
    if listed.size < start.len() as u64 || listed.size > OBJECT_MAX {
        return Ok(None);
    }
    process_memory::read(pid, listed.object, &mut start);
    let part = |range: Range<u64>| -> Result<Option<Vec<u8>>> {
        let place = listed.object.checked_add(range.start).filter(|_| range.end <= listed.size);
        let Some(place) = place else { return Ok(None) };
        process_memory::copy(pid, place, range.end - range.start).map(|(bytes, _)| Some(bytes)).map_err(no_memory)
    };
    let Some(headers) = Image::header_range(&start).map(part).transpose()?.flatten() else { return Ok(None) };
    let mut hasher = DefaultHasher::new();
    hasher.write(&start);
    hasher.write(&headers);
    for names in Image::name_ranges(&headers) {
        if let Some(names) = part(names)? {
            hasher.write(&names);
        }
    }
    let len = Image::end(&start, &headers).min(listed.size);
    Ok(Some(Fingerprint { sum: hasher.finish(), len }))
}

/// The bridge's session, which is opened for the first object. If the lists were always empty, the bridge has no session.
fn session() -> Result<Ref> {
    let known = SESSION.load(Ordering::Acquire);
    if known != 0 {
        return find(known);
    }
    let mut options = OPTIONS.get().cloned().unwrap_or_default();
    if current_shared().is_some_and(|shared| shared.status.sinks() != Sinks::NONE) {
        // The host has already chosen its sinks and their directories, and the bridge does not change this choice.
        options = Options { sinks: Some(Sinks::NONE), env_wins: false, ..options };
    }
    let handle = open(&options)?;
    SESSION.store(handle, Ordering::Release);
    find(handle)
}

/// Registers the functions of an object. Returns `None` if no sink runs. The object then has to be registered when a sink
/// starts.
fn register(object: &[u8]) -> Result<Option<Vec<Id>>> {
    let image = Image::parse(object);
    let functions = image.as_ref().map_or_else(Vec::new, Image::functions);
    let Some(image) = image.filter(|_| !functions.is_empty()) else { return Ok(Some(Vec::new())) };
    let session = session()?;
    if session.is_idle() {
        return Ok(None);
    }
    let lines = LineTables::of(&image);
    // The library that made the object has already reported the code to the process's unwinder.
    let is_told = session.shared.wanted().has(Sinks::UNWINDER);
    let tables = if is_told { UnwindTables::default() } else { UnwindTables::of(&image) };
    let mut ids = Vec::new();
    ids.try_reserve_exact(functions.len()).map_err(no_memory)?;
    for function in &functions {
        let rows = lines.of_function(function.addr, function.size);
        let table = tables.of_function(function.addr);
        let mut start = [0; 16];
        let start_len = start.len().min(function.size as usize);
        process_memory::read(session.shared.status.pid, function.addr, &mut start[..start_len]);
        let unwind = match &table {
            Some((bytes, addr)) => Unwind::EhFrame { bytes, addr: *addr },
            None if !is_told && arch::makes_frame_pointer(&start[..start_len]) => {
                Unwind::FramePointer(FramePointer::default())
            }
            None => Unwind::None,
        };
        // If the tables cannot be parsed, or the lines are not in order, at least the name is registered.
        let plain = Code { name: function.name, ..Code::new(function.addr, function.size, "") };
        let code = Code { unwind, lines: Lines::Rows(&rows), ..plain };
        let registered = session.register(&code, None).or_else(|_| session.register(&plain, None));
        ids.extend(registered.ok());
    }
    // A failure of `known` is ignored, because no caller waits for the bridge.
    let _ = session.known();
    Ok(Some(ids))
}
