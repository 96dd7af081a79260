//! Reports code to the unwinder on the thread that registers or moves the code, so that the thread need not wait for the
//! writer.
//!
//! Threads of the host report code only if the unwinder takes tables one by one, and if the sink was opened before the first
//! record. If the unwinder has a list of tables, or if the sink was opened later, the writer reports code to the unwinder.
//!
//! When a call registers or moves code, the call first writes the record of this change. Then the call reports the code to the
//! unwinder, unless the ids show that the code has ended or moved meanwhile. So the writer adds nothing to the unwinder when it
//! reads the record later. The writer still removes ended code from the unwinder, because code can end without a call, for
//! example when the code's region ends.

use super::tables::is_room;
use super::told::{told, Told};
use crate::api::error::{Error, Result};
use crate::api::Id;
use crate::format::cfi::absolute::{self, Frame};
use crate::registry::ids::Ids;
use crate::sys::thread;

/// A thread that removes pieces of code lets other threads take the lock after at most this many pieces, because LLVM libunwind
/// takes long to forget code.
const AT_A_TIME: usize = 64;

/// Decides whether calls report code to the unwinder from now on, and returns the decision. The sink must already be open, and
/// calls must not know yet that the sink runs.
pub fn begin() -> bool {
    let Some(mut told) = told() else { return false };
    told.by_callers = told.tables.iter().all(|tables| tables.are_for_callers());
    told.by_callers
}

/// Stops all reports by threads of the host when the sink ends. If calls have reported code, makes the unwinder forget all
/// code. Afterwards no call reports code, not even a call that is already running.
pub(super) fn end() {
    if told().is_some_and(|mut told| std::mem::take(&mut told.by_callers)) {
        let _ = remove_in(0, u64::MAX);
    }
}

/// Changes the tables while signals are blocked. Otherwise a signal handler could interrupt a thread that holds the unwinder's
/// lock. If the handler then unwound the stack, it would wait for ever for the lock that its own thread holds.
fn change<T>(body: impl FnOnce(&mut Told) -> T) -> Result<T> {
    thread::quietly(|| told().map(|mut told| body(&mut told)).ok_or(Error::Timeout))
}

/// Returns the entries of `eh_frame`, which are encoded for a section that directly follows the code. Fails if there is no
/// memory to register these entries.
pub fn frames(eh_frame: &[u8], place: (u64, u64)) -> Result<Vec<Frame>> {
    if !is_room() {
        return Err(Error::NoMemory);
    }
    Ok(absolute::frames(eh_frame, place).unwrap_or_default())
}

/// Code that is about to move, and its unwind entries for the new addresses.
pub struct Moving {
    ids: &'static Ids,
    id: Id,
    place: (u64, u64),
    frames: Vec<Frame>,
}

impl Moving {
    pub fn new(ids: &'static Ids, id: Id, to: u64) -> Result<Moving> {
        let place = (to, ids.size_of(id).ok_or(Error::UnknownId)?);
        let frames_at = |told: &mut Told| told.tables.first().map_or(Some(Vec::new()), |it| it.frames_at(id.0, to));
        let frames = change(frames_at)?.filter(|_| is_room()).ok_or(Error::NoMemory)?;
        Ok(Moving { ids, id, place, frames })
    }

    /// Reports the code at its new address.
    pub fn end(self) -> Result<()> {
        put(self.ids, self.id, self.place, self.frames)
    }
}

/// Reports code with these entries to the unwinder, if the code is still live in this address range.
pub fn put(ids: &Ids, id: Id, place: (u64, u64), frames: Vec<Frame>) -> Result<()> {
    let put = change(|told| {
        let is_due = told.by_callers && ids.place_of(id) == Some(place);
        told.tables.first_mut().filter(|_| is_due).map_or(Some(()), |tables| tables.put(id.0, place, frames))
    })?;
    put.ok_or(Error::NoMemory)
}

/// Removes code that has ended.
pub fn remove(id: Id) -> Result<()> {
    change(|told| told.tables.iter_mut().for_each(|tables| tables.remove(id.0)))
}

/// Removes all code in a range, after the code has ended.
pub fn remove_in(addr: u64, end: u64) -> Result<()> {
    while !change(|told| told.tables.iter_mut().all(|tables| tables.remove_in(addr, end, AT_A_TIME)))? {}
    Ok(())
}
