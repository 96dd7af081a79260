//! Handles are the values by which C code names sessions. `Ref` is an open session that was found by its handle.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::api::error::{Error, Result};
use crate::api::options::Sinks;
use crate::queue::shared::Shared;
use crate::session::lifecycle::Lifecycle;
use crate::session::process::Process;
use crate::sys::valgrind;

/// A handle is `generation | serial | place:8 | TAG`, and is never dereferenced. It has the size of a pointer.
pub const TAG: u64 = 0x6a;
/// How many bits of the generation and of the serial number a handle has. With pointers of 32 bits, a closed session's handle
/// may be given out again after 1023 further sessions.
const GENERATION_BITS: u32 = if size_of::<usize>() == 8 { 16 } else { 6 };
const SERIAL_BITS: u32 = if size_of::<usize>() == 8 { 32 } else { 10 };
const GENERATION_AT: u32 = SERIAL_AT + SERIAL_BITS;
const SERIAL_AT: u32 = 16;

const fn low(value: u64, bits: u32) -> u64 {
    value & ((1 << bits) - 1)
}

/// The serial number that follows. No session has a serial number whose bits in a handle are all 0.
pub fn after(serial: u32) -> u32 {
    let next = serial.wrapping_add(1);
    next.wrapping_add((low(next.into(), SERIAL_BITS) == 0).into())
}

/// The handle of a session that is being opened.
pub fn new_handle(process: &Process, serial: u32, place: usize) -> u64 {
    let (generation, serial) = (low(process.generation.into(), GENERATION_BITS), low(serial.into(), SERIAL_BITS));
    generation << GENERATION_AT | serial << SERIAL_AT | (place as u64) << 8 | TAG
}

/// While no sink runs, this is the handle of the session whose call was the last to open a session, enable sinks or disable
/// sinks. While a sink runs, this is `NO_HANDLE`. Each call first compares its handle with `OFF`. So while no symbols are
/// wanted, a call costs the runtime only a load and a branch. A forked child inherits the value of `OFF`, so the child's calls
/// with this handle also return at once.
static OFF: AtomicU64 = AtomicU64::new(NO_HANDLE);

/// A value of `OFF` that no handle has, because it lacks the tag. No caller passes this value by mistake.
const NO_HANDLE: u64 = u64::from_be_bytes(*b"\xffnot off");

/// Whether a call with this handle can return at once, without any check.
#[inline(always)]
pub fn is_off(handle: u64) -> bool {
    handle == OFF.load(Ordering::Relaxed)
}

/// A session that was open when its handle was looked up.
#[derive(Clone, Copy, Debug)]
pub struct Ref {
    pub process: &'static Process,
    pub shared: &'static Shared,
    pub place: &'static AtomicU64,
    pub handle: u64,
}

impl Ref {
    /// Whether a call can return without effect, because no sink runs. Either the session has no sinks, or it was closed in the
    /// meantime: `still_open` distinguishes these cases.
    #[inline]
    pub fn is_idle(&self) -> bool {
        self.shared.is_off() && self.process.unstarted() == Sinks::NONE
    }

    /// Returns `value`, or `Closed` if the session is no longer open. Each call makes this check after the write of its record,
    /// because the record may be lost if the call races with a close. A close ends the session, then executes a barrier, and
    /// then reads the records for the last time.
    #[inline]
    pub fn still_open<T>(&self, value: T) -> Result<T> {
        self.shared.order();
        if self.place.load(Ordering::Relaxed) == self.handle {
            Ok(value)
        } else {
            Err(Error::Closed)
        }
    }

    /// The result of a call, or `Closed` if the session is no longer open. A close ends the writer, and makes all ids invalid.
    /// So a call that races with a close may fail because its id is unknown. `outcome` then returns `Closed` instead of that
    /// error.
    #[inline]
    pub fn outcome<T>(&self, result: Result<T>) -> Result<T> {
        self.still_open(()).and(result)
    }
}

/// The entry of an open session in `Process::sessions`.
#[inline]
pub fn place_of(process: &Process, handle: u64) -> Result<&AtomicU64> {
    let place = &process.sessions[place_number(handle)];
    if place.load(Ordering::Acquire) == handle {
        Ok(place)
    } else {
        Err(why_not(process, handle))
    }
}

/// The index of a session in `Process::sessions`.
#[inline]
pub fn place_number(handle: u64) -> usize {
    (handle >> 8 & 0xff) as usize
}

#[cold]
fn why_not(process: &Process, handle: u64) -> Error {
    let (generation, serial) = (handle >> GENERATION_AT, low(handle >> SERIAL_AT, SERIAL_BITS));
    let own = low(process.generation.into(), GENERATION_BITS);
    let given_out = serial != 0;
    if given_out && generation < own {
        Error::Forked
    } else if given_out && generation == own && serial < process.serial.load(Ordering::Relaxed).into() {
        Error::Closed
    } else {
        Error::Session
    }
}

/// Stores the session's handle in `OFF` if all sinks are off and stay off until another call changes the sinks, and otherwise
/// `NO_HANDLE`. The caller holds the lock of the lifecycle.
pub fn set_off(shared: &Shared, lifecycle: &Lifecycle, handle: u64) {
    valgrind::share(&OFF);
    let is_off = shared.is_off() && !lifecycle.is_starting() && lifecycle.unstarted() == Sinks::NONE;
    OFF.store(if is_off { handle } else { NO_HANDLE }, Ordering::Relaxed);
}

/// Removes this handle from `OFF`. If `OFF` already has the handle of a later session, that handle stays.
pub fn forget_off(handle: u64) {
    let _ = OFF.compare_exchange(handle, NO_HANDLE, Ordering::Relaxed, Ordering::Relaxed);
}
